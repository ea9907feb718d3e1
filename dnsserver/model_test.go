package dnsserver

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/miekg/dns"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestAnswers reads like dig: who asks what => what comes back.
func TestAnswers(t *testing.T) {
	forwardedEntry := v1alpha1.StaticEntry{Hostname: "*.apps." + domainB, IP: "192.0.2.210", PodView: v1alpha1.PodViewForwarded}
	tests := map[string]struct {
		server  *v1alpha1.DNSServer
		records string
	}{
		"the page's example": {pageExample(), `
			vlan api.A. A          => NOERROR aa A 192.0.2.4
			vlan api-int.A. A      => NOERROR aa A 192.0.2.4
			vlan oauth.A. A        => NOERROR aa A 192.0.2.4
			vlan ignition.A. A     => NOERROR aa A 192.0.2.4
			vlan konnectivity.A. A => NOERROR aa A 192.0.2.4
			vlan konnectivity.B. A => NOERROR aa A 192.0.2.4
			pods api.A. A          => NOERROR aa A 10.96.0.40
			pods konnectivity.B. A => NOERROR aa A 10.96.0.40
			vlan kubernetes. A                           => NOERROR aa A 192.0.2.4
			vlan kubernetes.default. A                   => NOERROR aa A 192.0.2.4
			vlan kubernetes.default.svc. A               => NOERROR aa A 192.0.2.4
			vlan kubernetes.default.svc.cluster.local. A => NOERROR aa A 192.0.2.4
			pods kubernetes. A                           => forwarded
			pods kubernetes.default.svc.cluster.local. A => forwarded
		`},
		"every other type of an owned name is empty, with the SOA of its zone": {pageExample(), `
			vlan api.A. AAAA   => NOERROR aa | api.A. SOA 30
			vlan api.A. HTTPS  => NOERROR aa | api.A. SOA 30
			vlan api.A. SVCB   => NOERROR aa | api.A. SOA 30
			vlan api.A. MX     => NOERROR aa | api.A. SOA 30
			vlan api.A. DS     => NOERROR aa | api.A. SOA 30
			vlan api.A. CNAME  => NOERROR aa | api.A. SOA 30
			pods oauth.B. AAAA => NOERROR aa | oauth.B. SOA 30
			vlan api.A. SOA    => NOERROR aa SOA api.A.
			vlan api.A. ANY    => NOERROR aa A 192.0.2.4
			vlan kubernetes. TXT => NOERROR aa | kubernetes. SOA 30
			vlan api.A. AAAA norecurse => NOERROR aa | api.A. SOA 30
			vlan api.A. A norecurse    => NOERROR aa A 192.0.2.4
		`},
		"names are owned, domains are not": {pageExample(), `
			vlan A. A                     => forwarded
			vlan A. SOA                   => forwarded
			vlan clusters.example.com. NS => forwarded
			vlan x.api.A. A               => forwarded
			vlan apix.A. A                => forwarded
			vlan foo.kubernetes. A        => forwarded
			vlan svc.cluster.local. A     => forwarded
			vlan default. A               => forwarded
			vlan . NS                     => forwarded
			vlan www.example.org. ANY     => forwarded
			vlan www.example.org. A norecurse => REFUSED
			pods www.example.org. A       => forwarded
		`},
		"a wildcard owns what is below its parent": {pageExample(), `
			vlan console.apps.A. A    => NOERROR aa A 192.0.2.200
			pods console.apps.A. A    => NOERROR aa A 10.96.0.40
			vlan a.b.apps.A. A        => NOERROR aa A 192.0.2.200
			vlan *.apps.A. A          => NOERROR aa A 192.0.2.200
			vlan a.*.apps.A. A        => NXDOMAIN aa | apps.A. SOA 30
			vlan console.apps.A. AAAA => NOERROR aa | apps.A. SOA 30
			vlan a.b.apps.A. HTTPS    => NOERROR aa | apps.A. SOA 30
			vlan a.b.apps.A. SOA      => NOERROR aa | apps.A. SOA 30
			vlan apps.A. A            => NOERROR aa | apps.A. SOA 30
			vlan apps.A. SOA          => NOERROR aa SOA apps.A.
			vlan apps.A. ANY          => NOERROR aa SOA apps.A.
			vlan apps.B. A            => forwarded
			vlan console.apps.B. A    => forwarded
			vlan xapps.A. A           => forwarded
			vlan A. A                 => forwarded
			pods console.apps.A. HTTPS => NOERROR aa | apps.A. SOA 30
			pods console.apps.A. AAAA  => NOERROR aa | apps.A. SOA 30
			pods apps.A. A             => NOERROR aa | apps.A. SOA 30
			pods apps.A. AAAA          => NOERROR aa | apps.A. SOA 30
			vlan console.apps.A. ANY   => NOERROR aa A 192.0.2.200
			stranger console.apps.A. A => REFUSED
		`},
		"five names under apps are apps, five names of the domain are not": {pageExample(), `
			vlan api.apps.A. A       => NOERROR aa A 192.0.2.200
			vlan oauth.apps.A. A     => NOERROR aa A 192.0.2.200
			vlan api.x.apps.A. A     => NOERROR aa A 192.0.2.200
			vlan api.A. A            => NOERROR aa A 192.0.2.4
			vlan apps.api.A. A       => forwarded
			vlan x.apps.api.A. A     => forwarded
			vlan apps.apps.A. A      => NOERROR aa A 192.0.2.200
			vlan kubernetes.apps.A. A => NOERROR aa A 192.0.2.200
			pods api.apps.A. A       => NOERROR aa A 10.96.0.40
		`},
		"a cluster whose domain lies below another's, apps both": {pageExample(under("sub." + domainA)...), `
			vlan api.sub.A. A        => NOERROR aa A 192.0.2.4
			vlan x.apps.sub.A. A     => NOERROR aa A 192.0.2.220
			vlan apps.sub.A. A       => NOERROR aa | apps.sub.A. SOA 30
			vlan x.apps.sub.A. AAAA  => NOERROR aa | apps.sub.A. SOA 30
			vlan sub.A. A            => forwarded
			vlan x.sub.A. A          => forwarded
			vlan sub.apps.A. A       => NOERROR aa A 192.0.2.200
			vlan apps.sub.apps.A. A  => NOERROR aa A 192.0.2.200
			vlan x.apps.A. A         => NOERROR aa A 192.0.2.200
			pods x.apps.sub.A. A     => NOERROR aa A 10.96.0.40
		`},
		"a cluster whose domain lies below one of another's five names": {pageExample(under("x.api." + domainA)...), `
			vlan api.A. A            => NOERROR aa A 192.0.2.4
			vlan api.A. AAAA         => NOERROR aa | api.A. SOA 30
			vlan x.api.A. A          => forwarded
			vlan api.x.api.A. A      => NOERROR aa A 192.0.2.4
			vlan y.apps.x.api.A. A   => NOERROR aa A 192.0.2.220
			vlan y.apps.api.A. A     => forwarded
		`},
		"a closer name blocks the wildcard": {pageExample(add("db.internal.apps."+domainA, "192.0.2.9")), `
			vlan db.internal.apps.A. A    => NOERROR aa A 192.0.2.9
			vlan db.internal.apps.A. AAAA => NOERROR aa | apps.A. SOA 30
			vlan db.internal.apps.A. SOA  => NOERROR aa | apps.A. SOA 30
			vlan internal.apps.A. A       => NOERROR aa | apps.A. SOA 30
			vlan web.internal.apps.A. A   => NXDOMAIN aa | apps.A. SOA 30
			vlan x.db.internal.apps.A. A  => NXDOMAIN aa | apps.A. SOA 30
			vlan a.b.apps.A. A            => NOERROR aa A 192.0.2.200
		`},
		"a wildcard within a wildcard's zone": {pageExample(add("*.dev.apps."+domainA, "192.0.2.9")), `
			vlan x.dev.apps.A. A => NOERROR aa A 192.0.2.9
			vlan x.dev.apps.A. MX => NOERROR aa | apps.A. SOA 30
			vlan dev.apps.A. A   => NOERROR aa | apps.A. SOA 30
			vlan dev.apps.A. SOA => NOERROR aa | apps.A. SOA 30
			vlan x.apps.A. A     => NOERROR aa A 192.0.2.200
		`},
		"the wildcard's parent is owned itself": {pageExample(add("apps."+domainA, "192.0.2.9")), `
			vlan apps.A. A    => NOERROR aa A 192.0.2.9
			vlan x.apps.A. A  => NOERROR aa A 192.0.2.200
			vlan apps.A. AAAA => NOERROR aa | apps.A. SOA 30
		`},
		"aliases before there is a source": {pageExample(each(pendingAliases)), `
			vlan kubernetes. A              => NXDOMAIN aa | kubernetes. SOA 5
			vlan kubernetes. AAAA           => NXDOMAIN aa | kubernetes. SOA 5
			vlan kubernetes.default. A      => NXDOMAIN aa | kubernetes.default. SOA 5
			vlan kubernetes.default.svc. A  => NXDOMAIN aa | kubernetes.default.svc. SOA 5
			vlan kubernetes.default.svc.cluster.local. A => NXDOMAIN aa | kubernetes.default.svc.cluster.local. SOA 5
			vlan foo.kubernetes. A          => forwarded
			pods kubernetes. A              => forwarded
			vlan api.A. A                   => NOERROR aa A 192.0.2.4
		`},
		"hosted clusters hidden from pods": {pageExample(each(hidden)), `
			vlan api.A. A          => NOERROR aa A 192.0.2.4
			vlan console.apps.A. A => NOERROR aa A 192.0.2.200
			pods api.A. A          => NXDOMAIN aa | api.A. SOA 30
			pods api.A. AAAA       => NXDOMAIN aa | api.A. SOA 30
			pods api.A. SOA        => NXDOMAIN aa | api.A. SOA 30
			pods console.apps.A. A => NXDOMAIN aa | apps.A. SOA 30
			pods apps.A. A         => NXDOMAIN aa | apps.A. SOA 30
			pods console.apps.A. HTTPS => NXDOMAIN aa | apps.A. SOA 30
			pods x.api.A. A        => forwarded
		`},
		"the internal proxy has no ClusterIP yet": {pageExample(noInternalProxy), `
			vlan api.A. A    => NOERROR aa A 192.0.2.4
			pods api.A. A    => SERVFAIL
			pods api.A. AAAA => SERVFAIL
			vlan console.apps.A. A    => NOERROR aa A 192.0.2.200
			pods console.apps.A. A    => SERVFAIL
			pods console.apps.A. AAAA => SERVFAIL
			pods apps.A. A            => NOERROR aa | apps.A. SOA 30
			pods www.example.org. A => forwarded
		`},
		"the same in both views": {pageExample(add("registry.example.net", "192.0.2.9"), add("soon.example.net", "")), `
			vlan registry.example.net. A => NOERROR aa A 192.0.2.9
			pods registry.example.net. A => NOERROR aa A 192.0.2.9
			vlan soon.example.net. A     => NXDOMAIN aa | soon.example.net. SOA 5
			pods soon.example.net. A     => NXDOMAIN aa | soon.example.net. SOA 5
		`},
		"a wildcard for the VLAN only": {pageExample(addEntry(forwardedEntry)), `
			vlan x.apps.B. A => NOERROR aa A 192.0.2.210
			pods x.apps.B. A => forwarded
			pods apps.B. A   => forwarded
		`},
		"no upstreams": {pageExample(noUpstreams), `
			vlan www.example.org. A => REFUSED
			vlan x.api.A. A         => REFUSED
			pods kubernetes. A      => REFUSED
			vlan api.A. A           => NOERROR aa A 192.0.2.4
		`},
		"no names at all": {pageExample(func(s *v1alpha1.DNSServerSpec) { s.StaticEntries = nil }), `
			vlan api.A. A => forwarded
		`},
		"strangers, transfers and meta types": {pageExample(), `
			stranger api.A. A           => REFUSED
			stranger www.example.org. A => REFUSED
			vlan api.A. AXFR            => REFUSED
			vlan www.example.org. IXFR  => REFUSED
			vlan www.example.org. TSIG  => REFUSED
			vlan api.A. OPT             => REFUSED
		`},
	}
	short := strings.NewReplacer("A. ", domainA+". ", "B. ", domainB+". ")
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			m := mustBuild(t, test.server)
			for line := range strings.Lines(strings.TrimSpace(test.records)) {
				question, want, _ := strings.Cut(line, "=>")
				question = strings.TrimSpace(short.Replace(question))
				want = strings.TrimSpace(short.Replace(strings.TrimSpace(want) + " "))
				if got := record(t, m, question); got != want {
					t.Errorf("%s\n got %s\nwant %s", question, got, want)
				}
			}
		})
	}
}

func add(hostname, ip string) func(*v1alpha1.DNSServerSpec) {
	return addEntry(v1alpha1.StaticEntry{Hostname: hostname, IP: ip})
}

func addEntry(e v1alpha1.StaticEntry) func(*v1alpha1.DNSServerSpec) {
	return func(s *v1alpha1.DNSServerSpec) { s.StaticEntries = append(s.StaticEntries, e) }
}

// under are the names of one more hosted cluster, with apps at 192.0.2.220.
func under(domain string) []func(*v1alpha1.DNSServerSpec) {
	edits := []func(*v1alpha1.DNSServerSpec){
		addEntry(v1alpha1.StaticEntry{Hostname: "*.apps." + domain, IP: "192.0.2.220", PodView: v1alpha1.PodViewInternalProxy}),
	}
	for _, name := range fiveNames {
		edits = append(edits, addEntry(v1alpha1.StaticEntry{Hostname: name + "." + domain, IP: "192.0.2.4", PodView: v1alpha1.PodViewInternalProxy}))
	}
	return edits
}

func noInternalProxy(s *v1alpha1.DNSServerSpec) { s.NetworkConfig.InternalProxyIP = "" }
func noUpstreams(s *v1alpha1.DNSServerSpec)     { s.UpstreamDNS = nil }

// TestVLANInsidePrivateRange: the VLAN is looked at before the pod networks.
func TestVLANInsidePrivateRange(t *testing.T) {
	m := mustBuild(t, pageExample(func(s *v1alpha1.DNSServerSpec) {
		s.NetworkConfig.SecondaryNetworkCIDR = "10.128.0.0/24"
		s.NetworkConfig.ServerIP = "10.128.0.3"
	}))
	if got, want := record(t, m, "pods api."+domainA+". A"), "NOERROR aa A 192.0.2.4"; got != want {
		t.Errorf("a client in the VLAN and in a private range got %s, want %s", got, want)
	}
}

func TestRecordsGolden(t *testing.T) {
	m := mustBuild(t, pageExample(each(pendingAliases), add("db.internal.apps."+domainA, "192.0.2.9"), func(s *v1alpha1.DNSServerSpec) {
		s.UpstreamDNS = append(s.UpstreamDNS, "198.51.100.54:5353", "resolv.conf")
		s.StaticEntries[0].PodView = v1alpha1.PodViewHidden
	}))
	const golden = "testdata/records.golden"
	got := m.String()
	if *update {
		if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("records (-want +got):\n%s", diff)
	}
	// The order of the entries is the reconciler's business and changes nothing.
	shuffled := pageExample(each(pendingAliases))
	entries := shuffled.Spec.StaticEntries
	for i, j := 0, len(entries)-1; i < j; i, j = i+1, j-1 {
		entries[i], entries[j] = entries[j], entries[i]
	}
	if diff := cmp.Diff(mustBuild(t, pageExample(each(pendingAliases))).String(), mustBuild(t, shuffled).String()); diff != "" {
		t.Errorf("the order of the entries shows (-given +reversed):\n%s", diff)
	}
}

// TestRecordsAreWhatIsAnswered asks for every record of the golden model.
func TestRecordsAreWhatIsAnswered(t *testing.T) {
	m := mustBuild(t, pageExample(each(pendingAliases), noInternalProxy))
	records := m.Records()
	if len(records) != 16+12 { // five names of two, four aliases in one view, a wildcard and its parent
		t.Errorf("%d records, want 28", len(records))
	}
	for _, r := range records {
		e, err := m.Explain(clients[string(r.View)], r.Name, dns.TypeA)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		if r.Address != "" {
			want = []string{"A " + r.Address}
		}
		if e.RCode != r.RCode || e.Rule != r.Rule || !cmp.Equal(e.Answers, want) {
			t.Errorf("%s of view %s: record says %+v, answer %+v", r.Name, r.View, r, e)
		}
	}
}

func TestExplain(t *testing.T) {
	pending := pageExample(each(pendingAliases), each(hidden), add("db.internal.apps."+domainA, "192.0.2.9"))
	tests := []struct {
		server *v1alpha1.DNSServer
		client string
		name   string
		qtype  uint16
		want   Explanation
	}{
		{pageExample(), "vlan", "api." + domainA, dns.TypeA, Explanation{
			View: ViewVLAN, RCode: "NOERROR", Authoritative: true, Answers: []string{"A 192.0.2.4"}, Rule: "answered",
			Why: "api.A. is owned: its address in view vlan",
		}},
		{pageExample(), "vlan", "x.y.apps." + domainA, dns.TypeA, Explanation{
			View: ViewVLAN, RCode: "NOERROR", Authoritative: true, Answers: []string{"A 192.0.2.200"}, Rule: "wildcard",
			Why: "x.y.apps.A. is covered by *.apps.A., which is owned: its address in view vlan",
		}},
		{pageExample(), "pods", "api." + domainA, dns.TypeAAAA, Explanation{
			View: ViewPods, RCode: "NOERROR", Authoritative: true, Rule: "nodata",
			Why: "api.A. is owned and has no AAAA record; no type of an owned name is forwarded",
		}},
		{pageExample(), "pods", "kubernetes.default.svc", dns.TypeA, Explanation{
			View: ViewPods, Upstreams: []string{"198.51.100.53:53"}, Rule: "forwarded",
			Why: "kubernetes.default.svc. is not owned in view pods: it is forwarded",
		}},
		{pending, "vlan", "kubernetes", dns.TypeA, Explanation{
			View: ViewVLAN, RCode: "NXDOMAIN", Authoritative: true, Rule: "pending",
			Why: "kubernetes. is owned but not published yet: nobody could be routed by it; ask again in 5 s",
		}},
		{pending, "pods", "api." + domainA, dns.TypeA, Explanation{
			View: ViewPods, RCode: "NXDOMAIN", Authoritative: true, Rule: "hidden",
			Why: "api.A. is hidden from view pods: the Infra has no internalProxyService",
		}},
		{pending, "vlan", "web.internal.apps." + domainA, dns.TypeA, Explanation{
			View: ViewVLAN, RCode: "NXDOMAIN", Authoritative: true, Rule: "blocked",
			Why: "web.internal.apps.A. does not exist: internal.apps.A. is closer to it than the wildcard and blocks that (RFC 4592)",
		}},
		{pageExample(noInternalProxy), "pods", "api." + domainA, dns.TypeA, Explanation{
			View: ViewPods, RCode: "SERVFAIL", Rule: "unresolved",
			Why: "api.A. is owned, but its internalProxyService has no ClusterIP yet",
		}},
		{pageExample(noUpstreams), "vlan", "www.example.org", dns.TypeA, Explanation{
			View: ViewVLAN, RCode: "REFUSED", Rule: "no-upstreams",
			Why: "www.example.org. is not owned in view vlan, and the Infra has no dnsServers to ask",
		}},
		{pageExample(), "stranger", "api." + domainA, dns.TypeA, Explanation{
			View: "none", RCode: "REFUSED", Rule: "stranger",
			Why: "203.0.113.9 is neither in the VLAN 192.0.2.0/24 nor in a pod network",
		}},
	}
	for _, test := range tests {
		got, err := mustBuild(t, test.server).Explain(clients[test.client], test.name, test.qtype)
		if err != nil {
			t.Fatal(err)
		}
		test.want.Name, test.want.Type = dns.Fqdn(test.name), dns.TypeToString[test.qtype]
		test.want.Why = strings.ReplaceAll(test.want.Why, "A. ", domainA+". ")
		test.want.Why = strings.ReplaceAll(test.want.Why, "A., ", domainA+"., ")
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s asks for %s (-want +got):\n%s", test.client, test.name, diff)
		}
	}
	if _, err := mustBuild(t, pageExample()).Explain(clients["vlan"], strings.Repeat("a", 64)+".com", dns.TypeA); err == nil {
		t.Error("a label of 64 characters can be asked for")
	}
}
