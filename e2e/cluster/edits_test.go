package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// testEdits changes children by hand: what oooi decides is put back, the rest is left alone.
func testEdits(t *testing.T, p *page) {
	proxy, dns, dhcp := ours("ProxyServer", infra+"-proxy"), ours("DNSServer", infra+"-dns"), ours("DHCPServer", infra+"-dhcp")
	before := map[*unstructured.Unstructured]any{}
	for _, child := range []*unstructured.Unstructured{proxy, dns, dhcp} {
		object, err := p.fetch(t.Context(), child)
		if err != nil {
			t.Fatal(err)
		}
		before[child] = object.Object["spec"]
	}
	asBefore := func(child *unstructured.Unstructured) check {
		return func(ctx context.Context) error {
			object, err := p.fetch(ctx, child)
			if err == nil && !apiequality.Semantic.DeepEqual(object.Object["spec"], before[child]) {
				err = fmt.Errorf("spec of %s: %v, want %v", child.GetName(), object.Object["spec"], before[child])
			}
			return err
		}
	}
	for _, edit := range []struct {
		name  string
		child *unstructured.Unstructured
		patch string
	}{
		{"a changed field", dns, fmt.Sprintf(`{"spec":{"networkConfig":{"proxyIP":%q}}}`, p.address(99))},
		{"a changed list", proxy, `{"spec":{"backends":[]}}`},
		{"a removed field", dns, `{"spec":{"upstreamDNS":null}}`},
		{"an added field", proxy, `{"spec":{"logLevel":"trace","proxyImage":"registry.example.com/other"}}`},
		{"an added list", dhcp, `{"spec":{"options":[{"code":66,"value":"192.0.2.66"}]}}`},
		{"owners taken away", dns, `{"metadata":{"ownerReferences":null}}`},
	} {
		t.Run(edit.name, func(t *testing.T) {
			p.patch(t, edit.child, edit.patch)
			within(t, "the edit to be put back", asBefore(edit.child), p.owned(edit.child, infra), p.untouched("a"), p.wholly())
		})
	}
	t.Run("an added list of a child that changes all the time", func(t *testing.T) {
		failures := p.writeFailures(t)
		changing, stop := context.WithCancel(t.Context())
		stopped := make(chan error, 1)
		go func() { stopped <- p.changeStatus(changing, dhcp) }()
		for range 3 {
			p.patch(t, dhcp, `{"spec":{"options":[{"code":66,"value":"192.0.2.66"}]}}`)
			within(t, "the edit to be put back", asBefore(dhcp))
		}
		stop()
		if err := <-stopped; err != nil {
			t.Fatal(err)
		}
		if now := p.writeFailures(t); now != failures {
			t.Errorf("%v writes failed", now-failures)
		}
		within(t, "everything as before", asBefore(dhcp), p.untouched("a"), p.wholly())
	})
	for _, edit := range []struct {
		name   string
		object *unstructured.Unstructured
		patch  string
	}{
		{"status of the Infra", ours("Infra", infra), `{"status":{"conditions":[],"attachments":{"total":99,"ready":98},"componentStatus":{"dnsReady":false}}}`},
		{"status of an attachment", ours("InfraClusterAttachment", "clusters/example-hcp-a"), `{"status":{"conditions":null,"sources":null,"domain":"wrong.example.com"}}`},
		{"status of the ProxyServer", proxy, `{"status":{"conditions":[],"backendCount":99}}`},
		{"Envoys of the ProxyServer", proxy, `{"status":{"envoys":[]}}`},
		{"status of the DNSServer", dns, `{"status":{"conditions":[]}}`},
		{"status of the DHCPServer", dhcp, `{"status":{"conditions":[],"activeLeases":99}}`},
	} {
		t.Run(edit.name, func(t *testing.T) {
			p.patch(t, edit.object, edit.patch, "status")
			within(t, "the edit to be put back", p.untouched("a"), p.wholly(), p.remembers("example-hcp-a", p.address(117), true))
		})
	}
	t.Run("deleted with streams open", func(t *testing.T) {
		stream, _, err := p.call(240, "api."+domain("a"), portHTTPS).Hold(t.Context(), p.CA)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = stream.Close() }()
		p.remove(t, proxy)
		start := time.Now()
		within(t, "the child to be back", asBefore(proxy), p.untouched("a"), func(context.Context) error {
			if err := stream.Alive(); err != nil {
				return stack.Final(fmt.Errorf("after %s: %w", time.Since(start), err))
			}
			if time.Since(start) < 3*time.Second {
				return errors.New("the drain time is not over")
			}
			return nil
		})
	})
	for _, child := range []*unstructured.Unstructured{proxy, dns, dhcp} {
		t.Run("deleted "+child.GetKind(), func(t *testing.T) {
			p.remove(t, child)
			within(t, "the child to be back", asBefore(child), p.owned(child, infra), p.untouched("a"), p.untouched("b"), p.wholly())
		})
	}
	t.Run("labels and annotations of others", func(t *testing.T) {
		p.patch(t, proxy, `{"metadata":{"labels":{"example.com/team":"night"},"annotations":{"example.com/note":"mine"}}}`)
		p.apply(t, machine("mark", "example-hcp-b", p.address(160)))
		within(t, "a later write", p.owns("b", 160))
		object, err := p.fetch(t.Context(), proxy)
		if err != nil {
			t.Fatal(err)
		}
		if object.GetLabels()["example.com/team"] != "night" || object.GetAnnotations()["example.com/note"] != "mine" {
			t.Errorf("labels %v, annotations %v", object.GetLabels(), object.GetAnnotations())
		}
		p.remove(t, refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/mark"))
		within(t, "everything as before", asBefore(proxy), p.wholly())
	})
	t.Run("a component switched off", func(t *testing.T) {
		p.patch(t, ours("Infra", infra), `{"spec":{"infraComponents":{"dhcp":{"enabled":false}}}}`)
		within(t, "the DHCPServer to go", p.gone(dhcp), p.untouched("a"),
			p.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"))
		p.patch(t, ours("Infra", infra), `{"spec":{"infraComponents":{"dhcp":{"enabled":true}}}}`)
		within(t, "the DHCPServer to be back", asBefore(dhcp), p.wholly())
	})
}

// changeStatus writes the status of a DHCPServer, as one that serves does, as fast as it can and until ctx ends.
func (s *site) changeStatus(ctx context.Context, child *unstructured.Unstructured) error {
	resource, err := s.Resource(child)
	if err != nil {
		return err
	}
	for n := 0; ctx.Err() == nil; n++ {
		patch := fmt.Appendf(nil, `{"status":{"totalLeases":%d}}`, n)
		if _, err := resource.Patch(ctx, child.GetName(), types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}

// writeFailures is how often the process could not write an Infra.
func (p *page) writeFailures(t *testing.T) float64 {
	t.Helper()
	text, err := p.oooi.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	return metric(t, text, "oooi_api_write_failures_total")
}

// owned is a condition: a child is controlled by its Infra, and by nobody else.
func (s *site) owned(child *unstructured.Unstructured, infra string) check {
	return func(ctx context.Context) error {
		object, err := s.fetch(ctx, child)
		if err != nil {
			return err
		}
		owner, err := s.fetch(ctx, ours("Infra", infra))
		if err != nil {
			return err
		}
		if refs := object.GetOwnerReferences(); len(refs) != 1 || !metav1.IsControlledBy(object, owner) || refs[0].Kind != "Infra" {
			return fmt.Errorf("owners of %s: %v", object.GetName(), refs)
		}
		return nil
	}
}

// second is another Infra, in a namespace of its own, that the third cluster is on.
const second = "other/second"

// testSecondInfra serves two Infras: neither touches what is the other's.
func testSecondInfra(t *testing.T, p *page) {
	v := p.site.vlan(51)
	versions := func() map[string]types.UID {
		uids := map[string]types.UID{}
		for kind, name := range map[string]string{"ProxyServer": "-proxy", "DNSServer": "-dns", "DHCPServer": "-dhcp"} {
			object, err := p.fetch(t.Context(), ours(kind, infra+name))
			if err != nil {
				t.Fatal(err)
			}
			uids[kind+" "+fmt.Sprint(object.GetGeneration())] = object.GetUID()
		}
		return uids
	}
	before := versions()
	around := p.anotherCluster(t, p.vlan, "example-hcp-c", 3, 130)
	p.apply(t, strings.Replace(around, documents(around, "kind: InfraClusterAttachment"), "", 1))
	p.apply(t, namespace("other"), secondInfra(p, v), secondAttachment)
	envoy := p.startEnvoy(t, p.oooi, second, "envoy-of-second")
	within(t, "the second Infra",
		p.says("Infra", second, v1alpha1.ConditionReady, "True Ready"), p.owned(ours("ProxyServer", second+"-proxy"), second),
		p.answers(v.call(240, "api.hcp.second.example.com", portHTTPS), "example-hcp-c/kube-apiserver"),
		v.resolves("api.hcp.second.example.com", v.address(4)),
		v.resolvesFrom(p.pod(), "api.hcp.second.example.com", "NXDOMAIN"), // no internalProxyService: hidden from pods
		p.untouched("a"), p.untouched("b"), p.wholly(),
		p.resolves("api.hcp.second.example.com", "203.0.113.80"), v.resolves("api."+domain("a"), "203.0.113.80"),
		p.answers(p.call(240, "api.hcp.second.example.com", portHTTPS), "closed"), p.answers(v.call(240, "api."+domain("a"), portHTTPS), "closed"),
	)
	if after := versions(); !apiequality.Semantic.DeepEqual(before, after) {
		t.Errorf("children of the first Infra went from %v to %v", before, after)
	}
	within(t, "its listeners", func(ctx context.Context) error {
		listeners, err := envoy.Listeners(ctx)
		if err == nil && listeners["https"] != fmt.Sprintf("%s:%d", v.address(4), portHTTPS) {
			err = errors.New(fmt.Sprint(listeners))
		}
		return err
	})
}

// secondAttachment puts the control plane of the third cluster on the second Infra.
const secondAttachment = `apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: hcp, namespace: other}
spec: {infraRef: {name: second}, hostedClusterRef: {name: example-hcp-c}, dns: {clusterName: hcp, baseDomain: second.example.com}}
`

// secondInfra is an Infra that keeps its clusters from pods.
func secondInfra(p *page, v vlan) string {
	return fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: second, namespace: other}
spec:
  networkConfig: {cidr: %s0/24, gateway: %s1, networkAttachmentDefinition: vlan101, dnsServers: ["%s"]}
  infraComponents:
    dhcp: {serverIP: %s2, rangeStart: %s100, rangeEnd: %s199}
    dns: {serverIP: %s3}
    proxy: {serverIP: %s4}
`, v.prefix, v.prefix, p.upstreamAddress(), v.prefix, v.prefix, v.prefix, v.prefix, v.prefix)
}
