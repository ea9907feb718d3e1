package cluster

import (
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// infra is the example's.
const infra = "clusters/tenant-vlan100"

// TestPage applies the manifests of the source page, and holds Envoy and DNS to what HyperShift and Cluster API
// do around them.
func TestPage(t *testing.T) {
	s := newSite(t).withNeighbours(t)
	v := s.vlan(50)
	s.startBackends(t, "example-hcp-a", 1)
	s.startBackends(t, "example-hcp-b", 2)
	p := s.newProcess(t).start(t)
	s.apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: clusters}\n", s.page(t, v))
	within(t, "the empty world", s.says("Infra", infra, v1alpha1.ConditionAccepted, "True Accepted"))
	s.startEnvoy(t, p, infra, "envoy-1")
	s.apply(t, s.neighbours(t, v))
	within(t, "the page",
		s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"),
		v.resolves("api.example-hcp-a.clusters.example.com", v.address(4)),
		v.resolvesFrom(s.pod(), "api.example-hcp-a.clusters.example.com", s.services+"0.4"),
		s.answers(v.call(117, "kubernetes", portHTTPS), "example-hcp-a/kube-apiserver"),
		s.answers(v.call(118, "", portKubeAPI), "example-hcp-b/kube-apiserver"),
		s.answers(v.call(119, "ignition.example-hcp-b.clusters.example.com", portHTTPS), "example-hcp-b/ignition-server-proxy"),
		v.resolves("www.example.com", stack.UpstreamAnswer),
	)
}
