package vlan

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"
)

func discover() datagram {
	return datagram{
		source: netip.MustParseAddrPort("0.0.0.0:68"), destination: netip.MustParseAddrPort("255.255.255.255:67"),
		payload: bytes.Repeat([]byte{1, 2, 3}, 101),
	}
}

// sum writes the checksum of the IP header.
func sum(packet []byte) []byte {
	header := packet[:int(packet[0]&0xf)*4]
	binary.BigEndian.PutUint16(packet[10:], 0)
	binary.BigEndian.PutUint16(packet[10:], checksum(0, header))
	return packet
}

func TestDatagram(t *testing.T) {
	d := discover()
	for name, test := range map[string]struct {
		change   func(packet []byte) []byte
		unready  bool // the kernel says that the checksum is not there yet
		want     error
		wantBody []byte
	}{
		"as it is":               {change: func(b []byte) []byte { return b }},
		"padded":                 {change: func(b []byte) []byte { return append(b, 0, 0, 0, 0) }},
		"no UDP checksum":        {change: func(b []byte) []byte { b[26], b[27] = 0, 0; return b }},
		"UDP checksum wrong":     {change: func(b []byte) []byte { b[26]++; return b }, want: errChecksum},
		"UDP checksum not ready": {change: func(b []byte) []byte { b[26]++; return b }, unready: true},
		"IP checksum wrong":      {change: func(b []byte) []byte { b[8]--; return b }, want: errChecksum},
		"IP options": {change: func(b []byte) []byte {
			b = append(append(append([]byte{}, b[:20]...), 148, 4, 0, 0), b[20:]...) // router alert
			b[0]++
			binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
			return sum(b)
		}},
		"first fragment":    {change: func(b []byte) []byte { b[6] = 0x20; return sum(b) }, want: errFragment},
		"later fragment":    {change: func(b []byte) []byte { b[6], b[7] = 0, 9; return sum(b) }, want: errFragment},
		"cut":               {change: func(b []byte) []byte { return b[:len(b)-1] }, want: errNotUDP},
		"TCP":               {change: func(b []byte) []byte { b[9] = 6; return sum(b) }, want: errNotUDP},
		"IPv6":              {change: func(b []byte) []byte { b[0] = 0x65; return b }, want: errNotUDP},
		"short IP header":   {change: func(b []byte) []byte { b[0] = 0x44; return b }, want: errNotUDP},
		"UDP beyond IP":     {change: func(b []byte) []byte { b[24] = 0xff; return b }, want: errNotUDP},
		"UDP without head":  {change: func(b []byte) []byte { b[24], b[25] = 0, 7; return b }, want: errNotUDP},
		"nothing":           {change: func([]byte) []byte { return nil }, want: errNotUDP},
		"shorter UDP in IP": {change: func(b []byte) []byte { b[24], b[25] = 0, 8; b[26], b[27] = 0, 0; return b }, wantBody: []byte{}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseDatagram(test.change(d.bytes()), !test.unready)
			if !errors.Is(err, test.want) {
				t.Fatalf("error %v, want %v", err, test.want)
			}
			if err != nil {
				return
			}
			want := d.payload
			if test.wantBody != nil {
				want = test.wantBody
			}
			if got.source != d.source || got.destination != d.destination || !bytes.Equal(got.payload, want) {
				t.Errorf("got %v", got)
			}
		})
	}
}

// A checksum that comes out as 0 must be sent as 0xffff: 0 means that there is none.
func TestDatagramWhoseChecksumIsZero(t *testing.T) {
	d := discover()
	d.payload = []byte{0, 0}
	raw := d.bytes()
	binary.BigEndian.PutUint16(d.payload, binary.BigEndian.Uint16(raw[26:]))
	raw = d.bytes()
	if got := binary.BigEndian.Uint16(raw[26:]); got != 0xffff {
		t.Fatalf("checksum %#x", got)
	}
	if _, err := parseDatagram(raw, true); err != nil {
		t.Error(err)
	}
}

func FuzzDatagram(f *testing.F) {
	d := discover()
	f.Add(d.bytes(), true)
	f.Add(d.bytes()[:27], false)
	f.Add([]byte{0x4f, 0, 0, 28}, false)
	f.Fuzz(func(t *testing.T, b []byte, verify bool) {
		got, err := parseDatagram(b, verify)
		if err == nil && len(got.payload) > len(b)-ipHeader-udpHeader {
			t.Errorf("%d bytes of payload in %d bytes", len(got.payload), len(b))
		}
	})
}

func FuzzARP(f *testing.F) {
	p := arpPacket{operation: arpRequest, senderIP: netip.MustParseAddr("192.0.2.1"), targetIP: netip.MustParseAddr("192.0.2.2")}
	f.Add(p.bytes())
	f.Add(p.bytes()[:27])
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseARP(b); ok && !bytes.Equal(p.bytes(), b[:arpLength]) {
			t.Errorf("%x became %x", b, p.bytes())
		}
	})
}

func TestARPConflicts(t *testing.T) {
	own, other := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	none, addr, third := netip.IPv4Unspecified(), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.9")
	for name, test := range map[string]struct {
		packet arpPacket
		want   netip.Addr
	}{
		"reply of who has it":          {arpPacket{operation: arpReply, senderMAC: other, senderIP: addr}, addr},
		"question of who has it":       {arpPacket{operation: arpRequest, senderMAC: other, senderIP: addr, targetIP: third}, addr},
		"probe of another":             {arpPacket{operation: arpRequest, senderMAC: other, senderIP: none, targetIP: addr}, addr},
		"our own probe coming back":    {arpPacket{operation: arpRequest, senderMAC: own, senderIP: none, targetIP: addr}, netip.Addr{}},
		"a reply from nobody about it": {arpPacket{operation: arpReply, senderMAC: other, senderIP: none, targetIP: addr}, netip.Addr{}},
	} {
		got, conflict := test.packet.conflict(own)
		if conflict != test.want.IsValid() || conflict && got != test.want {
			t.Errorf("%s: %v, %v", name, got, conflict)
		}
	}
}
