package dnsserver

import (
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	domainA = "example-hcp-a.clusters.example.com"
	domainB = "example-hcp-b.clusters.example.com"
)

var (
	fiveNames = []string{"api", "api-int", "oauth", "ignition", "konnectivity"}
	aliases   = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
)

// pageExample is the DNSServer of two attachments, A with apps ingress, and of the aliases.
func pageExample(edits ...func(*v1alpha1.DNSServerSpec)) *v1alpha1.DNSServer {
	spec := v1alpha1.DNSServerSpec{
		NetworkConfig: v1alpha1.DNSNetworkConfig{
			ServerIP:             "192.0.2.3",
			ProxyIP:              "192.0.2.4",
			InternalProxyIP:      "10.96.0.40",
			SecondaryNetworkCIDR: "192.0.2.0/24",
			DNSPort:              53,
		},
		UpstreamDNS: []string{"198.51.100.53"},
		CacheTTL:    "30s",
	}
	for _, domain := range []string{domainA, domainB} {
		for _, name := range fiveNames {
			spec.StaticEntries = append(spec.StaticEntries, v1alpha1.StaticEntry{
				Hostname: name + "." + domain, IP: "192.0.2.4", PodView: v1alpha1.PodViewInternalProxy,
			})
		}
	}
	for _, alias := range aliases {
		spec.StaticEntries = append(spec.StaticEntries, v1alpha1.StaticEntry{
			Hostname: alias, IP: "192.0.2.4", PodView: v1alpha1.PodViewForwarded,
		})
	}
	spec.StaticEntries = append(spec.StaticEntries, v1alpha1.StaticEntry{
		Hostname: "*.apps." + domainA, IP: "192.0.2.200", PodView: v1alpha1.PodViewInternalProxy,
	})
	for _, edit := range edits {
		edit(&spec)
	}
	return &v1alpha1.DNSServer{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "tenant-vlan100-dns"},
		Spec:       spec,
	}
}

func each(f func(*v1alpha1.StaticEntry)) func(*v1alpha1.DNSServerSpec) {
	return func(spec *v1alpha1.DNSServerSpec) {
		for i := range spec.StaticEntries {
			f(&spec.StaticEntries[i])
		}
	}
}

func pendingAliases(e *v1alpha1.StaticEntry) {
	if strings.HasPrefix(e.Hostname, "kubernetes") {
		e.IP = ""
	}
}

func hidden(e *v1alpha1.StaticEntry) {
	if e.PodView == v1alpha1.PodViewInternalProxy {
		e.PodView = v1alpha1.PodViewHidden
	}
}

func mustBuild(t testing.TB, server *v1alpha1.DNSServer) *Model {
	t.Helper()
	m, err := Build(server, Options{PodNetworks: PrivateNetworks()})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// clients of the records: one of each view, and a stranger.
var clients = map[string]netip.Addr{
	"vlan":     netip.MustParseAddr("192.0.2.117"),
	"pods":     netip.MustParseAddr("10.128.0.7"),
	"stranger": netip.MustParseAddr("203.0.113.9"),
}

// record runs one question "VIEW NAME TYPE [norecurse]" through the packet function and returns what
// dig would show of it.
func record(t *testing.T, m *Model, question string) string {
	t.Helper()
	fields := strings.Fields(question)
	msg := new(dns.Msg).SetQuestion(fields[1], dns.StringToType[fields[2]])
	msg.RecursionDesired = len(fields) < 4
	wire, err := msg.Pack()
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, len(wire)+replyRoom)
	r := m.respond(buf, copy(buf, wire), clients[fields[0]])
	if r.n == 0 {
		return r.outcome.String()
	}
	answer := new(dns.Msg)
	if err := answer.Unpack(buf[:r.n]); err != nil {
		t.Fatalf("%s: %v", question, err)
	}
	if answer.Id != msg.Id || !answer.Response || answer.Question[0] != msg.Question[0] {
		t.Fatalf("%s: not an answer to it: %v", question, answer)
	}
	return show(answer)
}

// show is a message in one line: RCODE, flags, answers, and SOA with its owner and negative TTL.
func show(m *dns.Msg) string {
	out := []string{dns.RcodeToString[m.Rcode]}
	if m.Rcode == dns.RcodeBadVers {
		out[0] = "BADVERS" // the number is BADSIG's as well
	}
	if m.Authoritative {
		out = append(out, "aa")
	}
	if m.Truncated {
		out = append(out, "tc")
	}
	if !m.RecursionAvailable {
		out = append(out, "no-ra")
	}
	for _, rr := range m.Answer {
		if soa, ok := rr.(*dns.SOA); ok {
			out = append(out, "SOA "+soa.Hdr.Name)
			continue
		}
		out = append(out, data(rr))
	}
	for _, rr := range m.Ns {
		if soa, ok := rr.(*dns.SOA); ok {
			out = append(out, fmt.Sprintf("| %s SOA %d", soa.Hdr.Name, min(soa.Hdr.Ttl, soa.Minttl)))
		}
	}
	return strings.Join(out, " ")
}
