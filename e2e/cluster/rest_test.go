package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/controlplane"
)

// restPeriod is for how long oooi must write nothing: longer than every period that it has, but for Leases.
const restPeriod = 20 * time.Second

// testRest counts what oooi writes while nothing changes that it reads: nothing, Leases aside.
func testRest(t *testing.T, p *page) {
	p.quiet(t, 2*time.Second)
	mark := p.mark(t)
	// Neighbours write all the time.
	for i := range 20 {
		for _, letter := range []string{"a", "b"} {
			machine := refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-"+letter+"/example-hcp-"+letter+"-worker-0")
			p.patch(t, machine, fmt.Sprintf(`{"metadata":{"annotations":{"example.com/beat":"%d"}}}`, i))
			p.patch(t, machine, fmt.Sprintf(`{"status":{"phase":"Running","lastUpdated":%q}}`, time.Now().Add(time.Duration(i)*time.Second).UTC().Format(time.RFC3339)), "status")
			p.patch(t, refers("hypershift.openshift.io/v1beta1", "HostedCluster", "clusters/example-hcp-"+letter), fmt.Sprintf(`{"metadata":{"labels":{"beat":"%d"}}}`, i))
			p.patch(t, refers("v1", "Service", "clusters-example-hcp-"+letter+"/kube-apiserver"), fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
		}
	}
	p.atRest(t, mark)
	within(t, "everything as before", p.untouched("a"), p.untouched("b"), p.wholly())
}

func (s *site) mark(t *testing.T) controlplane.Mark {
	t.Helper()
	mark, err := s.Mark()
	if err != nil {
		t.Fatal(err)
	}
	return mark
}

// writes are those of oooi since a mark, Leases aside.
func (s *site) writes(t *testing.T, since controlplane.Mark) []controlplane.Request {
	t.Helper()
	requests, err := s.Requests(since)
	if err != nil {
		t.Fatal(err)
	}
	var writes []controlplane.Request
	for _, r := range requests {
		if r.Write() && r.Resource != "leases" && strings.HasPrefix(r.Agent, "oooi/") {
			writes = append(writes, r)
		}
	}
	return writes
}
