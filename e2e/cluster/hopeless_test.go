package cluster

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// plainInfra is an Infra in a namespace of its own name, on a network of its own.
func (s *site) plainInfra(name string, v vlan) string {
	return namespace(name) + fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: %s, namespace: %s}
spec:
  networkConfig: {cidr: %s0/24, gateway: %s1, networkAttachmentDefinition: vlan, dnsServers: ["%s"]}
  infraComponents:
    dhcp: {serverIP: %s2, rangeStart: %s100, rangeEnd: %s199}
    dns: {serverIP: %s3}
    proxy: {serverIP: %s4}
---
`, name, name, v.prefix, v.prefix, s.upstreamAddress(), v.prefix, v.prefix, v.prefix, v.prefix, v.prefix)
}

// plainAttachment is an attachment to a plainInfra, of a cluster that is not there.
func plainAttachment(infra, name string) string {
	return fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: %s, namespace: %s}
spec: {infraRef: {name: %s}, hostedClusterRef: {name: %s}, dns: {clusterName: %s, baseDomain: example.com}}
---
`, name, infra, infra, name, name)
}

// testOccupied has an Infra whose ProxyServer's name is taken by an object that somebody else controls.
func testOccupied(t *testing.T, s *site) {
	const occupied = "occupied/occupied-proxy"
	s.apply(t, namespace("occupied"))
	owner := s.apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: somebody, namespace: occupied}\n")[0]
	s.apply(t, fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: ProxyServer
metadata:
  name: occupied-proxy
  namespace: occupied
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: somebody, uid: %s, controller: true}]
spec: {networkConfig: {serverIP: 192.0.2.77}}
`, owner.GetUID()))
	before, err := s.fetch(t.Context(), ours("ProxyServer", occupied))
	if err != nil {
		t.Fatal(err)
	}
	s.apply(t, s.plainInfra("occupied", s.vlan(70)), plainAttachment("occupied", "hcp"))
	within(t, "the rest of the Infra", s.there(ours("DNSServer", "occupied/occupied-dns")), s.there(ours("DHCPServer", "occupied/occupied-dhcp")),
		s.says("InfraClusterAttachment", "occupied/hcp", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound"),
		s.says("Infra", "occupied/occupied", v1alpha1.ConditionReady, "False NotServing", "occupied-proxy", "ConfigMap", "somebody"))
	s.patch(t, ours("Infra", "occupied/occupied"), `{"spec":{"infraComponents":{"proxy":{"logLevel":"debug"}}}}`)
	within(t, "a change of the Infra to be seen", s.says("Infra", "occupied/occupied", v1alpha1.ConditionAccepted, "True Accepted"))
	s.quiet(t, time.Second)
	after, err := s.fetch(t.Context(), ours("ProxyServer", occupied))
	if err != nil {
		t.Fatal(err)
	}
	if after.GetResourceVersion() != before.GetResourceVersion() {
		t.Errorf("somebody's ProxyServer was changed: %v", after.Object)
	}
	s.remove(t, ours("ProxyServer", occupied))
	within(t, "the Infra to have its ProxyServer", s.owned(ours("ProxyServer", occupied), "occupied/occupied"))
	s.remove(t, ours("Infra", "occupied/occupied"))
}

// forbidding is an admission policy that no ProxyServer in namespace blocked passes.
const forbidding = `apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: no-proxies}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
      - {apiGroups: [hostedcluster.densityops.com], apiVersions: ["*"], operations: [CREATE, UPDATE], resources: [proxyservers]}
  validations: [{expression: "object.metadata.namespace != 'blocked'", message: "not on a Sunday"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: no-proxies}
spec: {policyName: no-proxies, validationActions: [Deny]}
`

// testHopeless has an Infra whose ProxyServer the API server refuses. Writing it fails for ever, which costs nobody else
// anything.
func testHopeless(t *testing.T, s *site, p *process) {
	s.apply(t, namespace("blocked"))
	policy := s.apply(t, forbidding)
	within(t, "the policy to be in force", func(ctx context.Context) error {
		probe := ours("ProxyServer", "blocked/probe")
		probe.Object["spec"] = map[string]any{"networkConfig": map[string]any{"serverIP": "192.0.2.77"}}
		if _, err := s.ApplyObject(ctx, writer, probe); err == nil {
			s.remove(t, probe)
			return errors.New("it lets ProxyServers pass")
		}
		return nil
	})
	mark := s.mark(t)
	s.apply(t, s.plainInfra("blocked", s.vlan(73)), plainAttachment("blocked", "hcp"))
	within(t, "the rest of the blocked Infra", s.there(ours("DNSServer", "blocked/blocked-dns")), s.there(ours("DHCPServer", "blocked/blocked-dhcp")),
		s.says("InfraClusterAttachment", "blocked/hcp", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound"),
		s.says("Infra", "blocked/blocked", v1alpha1.ConditionReady, "False NotServing", "blocked-proxy", "not on a Sunday"))
	tries := func() []controlplane.Request {
		t.Helper()
		var tries []controlplane.Request
		for _, w := range s.writes(t, mark) {
			if w.Resource == "proxyservers" && w.Name == "blocked-proxy" {
				tries = append(tries, w)
			}
		}
		return tries
	}
	settled := len(tries()) // the first ones may be of plans with and without the attachment
	// Others change all the time meanwhile, and are written at once.
	s.apply(t, s.plainInfra("lively", s.vlan(71)))
	for i := range 30 {
		s.apply(t, plainAttachment("lively", fmt.Sprintf("hcp-%d", i)))
	}
	within(t, "the others", s.says("InfraClusterAttachment", "lively/hcp-29", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound"),
		func(ctx context.Context) error {
			proxy, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", "lively/lively-proxy")
			if err == nil && len(proxy.Spec.Backends) != 150 {
				err = fmt.Errorf("%d backends", len(proxy.Spec.Backends))
			}
			return err
		})
	within(t, "more tries", func(context.Context) error {
		if n := len(tries()); n < settled+3 {
			return fmt.Errorf("%d, %d at first", n, settled)
		}
		return nil
	})
	// From then on each wait is about twice the one before, whatever happens elsewhere.
	all := tries()
	for i := settled + 1; i < settled+3; i++ {
		before, after := all[i-1].Time.Sub(all[i-2].Time), all[i].Time.Sub(all[i-1].Time)
		if after < before*3/2 || after < 900*time.Millisecond {
			t.Errorf("try %d came %s after the one before, and that %s: too early", i+1, after, before)
		}
	}
	text, err := p.Get(t.Context(), "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	if n := metric(t, text, "oooi_api_write_failures_total"); n < 3 {
		t.Errorf("oooi_api_write_failures_total is %v after %d failures", n, len(all))
	}

	s.remove(t, policy...)
	within(t, "the Infra to have its ProxyServer", s.owned(ours("ProxyServer", "blocked/blocked-proxy"), "blocked/blocked"))
	s.remove(t, ours("Infra", "blocked/blocked"), ours("Infra", "lively/lively"))
}

// testTooLarge puts attachments on an Infra up to the limit, and one more.
func testTooLarge(t *testing.T, s *site) {
	s.apply(t, s.plainInfra("large", s.vlan(72)))
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(8)
	for i := range 300 {
		group.Go(func() error {
			_, err := s.Apply(ctx, writer, []byte(plainAttachment("large", fmt.Sprintf("hcp-%03d", i))))
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	written := func(attachments int32) check {
		return func(ctx context.Context) error {
			infra, err := read[v1alpha1.Infra](ctx, s, "Infra", "large/large")
			if err != nil {
				return err
			}
			proxy, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", "large/large-proxy")
			if err != nil {
				return err
			}
			if infra.Status.Attachments.Total != attachments || len(proxy.Spec.Backends) != 1500 {
				return fmt.Errorf("%d attachments, %d backends", infra.Status.Attachments.Total, len(proxy.Spec.Backends))
			}
			return nil
		}
	}
	within(t, "300 attachments", written(300), s.says("Infra", "large/large", v1alpha1.ConditionAccepted, "True Accepted"),
		s.says("InfraClusterAttachment", "large/hcp-299", v1alpha1.ConditionAccepted, "True Accepted"))
	s.quiet(t, time.Second)
	children := func() map[string]string {
		t.Helper()
		versions := map[string]string{}
		for kind, name := range map[string]string{"ProxyServer": "large-proxy", "DNSServer": "large-dns", "DHCPServer": "large-dhcp"} {
			object, err := s.fetch(t.Context(), ours(kind, "large/"+name))
			if err != nil {
				t.Fatal(err)
			}
			versions[name] = fmt.Sprint(object.GetUID(), " generation ", object.GetGeneration())
		}
		return versions
	}
	before := children()
	s.apply(t, plainAttachment("large", "hcp-300"))
	within(t, "the refusal", written(301),
		s.says("Infra", "large/large", v1alpha1.ConditionReady, "False TooLarge", "301 attachments", "300"),
		s.says("Infra", "large/large", v1alpha1.ConditionAccepted, "False TooLarge"))
	s.quiet(t, time.Second)
	if after := children(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("children were %v and are %v", before, after)
	}
	s.remove(t, ours("InfraClusterAttachment", "large/hcp-000"))
	within(t, "300 attachments again", written(300), s.says("Infra", "large/large", v1alpha1.ConditionAccepted, "True Accepted"))
	s.remove(t, ours("Infra", "large/large"))
}
