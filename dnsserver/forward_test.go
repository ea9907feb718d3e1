package dnsserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/densityops/oooi/api/v1alpha1"
)

// fakeUpstream is a resolver that behaves as a test wants it to.
type fakeUpstream struct {
	addr    string
	queries atomic.Int32

	mu   sync.Mutex
	last *dns.Msg
}

func (u *fakeUpstream) lastQuery() *dns.Msg {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.last
}

// startUpstream serves one port of an address over UDP and TCP with miekg/dns.
func startUpstream(t testing.TB, ip string, handler dns.HandlerFunc) *fakeUpstream {
	t.Helper()
	sockets, err := Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(ip), 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	u := &fakeUpstream{addr: sockets.Addr().String()}
	counted := dns.HandlerFunc(func(w dns.ResponseWriter, q *dns.Msg) {
		u.mu.Lock()
		u.last = q
		u.mu.Unlock()
		u.queries.Add(1)
		handler(w, q)
	})
	for _, server := range []*dns.Server{
		{PacketConn: sockets.udp[0], Handler: counted, UDPSize: 4096},
		{Listener: sockets.tcp, Handler: counted},
	} {
		started, done := make(chan struct{}), make(chan error, 1)
		server.NotifyStartedFunc = func() { close(started) }
		go func() { done <- server.ActivateAndServe() }()
		<-started
		t.Cleanup(func() {
			if err := errors.Join(server.Shutdown(), <-done); err != nil {
				t.Errorf("upstream: %v", err)
			}
		})
	}
	return u
}

func upstreams(addrs ...string) func(*v1alpha1.DNSServerSpec) {
	return func(s *v1alpha1.DNSServerSpec) { s.UpstreamDNS = addrs }
}

func send(w dns.ResponseWriter, m *dns.Msg) {
	_ = w.WriteMsg(m) // a client that has gone is part of some tests
}

func a(name, ip string) dns.RR {
	return &dns.A{Hdr: dns.RR_Header{Name: name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 77}, A: net.ParseIP(ip)}
}

func answerA(ip string) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Answer = []dns.RR{a(q.Question[0].Name, ip)}
		send(w, m)
	}
}

func answerRcode(rcode int) dns.HandlerFunc {
	return func(w dns.ResponseWriter, q *dns.Msg) { send(w, new(dns.Msg).SetRcode(q, rcode)) }
}

func silence(dns.ResponseWriter, *dns.Msg) {}

// forge answers a query in the upstream's stead, with the right ID and question.
func forge(t testing.TB, from string, to net.Addr, q *dns.Msg) {
	conn, err := net.ListenPacket("udp4", from)
	if err != nil {
		t.Error(err)
		return
	}
	defer func() { _ = conn.Close() }()
	m := new(dns.Msg).SetReply(q)
	m.Answer = []dns.RR{a(q.Question[0].Name, "203.0.113.66")}
	packet, err := m.Pack()
	if err == nil {
		_, err = conn.WriteTo(packet, to)
	}
	if err != nil {
		t.Error(err)
	}
}

// isTCP tells how a query reached the upstream.
func isTCP(w dns.ResponseWriter) bool { return w.RemoteAddr().Network() == "tcp" }

// askUDP sends one query from an address on the VLAN and returns the answer.
func askUDP(t testing.TB, server netip.AddrPort, edit func(*dns.Msg)) *dns.Msg {
	t.Helper()
	client := dialUDP(t, vlanIP, server)
	packet := pack(t, func(q *dns.Msg) {
		q.Question[0].Name = "WWW.example.ORG."
		if edit != nil {
			edit(q)
		}
	})
	if _, err := client.Write(packet); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, dns.MaxMsgSize)
	n, err := client.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg)
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	if len(m.Question) != 1 || m.Id != 0x1234 || !strings.Contains(string(buf[:n]), string(packet[headerLen:headerLen+17])) {
		t.Errorf("the answer is not one to the question: %v", m)
	}
	return m
}

// patient limits tell a silent upstream from one on a busy machine.
var patient = Limits{Attempt: time.Second, Forward: deadline}

// TestUpstreamBehaviour: what clients get from upstreams that are as bad as they come.
func TestUpstreamBehaviour(t *testing.T) {
	good := answerA("198.51.100.7")
	// spoiled sends a changed answer first and the right one after it.
	spoiled := func(spoil func(m *dns.Msg)) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Answer = []dns.RR{a(q.Question[0].Name, "203.0.113.66")}
			spoil(m)
			send(w, m)
			good(w, q)
		}
	}
	raw := func(packet func(q *dns.Msg) []byte) dns.HandlerFunc {
		return func(w dns.ResponseWriter, q *dns.Msg) {
			_, _ = w.Write(packet(q)) // see send
			good(w, q)
		}
	}
	tests := map[string]struct {
		upstreams []dns.HandlerFunc
		want      string
		asked     []int32 // how often each upstream was asked, when that matters
	}{
		"answers":                   {[]dns.HandlerFunc{good}, "NOERROR A 198.51.100.7", []int32{1}},
		"wrong ID first":            {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Id++ })}, "NOERROR A 198.51.100.7", []int32{1}},
		"wrong name first":          {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Question[0].Name = "www.example.net." })}, "NOERROR A 198.51.100.7", []int32{1}},
		"wrong type first":          {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Question[0].Qtype = dns.TypeMX })}, "NOERROR A 198.51.100.7", []int32{1}},
		"wrong class first":         {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Question[0].Qclass = dns.ClassCHAOS })}, "NOERROR A 198.51.100.7", []int32{1}},
		"no question first":         {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Question = nil })}, "NOERROR A 198.51.100.7", []int32{1}},
		"two questions first":       {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Question = append(m.Question, m.Question[0]) })}, "NOERROR A 198.51.100.7", []int32{1}},
		"a query instead of answer": {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Response = false })}, "NOERROR A 198.51.100.7", []int32{1}},
		"another opcode first":      {[]dns.HandlerFunc{spoiled(func(m *dns.Msg) { m.Opcode = dns.OpcodeNotify })}, "NOERROR A 198.51.100.7", []int32{1}},
		"another case of the name": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			q.Question[0].Name = strings.ToUpper(q.Question[0].Name)
			good(w, q)
		}}, "NOERROR A 198.51.100.7", []int32{1}},
		"garbage first":  {[]dns.HandlerFunc{raw(func(*dns.Msg) []byte { return []byte("garbage, and more of it than a header has") })}, "NOERROR A 198.51.100.7", []int32{1}},
		"one byte first": {[]dns.HandlerFunc{raw(func(*dns.Msg) []byte { return []byte{0} })}, "NOERROR A 198.51.100.7", []int32{1}},
		"the right header, then garbage": {[]dns.HandlerFunc{raw(func(q *dns.Msg) []byte {
			m := new(dns.Msg).SetReply(q)
			m.Answer = []dns.RR{a("www.example.org.", "203.0.113.66")}
			b, _ := m.Pack() // of our own making
			return b[:len(b)-2]
		})}, "NOERROR A 198.51.100.7", []int32{1}},
		"another address answers first": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			forge(t, "127.0.9.66:0", w.RemoteAddr(), q)
			good(w, q)
		}}, "NOERROR A 198.51.100.7", []int32{1}},
		"another port answers first": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			forge(t, "127.0.9.1:0", w.RemoteAddr(), q)
			good(w, q)
		}}, "NOERROR A 198.51.100.7", []int32{1}},
		"AA, AD and Z of an upstream": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Authoritative, m.AuthenticatedData, m.Zero = true, true, true
			m.Answer = []dns.RR{a(q.Question[0].Name, "198.51.100.7")}
			send(w, m)
		}}, "NOERROR A 198.51.100.7", nil},
		"NXDOMAIN is an answer":   {[]dns.HandlerFunc{answerRcode(dns.RcodeNameError), good}, "NXDOMAIN", []int32{1, 0}},
		"empty is an answer":      {[]dns.HandlerFunc{answerRcode(dns.RcodeSuccess), good}, "NOERROR", []int32{1, 0}},
		"SERVFAIL, the next":      {[]dns.HandlerFunc{answerRcode(dns.RcodeServerFailure), good}, "NOERROR A 198.51.100.7", []int32{1, 1}},
		"REFUSED, the next":       {[]dns.HandlerFunc{answerRcode(dns.RcodeRefused), good}, "NOERROR A 198.51.100.7", []int32{1, 1}},
		"silent, the next":        {[]dns.HandlerFunc{silence, good}, "NOERROR A 198.51.100.7", []int32{1, 1}},
		"two silent, the third":   {[]dns.HandlerFunc{silence, silence, good}, "NOERROR A 198.51.100.7", []int32{1, 1, 1}},
		"all SERVFAIL":            {[]dns.HandlerFunc{answerRcode(dns.RcodeServerFailure), answerRcode(dns.RcodeServerFailure)}, "SERVFAIL", []int32{1, 1}},
		"all REFUSED":             {[]dns.HandlerFunc{answerRcode(dns.RcodeRefused)}, "REFUSED", []int32{1}},
		"silent and SERVFAIL":     {[]dns.HandlerFunc{silence, answerRcode(dns.RcodeServerFailure)}, "SERVFAIL", []int32{1, 1}},
		"all silent, asked twice": {[]dns.HandlerFunc{silence, silence}, "SERVFAIL", []int32{2, 2}},
		"truncated, then over TCP": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			if isTCP(w) {
				good(w, q)
				return
			}
			m := new(dns.Msg).SetReply(q)
			m.Truncated = true
			send(w, m)
		}}, "NOERROR A 198.51.100.7", []int32{2}},
		"truncated over TCP too, the next": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Truncated = true
			send(w, m)
		}, good}, "NOERROR A 198.51.100.7", []int32{2, 1}},
		"truncated, TCP hangs up, the next": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			if isTCP(w) {
				_ = w.Close() // that is the test
				return
			}
			m := new(dns.Msg).SetReply(q)
			m.Truncated = true
			send(w, m)
		}, good}, "NOERROR A 198.51.100.7", []int32{2, 1}},
		"stumbles over EDNS": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			if q.IsEdns0() != nil {
				answerRcode(dns.RcodeFormatError)(w, q)
				return
			}
			good(w, q)
		}}, "NOERROR A 198.51.100.7", []int32{2}},
		"stumbles over EDNS and loses the question": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			if q.IsEdns0() != nil {
				m := new(dns.Msg).SetRcode(q, dns.RcodeFormatError)
				m.Question = nil
				send(w, m)
				return
			}
			good(w, q)
		}}, "NOERROR A 198.51.100.7", []int32{2}},
		"always FORMERR, the next": {[]dns.HandlerFunc{answerRcode(dns.RcodeFormatError), good}, "NOERROR A 198.51.100.7", []int32{2, 1}},
		"types nobody knows": {[]dns.HandlerFunc{func(w dns.ResponseWriter, q *dns.Msg) {
			m := new(dns.Msg).SetReply(q)
			m.Answer = []dns.RR{&dns.RFC3597{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: 65280, Class: 1, Ttl: 1}, Rdata: "abcd"}}
			send(w, m)
		}}, "NOERROR TYPE65280 www.example.org.\t1\tCLASS1\tTYPE65280\t\\# 2 abcd", nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ups []*fakeUpstream
			var addrs []string
			for i, handler := range test.upstreams {
				up := startUpstream(t, fmt.Sprintf("127.0.9.%d", i+1), handler)
				ups, addrs = append(ups, up), append(addrs, up.addr)
			}
			_, addr := start(t, Config{Limits: patient}, serverIP, loopbackModel(t, upstreams(addrs...)))
			got := askUDP(t, addr, nil)
			if line := show(got); line != test.want {
				t.Errorf("got %s, want %s", line, test.want)
			}
			if got.Authoritative || got.AuthenticatedData || got.Zero || !got.RecursionAvailable || !got.RecursionDesired {
				t.Errorf("header of a forwarded answer: %+v", got.MsgHdr)
			}
			for i, want := range test.asked {
				if asked := ups[i].queries.Load(); asked != want {
					t.Errorf("upstream %d was asked %d times, want %d", i, asked, want)
				}
			}
		})
	}
}

// TestNobodyListens: a port that is closed is known at once, and the next upstream is asked.
func TestNobodyListens(t *testing.T) {
	up := startUpstream(t, "127.0.9.1", answerA("198.51.100.7"))
	closed, err := Listen(t.Context(), netip.MustParseAddrPort("127.0.9.2:0"), 1)
	if err != nil {
		t.Fatal(err)
	}
	dead := closed.Addr().String()
	if err := closed.Close(); err != nil {
		t.Fatal(err)
	}
	server, addr := start(t, Config{}, serverIP, loopbackModel(t, upstreams(dead, up.addr)))
	for range 3 {
		if got := show(askUDP(t, addr, nil)); got != "NOERROR A 198.51.100.7" {
			t.Errorf("got %s", got)
		}
	}
	if got := testutil.ToFloat64(server.metrics.upstream.WithLabelValues(dead, "error")); got != 1 {
		t.Errorf("the dead upstream was asked %v times, want once in ten seconds", got)
	}
}

// TestWhatUpstreamsSee: DO, CD and the question go on; the client's ID, address, options, and its case do
// not, and each query has an ID and a port of its own.
func TestWhatUpstreamsSee(t *testing.T) {
	var mu sync.Mutex
	ids, ports := map[uint16]bool{}, map[string]bool{}
	up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
		mu.Lock()
		ids[q.Id], ports[w.RemoteAddr().String()] = true, true
		mu.Unlock()
		m := new(dns.Msg).SetReply(q)
		m.SetEdns0(4096, true)
		m.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_LOCAL{Code: 65001, Data: []byte{1}}}
		send(w, m)
	})
	_, addr := start(t, Config{}, serverIP, loopbackModel(t, upstreams(up.addr)))

	got := askUDP(t, addr, func(q *dns.Msg) {
		q.CheckingDisabled, q.AuthenticatedData = true, true
		q.SetEdns0(4096, true)
		q.IsEdns0().Option = []dns.EDNS0{&dns.EDNS0_SUBNET{Code: dns.EDNS0SUBNET, Family: 1, SourceNetmask: 24, Address: net.IP{192, 0, 2, 0}}}
	})
	o := got.IsEdns0()
	if o == nil || !o.Do() || o.UDPSize() != maxUDP || len(o.Option) != 0 || !got.CheckingDisabled {
		t.Errorf("a client with EDNS, DO and CD got %v", got)
	}
	seen := up.lastQuery()
	o = seen.IsEdns0()
	if o == nil || !o.Do() || o.UDPSize() != maxUDP || len(o.Option) != 0 || !seen.CheckingDisabled || !seen.RecursionDesired {
		t.Errorf("the upstream saw %v", seen)
	}
	if seen.Question[0] != (dns.Question{Name: "www.example.org.", Qtype: dns.TypeA, Qclass: dns.ClassINET}) {
		t.Errorf("the upstream was asked %v", seen.Question)
	}

	got = askUDP(t, addr, nil)
	if got.IsEdns0() != nil || got.CheckingDisabled {
		t.Errorf("a client without EDNS and CD got %v", got)
	}
	if o = up.lastQuery().IsEdns0(); o == nil || o.Do() {
		t.Errorf("for a client without EDNS the upstream saw %v", up.lastQuery())
	}
	for range 30 {
		askUDP(t, addr, nil)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(ids) < 30 || len(ports) < 16 {
		t.Errorf("32 queries had %d IDs and %d ports", len(ids), len(ports))
	}
}

// TestSizes: an answer is cut to what the client takes, with TC, and is whole over TCP.
func TestSizes(t *testing.T) {
	const records = 100
	up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for i := range records {
			m.Answer = append(m.Answer, a(q.Question[0].Name, fmt.Sprintf("198.51.100.%d", i)))
		}
		if !isTCP(w) {
			m.Truncate(dns.MinMsgSize)
		}
		send(w, m)
	})
	_, addr := start(t, Config{}, serverIP, loopbackModel(t, upstreams(up.addr)))
	for size, most := range map[uint16]int{0: 512, 512: 512, 900: 900, 1232: 1232, 4096: 1232} {
		got := askUDP(t, addr, func(q *dns.Msg) {
			if size > 0 {
				q.SetEdns0(size, false)
			}
		})
		got.Compress = true
		if got.Len() > most || got.Len() < most-40 || !got.Truncated {
			t.Errorf("size %d: %d bytes, TC %t; want just below %d and TC", size, got.Len(), got.Truncated, most)
		}
	}
	conn := dialTCP(t, vlanIP, addr)
	if _, err := conn.Write(frame(pack(t, func(q *dns.Msg) { q.Question[0].Name = "www.example.org." }))); err != nil {
		t.Fatal(err)
	}
	if got := readFrame(t, conn); got.Truncated || len(got.Answer) != records {
		t.Errorf("over TCP: %d records, TC %t", len(got.Answer), got.Truncated)
	}
}

// TestSlowUpstreamDelaysNobody: with every place taken by queries that wait, owned names are answered,
// the client over its limit gets SERVFAIL and another client is still forwarded.
func TestSlowUpstreamDelaysNobody(t *testing.T) {
	release := make(chan struct{})
	up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
		<-release
		answerA("198.51.100.7")(w, q)
	})
	server, addr := start(t, Config{Limits: Limits{Forwards: 9, ClientForwards: 8, Attempt: deadline, Forward: deadline}},
		serverIP, loopbackModel(t, upstreams(up.addr)))
	client := dialUDP(t, vlanIP, addr)
	ask := func(conn *net.UDPConn, id uint16, name string) {
		if _, err := conn.Write(pack(t, func(q *dns.Msg) { q.Id = id; q.Question[0].Name = name })); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint16(8) {
		ask(client, id, fmt.Sprintf("n%d.example.org.", id))
	}
	eventually(t, "eight queries in flight", func() bool { return testutil.ToFloat64(server.metrics.inFlight) == 8 })
	ask(client, 100, "more.example.org.")
	if got := read(t, client); got.Id != 100 || show(got) != "SERVFAIL" {
		t.Errorf("over the client's limit: %d %s", got.Id, show(got))
	}
	ask(client, 101, "api."+domainA+".")
	if got := read(t, client); got.Id != 101 || show(got) != "NOERROR aa A 192.0.2.4" {
		t.Errorf("owned name while the upstream is slow: %d %s", got.Id, show(got))
	}
	other := dialUDP(t, otherIP, addr)
	ask(other, 200, "other.example.org.")
	eventually(t, "the other client's query in flight", func() bool { return testutil.ToFloat64(server.metrics.inFlight) == 9 })
	third := dialUDP(t, podIP, addr)
	ask(third, 300, "third.example.org.")
	if got := read(t, third); show(got) != "SERVFAIL" {
		t.Errorf("over the limit of all: %s", show(got))
	}
	close(release)
	for range 8 {
		if got := show(read(t, client)); got != "NOERROR A 198.51.100.7" {
			t.Errorf("after the wait: %s", got)
		}
	}
	if got := show(read(t, other)); got != "NOERROR A 198.51.100.7" {
		t.Errorf("the other client: %s", got)
	}
	// All the places are free again, more than one client's worth of them.
	for id := range uint16(20) {
		ask(client, id, "again.example.org.")
		if got := show(read(t, client)); got != "NOERROR A 198.51.100.7" {
			t.Fatalf("query %d after the wait: %s", id, got)
		}
	}
	if got := testutil.ToFloat64(server.metrics.inFlight); got != 0 {
		t.Errorf("%v queries in flight, want 0", got)
	}
}

// TestSharedQuestion: what many ask at once is asked once, and each gets it for its own ID and case.
func TestSharedQuestion(t *testing.T) {
	release := make(chan struct{})
	up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
		<-release
		answerA("198.51.100.7")(w, q)
	})
	server, addr := start(t, Config{Limits: Limits{Attempt: deadline, Forward: deadline}}, serverIP, loopbackModel(t, upstreams(up.addr)))
	client := dialUDP(t, vlanIP, addr)
	names := []string{"www.example.org.", "WWW.example.org.", "www.EXAMPLE.org."}
	for id, name := range names {
		if _, err := client.Write(pack(t, func(q *dns.Msg) { q.Id = uint16(id); q.Question[0].Name = name })); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "two queries wait for the first", func() bool { return testutil.ToFloat64(server.metrics.shared) == 2 })
	close(release)
	for range names {
		got := read(t, client)
		if show(got) != "NOERROR A 198.51.100.7" || got.Question[0].Name != names[got.Id] {
			t.Errorf("%d: %s for %s", got.Id, show(got), got.Question[0].Name)
		}
	}
	if asked := up.queries.Load(); asked != 1 {
		t.Errorf("the upstream was asked %d times", asked)
	}
}

// TestLoops: questions that come back are refused at once instead of going round.
func TestLoops(t *testing.T) {
	t.Run("the server is its own upstream", func(t *testing.T) {
		server, addr := start(t, Config{}, "127.100.0.9")
		server.Apply(loopbackModel(t, upstreams(addr.String())))
		if got := show(askUDP(t, addr, nil)); got != "REFUSED" {
			t.Errorf("got %s", got)
		}
		if got := testutil.ToFloat64(server.metrics.queries[viewVLAN][outLoop]) + testutil.ToFloat64(server.metrics.queries[viewPods][outLoop]); got != 1 {
			t.Errorf("%v loops counted, want 1", got)
		}
	})
	t.Run("two servers forward to each other", func(t *testing.T) {
		limits := Limits{Attempt: 100 * time.Millisecond, Forward: time.Second}
		first, firstAddr := start(t, Config{Limits: limits}, "127.100.0.9")
		second, secondAddr := start(t, Config{Limits: limits}, "127.100.0.10")
		first.Apply(loopbackModel(t, upstreams(secondAddr.String())))
		second.Apply(loopbackModel(t, upstreams(firstAddr.String())))
		if got := show(askUDP(t, firstAddr, nil)); got != "SERVFAIL" {
			t.Errorf("got %s", got)
		}
		asked := testutil.ToFloat64(first.metrics.upstream.WithLabelValues(secondAddr.String(), "timeout"))
		if asked > 2*rounds { // once round for each view
			t.Errorf("asked the other server %v times", asked)
		}
	})
	t.Run("an upstream asks us what it is asked", func(t *testing.T) {
		release := make(chan struct{})
		up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
			<-release
			answerA("198.51.100.7")(w, q)
		})
		server, err := NewServer(Config{Limits: Limits{Attempt: deadline, Forward: deadline}})
		if err != nil {
			t.Fatal(err)
		}
		q := question{name: "\x03www\x07example\x03org\x00", qtype: dns.TypeA}
		m := loopbackModel(t, upstreams(up.addr))
		done := make(chan error, 1)
		go func() {
			_, err := server.forward.resolve(t.Context(), m, q, clients["vlan"])
			done <- err
		}()
		eventually(t, "the upstream is asked", func() bool { return up.queries.Load() == 1 })
		server.forward.mu.Lock()
		flight := server.forward.flights[q]
		server.forward.mu.Unlock()
		flight.ask(netip.MustParseAddr("198.51.100.53"))
		if _, err := server.forward.resolve(t.Context(), m, q, netip.MustParseAddr("198.51.100.53")); !errors.Is(err, errLoop) {
			t.Errorf("the upstream's own question: %v", err)
		}
		close(release)
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

// TestPanicGuard: a bug on the slow path costs one answer, not the server.
func TestPanicGuard(t *testing.T) {
	up := startUpstream(t, "127.0.9.1", answerA("198.51.100.7"))
	server, addr := start(t, Config{}, serverIP, loopbackModel(t, upstreams(up.addr)))
	resolv := server.forward.resolv
	server.forward.resolv = nil
	server.Apply(loopbackModel(t, upstreams("resolv.conf")))
	if got := show(askUDP(t, addr, nil)); got != "SERVFAIL" {
		t.Errorf("got %s", got)
	}
	if got := testutil.ToFloat64(server.metrics.panics); got != 1 {
		t.Errorf("%v panics counted", got)
	}
	server.forward.resolv = resolv
	server.Apply(loopbackModel(t, upstreams(up.addr)))
	if got := show(askUDP(t, addr, nil)); got != "NOERROR A 198.51.100.7" {
		t.Errorf("after the panic: %s", got)
	}
}
