package dhcpserver

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestBuildRefuses(t *testing.T) {
	option := func(code int32, value string) func(*v1alpha1.DHCPServerSpec) {
		return func(s *v1alpha1.DHCPServerSpec) { s.Options = []v1alpha1.DHCPOption{{Code: code, Value: value}} }
	}
	reserve := func(mac, ip, hostname string) func(*v1alpha1.DHCPServerSpec) {
		return func(s *v1alpha1.DHCPServerSpec) {
			s.Reservations = append(s.Reservations, v1alpha1.DHCPReservation{MAC: mac, IP: ip, Hostname: hostname})
		}
	}
	pool := func(first, last string) func(*v1alpha1.DHCPServerSpec) {
		return func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.RangeStart, s.LeaseConfig.RangeEnd = first, last }
	}
	for _, test := range []struct {
		change func(*v1alpha1.DHCPServerSpec)
		want   string
	}{
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.CIDR = "" }, `networkConfig.cidr: "" is not a CIDR, for example 192.0.2.0/24`},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.CIDR = "2001:db8::/64" }, "networkConfig.cidr: 2001:db8::/64 is not IPv4"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.CIDR = "192.0.2.0/31" }, "networkConfig.cidr: 192.0.2.0/31 is not between /8 and /30"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.CIDR = "0.0.0.0/0" }, "networkConfig.cidr: 0.0.0.0/0 is not between /8 and /30"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.ServerIP = "" }, `networkConfig.serverIP: "" is not an IPv4 address`},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.ServerIP = "198.51.100.2" }, "networkConfig.serverIP: 198.51.100.2 is outside of the CIDR 192.0.2.0/24"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.ServerIP = "192.0.2.0" }, "networkConfig.serverIP: 192.0.2.0 is the network address of 192.0.2.0/24"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.ServerIP = "192.0.2.255" }, "networkConfig.serverIP: 192.0.2.255 is the broadcast address of 192.0.2.0/24"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.ServerIP = "192.0.2.1" }, "networkConfig.serverIP: 192.0.2.1 is the gateway"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.Gateway = "192.0.3.1" }, "networkConfig.gateway: 192.0.3.1 is outside of the CIDR 192.0.2.0/24"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.DNSServers = []string{"192.0.2.3", "resolv.conf"} }, `networkConfig.dnsServers[1]: "resolv.conf" is not an IPv4 address`},
		{pool("", "192.0.2.199"), `leaseConfig.rangeStart: "" is not an IPv4 address`},
		{pool("192.0.2.100", "192.0.3.9"), "leaseConfig.rangeEnd: 192.0.3.9 is outside of the CIDR 192.0.2.0/24"},
		{pool("192.0.2.199", "192.0.2.100"), "leaseConfig.rangeEnd: 192.0.2.100 is below rangeStart 192.0.2.199"},
		{pool("192.0.2.0", "192.0.2.100"), "leaseConfig.rangeStart: 192.0.2.0 is the network address of 192.0.2.0/24"},
		{pool("192.0.2.100", "192.0.2.255"), "leaseConfig.rangeEnd: 192.0.2.255 is the broadcast address of 192.0.2.0/24"},
		{pool("192.0.2.2", "192.0.2.100"), "leaseConfig: the pool 192.0.2.2-192.0.2.100 holds 192.0.2.2, serverIP"},
		{func(s *v1alpha1.DHCPServerSpec) { s.NetworkConfig.Gateway = "192.0.2.101" }, "leaseConfig: the pool 192.0.2.100-192.0.2.103 holds 192.0.2.101, the gateway"},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.Excluded = []string{"192.0.2.9-192.0.2.5"} }, `leaseConfig.excluded[0]: "192.0.2.9-192.0.2.5" is neither an IPv4 address nor a range first-last`},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "an hour" }, `leaseConfig.leaseTime: "an hour" is not a duration, for example 1h or 30m`},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "30s" }, "leaseConfig.leaseTime: 30s is not between 1m0s and 8760h0m0s"},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "-1h" }, "leaseConfig.leaseTime: -1h0m0s is not between 1m0s and 8760h0m0s"},

		{reserve("52:54:00", "192.0.2.60", ""), `reservations[3].mac: "52:54:00" is not a hardware address: write six pairs of hexadecimal digits, for example 52:54:00:12:34:56`},
		{reserve("52-54-00-00-00-0A", "192.0.2.60", ""), "reservations[3].mac: 52:54:00:00:00:0a has a reservation already"},
		{reserve("52:54:00:00:00:01", "192.0.2.50", ""), "reservations[3].ip: 192.0.2.50 is reserved for 52:54:00:00:00:0a already"},
		{reserve("52:54:00:00:00:01", "198.51.100.1", ""), "reservations[3].ip: 198.51.100.1 is outside of the CIDR 192.0.2.0/24"},
		{reserve("52:54:00:00:00:01", "192.0.2.1", ""), "reservations[3].ip: 192.0.2.1 is the gateway or serverIP"},
		{reserve("52:54:00:00:00:01", "", "two words"), `reservations[3].hostname: "two words" is not a domain name: ' ' cannot be part of one`},

		{option(51, "60"), "options[0]: option 51: cannot be set here: set leaseTime"},
		{option(256, "x"), "options[0].code: 256 is not the code of an option"},
		{option(249, "192.0.2.9"), `options[0]: option 249: "192.0.2.9" is not a route: write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1`},
		{func(s *v1alpha1.DHCPServerSpec) {
			s.Options = []v1alpha1.DHCPOption{{Code: 15, Value: "a"}, {Code: 26, Value: "1400"}, {Code: 15, Value: "b"}}
		}, "options[2].code: option 15 is options[0] already"},
	} {
		d := child()
		test.change(&d.Spec)
		m, err := Build(d)
		if want := "DHCPServer clusters/tenant-dhcp: spec." + test.want; err == nil || err.Error() != want || m != nil {
			t.Errorf("error\n%v\nwant\n%s", err, want)
		}
	}
}

func TestPoolLeavesOutWhatIsNotItsOwn(t *testing.T) {
	d := child()
	d.Spec.LeaseConfig.RangeStart, d.Spec.LeaseConfig.RangeEnd = "192.0.2.10", "192.0.2.200"
	d.Spec.LeaseConfig.Excluded = []string{"192.0.2.11", "192.0.2.13-192.0.2.190", "198.51.100.1-198.51.100.9", "0.0.0.0-192.0.2.5"}
	d.Spec.NetworkConfig.DNSServers = []string{"192.0.2.192"}
	d.Spec.Reservations = []v1alpha1.DHCPReservation{{MAC: "52:54:00:00:00:0a", IP: "192.0.2.193"}}
	m := model(t, d)
	var got []string
	free := m.pool.clone()
	for addr, _, ok := free.lowest(0); ok; addr, _, ok = free.lowest(0) {
		got = append(got, addr.String())
		free.remove(addr, addr)
	}
	const want = "192.0.2.10 192.0.2.12 192.0.2.191 192.0.2.194 192.0.2.195 192.0.2.196 192.0.2.197 192.0.2.198 192.0.2.199 192.0.2.200"
	if strings.Join(got, " ") != want || m.pool.size != len(got) {
		t.Errorf("%d addresses: %s\nwant %s", m.pool.size, got, want)
	}
}

// An apps range of one attachment must not stop DHCP for the others.
func TestAnExclusionWinsOverAReservation(t *testing.T) {
	d := child()
	d.Spec.LeaseConfig.Excluded = []string{"192.0.2.40-192.0.2.60"}
	v := newVLAN(t, d)
	if got := describe(v.say("0a DISCOVER requested=192.0.2.50")); got != "OFFER 192.0.2.100 -> 0a" {
		t.Errorf("the client whose reservation is excluded got %s", got)
	}
	if got := describe(v.say("01 DISCOVER requested=192.0.2.50")); got != "OFFER 192.0.2.101 -> 01" {
		t.Errorf("another client got %s", got)
	}
}

// Nor may one over the whole pool: who has a reservation, or nothing to do with the pool, is served.
func TestAnExclusionOfTheWholePool(t *testing.T) {
	d := child()
	d.Spec.LeaseConfig.Excluded = []string{"192.0.2.100-192.0.2.103"}
	v := newVLAN(t, d)
	if got := describe(v.say("0a DISCOVER")); got != "OFFER 192.0.2.50 -> 0a" {
		t.Errorf("the client with a reservation got %s", got)
	}
	if got := describe(v.say("01 DISCOVER")); got != "silence" {
		t.Errorf("another client got %s", got)
	}
}

// Validate takes a host name as people write it.
func TestHostNamesAreNormalised(t *testing.T) {
	d := child()
	d.Spec.Reservations = []v1alpha1.DHCPReservation{{MAC: "52:54:00:00:00:0a", Hostname: " Worker-1.example.com. "}}
	if got := model(t, d).reservations[MAC(mac("0a"))].hostname; got != "worker-1.example.com" {
		t.Errorf("host name %q", got)
	}
}

func TestClasslessRoutesHaveTheDefaultRoute(t *testing.T) {
	d := child()
	d.Spec.Options = []v1alpha1.DHCPOption{{Code: 121, Value: "198.51.100.0/24 192.0.2.9"}, {Code: 249, Value: "0.0.0.0/0 192.0.2.9"}}
	m := model(t, d)
	if want, _ := hex.DecodeString("790d" + "18c63364c0000209" + "00c0000201"); !bytes.Equal(m.options[121], want) {
		t.Errorf("option 121 is %x, want %x", m.options[121], want)
	}
	if want, _ := hex.DecodeString("f905" + "00c0000209"); !bytes.Equal(m.options[249], want) {
		t.Errorf("option 249 is %x, want %x", m.options[249], want)
	}
}
