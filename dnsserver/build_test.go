package dnsserver

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestBadSpecs: each wrong field, and the exact error that it gives.
func TestBadSpecs(t *testing.T) {
	type spec = *v1alpha1.DNSServerSpec
	tests := map[string]func(spec){
		`spec.networkConfig.secondaryNetworkCIDR: "192.0.2.0" is not an IPv4 prefix`: func(s spec) { s.NetworkConfig.SecondaryNetworkCIDR = "192.0.2.0" },
		`spec.networkConfig.secondaryNetworkCIDR: "" is not an IPv4 prefix`:          func(s spec) { s.NetworkConfig.SecondaryNetworkCIDR = "" },
		`spec.networkConfig.secondaryNetworkCIDR: "fd00::/64" is not an IPv4 prefix`: func(s spec) { s.NetworkConfig.SecondaryNetworkCIDR = "fd00::/64" },
		`spec.networkConfig.serverIP: "" is not an IPv4 address`:                     func(s spec) { s.NetworkConfig.ServerIP = "" },
		`spec.networkConfig.serverIP: "fd00::3" is not an IPv4 address`:              func(s spec) { s.NetworkConfig.ServerIP = "fd00::3" },
		`spec.networkConfig.serverIP: "0.0.0.0" is not an IPv4 address`:              func(s spec) { s.NetworkConfig.ServerIP = "0.0.0.0" },
		`spec.networkConfig.internalProxyIP: "tenant-proxy" is not an IPv4 address`:  func(s spec) { s.NetworkConfig.InternalProxyIP = "tenant-proxy" },
		`spec.networkConfig.dnsPort: 65536 is not a port`:                            func(s spec) { s.NetworkConfig.DNSPort = 65536 },
		`spec.networkConfig.dnsPort: -1 is not a port`:                               func(s spec) { s.NetworkConfig.DNSPort = -1 },
		`spec.cacheTTL: "soon" is not a duration of zero or more, for example 30s`:   func(s spec) { s.CacheTTL = "soon" },
		`spec.cacheTTL: "-1s" is not a duration of zero or more, for example 30s`:    func(s spec) { s.CacheTTL = "-1s" },
		`spec.staticEntries[0].hostname: "" is empty`:                                func(s spec) { s.StaticEntries[0].Hostname = "" },
		`spec.staticEntries[0].hostname: "API.x" is not in lower case`:               func(s spec) { s.StaticEntries[0].Hostname = "API.x" },
		`spec.staticEntries[0].hostname: "a..b" has an empty label or a trailing dot`: func(s spec) {
			s.StaticEntries[0].Hostname = "a..b"
		},
		`spec.staticEntries[0].hostname: "a.b." has an empty label or a trailing dot`: func(s spec) {
			s.StaticEntries[0].Hostname = "a.b."
		},
		`spec.staticEntries[0].hostname: "a b.c" has a character that host names do not have`: func(s spec) {
			s.StaticEntries[0].Hostname = "a b.c"
		},
		`spec.staticEntries[0].hostname: "*" may have an asterisk as its first label only, and with a parent below it`: func(s spec) {
			s.StaticEntries[0].Hostname = "*"
		},
		`spec.staticEntries[0].hostname: "a.*.b" may have an asterisk as its first label only, and with a parent below it`: func(s spec) {
			s.StaticEntries[0].Hostname = "a.*.b"
		},
		`spec.staticEntries[0].hostname: "` + strings.Repeat("a", 64) + `.b" has a label longer than 63 characters`: func(s spec) {
			s.StaticEntries[0].Hostname = strings.Repeat("a", 64) + ".b"
		},
		`spec.staticEntries[0].hostname: "` + strings.Repeat("a.", 127) + `bc" is longer than 255 bytes`: func(s spec) {
			s.StaticEntries[0].Hostname = strings.Repeat("a.", 127) + "bc"
		},
		`spec.staticEntries[1].hostname: "api.` + domainA + `" is the name of staticEntries[0] already`: func(s spec) {
			s.StaticEntries[1].Hostname = s.StaticEntries[0].Hostname
		},
		`spec.staticEntries[0].ip: "192.0.2" is not an IPv4 address`: func(s spec) { s.StaticEntries[0].IP = "192.0.2" },
		`spec.staticEntries[0].ip: "fd00::4" is not an IPv4 address`: func(s spec) { s.StaticEntries[0].IP = "fd00::4" },
		`spec.staticEntries[0].podView: "Visible" is none of Same, InternalProxy, Hidden, Forwarded`: func(s spec) {
			s.StaticEntries[0].PodView = "Visible"
		},
		`spec.upstreamDNS[0]: "dns.example" is neither an address, nor address:port, nor resolv.conf`: func(s spec) { s.UpstreamDNS[0] = "dns.example" },
		`spec.upstreamDNS[0]: "198.51.100.53:0" is no address that can be asked`:                      func(s spec) { s.UpstreamDNS[0] = "198.51.100.53:0" },
		`spec.upstreamDNS[0]: "0.0.0.0" is no address that can be asked`:                              func(s spec) { s.UpstreamDNS[0] = "0.0.0.0" },
		`spec.upstreamDNS[0]: "224.0.0.1" is no address that can be asked`:                            func(s spec) { s.UpstreamDNS[0] = "224.0.0.1" },
		`spec.upstreamDNS[0]: 192.0.2.3 is this server itself; name another resolver`:                 func(s spec) { s.UpstreamDNS[0] = "192.0.2.3" },
	}
	for want, edit := range tests {
		_, err := Build(pageExample(edit), Options{})
		if err == nil {
			t.Errorf("no error, want %s", want)
			continue
		}
		if got := err.Error(); got != "DNSServer clusters/tenant-vlan100-dns: "+want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}

func TestBuildNamesEveryWrongField(t *testing.T) {
	_, err := Build(pageExample(func(s *v1alpha1.DNSServerSpec) {
		s.NetworkConfig.ServerIP = "x"
		s.UpstreamDNS = []string{"y"}
	}), Options{})
	if err == nil || !strings.Contains(err.Error(), "serverIP") || !strings.Contains(err.Error(), "upstreamDNS[0]") {
		t.Errorf("got %v, want both fields named", err)
	}
}

func TestUpstreamForms(t *testing.T) {
	m := mustBuild(t, pageExample(func(s *v1alpha1.DNSServerSpec) {
		s.UpstreamDNS = []string{"198.51.100.53", "198.51.100.53:53", "198.51.100.53:5353", "2001:db8::53", "[2001:db8::53]:5353", "resolv.conf"}
	}))
	want := "198.51.100.53:53, 198.51.100.53:5353, [2001:db8::53]:53, [2001:db8::53]:5353, resolv.conf"
	if got := join(m.upstreams); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestServerAddr(t *testing.T) {
	m := mustBuild(t, pageExample(func(s *v1alpha1.DNSServerSpec) { s.NetworkConfig.DNSPort = 0 }))
	if got, want := m.ServerAddr(), netip.MustParseAddrPort("192.0.2.3:53"); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestBuildDoesNotKeepTheSpec(t *testing.T) {
	server := pageExample()
	m := mustBuild(t, server)
	before := m.String()
	server.Spec.StaticEntries[0].IP = "192.0.2.99"
	server.Spec.UpstreamDNS[0] = "192.0.2.98"
	if diff := cmp.Diff(before, m.String()); diff != "" {
		t.Errorf("the model follows its spec (-before +after):\n%s", diff)
	}
}

// TestTwoStepPublishing follows one change: b's names come, a's konnectivity goes, the aliases appear,
// the proxy moves.
func TestTwoStepPublishing(t *testing.T) {
	current := pageExample(each(pendingAliases), func(s *v1alpha1.DNSServerSpec) {
		s.StaticEntries = append(s.StaticEntries[:5:5], s.StaticEntries[10:]...) // without b
	})
	next := pageExample(func(s *v1alpha1.DNSServerSpec) {
		s.StaticEntries = append(s.StaticEntries[:4:4], s.StaticEntries[5:]...) // without a's konnectivity
		each(func(e *v1alpha1.StaticEntry) {
			if e.IP == "192.0.2.4" {
				e.IP = "192.0.2.5"
			}
		})(s)
		s.UpstreamDNS = []string{"198.51.100.54"}
	})
	untouched := next.DeepCopy()
	first, more := WithoutNew(&current.Spec, &next.Spec)
	if !more {
		t.Error("nothing is left for the second step")
	}
	if diff := cmp.Diff(untouched, next); diff != "" {
		t.Errorf("the next spec was changed: %s", diff)
	}
	step := current.DeepCopy()
	step.Spec = *first
	m := mustBuild(t, step)
	for question, want := range map[string]string{
		"vlan api." + domainA + ". A":          "NOERROR aa A 192.0.2.5",
		"vlan konnectivity." + domainA + ". A": "forwarded",
		"vlan api." + domainB + ". A":          "forwarded",
		"vlan kubernetes. A":                   "NXDOMAIN aa | kubernetes. SOA 5",
		"pods kubernetes. A":                   "forwarded",
		"vlan x.apps." + domainA + ". A":       "NOERROR aa A 192.0.2.200",
	} {
		if got := record(t, m, question); got != want {
			t.Errorf("first step: %s\n got %s\nwant %s", question, got, want)
		}
	}
	if got := join(m.upstreams); got != "198.51.100.54:53" {
		t.Errorf("upstreams of the first step: %s", got)
	}
	again, more := WithoutNew(&next.Spec, &next.Spec)
	if more || !cmp.Equal(*again, next.Spec) {
		t.Errorf("the same spec again: more %t, difference %s", more, cmp.Diff(next.Spec, *again))
	}
}

// BenchmarkBuild is a VLAN of 1,000 clusters with apps ingress.
func BenchmarkBuild(b *testing.B) {
	server := pageExample(func(s *v1alpha1.DNSServerSpec) {
		s.StaticEntries = nil
		for i := range 1000 {
			domain := fmt.Sprintf("hcp-%d.clusters.example.com", i)
			for _, name := range append(fiveNames, "*.apps") {
				s.StaticEntries = append(s.StaticEntries, v1alpha1.StaticEntry{
					Hostname: name + "." + domain, IP: "192.0.2.4", PodView: v1alpha1.PodViewInternalProxy,
				})
			}
		}
	})
	b.ReportAllocs()
	for b.Loop() {
		mustBuild(b, server)
	}
}
