package cluster

import (
	"context"
	"fmt"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// infra is the example's.
const infra = "clusters/tenant-vlan100"

// page is the example in a cluster, served by one process and one Envoy.
type page struct {
	*site
	vlan
	oooi  *process
	envoy *stack.Envoy
}

// TestPage applies the manifests of the source page, and holds DNS, Envoy, children and statuses to what HyperShift and
// Cluster API do around them.
func TestPage(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	p := &page{site: s, vlan: s.vlan(50)}
	s.startBackends(t, "example-hcp-a", 1)
	s.startBackends(t, "example-hcp-b", 2)
	s.startBackends(t, "example-hcp-c", 3)
	p.oooi = s.newProcess(t).start(t)
	s.apply(t, namespace("clusters"), s.page(t, p.vlan))
	within(t, "the Infra without anything around it",
		s.says("Infra", infra, v1alpha1.ConditionAccepted, "True Accepted"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound", "clusters-example-hcp-a"),
		p.resolves("api."+domain("a"), p.address(4)),
		p.resolvesFrom(s.pod(), "api."+domain("a"), "SERVFAIL"), // internalProxyService has no ClusterIP yet
		p.resolves("kubernetes", "NXDOMAIN"),
	)
	p.envoy = s.startEnvoy(t, p.oooi, infra, "envoy-1")
	s.apply(t, s.neighbours(t, p.vlan))
	within(t, "the page", p.untouched("a"), p.untouched("b"), p.wholly())

	for _, test := range []struct {
		name string
		run  func(*testing.T, *page)
	}{
		{"worker", testWorker},
		{"attachment", testAttachment},
		{"Service", testService},
		{"NodePool", testNodePool},
		{"memory of sources", testMemory},
		{"failures", testFailures},
		{"edits", testEdits},
		{"a second Infra", testSecondInfra},
		{"refused by Envoy", testRefused},
		{"a second process", testSecondProcess},
		{"ready", testReady},
		{"inside", testInside},
		{"rest", testRest},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, p) }) {
			break // it left the world in disorder
		}
	}
}

// domain of one of the example's clusters.
func domain(letter string) string { return "example-hcp-" + letter + "." + baseDomain }

// worker addresses of the example.
var workers = map[string]int{"a": 117, "b": 118}

// named is a condition: names lead to a cluster, in DNS and in Envoy.
func (p *page) named(letter string) func(context.Context) error {
	cluster := "example-hcp-" + letter
	return all(
		p.resolves("api."+domain(letter), p.address(4)),
		p.resolvesFrom(p.pod(), "oauth."+domain(letter), p.services+"0.4"),
		p.answers(p.call(240, "api."+domain(letter), portHTTPS), cluster+"/kube-apiserver"),
		p.answers(p.call(240, "api-int."+domain(letter), portKubeAPI), cluster+"/kube-apiserver"),
		p.answers(p.call(240, "oauth."+domain(letter), portHTTPS), cluster+"/oauth-openshift"),
		p.answers(p.call(240, "ignition."+domain(letter), portHTTPS), cluster+"/ignition-server-proxy"),
		p.answers(p.call(240, "konnectivity."+domain(letter), portHTTPS), cluster+"/konnectivity-server"),
	)
}

// unnamed is a condition: nothing is left of a cluster's names.
func (p *page) unnamed(letter string) func(context.Context) error {
	return all(
		p.resolves("api."+domain(letter), stack.UpstreamAnswer), // a name like any other
		p.answers(p.call(240, "api."+domain(letter), portHTTPS), "closed"),
		p.answers(p.call(240, "ignition."+domain(letter), portHTTPS), "closed"),
	)
}

// owns is a condition: an alias, and TLS without a server name, lead a source to a cluster, or nowhere with "".
func (p *page) owns(letter string, source int) func(context.Context) error {
	want := "closed"
	if letter != "" {
		want = "example-hcp-" + letter + "/kube-apiserver"
	}
	return all(
		p.answers(p.call(source, "kubernetes.default.svc", portHTTPS), want),
		p.answers(p.call(source, "", portKubeAPI), want),
	)
}

// untouched is a condition: a cluster of the example works in full.
func (p *page) untouched(letter string) func(context.Context) error {
	return all(p.named(letter), p.owns(letter, workers[letter]), p.resolves("kubernetes", p.address(4)),
		p.says("InfraClusterAttachment", "clusters/example-hcp-"+letter, v1alpha1.ConditionReady, "True Ready"),
		p.says("InfraClusterAttachment", "clusters/example-hcp-"+letter, v1alpha1.ConditionSourcesDiscovered, "True Discovered"))
}

// wholly is a condition: the Infra, its children and its counts are as they should be with two attachments.
func (p *page) wholly() func(context.Context) error {
	return all(
		p.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"),
		p.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged"),
		p.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionReady, "True Acknowledged"),
		p.says("DNSServer", infra+"-dns", v1alpha1.ConditionReady, "True Ready"),
		p.says("DHCPServer", infra+"-dhcp", v1alpha1.ConditionReady, "True Ready"),
		func(ctx context.Context) error {
			i, err := read[v1alpha1.Infra](ctx, p.site, "Infra", infra)
			if err != nil {
				return err
			}
			want := v1alpha1.InfraStatus{
				ComponentStatus: v1alpha1.ComponentStatus{DHCPReady: true, DNSReady: true, ProxyReady: true},
				Attachments:     v1alpha1.AttachmentCount{Total: 2, Ready: 2},
			}
			if i.Status.ComponentStatus != want.ComponentStatus || i.Status.Attachments != want.Attachments {
				return fmt.Errorf("status of the Infra: %+v", i.Status)
			}
			return nil
		},
		p.backends(14),
	)
}

// backends is a condition: how many backends the ProxyServer has.
func (p *page) backends(want int) func(context.Context) error {
	return func(ctx context.Context) error {
		proxy, err := read[v1alpha1.ProxyServer](ctx, p.site, "ProxyServer", infra+"-proxy")
		if err == nil && (len(proxy.Spec.Backends) != want || int(proxy.Status.BackendCount) != want) {
			err = fmt.Errorf("%d backends, status says %d, want %d", len(proxy.Spec.Backends), proxy.Status.BackendCount, want)
		}
		return err
	}
}

func testWorker(t *testing.T, p *page) {
	within(t, "nobody's address", p.owns("", 121))
	p.apply(t, machine("late", "example-hcp-b", p.address(121), "10.132.0.2", "fe80::1"))
	within(t, "the new worker", p.owns("b", 121))
	p.apply(t, machine("late", "example-hcp-b", p.address(122), "10.132.0.2"))
	within(t, "the worker at another address", p.owns("b", 122), p.owns("", 121))
	p.remove(t, refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/late"))
	within(t, "the worker is gone", p.owns("", 122), p.untouched("a"), p.untouched("b"))
}

func testAttachment(t *testing.T, p *page) {
	p.apply(t, p.anotherCluster(t, p.vlan, "example-hcp-c", 3, 130))
	within(t, "the third cluster", p.named("c"), p.owns("c", 130), p.backends(21))
	p.remove(t, ours("InfraClusterAttachment", "clusters/example-hcp-c"))
	within(t, "the third cluster is gone", p.unnamed("c"), p.owns("", 130), p.wholly())
}

func testService(t *testing.T, p *page) {
	const service = "clusters-example-hcp-a/oauth-openshift"
	p.remove(t, refers("v1", "Service", service))
	within(t, "the cluster without its OAuth server",
		p.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionControlPlaneFound, "False ServiceNotFound", "oauth-openshift"),
		p.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionReady, "False ServiceNotFound"),
		p.answers(p.call(240, "oauth."+domain("a"), portHTTPS), "closed"),
		p.resolves("oauth."+domain("a"), p.address(4)), // names do not depend on Services
		p.answers(p.call(240, "ignition."+domain("a"), portHTTPS), "example-hcp-a/ignition-server-proxy"),
		p.owns("a", workers["a"]), p.untouched("b"),
	)
	// It comes back elsewhere: at the address of the third cluster's.
	p.remove(t, refers("v1", "Service", "clusters-example-hcp-c/oauth-openshift"))
	p.apply(t, fmt.Sprintf("apiVersion: v1\nkind: Service\nmetadata: {namespace: clusters-example-hcp-a, name: oauth-openshift}\nspec: {clusterIP: %s3.2, ports: [{port: 6443}]}\n", p.services))
	within(t, "the OAuth server at its new address", p.answers(p.call(240, "oauth."+domain("a"), portHTTPS), "example-hcp-c/oauth-openshift"))
	p.remove(t, refers("v1", "Service", service))
	p.apply(t, documents(p.neighbours(t, p.vlan), "name: oauth-openshift", "example-hcp-a"))
	within(t, "everything as before", p.untouched("a"), p.untouched("b"), p.wholly())
}

func testNodePool(t *testing.T, p *page) {
	p.remove(t, refers("hypershift.openshift.io/v1beta1", "NodePool", "clusters/example-hcp-b"))
	within(t, "the cluster without a NodePool",
		p.says("InfraClusterAttachment", "clusters/example-hcp-b", v1alpha1.ConditionSourcesDiscovered, "False NoNodePools", "example-hcp-b"),
		p.owns("", workers["b"]), p.named("b"), p.untouched("a"), p.backends(12))
	p.remove(t, refers("hypershift.openshift.io/v1beta1", "NodePool", "clusters/example-hcp-a"))
	within(t, "no cluster with a NodePool", p.resolves("kubernetes", "NXDOMAIN"), p.owns("", workers["a"]), p.named("a"), p.backends(10))
	p.apply(t, documents(p.neighbours(t, p.vlan), "kind: NodePool"))
	within(t, "everything as before", p.untouched("a"), p.untouched("b"), p.wholly())
}
