package dhcpserver

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/densityops/oooi/api/v1alpha1"
)

// everyClient is where a client without an address sends to.
var everyClient = netip.AddrPortFrom(broadcast, ServerPort)

var noAddress = netip.MustParseAddrPort("0.0.0.0:68")

// optionOrder lists the codes of the options of a message as they stand in it.
func optionOrder(raw []byte) []uint8 {
	var codes []uint8
	for b := raw[offsetOptions:]; len(b) > 0 && b[0] != optEnd; {
		if b[0] == optPad {
			b = b[1:]
			continue
		}
		codes = append(codes, b[0])
		b = b[2+int(b[1]):]
	}
	return codes
}

// discoverWith is a DHCPDISCOVER of client 01 with further options.
func discoverWith(t *testing.T, options ...dhcpv4.Option) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac("01")), dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		m.UpdateOption(o)
	}
	return m
}

func one(t *testing.T, answers []sent) sent {
	t.Helper()
	if len(answers) != 1 {
		t.Fatalf("the server answered %s", describe(answers))
	}
	return answers[0]
}

func TestOptionsOfAnOffer(t *testing.T) {
	d := child()
	d.Spec.Options = []v1alpha1.DHCPOption{{Code: 26, Value: "1400"}, {Code: 42, Value: "192.0.2.7"}, {Code: 119, Value: "example.com"}}
	for _, test := range []struct {
		asked []uint8
		want  []uint8
	}{
		{nil, []uint8{53, 54, 51, 58, 59, 1, 3, 6, 26, 42, 119}},
		{[]uint8{119, 6, 108, 116, 26, 26}, []uint8{53, 54, 51, 58, 59, 119, 6, 26, 1, 3}},
		{[]uint8{3, 1, 28}, []uint8{53, 54, 51, 58, 59, 1, 3, 28, 6}},
		{[]uint8{12, 53, 0, 255, 61}, []uint8{53, 54, 51, 58, 59, 1, 3, 6}},
	} {
		m := discoverWith(t)
		if test.asked != nil {
			m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.OptionParameterRequestList, test.asked))
		}
		offer := one(t, newVLAN(t, d).deliver(m.ToBytes(), noAddress, everyClient))
		if got := optionOrder(offer.raw); !slices.Equal(got, test.want) {
			t.Errorf("asked for %v, the offer has %v, want %v", test.asked, got, test.want)
		}
	}
}

func TestWhatAnAckSays(t *testing.T) {
	v := newVLAN(t, child())
	v.say("0a DISCOVER")
	ack := one(t, v.say("0a REQUEST server=192.0.2.2 requested=192.0.2.50")).message
	for _, check := range []struct{ what, got, want string }{
		{"address", ack.YourIPAddr.String(), "192.0.2.50"},
		{"mask", net.IP(ack.SubnetMask()).String(), "255.255.255.0"},
		{"router", fmt.Sprint(ack.Router()), "[192.0.2.1]"},
		{"DNS", fmt.Sprint(ack.DNS()), "[192.0.2.3]"},
		{"server", ack.ServerIdentifier().String(), "192.0.2.2"},
		{"host name", ack.HostName(), "reserved"},
		{"lease time", ack.IPAddressLeaseTime(0).String(), "1h0m0s"},
		{"T1", ack.IPAddressRenewalTime(0).String(), "30m0s"},
		{"T2", ack.IPAddressRebindingTime(0).String(), "52m30s"},
		{"siaddr", ack.ServerIPAddr.String(), "0.0.0.0"},
	} {
		if check.got != check.want {
			t.Errorf("%s is %s, want %s", check.what, check.got, check.want)
		}
	}
}

func TestCiaddr(t *testing.T) {
	v := newVLAN(t, child())
	v.say("01 DISCOVER")
	v.say("01 REQUEST server=192.0.2.2 requested=192.0.2.100")
	for line, want := range map[string]string{
		"01 DISCOVER ciaddr=192.0.2.100":                                    "0.0.0.0",
		"02 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68": "0.0.0.0", // NAK
		"01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68": "192.0.2.100",
		"03 INFORM ciaddr=192.0.2.77 to=192.0.2.2:67 from=192.0.2.77:68":    "192.0.2.77",
		"01 REQUEST ciaddr=192.0.2.100 giaddr=192.0.2.1":                    "192.0.2.100",
		"02 REQUEST requested=192.0.2.100 ciaddr=0.0.0.0 giaddr=192.0.2.1":  "0.0.0.0", // NAK
	} {
		if got := one(t, v.say(line)).message.ClientIPAddr.String(); got != want {
			t.Errorf("%s: ciaddr of the answer is %s, want %s", line, got, want)
		}
	}
}

func TestInformGetsNoLease(t *testing.T) {
	answer := one(t, newVLAN(t, child()).say("01 INFORM ciaddr=192.0.2.77 to=192.0.2.2:67 from=192.0.2.77:68"))
	if got, want := optionOrder(answer.raw), []uint8{53, 54, 1, 3, 6}; !slices.Equal(got, want) {
		t.Errorf("options %v, want %v", got, want)
	}
}

func TestANakThroughARelayIsBroadcastByIt(t *testing.T) {
	v := newVLAN(t, child())
	if m := one(t, v.say("01 REQUEST requested=198.51.100.1 giaddr=192.0.2.1")).message; !m.IsBroadcast() {
		t.Error("no broadcast flag")
	}
	m := one(t, v.say("01 REQUEST requested=198.51.100.1")).message
	if m.IsBroadcast() {
		t.Error("broadcast flag without a relay")
	}
	if m.Message() != "wrong network" {
		t.Errorf("message %q", m.Message())
	}
}

func TestEchoes(t *testing.T) {
	m := discoverWith(t,
		dhcpv4.OptClientIdentifier([]byte{1, 2, 3}), dhcpv4.OptGeneric(dhcpv4.OptionRelayAgentInformation, []byte{1, 2, 'e', '1'}),
		dhcpv4.OptMaxMessageSize(576))
	m.GatewayIPAddr = net.IPv4(192, 0, 2, 1)
	offer := one(t, newVLAN(t, child()).deliver(m.ToBytes(), netip.MustParseAddrPort("192.0.2.1:67"), netip.MustParseAddrPort("192.0.2.2:67")))
	codes := optionOrder(offer.raw)
	if n := len(codes); codes[n-1] != 82 || codes[n-2] != 61 {
		t.Errorf("the options end with %v, want 61, 82", codes[n-2:])
	}
	if got := offer.message.Options[82]; string(got) != "\x01\x02e1" {
		t.Errorf("option 82 is %x", got)
	}
	if got := offer.message.Options[61]; string(got) != "\x01\x02\x03" {
		t.Errorf("option 61 is %x", got)
	}
	if offer.message.TransactionID != m.TransactionID || !offer.message.GatewayIPAddr.Equal(m.GatewayIPAddr) {
		t.Errorf("the offer is for %s by %s", offer.message.TransactionID, offer.message.GatewayIPAddr)
	}
}

func TestTheClientLimitsTheSize(t *testing.T) {
	d := child()
	for code := int32(224); code < 230; code++ {
		d.Spec.Options = append(d.Spec.Options, v1alpha1.DHCPOption{Code: code, Value: strings.Repeat("x", 100)})
	}
	asked := dhcpv4.OptGeneric(dhcpv4.OptionParameterRequestList, []byte{229, 228, 227, 226, 225, 224})
	for _, test := range []struct {
		size, bytes int // what the client says, and the largest answer
		want        []uint8
	}{
		{0, 548, []uint8{229, 228}},
		{100, 548, []uint8{229, 228}},
		{700, 672, []uint8{229, 228, 227}},
		{65535, 1472, []uint8{229, 228, 227, 226, 225, 224}},
	} {
		m := discoverWith(t, asked, dhcpv4.OptClientIdentifier([]byte{1, 2, 3}))
		if test.size != 0 {
			m.UpdateOption(dhcpv4.OptMaxMessageSize(uint16(test.size)))
		}
		offer := one(t, newVLAN(t, d).deliver(m.ToBytes(), noAddress, everyClient))
		if len(offer.raw) > test.bytes {
			t.Errorf("size %d: the offer has %d bytes", test.size, len(offer.raw))
		}
		want := slices.Concat([]uint8{53, 54, 51, 58, 59}, test.want, []uint8{1, 3, 6, 61})
		if got := optionOrder(offer.raw); !slices.Equal(got, want) {
			t.Errorf("size %d: options %v, want %v", test.size, got, want)
		}
	}
}

func TestMessagesThatRealClientsSend(t *testing.T) {
	t.Run("no end option", func(t *testing.T) {
		raw := discoverWith(t).ToBytes()
		if got := describe(newVLAN(t, child()).deliver(raw[:offsetOptions+3], noAddress, everyClient)); got != "OFFER 192.0.2.100 -> 01" {
			t.Errorf("the server answered %s", got)
		}
	})
	t.Run("options in the fields for file and server name", func(t *testing.T) {
		raw := discoverWith(t, dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(optOverload), []byte{3})).ToBytes()
		copy(raw[offsetFile:], []byte{optRequested, 4, 192, 0, 2, 102, optEnd})
		copy(raw[offsetServerName:], []byte{optParameters, 1, optBroadcast, optEnd})
		offer := one(t, newVLAN(t, child()).deliver(raw, noAddress, everyClient))
		if got := describe([]sent{offer}); got != "OFFER 192.0.2.102 -> 01" {
			t.Errorf("the server answered %s", got)
		}
		if _, ok := offer.message.Options[optBroadcast]; !ok {
			t.Error("the parameter in the server name was not read")
		}
	})
	t.Run("a host name with control characters", func(t *testing.T) {
		v := newVLAN(t, child())
		m := discoverWith(t, dhcpv4.OptHostName("worker\x1b[31m-1\n"), dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 2)), dhcpv4.OptRequestedIPAddress(net.IPv4(192, 0, 2, 100)))
		m.UpdateOption(dhcpv4.OptMessageType(dhcpv4.MessageTypeRequest))
		one(t, v.deliver(m.ToBytes(), noAddress, everyClient))
		if got := v.server.Leases()[0].Hostname; got != "worker31m-1" {
			t.Errorf("host name %q", got)
		}
	})
}

func TestMalformedMessagesGetNoAnswer(t *testing.T) {
	good := func() []byte {
		return discoverWith(t, dhcpv4.OptRequestedIPAddress(net.IPv4(192, 0, 2, 100))).ToBytes()
	}
	for name, raw := range map[string][]byte{
		"nothing":                 {},
		"a cut header":            good()[:200],
		"a cut option":            good()[:offsetOptions+5],
		"no cookie":               func() []byte { b := good(); b[offsetOptions-1] = 0; return b }(),
		"a reply":                 func() []byte { b := good(); b[0] = 2; return b }(),
		"not Ethernet":            func() []byte { b := good(); b[1] = 6; return b }(),
		"a long hardware address": func() []byte { b := good(); b[2] = 16; return b }(),
		"a huge hardware address": func() []byte { b := good(); b[2] = 255; return b }(),
		"no hardware address":     func() []byte { b := good(); copy(b[28:], make([]byte, 6)); return b }(),
		"a group address":         func() []byte { b := good(); b[28] |= 1; return b }(),
		"no message type":         discoverNo(t, optMessageType).ToBytes(),
		"a message type of bytes": discoverWith(t, dhcpv4.OptGeneric(dhcpv4.OptionDHCPMessageType, []byte{1, 1})).ToBytes(),
		"a message type too many": discoverWith(t, dhcpv4.OptGeneric(dhcpv4.OptionDHCPMessageType, []byte{99})).ToBytes(),
		"three bytes of address":  discoverWith(t, dhcpv4.OptGeneric(dhcpv4.OptionRequestedIPAddress, []byte{192, 0, 2})).ToBytes(),
		"two servers":             discoverWith(t, dhcpv4.OptGeneric(dhcpv4.OptionServerIdentifier, make([]byte, 8))).ToBytes(),
		"overload of what":        discoverWith(t, dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(optOverload), []byte{4})).ToBytes(),
		"an endless client id":    discoverWith(t, dhcpv4.OptClientIdentifier(make([]byte, 300))).ToBytes(),
		"overload with cut option": func() []byte {
			b := discoverWith(t, dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(optOverload), []byte{1})).ToBytes()
			for i := offsetFile; i < offsetOptions-4; i++ {
				b[i] = 0
			}
			b[offsetOptions-6], b[offsetOptions-5] = 50, 200
			return b
		}(),
	} {
		if answers := newVLAN(t, child()).deliver(raw, noAddress, everyClient); len(answers) != 0 {
			t.Errorf("%s: the server answered %s", name, describe(answers))
		}
	}
}

func discoverNo(t *testing.T, code uint8) *dhcpv4.DHCPv4 {
	m := discoverWith(t)
	delete(m.Options, code)
	return m
}

// FuzzServer holds that no bytes make the server panic, answer who cannot be answered, or answer
// what it could not read back.
func FuzzServer(f *testing.F) {
	seed := func(kind dhcpv4.MessageType, options ...dhcpv4.Option) {
		m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac("01")), dhcpv4.WithMessageType(kind))
		if err != nil {
			f.Fatal(err)
		}
		for _, o := range options {
			m.UpdateOption(o)
		}
		m.ClientIPAddr = net.IPv4(192, 0, 2, 100)
		f.Add(m.ToBytes(), true)
		m.ClientIPAddr = net.IPv4zero
		f.Add(m.ToBytes(), false)
	}
	for kind := dhcpv4.MessageTypeDiscover; kind <= dhcpv4.MessageTypeInform; kind++ {
		seed(kind)
		seed(kind, dhcpv4.OptRequestedIPAddress(net.IPv4(192, 0, 2, 100)), dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 2)))
		seed(kind, dhcpv4.OptRequestedIPAddress(net.IPv4(192, 0, 2, 100)), dhcpv4.OptClientIdentifier([]byte{1}), dhcpv4.OptMaxMessageSize(1),
			dhcpv4.OptGeneric(dhcpv4.OptionParameterRequestList, []byte{121, 1, 3}), dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(optOverload), []byte{3}))
	}
	f.Fuzz(func(t *testing.T, raw []byte, unicast bool) {
		v := newVLAN(t, child())
		v.say("02 DISCOVER")
		v.say("02 REQUEST server=192.0.2.2 requested=192.0.2.100")
		from, to := noAddress, everyClient
		if unicast {
			from, to = netip.MustParseAddrPort("192.0.2.101:68"), netip.MustParseAddrPort("192.0.2.2:67")
		}
		// Not handle: its recover would hide a panic.
		r, err := parse(raw)
		if err != nil {
			return
		}
		job, verdict := v.server.process(&v.wire, &Packet{Payload: raw, Source: from, Destination: to}, r)
		if verdict.kind == dhcpv4.MessageTypeNone {
			return
		}
		answer, err := dhcpv4.FromBytes(job.reply)
		if err != nil {
			t.Fatalf("the answer %x: %v", job.reply, err)
		}
		if binary.BigEndian.Uint32(answer.TransactionID[:]) != binary.BigEndian.Uint32(raw[4:]) {
			t.Error("the answer is for another transaction")
		}
		if addr := netip.AddrFrom4([4]byte(answer.YourIPAddr.To4())); !addr.IsUnspecified() && !v.server.table.belongs(addr, r.mac) {
			t.Errorf("%s got %s", r.mac, addr)
		}
	})
}
