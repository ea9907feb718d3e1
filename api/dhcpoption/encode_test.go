package dhcpoption

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"
)

func TestEncode(t *testing.T) {
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
		{28, "192.0.2.255", "c00002ff"},
		{33, "198.51.100.7,192.0.2.1", "c6336407c0000201"},
		{35, "60", "0000003c"},
		{42, "192.0.2.7, 192.0.2.8", "c0000207c0000208"},
		{43, "0x0102ff", "0102ff"},
		{66, "192.0.2.9", hex.EncodeToString([]byte("192.0.2.9"))},
		{119, "example.com, lab.example.com.", "076578616d706c6503636f6d00" + "036c6162076578616d706c6503636f6d00"},
		{119, "0x0161c002", "0161c002"},
		{119, "0xab.a", "04307861620161" + "00"},
		{119, "0xab.", "0430786162" + "00"},
		{119, "0xab,a", "0430786162" + "00" + "0161" + "00"},
		{121, "198.51.100.0/24 192.0.2.9, 10.0.0.0/8 192.0.2.8", "18c63364c0000209" + "080ac0000208"},
		{121, "0.0.0.0/0 192.0.2.9", "00c0000209"},
		{249, "198.51.100.7/24 192.0.2.9", "18c63364c0000209"},
		{150, "192.0.2.9", "c0000209"},
		{224, "anything", hex.EncodeToString([]byte("anything"))},
	} {
		got, err := Encode(test.code, test.text)
		if err != nil || hex.EncodeToString(got) != test.want {
			t.Errorf("option %d %q: %x, %v, want %s", test.code, test.text, got, err, test.want)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	const write = ": write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1"
	for _, test := range []struct {
		code uint8
		text string
		want string
	}{
		{1, "255.0.0.0", "cannot be set here: it comes from networkConfig.cidr"},
		{3, "192.0.2.9", "cannot be set here: it comes from networkConfig.gateway"},
		{6, "192.0.2.9", "cannot be set here: it is dns.serverIP, or networkConfig.dnsServers when DNS is disabled"},
		{12, "a", "cannot be set here: set reservations[].hostname"},
		{51, "60", "cannot be set here: set leaseTime"},
		{54, "192.0.2.9", "cannot be set here: it belongs to the protocol itself"},
		{82, "0x00", "cannot be set here: it belongs to the protocol itself"},
		{108, "300", "cannot be set here: it would turn IPv4 off in the clients"},
		{116, "1", "cannot be set here: it would have clients choose addresses themselves"},
		{0, "x", "cannot be set here: it is padding"},
		{255, "x", "cannot be set here: it ends the options"},
		{42, "192.0.2.7, pool.ntp.org", `"pool.ntp.org" is not an IPv4 address: write addresses separated by commas`},
		{42, "2001:db8::1", `"2001:db8::1" is not an IPv4 address: write addresses separated by commas`},
		{42, strings.TrimSuffix(strings.Repeat("192.0.2.7,", 64), ","), "has 64 addresses, and an option holds 63: remove some"},
		{28, "192.0.2.7,192.0.2.8", "has 2 addresses, and this option holds one: remove the others"},
		{33, "192.0.2.7", "has 1 addresses, and this option holds pairs: add the missing one"},
		{33, "192.0.2.7,x", `"x" is not an IPv4 address: write addresses separated by commas`},
		{26, "70000", `"70000" is not a number of 0 to 65535`},
		{23, "-1", `"-1" is not a number of 0 to 255`},
		{24, "", `"" is not a number of 0 to 4294967295`},
		{2, "1h", `"1h" is not a number of -2147483648 to 2147483647`},
		{19, "yes", `"yes" is not a switch: write true or false`},
		{15, "", "has no value: give one, or remove the option"},
		{15, strings.Repeat("x", 256), "has 256 bytes, and an option holds 255: shorten it"},
		{43, "0xabc", `"0xabc" is not bytes in hexadecimal: write 0x and 1 to 255 pairs of digits`},
		{43, "0x", `"0x" is not bytes in hexadecimal: write 0x and 1 to 255 pairs of digits`},
		{121, "0x", `"0x" is not bytes in hexadecimal: write 0x and 1 to 1024 pairs of digits`},
		{119, "example..com", `"example..com" is not a domain name: each part has 1 to 63 characters and no hyphen at its ends`},
		{119, "two words", `"two words" is not a domain name: ' ' cannot be part of one`},
		{119, "a,", `"" is not a domain name: write 1 to 253 characters`},
		{119, strings.TrimSuffix(strings.Repeat("example.com,", 79), ","), "has 1027 bytes, and an option holds 1024: shorten it"},
		{121, "198.51.100.0/24", `"198.51.100.0/24" is not a route` + write},
		{121, "198.51.100.0/33 192.0.2.9", `"198.51.100.0/33" is not an IPv4 CIDR` + write},
		{249, "192.0.2.9", `"192.0.2.9" is not a route` + write},
		{249, "198.51.100.0/24 router", `"router" is not an IPv4 address` + write},
	} {
		value, err := Encode(test.code, test.text)
		if err == nil || err.Error() != test.want || value != nil {
			t.Errorf("option %d %q: %x\n%v\nwant\n%s", test.code, test.text, value, err, test.want)
		}
	}
}

func TestWithDefaultRoute(t *testing.T) {
	for routes, want := range map[string]string{
		"18c63364c0000209":                "18c63364c0000209" + "00c0000201",
		"18c63364c0000209" + "00c0000209": "18c63364c0000209" + "00c0000209",
		"00c0000209":                      "00c0000209",
		"18c63364c0":                      "18c63364c0", // cut off
		"21c63364c0000209c0":              "21c63364c0000209c0",
	} {
		raw, err := hex.DecodeString(routes)
		if err != nil {
			t.Fatal(err)
		}
		if got := WithDefaultRoute(raw, netip.MustParseAddr("192.0.2.1")); hex.EncodeToString(got) != want {
			t.Errorf("%s: %x, want %s", routes, got, want)
		}
		if hex.EncodeToString(raw) != routes {
			t.Errorf("%s was changed to %x", routes, raw)
		}
	}
}

func FuzzEncode(f *testing.F) {
	for _, seed := range []struct {
		code uint8
		text string
	}{
		{2, "-1"},
		{19, "true"},
		{26, "1400"},
		{28, "192.0.2.7"},
		{33, "192.0.2.7,192.0.2.8"},
		{42, "192.0.2.7,192.0.2.8"},
		{119, "example.com"},
		{119, "0xab.example.com"},
		{121, "198.51.100.0/24 192.0.2.9"},
		{249, "0x18c63364c0000209"},
		{43, "0x00"},
		{15, "x"},
	} {
		f.Add(seed.code, seed.text)
	}
	f.Fuzz(func(t *testing.T, code uint8, text string) {
		value, err := Encode(code, text)
		if (err == nil) != (len(value) > 0) || len(value) > limit(code) {
			t.Errorf("option %d %q became %d bytes and error %v", code, text, len(value), err)
		}
		WithDefaultRoute([]byte(text), netip.AddrFrom4([4]byte{192, 0, 2, 1}))
	})
}
