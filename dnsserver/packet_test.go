package dnsserver

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
)

var vlanClient = netip.MustParseAddr("192.0.2.117")

// respondTo runs a packet from a client on the VLAN through the packet function.
func respondTo(m *Model, packet []byte) ([]byte, result) {
	buf := make([]byte, len(packet)+replyRoom)
	r := m.respond(buf, copy(buf, packet), vlanClient)
	return buf[:r.n], r
}

// pack packs a query for the A record of an owned name, edited.
func pack(t testing.TB, edit func(*dns.Msg)) []byte {
	t.Helper()
	m := new(dns.Msg).SetQuestion("api."+domainA+".", dns.TypeA)
	m.Id = 0x1234
	if edit != nil {
		edit(m)
	}
	packet, err := m.Pack()
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// TestHeaderAndEDNS: what the header and the OPT of an answer are, whatever the query has in them.
func TestHeaderAndEDNS(t *testing.T) {
	m := mustBuild(t, pageExample())
	edns := func(size uint16, do bool) func(*dns.Msg) {
		return func(q *dns.Msg) { q.SetEdns0(size, do) }
	}
	raw := func(edit func([]byte) []byte, base func(*dns.Msg)) []byte { return edit(pack(t, base)) }
	const owned = "NOERROR aa A 192.0.2.4"
	tests := map[string]struct {
		packet []byte
		want   string // show, then the OPT; "" for no answer
	}{
		"plain":                             {pack(t, nil), owned},
		"without RD":                        {pack(t, func(q *dns.Msg) { q.RecursionDesired = false }), owned},
		"AA, TC, RA, AD and Z are not ours": {raw(func(b []byte) []byte { b[2] |= 0x06; b[3] |= 0xe0; return b }, nil), owned},
		"CD is copied":                      {pack(t, func(q *dns.Msg) { q.CheckingDisabled = true }), owned + " cd"},
		"EDNS":                              {pack(t, edns(4096, false)), owned + " opt 1232"},
		"EDNS with DO":                      {pack(t, edns(1232, true)), owned + " opt 1232 do"},
		"EDNS of 100 bytes":                 {pack(t, edns(100, false)), owned + " opt 1232"},
		"EDNS of 0 bytes":                   {pack(t, edns(0, false)), owned + " opt 1232"},
		"EDNS with Z bits": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false)
			q.IsEdns0().Hdr.Ttl |= 0x7fff
		}), owned + " opt 1232"},
		"EDNS with options": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false)
			q.IsEdns0().Option = []dns.EDNS0{
				&dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1, 2, 3}},
				&dns.EDNS0_NSID{Code: dns.EDNS0NSID},
				&dns.EDNS0_COOKIE{Code: dns.EDNS0COOKIE, Cookie: "0123456789abcdef"},
				&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: []byte{192, 0, 2, 0}},
			}
		}), owned + " opt 1232"},
		"EDNS version 1": {pack(t, func(q *dns.Msg) { q.SetEdns0(1232, false); q.IsEdns0().SetVersion(1) }), "BADVERS opt 1232"},
		"EDNS version 1, an OPT to be ignored": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, true)
			q.IsEdns0().SetVersion(1)
			q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001}}
		}), "BADVERS opt 1232 do"},
		"two OPTs": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false)
			q.Extra = append(q.Extra, q.Extra[0])
		}), "FORMERR opt 1232"},
		"OPT in the answer section": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false)
			q.Answer, q.Extra = q.Extra, nil
		}), "FORMERR"},
		"OPT with an owner": {pack(t, func(q *dns.Msg) {
			q.SetEdns0(1232, false)
			q.IsEdns0().Hdr.Name = "x."
		}), "FORMERR"},
		"OPT whose option overruns it": {raw(func(b []byte) []byte {
			b[len(b)-1] = 4
			return append(b, 0, 10, 0, 9)
		}, edns(1232, false)), "FORMERR"},
		"OPT cut":            {raw(func(b []byte) []byte { return b[:len(b)-1] }, edns(1232, false)), "FORMERR"},
		"OPT announced only": {raw(func(b []byte) []byte { b[11] = 1; return b }, nil), "FORMERR"},
		"more records": {pack(t, func(q *dns.Msg) {
			q.Extra = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: "a.b.", Rrtype: dns.TypeA, Class: 1}, A: []byte{1, 2, 3, 4}}}
		}), owned},
		"bytes after the end":               {append(pack(t, nil), "and more"...), owned},
		"class CH":                          {pack(t, func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassCHAOS }), "REFUSED"},
		"class ANY":                         {pack(t, func(q *dns.Msg) { q.Question[0].Qclass = dns.ClassANY }), "REFUSED"},
		"NOTIFY":                            {pack(t, func(q *dns.Msg) { q.Opcode = dns.OpcodeNotify }), "NOTIMP no-question"},
		"UPDATE":                            {pack(t, func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate }), "NOTIMP no-question"},
		"opcode 15":                         {pack(t, func(q *dns.Msg) { q.Opcode = 15 }), "NOTIMP no-question"},
		"no question":                       {pack(t, func(q *dns.Msg) { q.Question = nil }), "FORMERR no-question"},
		"two questions":                     {pack(t, func(q *dns.Msg) { q.Question = append(q.Question, q.Question[0]) }), "FORMERR no-question"},
		"header only, a question announced": {pack(t, nil)[:headerLen], "FORMERR no-question"},
		"question cut in its type":          {raw(func(b []byte) []byte { return b[:len(b)-3] }, nil), "FORMERR no-question"},
		"question cut in its name":          {pack(t, nil)[:headerLen+6], "FORMERR no-question"},
		"question that points to itself":    {append(pack(t, nil)[:headerLen], 0xc0, 12, 0, 1, 0, 1), "FORMERR no-question"},
		"label type 0x40":                   {append(pack(t, nil)[:headerLen], 0x41, 'a', 0, 0, 1, 0, 1), "FORMERR no-question"},
		"name of 256 bytes":                 {append(append(pack(t, nil)[:headerLen], bytes.Repeat([]byte("\x01a"), 128)...), 0, 0, 1, 0, 1), "FORMERR no-question"},
		"a response":                        {pack(t, func(q *dns.Msg) { q.Response = true }), ""},
		"11 bytes":                          {pack(t, nil)[:11], ""},
		"nothing":                           {nil, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reply, r := respondTo(m, test.packet)
			if len(reply) == 0 {
				if test.want != "" || r.outcome != outDropped {
					t.Fatalf("no answer (%s), want %s", r.outcome, test.want)
				}
				return
			}
			got := new(dns.Msg)
			if err := got.Unpack(reply); err != nil {
				t.Fatal(err)
			}
			line := show(got)
			if len(got.Question) == 0 {
				line += " no-question"
			} else if !bytes.Equal(reply[headerLen:r.query.end], test.packet[headerLen:r.query.end]) {
				t.Errorf("the question came back changed")
			}
			if got.CheckingDisabled {
				line += " cd"
			}
			if o := got.IsEdns0(); o != nil {
				line += fmt.Sprintf(" opt %d", o.UDPSize())
				if o.Do() {
					line += " do"
				}
				if len(o.Option) > 0 || o.Version() != 0 || o.Hdr.Ttl&0x7fff != 0 {
					t.Errorf("our OPT has more than size and DO: %v", o)
				}
			}
			if line != test.want {
				t.Errorf("got %s, want %s", line, test.want)
			}
			asked := binary.BigEndian.Uint16(test.packet[2:])
			if got.Id != 0x1234 || got.Opcode != int(asked>>11&0xf) || got.RecursionDesired != (asked&0x100 != 0) || got.AuthenticatedData || got.Zero {
				t.Errorf("header %+v of a query with flags %#04x", got.MsgHdr, asked)
			}
		})
	}
}

// TestCaseIsKept: resolvers that play with the case of a question expect it back (0x20).
func TestCaseIsKept(t *testing.T) {
	m := mustBuild(t, pageExample())
	for _, name := range []string{"aPi.eXaMpLe-HCP-a.ClusterS.example.COM.", "X.y.APPS.example-hcp-A.clusters.example.com."} {
		for _, qtype := range []uint16{dns.TypeA, dns.TypeAAAA} {
			packet := pack(t, func(q *dns.Msg) { q.Question[0] = dns.Question{Name: name, Qtype: qtype, Qclass: 1} })
			reply, r := respondTo(m, packet)
			if r.outcome != outAnswered && r.outcome != outWildcard && r.outcome != outNoData {
				t.Errorf("%s %d: %s", name, qtype, r.outcome)
			}
			if !bytes.Contains(reply, packet[headerLen:]) {
				t.Errorf("%s came back as %s", name, hex.EncodeToString(reply))
			}
			got := new(dns.Msg)
			if err := got.Unpack(reply); err != nil {
				t.Fatal(err)
			}
			if qtype == dns.TypeA && got.Answer[0].Header().Name != name {
				t.Errorf("the answer is for %s, asked was %s", got.Answer[0].Header().Name, name)
			}
		}
	}
}

// TestNoAllocation: an answer to an owned name makes nothing for the garbage collector.
func TestNoAllocation(t *testing.T) {
	m := mustBuild(t, pageExample())
	buf := make([]byte, packetSize)
	for name, packet := range ownedQueries(t) {
		if allocs := testing.AllocsPerRun(1000, func() {
			m.respond(buf, copy(buf, packet), vlanClient)
		}); allocs != 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

func ownedQueries(t testing.TB) map[string][]byte {
	ask := func(name string, qtype uint16) []byte {
		return pack(t, func(q *dns.Msg) {
			q.Question[0] = dns.Question{Name: name, Qtype: qtype, Qclass: 1}
			q.SetEdns0(1232, true)
		})
	}
	return map[string][]byte{
		"address":  ask("api."+domainA+".", dns.TypeA),
		"nodata":   ask("api."+domainA+".", dns.TypeAAAA),
		"wildcard": ask("a.b.apps."+domainA+".", dns.TypeA),
		"alias":    ask("kubernetes.default.svc.", dns.TypeA),
		"forward":  ask("www.example.org.", dns.TypeA),
	}
}

func BenchmarkRespond(b *testing.B) {
	m := mustBuild(b, pageExample())
	for name, packet := range ownedQueries(b) {
		b.Run(name, func(b *testing.B) {
			buf := make([]byte, packetSize)
			b.ReportAllocs()
			for b.Loop() {
				m.respond(buf, copy(buf, packet), vlanClient)
			}
		})
	}
}

// FuzzRespond: whatever the bytes, there is no panic; what is no query gets no answer; an answer is
// well-formed, no longer than an owned one can be, has the query's ID and question, and agrees with
// what miekg/dns reads in the query.
func FuzzRespond(f *testing.F) {
	m := mustBuild(f, pageExample(each(pendingAliases), add("db.internal.apps."+domainA, "192.0.2.9")))
	for _, packet := range ownedQueries(f) {
		f.Add(packet)
		f.Add(packet[:len(packet)-3])
	}
	f.Add([]byte{})
	f.Add(append(pack(f, nil)[:headerLen], 0xc0, 12, 0, 1, 0, 1))
	f.Add(pack(f, func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate }))
	f.Add(pack(f, func(q *dns.Msg) { q.SetEdns0(1, true); q.IsEdns0().SetVersion(3) }))
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) > dns.MaxMsgSize {
			return
		}
		reply, r := respondTo(m, packet)
		if len(packet) < headerLen || packet[2]&0x80 != 0 {
			if len(reply) > 0 {
				t.Fatalf("%x is no query and was answered", packet)
			}
			return
		}
		if r.outcome == outForwarded {
			name, _, err := dns.UnpackDomainName(packet, headerLen)
			if err != nil {
				t.Fatalf("forwards a name that does not unpack: %v", err)
			}
			if a := newAsk(question{name: string(packet[headerLen : r.query.end-4]), qtype: 1}, true); new(dns.Msg).Unpack(a) != nil {
				t.Fatalf("asks upstreams for %q with a malformed query", name)
			}
			passed, err := forwardedReply(packet, r.query, new(dns.Msg), r.query.size)
			if err != nil || !bytes.Equal(passed[headerLen:r.query.end], packet[headerLen:r.query.end]) {
				t.Fatalf("%x: an upstream's answer is passed on as %x, %v", packet, passed, err)
			}
			return
		}
		got := new(dns.Msg)
		if err := got.Unpack(reply); err != nil {
			t.Fatalf("%x got a malformed answer %x: %v", packet, reply, err)
		}
		if !got.Response || got.Id != binary.BigEndian.Uint16(packet) || len(reply) > replyRoom {
			t.Fatalf("%x got %v", packet, got)
		}
		if !bytes.Equal(reply[headerLen:r.query.end], packet[headerLen:r.query.end]) {
			t.Fatalf("%x: the question came back changed: %x", packet, reply)
		}
		if r.outcome == outFormErr || r.outcome == outNotImp {
			return
		}
		if asked := new(dns.Msg); asked.Unpack(packet) == nil && (asked.IsEdns0() != nil) != (got.IsEdns0() != nil) {
			t.Fatalf("%x: EDNS in only one of query and answer", packet)
		}
	})
}

// FuzzMatch: whatever an upstream sends, there is no panic, and only an answer to the very question
// passes.
func FuzzMatch(f *testing.F) {
	a := newAsk(question{name: "\x03www\x07example\x03org\x00", qtype: dns.TypeA}, true)
	copy(a, []byte{0x12, 0x34})
	reply := new(dns.Msg)
	if err := reply.Unpack(a); err != nil {
		f.Fatal(err)
	}
	reply.Response = true
	wire, err := reply.Pack()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(wire)
	f.Add(wire[:headerLen])
	f.Add([]byte(a))
	client := pack(f, func(q *dns.Msg) { q.Question[0].Name = "www.example.org." })
	f.Fuzz(func(t *testing.T, msg []byte) {
		answer, truncated := a.match(msg)
		if answer == nil {
			return
		}
		if truncated || !answer.Response || len(answer.Question) > 1 {
			t.Fatalf("%x passes as an answer", msg)
		}
		if len(answer.Question) == 1 && !strings.EqualFold(answer.Question[0].Name, "www.example.org.") {
			t.Fatalf("%x answers another question", msg)
		}
		q, _, ok := parse(client)
		if !ok {
			t.Fatal("the client's query does not parse")
		}
		out, err := forwardedReply(client, q, answer, q.size)
		if err == nil && (len(out) > q.size || new(dns.Msg).Unpack(out) != nil) {
			t.Fatalf("%x becomes a reply of %d bytes, %x", msg, len(out), out)
		}
	})
}
