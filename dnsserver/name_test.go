package dnsserver

import (
	"testing"

	"github.com/miekg/dns"
)

// FuzzWireName: a name that is taken packs as miekg/dns packs it, reads back as it was, and is found
// whatever the case of the question.
func FuzzWireName(f *testing.F) {
	for _, seed := range []string{"api." + domainA, "*.apps." + domainA, "kubernetes", "", ".", "*", "a..b", "A.b", "a\x00.b", "_ldap._tcp.x"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, name string) {
		wire, err := wireName(name)
		if err != nil {
			return
		}
		packed := make([]byte, maxName)
		n, err := dns.PackDomainName(dns.Fqdn(name), packed, 0, nil, false)
		if err != nil || string(packed[:n]) != wire {
			t.Fatalf("%q is %q, miekg/dns has %q, %v", name, wire, packed[:n], err)
		}
		if got := text(wire); got != dns.Fqdn(name) {
			t.Fatalf("%q reads back as %q", name, got)
		}
		upper := make([]byte, len(wire))
		for i := range upper {
			upper[i] = wire[i]
			if wire[i] >= 'a' && wire[i] <= 'z' {
				upper[i] -= 'a' - 'A'
			}
		}
		lower(upper, upper)
		if string(upper) != wire {
			t.Fatalf("%q in upper case is not found: %q", name, upper)
		}
	})
}

// TestCanonicalOrder is the example of RFC 4034 6.1, as far as host names go.
func TestCanonicalOrder(t *testing.T) {
	ordered := []string{"example", "a.example", "yljkjljk.a.example", "z.a.example", "zabc.a.example", "z.example", "*.z.example"}
	for i := range ordered {
		for j := range ordered {
			a, errA := wireName(ordered[i])
			b, errB := wireName(ordered[j])
			if errA != nil || errB != nil {
				t.Fatal(errA, errB)
			}
			if got := compareNames(a, b); (got < 0) != (i < j) || (got == 0) != (i == j) {
				t.Errorf("%s and %s compare as %d", ordered[i], ordered[j], got)
			}
		}
	}
}
