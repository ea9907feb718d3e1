package e2e

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// vlan is one of the two Infras of TestTwoInfras, by its addresses and clusters.
type vlan struct {
	prefix   string // of its addresses
	clusters []string
}

// TestTwoInfras serves two VLANs from one folder, on one host that has every address of both.
func TestTwoInfras(t *testing.T) {
	t.Parallel()
	host := newHost(t, "two")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, local := range []string{"192.0.2.0/24", "203.0.113.0/24", "172.30.0.0/16", "198.51.100.53/32"} {
		ip(ctx, t, "-n "+string(host)+" route add local "+local+" dev lo")
	}

	site := newSite(t)
	if err := site.Manifests.Write("vlan200.yaml", secondInfra(t, site.Manifests)); err != nil {
		t.Fatal(err)
	}
	vlans := map[string]vlan{
		"clusters/tenant-vlan100": {"192.0.2.", []string{"example-hcp-a", "example-hcp-b"}},
		"clusters/tenant-vlan200": {"203.0.113.", []string{"example-hcp-c", "example-hcp-d"}},
	}
	for i, name := range []string{"example-hcp-a", "example-hcp-b", "example-hcp-c", "example-hcp-d"} {
		services := stack.Services(netip.MustParseAddr(fmt.Sprintf("172.30.%d.1", i+1)))
		if err := site.StartControlPlane(host, name, services); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := site.StartUpstream(host, "198.51.100.53:53"); err != nil {
		t.Fatal(err)
	}
	oooi := startOooi(ctx, t, site, host)
	envoyBinary, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	for infra, admin := range map[string]string{"clusters/tenant-vlan100": "127.0.0.1:9901", "clusters/tenant-vlan200": "127.0.0.1:9902"} {
		envoy := &stack.Envoy{
			Binary: envoyBinary, Host: host, Oooi: oooi, Infra: infra, Name: strings.TrimPrefix(infra, "clusters/"), Admin: admin,
		}
		if err := site.StartEnvoy(ctx, envoy); err != nil {
			t.Fatal(err)
		}
	}

	for infra, v := range vlans {
		within(t, infra, v.served(host, site, vlans))
	}
	for infra, v := range vlans {
		relay := stack.Relay{
			Host: host, Address: netip.MustParseAddrPort(v.prefix + "1:67"), Server: netip.MustParseAddrPort(v.prefix + "2:67"),
		}
		// One machine on both VLANs.
		ack, err := relay.Lease(ctx, net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		address := ack.YourIPAddr.String()
		if !strings.HasPrefix(address, v.prefix+"1") {
			t.Errorf("%s gave the address %s", infra, address)
		}
		table, err := oooi.Ask(ctx, "leases")
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(table, infra) || !strings.Contains(table, address) {
			t.Errorf("oooi leases lacks %s of %s:\n%s", address, infra, table)
		}
	}

	// A mistake in one Infra is no concern of the other, and itself goes on as it was.
	if err := site.Manifests.Replace("vlan200.yaml", "rangeStart: 203.0.113.100", "rangeStart: 203.0.113.240"); err != nil {
		t.Fatal(err)
	}
	within(t, "the mistake to be reported", func(ctx context.Context) error {
		text, err := oooi.Get(ctx, "/status")
		if err == nil && !strings.Contains(text, "is below rangeStart 203.0.113.240") {
			err = fmt.Errorf("/status does not tell about the pool")
		}
		return err
	})
	for infra, v := range vlans {
		within(t, infra+" to go on", v.served(host, site, vlans))
	}
}

// served is a condition: this VLAN serves its own clusters, and no other one does.
func (v vlan) served(host stack.Host, site *stack.Site, vlans map[string]vlan) func(context.Context) error {
	return func(ctx context.Context) error {
		for i, cluster := range v.clusters {
			domain := cluster + ".clusters.example.com"
			worker := netip.MustParseAddr(v.prefix + fmt.Sprint(117+i))
			for _, other := range vlans {
				address, named, alias := v.prefix+"4", cluster+"/konnectivity-server", cluster+"/kube-apiserver"
				if other.prefix != v.prefix {
					address, named, alias = stack.UpstreamAnswer, "closed", "closed"
				}
				got, err := dig(ctx, host, other.prefix+"3", "-b", other.prefix+"117", "api."+domain)
				if err != nil {
					return err
				}
				if got != address {
					return fmt.Errorf("%s3 about api.%s: got %s, want %s", other.prefix, domain, got, address)
				}
				for sni, want := range map[string]string{"konnectivity." + domain: named, "kubernetes": alias} {
					c := stack.Call{Host: host, Source: worker, SNI: sni, To: netip.MustParseAddrPort(other.prefix + "4:443")}
					answer, err := c.Try(ctx, site.CA)
					if err != nil {
						return err
					}
					if answer.String() != want {
						return fmt.Errorf("%s from %s with server name %q: got %s, want %s", c.To, worker, sni, answer, want)
					}
				}
			}
		}
		return nil
	}
}

// secondInfra is an Infra tenant-vlan200 with clusters c and d, made from the example.
func secondInfra(t *testing.T, m stack.Manifests) string {
	t.Helper()
	text, err := m.Read("infra.yaml")
	if err != nil {
		t.Fatal(err)
	}
	infra, _, _ := strings.Cut(text, "\n---\n")
	documents := []string{infra, `apiVersion: v1
kind: Service
metadata:
  name: tenant-vlan200-proxy
  namespace: clusters
spec:
  clusterIP: 172.30.0.5`}
	for i, name := range []string{"example-hcp-c", "example-hcp-d"} {
		cluster, err := stack.AnotherCluster(name, i+3, fmt.Sprintf("203.0.113.%d", 117+i))
		if err != nil {
			t.Fatal(err)
		}
		documents = append(documents, cluster)
	}
	return strings.NewReplacer("tenant-vlan100", "tenant-vlan200", "vlan100", "vlan200", "192.0.2.", "203.0.113.").
		Replace(strings.Join(documents, "\n---\n"))
}
