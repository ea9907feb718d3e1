package cluster

import (
	"fmt"
	"strings"
	"testing"
)

// TestLiveLeases holds the hub, under the roles that deploy ships, to the end of product rule 10: a remembered address yields
// to a live DHCP lease of another MAC.
func TestLiveLeases(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t)
	p := &page{site: s, vlan: s.vlan(1)}
	s.apply(t, s.page(t, p.vlan), s.neighbours(t, p.vlan))
	s.newHub(t).start(t)
	marks := 0
	// stays checks that the address is remembered after all that was done before has been planned.
	stays := func(what string) {
		t.Helper()
		marks++
		s.apply(t, machine("mark", "example-hcp-b", p.address(170+marks)))
		within(t, "the changes to be seen", p.remembers("example-hcp-b", p.address(170+marks), true))
		within(t, what, p.remembers("example-hcp-a", p.address(150), true))
	}

	s.apply(t, machine("moody", "example-hcp-a", p.address(150)))
	within(t, "the worker", p.remembers("example-hcp-a", p.address(150), true))
	s.apply(t, machine("moody", "example-hcp-a"))
	stays("the worker that shows no address")
	s.apply(t, p.leaseManifest("somebody-elses", 150, 9, "active", "2100-01-01T00:00:00Z"))
	stays("the lease of another Infra")
	s.apply(t, p.leaseManifest("tenant-vlan100", 150, 9, "active", "2026-01-01T00:00:00Z"))
	stays("the lease that is over")
	s.apply(t, p.leaseManifest("tenant-vlan100", 150, 9, "released", "2100-01-01T00:00:00Z"))
	stays("the lease that was given back")
	s.apply(t, p.leaseManifest("tenant-vlan100", 150, 9, "active", "2100-01-01T00:00:00Z"))
	within(t, "the live lease to take the address", p.remembers("example-hcp-a", p.address(150), false))

	// What kubectl shows of it.
	row, err := s.row(t.Context(), "clusters", "dhcpleases", "tenant-vlan100-"+strings.ReplaceAll(p.address(150), ".", "-"))
	if err != nil {
		t.Fatal(err)
	}
	for column, want := range map[string]string{
		"Address": p.address(150), "MAC": "52:54:00:00:00:09", "Hostname": "worker-9", "State": "active", "Expires": "2100-01-01T00:00:00Z",
	} {
		if row[column] != want {
			t.Errorf("column %s is %q, want %q", column, row[column], want)
		}
	}
}

// leaseManifest is the manifest of a DHCPLease.
func (v vlan) leaseManifest(infra string, host int, mac byte, state, expires string) string {
	address := v.address(host)
	return fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: DHCPLease
metadata:
  name: %s-%s
  namespace: clusters
  labels: {hostedcluster.densityops.com/infra: %s}
spec: {address: %s, mac: "52:54:00:00:00:%02x", hostname: worker-%d, start: "2026-01-01T00:00:00Z", expires: %q, state: %s}
---
`, infra, strings.ReplaceAll(address, ".", "-"), infra, address, mac, mac, expires, state)
}
