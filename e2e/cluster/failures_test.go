package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
)

type check = func(context.Context) error

// failure is a state that somebody brings about, and that is left again.
type failure struct {
	name string
	// manifests to apply, or what else brings it about.
	manifests string
	enter     func(*testing.T)
	// then is how it looks.
	then []check
	// gone are objects to remove, or what else ends it.
	gone  []*unstructured.Unstructured
	leave func(*testing.T)
}

// testFailures goes through the failure modes of the source page and of the other refusals. After each everything is as
// it was.
func testFailures(t *testing.T, p *page) {
	ica := func(name string) *unstructured.Unstructured { return ours("InfraClusterAttachment", "clusters/"+name) }
	says := func(name, condition, want string, texts ...string) check {
		return p.says("InfraClusterAttachment", "clusters/"+name, condition, want, texts...)
	}
	infraSays := func(condition, want string, texts ...string) check {
		return p.says("Infra", infra, condition, want, texts...)
	}
	hostedCluster := refers("hypershift.openshift.io/v1beta1", "HostedCluster", "clusters/example-hcp-a")
	conflictOf := func(reason string, parties ...string) check {
		checks := []check{
			infraSays(v1alpha1.ConditionReady, "False "+reason, parties...),
			infraSays(v1alpha1.ConditionAttachmentsAccepted, "False "+reason, parties...),
		}
		for _, name := range parties {
			checks = append(checks,
				says(name, v1alpha1.ConditionAccepted, "False "+reason, parties...),
				says(name, v1alpha1.ConditionReady, "False "+reason))
		}
		return all(checks...)
	}

	for _, f := range []failure{
		{
			name:      "one domain twice",
			manifests: attachment("twin", "twin", "Example-HCP-A", ""),
			then:      []check{conflictOf("DuplicateHostname", "example-hcp-a", "twin"), p.unnamed("a"), p.owns("", workers["a"]), p.untouched("b")},
			gone:      []*unstructured.Unstructured{ica("twin")},
		},
		{
			name:      "a domain that covers a name of another",
			manifests: attachment("covering", "covering", "api.example-hcp-a", ""),
			then:      []check{conflictOf("DuplicateHostname", "covering", "example-hcp-a"), p.unnamed("a"), p.untouched("b")},
			gone:      []*unstructured.Unstructured{ica("covering")},
		},
		{
			name:      "one HostedCluster twice",
			manifests: attachment("again", "example-hcp-b", "again", ""),
			then: []check{
				conflictOf("DuplicateHostedCluster", "again", "example-hcp-b"), p.unnamed("b"),
				p.resolves("api.again."+baseDomain, "203.0.113.80"), p.owns("", workers["b"]), p.untouched("a"),
			},
			gone: []*unstructured.Unstructured{ica("again")},
		},
		{
			name:      "a conflict that leaves nobody",
			manifests: attachment("twin-a", "twin-a", "example-hcp-a", "") + attachment("twin-b", "twin-b", "example-hcp-b", ""),
			then: []check{
				conflictOf("DuplicateHostname", "example-hcp-a", "twin-a"), conflictOf("DuplicateHostname", "example-hcp-b", "twin-b"),
				p.backends(0), p.resolves("kubernetes", "NXDOMAIN"), p.resolves("api."+domain("b"), "203.0.113.80"),
				p.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged"),
				func(ctx context.Context) error {
					listeners, err := p.envoy.Listeners(ctx)
					if err == nil && len(listeners) > 0 {
						err = fmt.Errorf("Envoy still listens: %v", listeners)
					}
					return err
				},
			},
			gone: []*unstructured.Unstructured{ica("twin-a"), ica("twin-b")},
		},
		{
			name:      "no control-plane namespace yet",
			manifests: attachment("early", "early", "early", ""),
			then: []check{
				says("early", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound", "clusters-early"),
				says("early", v1alpha1.ConditionControlPlaneFound, "False ControlPlaneNamespaceNotFound"),
				says("early", v1alpha1.ConditionPublishedHere, "Unknown HostedClusterNotFound", "clusters/early"),
				says("early", v1alpha1.ConditionSourcesDiscovered, "False NoNodePools"),
				p.resolves("api.early."+baseDomain, p.address(4)),
				p.answers(p.call(240, "api.early."+baseDomain, portHTTPS), "closed"),
				infraSays(v1alpha1.ConditionReady, "True Ready"), p.untouched("a"), p.untouched("b"),
			},
			gone: []*unstructured.Unstructured{ica("early")},
		},
		{
			name:      "one address shown by Machines of two clusters",
			manifests: machine("thief", "example-hcp-b", p.address(117)),
			then: []check{
				infraSays(v1alpha1.ConditionReady, "False DuplicateSourceIP", p.address(117), "thief", "example-hcp-a-worker-0"),
				infraSays(v1alpha1.ConditionSourcesUnique, "False DuplicateSourceIP", p.address(117)),
				says("example-hcp-a", v1alpha1.ConditionSourcesDiscovered, "False DuplicateSourceIP"),
				p.owns("", 117), p.named("a"), p.untouched("b"),
			},
			gone: []*unstructured.Unstructured{refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/thief")},
		},
		{
			name: "another Infra at the same address of the same network",
			manifests: p.on(p.vlan, strings.NewReplacer("tenant-vlan100", "greedy", "192.0.2.2\n", "192.0.2.12\n", "192.0.2.3\n", "192.0.2.13\n").
				Replace(documents(exampleFile(t, "infra.yaml"), "kind: Infra\n"))),
			then: []check{
				infraSays(v1alpha1.ConditionReady, "False SharedAddress", p.address(4), "clusters/greedy", "both run DHCP"),
				p.says("Infra", "clusters/greedy", v1alpha1.ConditionReady, "False SharedAddress", p.address(4), infra),
				p.gone(ours("ProxyServer", infra+"-proxy")), p.gone(ours("DHCPServer", infra+"-dhcp")),
				p.there(ours("DNSServer", infra+"-dns")), p.there(ours("DNSServer", "clusters/greedy-dns")),
			},
			gone: []*unstructured.Unstructured{
				ours("Infra", "clusters/greedy"),
				// There is no garbage collector here.
				ours("DNSServer", "clusters/greedy-dns"), ours("ProxyServer", "clusters/greedy-proxy"), ours("DHCPServer", "clusters/greedy-dhcp"),
			},
		},
		{
			name: "another Infra that runs DHCP on the same network",
			manifests: p.on(p.vlan, strings.NewReplacer("tenant-vlan100", "dhcp-too", "192.0.2.2\n", "192.0.2.12\n", "192.0.2.3\n", "192.0.2.13\n", "192.0.2.4\n", "192.0.2.14\n").
				Replace(documents(exampleFile(t, "infra.yaml"), "kind: Infra\n"))),
			then: []check{
				infraSays(v1alpha1.ConditionReady, "False SharedDHCP", "clusters/dhcp-too"),
				p.says("Infra", "clusters/dhcp-too", v1alpha1.ConditionReady, "False SharedDHCP", infra),
				p.gone(ours("DHCPServer", infra+"-dhcp")), p.untouched("a"),
			},
			gone: []*unstructured.Unstructured{
				ours("Infra", "clusters/dhcp-too"),
				ours("DNSServer", "clusters/dhcp-too-dns"), ours("ProxyServer", "clusters/dhcp-too-proxy"), ours("DHCPServer", "clusters/dhcp-too-dhcp"),
			},
		},
		{
			name:      "an attachment without its Infra",
			manifests: strings.Replace(attachment("lost", "lost", "lost", ""), "tenant-vlan100", "nowhere", 1),
			then: []check{
				says("lost", v1alpha1.ConditionReady, "False InfraNotFound", "nowhere"), says("lost", v1alpha1.ConditionAccepted, "False InfraNotFound"),
			},
			// It moves to an Infra that is there.
			leave: func(t *testing.T) {
				p.apply(t, attachment("lost", "lost", "lost", ""))
				within(t, "the attachment to be on the VLAN", says("lost", v1alpha1.ConditionAccepted, "True Accepted"), p.resolves("api.lost."+baseDomain, p.address(4)))
				p.remove(t, ica("lost"))
			},
		},
		{
			name: "workers told to dial something else",
			enter: func(t *testing.T) {
				p.patch(t, hostedCluster, `{"status":{"controlPlaneEndpoint":{"host":"api.elsewhere.example.com"}}}`, "status")
			},
			then: []check{
				says("example-hcp-a", v1alpha1.ConditionPublishedHere, "False PublishedElsewhere", "api.elsewhere.example.com", domain("a")),
				says("example-hcp-a", v1alpha1.ConditionReady, "False PublishedElsewhere"),
				p.named("a"), p.owns("a", 117), p.untouched("b"), infraSays(v1alpha1.ConditionReady, "True Ready"),
			},
			leave: func(t *testing.T) {
				p.apply(t, documents(p.neighbours(t, p.vlan), "kind: HostedCluster", "example-hcp-a"))
			},
		},
		{
			name: "a publishing strategy that cannot work",
			// HyperShift forbids to change it, so the cluster is made anew.
			enter: func(t *testing.T) {
				p.remove(t, hostedCluster)
				text := documents(p.neighbours(t, p.vlan), "kind: HostedCluster", "example-hcp-a")
				before, after, _ := strings.Cut(text, "- service: Konnectivity")
				_, status, _ := strings.Cut(after, "\nstatus:")
				p.apply(t, before+"- service: Konnectivity\n      servicePublishingStrategy: {type: LoadBalancer}\nstatus:"+status)
			},
			then: []check{
				says("example-hcp-a", v1alpha1.ConditionPublishedHere, "False UnsupportedPublishing", "Konnectivity", "LoadBalancer"),
				says("example-hcp-a", v1alpha1.ConditionReady, "False UnsupportedPublishing"), p.named("a"), p.untouched("b"),
			},
			leave: func(t *testing.T) {
				p.remove(t, hostedCluster)
				p.apply(t, documents(p.neighbours(t, p.vlan), "kind: HostedCluster", "example-hcp-a"))
			},
		},
		{
			name: "fields of older releases",
			enter: func(t *testing.T) {
				p.patch(t, ours("Infra", infra), `{"spec":{"appsIngress":{"enabled":true},"infraComponents":{"dns":{"clusterName":"old"}}}}`)
			},
			then: []check{
				infraSays(v1alpha1.ConditionNoDeprecatedFields, "False DeprecatedField", "spec.appsIngress", "spec.infraComponents.dns.clusterName"),
				infraSays(v1alpha1.ConditionReady, "True Ready"), p.untouched("a"),
			},
			leave: func(t *testing.T) {
				p.patch(t, ours("Infra", infra), `{"spec":{"appsIngress":null,"infraComponents":{"dns":{"clusterName":null}}}}`)
				within(t, "the condition to go", p.saysNot("Infra", infra, v1alpha1.ConditionNoDeprecatedFields))
			},
		},
		{
			name: "no upstream resolvers",
			enter: func(t *testing.T) {
				p.patch(t, ours("Infra", infra), `{"spec":{"networkConfig":{"dnsServers":null}}}`)
			},
			then: []check{
				infraSays(v1alpha1.ConditionUpstreamsConfigured, "False NoUpstreams"), p.resolves("www.example.com", "REFUSED"), p.untouched("a"),
			},
			leave: func(t *testing.T) { p.apply(t, p.page(t, p.vlan)) },
		},
		{
			name:  "no ClusterIP of the proxy yet",
			enter: func(t *testing.T) { p.remove(t, refers("v1", "Service", "clusters/tenant-vlan100-proxy")) },
			then: []check{
				infraSays(v1alpha1.ConditionInternalProxyResolved, "False InternalProxyPending", "clusters/tenant-vlan100-proxy"),
				p.resolvesFrom(p.pod(), "api."+domain("a"), "SERVFAIL"), p.resolves("api."+domain("a"), p.address(4)),
			},
			leave: func(t *testing.T) {
				p.apply(t, documents(p.neighbours(t, p.vlan), "kind: Service\n", "tenant-vlan100-proxy"))
			},
		},
	} {
		t.Run(f.name, func(t *testing.T) {
			if f.manifests != "" {
				p.apply(t, f.manifests)
			}
			if f.enter != nil {
				f.enter(t)
			}
			within(t, f.name, f.then...)
			p.remove(t, f.gone...)
			if f.leave != nil {
				f.leave(t)
			}
			within(t, "the end of it", p.untouched("a"), p.untouched("b"), p.wholly())
		})
		if t.Failed() {
			return
		}
	}
	t.Run("the way to sources", func(t *testing.T) { testWayToSources(t, p) })
	t.Run("Events", func(t *testing.T) { testEvents(t, p) })
}

// testWayToSources follows an attachment from nothing to its first source. Its condition's status stays False through three
// reasons, and so does the time of its last transition.
func testWayToSources(t *testing.T, p *page) {
	const name = "clusters/example-hcp-d"
	says := func(want string, texts ...string) check {
		return p.says("InfraClusterAttachment", name, v1alpha1.ConditionSourcesDiscovered, want, texts...)
	}
	transition := func() metav1.Time {
		t.Helper()
		object, err := p.fetch(t.Context(), ours("InfraClusterAttachment", name))
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := conditionOf(object, v1alpha1.ConditionSourcesDiscovered)
		if err != nil || c == nil {
			t.Fatalf("condition: %v, %v", c, err)
		}
		return c.LastTransitionTime
	}
	p.apply(t, namespace("clusters-example-hcp-d"), attachment("example-hcp-d", "example-hcp-d", "example-hcp-d", ""))
	within(t, "no NodePool", says("False NoNodePools"))
	first := transition()
	within(t, "the next second", func(context.Context) error {
		if time.Since(first.Time) < 2*time.Second {
			return fmt.Errorf("it is %s", time.Now())
		}
		return nil
	})
	p.apply(t, strings.ReplaceAll(documents(p.neighbours(t, p.vlan), "kind: NodePool", "example-hcp-a"), "example-hcp-a", "example-hcp-d"))
	within(t, "no Machine", says("False NoMachines", "clusters-example-hcp-d"))
	p.apply(t, machine("worker", "example-hcp-d"))
	within(t, "no address", says("False NoAddresses"))
	p.apply(t, machine("worker", "example-hcp-d", "10.132.0.2", "fe80::1", p.address(3)))
	within(t, "no address of a worker", says("False NoneInCIDR", "10.132.0.2", "fe80::1", p.address(3)), p.untouched("a"))
	if again := transition(); !again.Equal(&first) {
		t.Errorf("the status was False all the time, but the last transition went from %v to %v", first, again)
	}
	p.apply(t, machine("worker", "example-hcp-d", "10.132.0.2", p.address(140)))
	within(t, "the first source", says("True Discovered"))
	if last := transition(); !last.After(first.Time) {
		t.Errorf("the status became True, but the last transition is still %v", last)
	}
	p.remove(t, ours("InfraClusterAttachment", name), refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-d/worker"),
		refers("hypershift.openshift.io/v1beta1", "NodePool", "clusters/example-hcp-d"))
	within(t, "the end of it", p.wholly())
}

// testEvents looks for the Events of what has happened.
func testEvents(t *testing.T, p *page) {
	events := p.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace("clusters")
	for _, want := range []struct{ kind, name, reason, eventType, text string }{
		{"Infra", "tenant-vlan100", "DuplicateHostname", "Warning", "twin"},
		{"Infra", "tenant-vlan100", "DuplicateSourceIP", "Warning", p.address(117)},
		{"Infra", "tenant-vlan100", "Ready", "Normal", ""},
		{"InfraClusterAttachment", "early", "ControlPlaneNamespaceNotFound", "Warning", "clusters-early"},
		{"InfraClusterAttachment", "lost", "InfraNotFound", "Warning", "nowhere"},
		{"InfraClusterAttachment", "example-hcp-b", "DuplicateHostedCluster", "Warning", "again"},
	} {
		within(t, "the Event "+want.reason+" of "+want.name, func(ctx context.Context) error {
			list, err := events.List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=" + want.kind + ",involvedObject.name=" + want.name + ",reason=" + want.reason})
			if err != nil {
				return err
			}
			for _, e := range list.Items {
				message, _, _ := unstructured.NestedString(e.Object, "message")
				kind, _, _ := unstructured.NestedString(e.Object, "type")
				if kind == want.eventType && strings.Contains(message, want.text) {
					return nil
				}
			}
			return fmt.Errorf("of %d Events none is a %s about %q", len(list.Items), want.eventType, want.text)
		})
	}
}
