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
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.Excluded = []string{"192.0.2.0-192.0.2.200"} }, "leaseConfig: every address of the pool 192.0.2.100-192.0.2.103 is excluded"},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "an hour" }, `leaseConfig.leaseTime: "an hour" is not a duration, for example 1h or 30m`},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "30s" }, "leaseConfig.leaseTime: 30s is not between 1m0s and 8760h0m0s"},
		{func(s *v1alpha1.DHCPServerSpec) { s.LeaseConfig.LeaseTime = "-1h" }, "leaseConfig.leaseTime: -1h0m0s is not between 1m0s and 8760h0m0s"},

		{reserve("52:54:00", "192.0.2.60", ""), `reservations[3].mac: "52:54:00" is not a hardware address: write six pairs of hexadecimal digits, for example 52:54:00:12:34:56`},
		{reserve("52-54-00-00-00-0A", "192.0.2.60", ""), "reservations[3].mac: 52:54:00:00:00:0a has a reservation already"},
		{reserve("52:54:00:00:00:01", "192.0.2.50", ""), "reservations[3].ip: 192.0.2.50 is reserved for 52:54:00:00:00:0a already"},
		{reserve("52:54:00:00:00:01", "198.51.100.1", ""), "reservations[3].ip: 198.51.100.1 is outside of the CIDR 192.0.2.0/24"},
		{reserve("52:54:00:00:00:01", "192.0.2.1", ""), "reservations[3].ip: 192.0.2.1 is the gateway or serverIP"},
		{reserve("52:54:00:00:00:01", "", "two words"), `reservations[3].hostname: "two words" is not a domain name: ' ' cannot be part of one`},

		{option(1, "255.0.0.0"), "options[0]: option 1: cannot be set here: it comes from networkConfig.cidr"},
		{option(3, "192.0.2.9"), "options[0]: option 3: cannot be set here: it comes from networkConfig.gateway"},
		{option(51, "60"), "options[0]: option 51: cannot be set here: it comes from leaseConfig.leaseTime"},
		{option(54, "192.0.2.9"), "options[0]: option 54: cannot be set here: it belongs to the protocol itself"},
		{option(82, "0x00"), "options[0]: option 82: cannot be set here: it belongs to the protocol itself"},
		{option(108, "300"), "options[0]: option 108: cannot be set here: it would turn IPv4 off in the clients"},
		{option(0, "x"), "options[0]: option 0: cannot be set here: it is padding"},
		{option(255, "x"), "options[0]: option 255: cannot be set here: it ends the options"},
		{option(256, "x"), "options[0].code: 256 is not the code of an option"},
		{option(42, "192.0.2.7, pool.ntp.org"), `options[0]: option 42: "pool.ntp.org" is not an IPv4 address: write addresses separated by commas`},
		{option(28, "192.0.2.7,192.0.2.8"), "options[0]: option 28: has 2 addresses, and the option takes 1"},
		{option(33, "192.0.2.7"), "options[0]: option 33: has 1 addresses, and the option takes pairs"},
		{option(26, "70000"), `options[0]: option 26: "70000" is not a number of 0 to 65535`},
		{option(23, "-1"), `options[0]: option 23: "-1" is not a number of 0 to 255`},
		{option(2, "1h"), `options[0]: option 2: "1h" is not a number of -2147483648 to 2147483647`},
		{option(19, "yes"), `options[0]: option 19: "yes" is not a switch: write true or false`},
		{option(15, ""), "options[0]: option 15: has no value: give one, or remove the option"},
		{option(15, strings.Repeat("x", 256)), "options[0]: option 15: has 256 bytes, and the option holds 255: shorten it"},
		{option(43, "0xabc"), `options[0]: option 43: "0xabc" is not bytes in hexadecimal: write 0x and pairs of digits`},
		{option(119, "example..com"), `options[0]: option 119: "example..com" is not a domain name: each part has 1 to 63 characters and no hyphen at its ends`},
		{option(121, "198.51.100.0/24"), `options[0]: option 121: "198.51.100.0/24" is not a route: write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1`},
		{option(121, "198.51.100.0/33 192.0.2.9"), `options[0]: option 121: "198.51.100.0/33" is not an IPv4 CIDR`},
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

func TestOptionTexts(t *testing.T) {
	for _, test := range []struct {
		code uint8
		text string
		want string // in hexadecimal
	}{
		{2, "-3600", "fffff1f0"},
		{15, "example.com", hex.EncodeToString([]byte("example.com"))},
		{19, "true", "01"},
		{20, "0", "00"},
		{23, "64", "40"},
		{26, "1400", "0578"},
		{33, "198.51.100.7,192.0.2.1", "c6336407c0000201"},
		{35, "60", "0000003c"},
		{42, "192.0.2.7, 192.0.2.8", "c0000207c0000208"},
		{43, "0x0102ff", "0102ff"},
		{66, "192.0.2.9", hex.EncodeToString([]byte("192.0.2.9"))},
		{119, "example.com, lab.example.com.", "076578616d706c6503636f6d00" + "036c6162076578616d706c6503636f6d00"},
		{121, "198.51.100.0/24 192.0.2.9, 10.0.0.0/8 192.0.2.8", "18c63364c0000209" + "080ac0000208"},
		{121, "0.0.0.0/0 192.0.2.9", "00c0000209"},
		{150, "192.0.2.9", "c0000209"},
		{224, "anything", hex.EncodeToString([]byte("anything"))},
	} {
		got, err := encodeOption(test.code, test.text)
		if err != nil || hex.EncodeToString(got) != test.want {
			t.Errorf("option %d %q: %x, %v, want %s", test.code, test.text, got, err, test.want)
		}
	}
}

func FuzzOptionText(f *testing.F) {
	for _, seed := range []struct {
		code uint8
		text string
	}{{26, "1400"}, {42, "192.0.2.7,192.0.2.8"}, {119, "example.com"}, {121, "198.51.100.0/24 192.0.2.9"}, {43, "0x00"}, {15, "x"}} {
		f.Add(seed.code, seed.text)
	}
	f.Fuzz(func(t *testing.T, code uint8, text string) {
		value, err := encodeOption(code, text)
		if err == nil && (len(value) == 0 || len(value) > maxSplitOption) {
			t.Errorf("option %d %q became %d bytes", code, text, len(value))
		}
		hasDefaultRoute([]byte(text))
	})
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
