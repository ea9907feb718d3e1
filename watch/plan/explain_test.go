package plan_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/densityops/oooi/watch/plan"
)

// TestExplain has one record a line: the case of testdata ("" is the example as it stands), the connection, and
// what becomes of it: the target, or "closed", then the rule and words of the reason.
func TestExplain(t *testing.T) {
	for _, record := range []string{
		"- 192.0.2.117 api.example-hcp-a.clusters.example.com 443 => clusters-example-hcp-a/kube-apiserver:6443 server-name: belongs to attachment example-hcp-a, from any source",
		"- 192.0.2.117 API.Example-hcp-B.clusters.example.com 6443 => clusters-example-hcp-b/kube-apiserver:6443 server-name: belongs to attachment example-hcp-b",
		"- 10.128.0.7 ignition.example-hcp-a.clusters.example.com 443 => clusters-example-hcp-a/ignition-server-proxy:443 server-name: from any source",
		"- 192.0.2.117 oauth.example-hcp-a.clusters.example.com 6443 => closed server-name: is served on port 443 only",
		"- 192.0.2.117 kubernetes.default.svc 443 => clusters-example-hcp-a/kube-apiserver:6443 alias: Machine example-hcp-a-worker-0 of attachment example-hcp-a shows 192.0.2.117",
		"- 192.0.2.118 kubernetes 6443 => clusters-example-hcp-b/kube-apiserver:6443 alias: shows 192.0.2.118",
		"- 192.0.2.118 - 6443 => clusters-example-hcp-b/kube-apiserver:6443 no-server-name: shows 192.0.2.118",
		"- 192.0.2.117 - 443 => clusters-example-hcp-a/kube-apiserver:6443 no-server-name: shows 192.0.2.117",
		"- 192.0.2.119 kubernetes 443 => closed alias: no Machine of any attachment shows 192.0.2.119",
		"- 10.128.0.7 - 6443 => closed no-server-name: sources are addresses of 192.0.2.0/24",
		"- 192.0.2.117 www.example.com 443 => closed server-name: no attachment of this Infra has the name www.example.com",
		"- 192.0.2.117 kubernetes.default.svc.cluster.local. 443 => closed server-name: a server name has no trailing dot",
		"- 192.0.2.117 kubernetes 80 => closed port: Envoy listens on 443 and 6443, not on 80",
		"rule10-memory 192.0.2.117 - 6443 => clusters-example-hcp-a/kube-apiserver:6443 no-server-name: showed last 192.0.2.117",
		"rule10-memory-yields-to-lease 192.0.2.117 - 6443 => closed no-server-name: no Machine of any attachment shows 192.0.2.117",
		"rule11-duplicate-source 192.0.2.150 - 6443 => closed no-server-name: DuplicateSourceIP",
		"rule11-duplicate-source 192.0.2.117 - 6443 => clusters-example-hcp-a/kube-apiserver:6443 no-server-name: shows 192.0.2.117",
		"rule12-duplicate-hostname 192.0.2.117 api.example-hcp-a.clusters.example.com 443 => closed server-name: is left out (DuplicateHostname)",
		"rule12-duplicate-hostname 192.0.2.118 kubernetes 443 => closed alias: which is left out (DuplicateHostname)",
		"rule08-service-missing 192.0.2.117 konnectivity.example-hcp-a.clusters.example.com 443 => closed server-name: Service konnectivity-server (not found)",
		"rule17-namespace-not-found 192.0.2.117 api.example-hcp-a.clusters.example.com 443 => closed server-name: namespace clusters-example-hcp-a does not exist yet",
		"rule03-disabled-dhcp-and-proxy 192.0.2.117 kubernetes 443 => closed alias: infraComponents.proxy.enabled is false",
		"rule14-shared-address 192.0.2.117 kubernetes 443 => closed alias: 192.0.2.4 is the proxy address of this Infra and the proxy address of Infra other/second",
		"rule06-vip 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 443 => oooi-ingress:443_in_the_hosted_cluster apps-name: lies under *.apps.example-hcp-a.clusters.example.com of attachment example-hcp-a, from any source",
		"rule06-vip 10.128.0.7 A.b.Apps.example-hcp-b.clusters.example.com 443 => oooi-ingress:443_in_the_hosted_cluster apps-name: of attachment example-hcp-b",
		"rule06-vip 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 6443 => closed apps-name: is served on port 443 only",
		"rule06-vip 192.0.2.117 apps.example-hcp-a.clusters.example.com 443 => closed server-name: no attachment of this Infra has the name",
		"rule06-vip 10.128.0.7 console.apps.example-hcp-a.clusters.example.com 80 => oooi-ingress:80_in_the_hosted_cluster http-host: lies under *.apps.example-hcp-a.clusters.example.com",
		"rule06-vip 10.128.0.7 Console.apps.example-hcp-a.clusters.example.com.:8080 80 => oooi-ingress:80_in_the_hosted_cluster http-host: lies under",
		"rule06-vip 10.128.0.7 api.example-hcp-a.clusters.example.com 80 => closed http-host: no attachment of this Infra has the name api.example-hcp-a.clusters.example.com (answered 404)",
		"rule06-vip 10.128.0.7 *.apps.example-hcp-a.clusters.example.com 80 => closed http-host: is no host name",
		"rule06-vip 10.128.0.7 a,b.apps.example-hcp-a.clusters.example.com 80 => closed http-host: is no host name",
		"rule06-vip 10.128.0.7 console.apps.example-hcp-a.clusters.example.com: 80 => closed http-host: is no host name",
		"rule06-vip 10.128.0.7 - 80 => closed http-host: HTTP without a Host leads nowhere",
		"rule06-vip 10.128.0.7 kubernetes 80 => closed http-host: no attachment of this Infra has the name kubernetes",
		"rule06-vip 10.128.0.7 - 8080 => closed port: Envoy listens on 80, 443 and 6443, not on 8080",
		"rule06-vip-service-and-ports 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 443 => router:8443_in_the_hosted_cluster apps-name: lies under",
		"rule06-vip-outside-range 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 443 => closed server-name: is not published (Degraded, ExternalIPDiscoveryFailed: 192.0.2.220 is not published: it lies outside",
		"rule06-vip-in-range-of-another 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 80 => closed http-host: is not published (Degraded, ExternalIPDiscoveryFailed",
		"rule06-vip-in-cidr 192.0.2.117 console.apps.example-hcp-b.clusters.example.com 443 => closed server-name: apps ingress of attachment example-hcp-b is not enabled",
		"rule15-left-out 192.0.2.117 console.apps.example-hcp-a.clusters.example.com 443 => closed server-name: attachment example-hcp-a is left out (DuplicateHostname)",
		"rule16-oauth 203.0.113.7 oauth.example-hcp-a.clusters.example.com 27413 => clusters-example-hcp-a/oauth-openshift:6443 public-name: is a public name of attachment example-hcp-a",
		"rule16-oauth 203.0.113.7 OAuth.example-hcp-a.clusters.example.com external-example-hcp-a => clusters-example-hcp-a/oauth-openshift:6443 public-name: from any source",
		"rule16-oauth 203.0.113.7 api.example-hcp-a.clusters.example.com 27413 => closed public-name: the public Service of attachment example-hcp-a leads to oauth.example-hcp-a.clusters.example.com only",
		"rule16-oauth 192.0.2.117 kubernetes 27413 => closed public-name: leads to oauth",
		"rule16-oauth 192.0.2.117 - 27413 => closed public-name: leads to oauth",
		"rule16-published 203.0.113.7 oauth.example-hcp-b.clusters.example.com 20000 => closed public-name: the public Service of attachment example-hcp-a leads to",
		"rule16-oauth 203.0.113.7 oauth.example-hcp-b.clusters.example.com external-example-hcp-b => closed public-name: there is no listener external-example-hcp-b",
		"rule16-oauth 203.0.113.7 - 20001 => closed port: Envoy listens on 443 and 6443, not on 20001",
		"rule16-target-missing 203.0.113.7 oauth.example-hcp-a.clusters.example.com 27413 => closed public-name: Service oauth-openshift (not found)",
		"rule16-everything 192.0.2.117 oauth.example-hcp-a.clusters.example.com 443 => clusters-example-hcp-a/oauth-openshift:6443 server-name: belongs to attachment example-hcp-a",
	} {
		question, want, _ := strings.Cut(record, " => ")
		f := strings.Fields(question)
		target, rest, _ := strings.Cut(want, " ")
		target = strings.ReplaceAll(target, "_", " ")
		rule, why, _ := strings.Cut(rest, ": ")
		t.Run(question, func(t *testing.T) {
			s := scene{objects: load(t, readExample(t))}
			if f[0] != "-" {
				s = change(t, readExample(t), "testdata/"+f[0]+".in.yaml")
			}
			name := strings.TrimPrefix(f[2], "-")
			c := plan.Connection{Source: netip.MustParseAddr(f[1]), Name: name}
			if strings.HasPrefix(f[3], "external-") {
				c.Listener = f[3]
			} else if _, err := fmt.Sscan(f[3], &c.Port); err != nil {
				t.Fatal(err)
			}
			verdicts := s.result().Explain(c, "clusters/tenant-vlan100")
			if len(verdicts) != 1 {
				t.Fatalf("%d verdicts, want one", len(verdicts))
			}
			v := verdicts[0]
			got := cmp.Or(v.Target, "closed")
			if !v.Routed {
				got = "closed"
			}
			if got != target || v.Rule != rule || !strings.Contains(v.Why, why) {
				t.Errorf("got  %s %s: %s\nwant %s %s: %s", got, v.Rule, v.Why, target, rule, why)
			}
		})
	}
}
