package dnsserver

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/densityops/oooi/api/v1alpha1"
)

// The lab of these tests is the loopback interface: the VLAN is 127.100.0.0/24, pods are 127.0.0.0/24,
// and whatever else is in 127.0.0.0/8 is a stranger.
const (
	serverIP   = "127.100.0.3"
	vlanIP     = "127.100.0.50"
	otherIP    = "127.100.0.51"
	podIP      = "127.0.0.1"
	strangerIP = "127.55.0.1"
)

const deadline = 10 * time.Second

func onLoopback(s *v1alpha1.DNSServerSpec) {
	s.NetworkConfig.ServerIP = serverIP
	s.NetworkConfig.SecondaryNetworkCIDR = "127.100.0.0/24"
	s.UpstreamDNS = nil
}

func loopbackModel(t testing.TB, edits ...func(*v1alpha1.DNSServerSpec)) *Model {
	t.Helper()
	edits = append([]func(*v1alpha1.DNSServerSpec){onLoopback}, edits...)
	m, err := Build(pageExample(edits...), Options{PodNetworks: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/24")}})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// start runs a server at an address until the test ends, with the models given.
func start(t testing.TB, config Config, ip string, models ...*Model) (*Server, netip.AddrPort) {
	t.Helper()
	server, err := NewServer(config)
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(ip), 0), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range models {
		server.Apply(m)
	}
	addr := sockets.Addr()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, sockets) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run goes on after its context has ended")
		}
	})
	return server, addr
}

// dig runs the real one from a source address and returns what it prints.
func dig(t *testing.T, server netip.AddrPort, from string, args ...string) string {
	t.Helper()
	args = append([]string{
		"@" + server.Addr().String(), "-p", fmt.Sprint(server.Port()), "-b", from, "+tries=1", "+time=5", "+nocookie",
	}, args...)
	out, err := exec.CommandContext(t.Context(), "dig", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("dig %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// TestDig asks a running server as a person would.
func TestDig(t *testing.T) {
	_, addr := start(t, Config{}, serverIP, loopbackModel(t, each(pendingAliases)))
	api := "api." + domainA
	tests := []struct {
		from string
		args string
		want []string
	}{
		{vlanIP, "+short " + api, []string{"192.0.2.4\n"}},
		{podIP, "+short " + api, []string{"10.96.0.40\n"}},
		{vlanIP, "+tcp +short " + api, []string{"192.0.2.4\n"}},
		{podIP, "+tcp +short " + api, []string{"10.96.0.40\n"}},
		{vlanIP, "+short a.b.apps." + domainA, []string{"192.0.2.200\n"}},
		{vlanIP, api, []string{"status: NOERROR", "flags: qr aa rd ra;", "ANSWER: 1", "\t30\tIN\tA\t192.0.2.4", "udp: 1232"}},
		{vlanIP, "+noedns " + api, []string{"status: NOERROR", "ADDITIONAL: 0"}},
		{vlanIP, "AAAA " + api, []string{"status: NOERROR", "ANSWER: 0, AUTHORITY: 1", api + ". 30 IN\tSOA\t" + api + ". nobody.invalid. 1 3600 1200 604800 30"}},
		{vlanIP, "SOA " + api, []string{"status: NOERROR", "ANSWER: 1, AUTHORITY: 0", "SOA\t" + api + ". nobody.invalid. 1 3600 1200 604800 30"}},
		{vlanIP, "kubernetes.default.svc", []string{"status: NXDOMAIN", "5\tIN\tSOA\tkubernetes.default.svc. nobody.invalid. 1 3600 1200 604800 5"}},
		{podIP, "kubernetes.default.svc", []string{"status: REFUSED", "ANSWER: 0"}},
		{vlanIP, "www.example.org", []string{"status: REFUSED"}},
		{strangerIP, api, []string{"status: REFUSED", "ANSWER: 0"}},
		{vlanIP, "+edns=1 +noednsnegotiation " + api, []string{"status: BADVERS"}},
		{vlanIP, "+ednsopt=65001:abcd +dnssec " + api, []string{"status: NOERROR", "flags: do; udp: 1232"}},
		{vlanIP, "+ednsflags=0x7fff " + api, []string{"status: NOERROR", "EDNS: version: 0, flags:; udp: 1232"}},
		{vlanIP, "+opcode=2 " + api, []string{"status: NOTIMP"}},
		{vlanIP, "-c CH -t TXT version.bind", []string{"status: REFUSED"}},
		{vlanIP, "+tcp -t AXFR " + api, []string{"Transfer failed"}},
		{vlanIP, "ANY " + api, []string{"status: NOERROR", "192.0.2.4"}},
	}
	for _, test := range tests {
		out := dig(t, addr, test.from, strings.Fields(test.args)...)
		for _, want := range test.want {
			if !strings.Contains(strings.Join(strings.Fields(out), " "), strings.Join(strings.Fields(want), " ")) {
				t.Errorf("dig -b %s %s: want %q in\n%s", test.from, test.args, want, out)
			}
		}
		if strings.Contains(out, "malformed") || strings.Contains(out, "WARNING: recursion") || strings.Contains(out, "extra bytes") {
			t.Errorf("dig -b %s %s warns:\n%s", test.from, test.args, out)
		}
	}
}

// TestAnyAddress: a server on all addresses answers from the one that was asked; dig and connected
// sockets drop an answer from another.
func TestAnyAddress(t *testing.T) {
	_, addr := start(t, Config{}, "0.0.0.0", loopbackModel(t))
	for _, ip := range []string{serverIP, "127.100.0.9", "127.0.0.1"} {
		asked := netip.AddrPortFrom(netip.MustParseAddr(ip), addr.Port())
		if got := dig(t, asked, vlanIP, "+short", "api."+domainA); got != "192.0.2.4\n" {
			t.Errorf("%s answered %q", ip, got)
		}
		if got := dig(t, asked, podIP, "+tcp", "+short", "api."+domainA); got != "10.96.0.40\n" {
			t.Errorf("%s answered %q over TCP", ip, got)
		}
	}
}

// TestAnyAddressForwarded: the same for answers that come late, from an upstream.
func TestAnyAddressForwarded(t *testing.T) {
	up := startUpstream(t, "127.0.9.1", answerA("198.51.100.7"))
	_, addr := start(t, Config{}, "0.0.0.0", loopbackModel(t, upstreams(up.addr)))
	asked := netip.AddrPortFrom(netip.MustParseAddr("127.100.0.9"), addr.Port())
	if got := dig(t, asked, vlanIP, "+short", "www.example.org"); got != "198.51.100.7\n" {
		t.Errorf("answered %q", got)
	}
}

// TestApply: nothing is answered before the first model; each later one holds at once and as a whole.
func TestApply(t *testing.T) {
	server, addr := start(t, Config{}, serverIP)
	client := dialUDP(t, vlanIP, addr)
	q := pack(t, nil)
	if _, err := client.Write(q); err != nil {
		t.Fatal(err)
	}
	if got := testutil.ToFloat64(server.metrics.queries[viewVLAN][outAnswered]); got != 0 {
		t.Fatalf("%v answers before the first Apply", got)
	}
	if server.Model() != nil {
		t.Error("there is a model before the first Apply")
	}
	first := loopbackModel(t)
	server.Apply(first)
	if server.Model() != first {
		t.Error("the model is not the one applied")
	}
	if got := show(read(t, client)); got != "NOERROR aa A 192.0.2.4" {
		t.Errorf("first answer: %s", got)
	}
	server.Apply(loopbackModel(t, each(func(e *v1alpha1.StaticEntry) { e.IP = "192.0.2.5" })))
	if _, err := client.Write(q); err != nil {
		t.Fatal(err)
	}
	if got := show(read(t, client)); got != "NOERROR aa A 192.0.2.5" {
		t.Errorf("answer after Apply: %s", got)
	}
}

func dialUDP(t testing.TB, from string, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	local := net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	conn, err := net.DialUDP("udp4", local, net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func read(t testing.TB, conn *net.UDPConn) *dns.Msg {
	t.Helper()
	buf := make([]byte, dns.MaxMsgSize)
	n, err := conn.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	m := new(dns.Msg)
	if err := m.Unpack(buf[:n]); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestBurst: every packet of a burst larger than one batch gets its own answer; garbage in between
// gets none and stops nothing.
func TestBurst(t *testing.T) {
	_, addr := start(t, Config{}, serverIP, loopbackModel(t))
	client := dialUDP(t, vlanIP, addr)
	const burst = 3 * batchSize
	for i := range burst {
		packet := pack(t, func(q *dns.Msg) { q.Id = uint16(i) })
		for _, p := range [][]byte{{0xff}, packet} {
			if _, err := client.Write(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	seen := map[uint16]bool{}
	for range burst {
		seen[read(t, client).Id] = true
	}
	if len(seen) != burst {
		t.Errorf("%d answers of %d", len(seen), burst)
	}
}

// TestSocketAllocations: receiving, answering and sending make nothing for the garbage collector.
func TestSocketAllocations(t *testing.T) {
	sockets, err := Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(serverIP), 0), 1)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sockets.Close() }()
	b, err := newBatch(sockets.udp[0], false)
	if err != nil {
		t.Fatal(err)
	}
	m := loopbackModel(t)
	client := dialUDP(t, vlanIP, sockets.Addr())
	packet, in := pack(t, nil), make([]byte, 512)
	if allocs := testing.AllocsPerRun(200, func() {
		if _, err := client.Write(packet); err != nil {
			t.Fatal(err)
		}
		n, err := b.read()
		if err != nil || n != 1 {
			t.Fatal(n, err)
		}
		buf, length := b.packet(0)
		r := m.respond(buf, length, b.client(0).Addr())
		b.reply(0, 0, r.n)
		if failed, err := b.write(1); failed != 0 || err != nil {
			t.Fatal(failed, err)
		}
		if _, err := client.Read(in); err != nil {
			t.Fatal(err)
		}
	}); allocs != 0 {
		t.Errorf("%v allocations for a query", allocs)
	}
}

// TestStrangersBytes: a stranger's malformed bytes get nothing at all.
func TestStrangersBytes(t *testing.T) {
	m := loopbackModel(t)
	for _, packet := range [][]byte{
		pack(t, nil)[:headerLen+4],
		pack(t, func(q *dns.Msg) { q.Opcode = dns.OpcodeUpdate }),
		pack(t, func(q *dns.Msg) { q.Response = true }),
	} {
		buf := make([]byte, packetSize)
		if r := m.respond(buf, copy(buf, packet), netip.MustParseAddr(strangerIP)); r.n != 0 || r.outcome != outDropped {
			t.Errorf("%x was answered: %s", packet, r.outcome)
		}
	}
}

// TestListenAlone: a second server on one address is an error, not a thief of every other packet.
func TestListenAlone(t *testing.T) {
	first, err := Listen(t.Context(), netip.AddrPortFrom(netip.MustParseAddr(serverIP), 0), 2)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Close() }()
	if second, err := Listen(t.Context(), first.Addr(), 2); err == nil {
		_ = second.Close()
		t.Fatal("two servers share an address")
	} else if !strings.Contains(err.Error(), first.Addr().String()) {
		t.Errorf("the error does not name the address: %v", err)
	}
	if s, err := Listen(t.Context(), netip.MustParseAddrPort("[::1]:0"), 1); err == nil {
		_ = s.Close()
		t.Error("listens on IPv6")
	}
}

func dialTCP(t testing.TB, from string, to netip.AddrPort) *net.TCPConn {
	t.Helper()
	local := net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 0))
	conn, err := net.DialTCP("tcp4", local, net.TCPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(deadline)); err != nil {
		t.Fatal(err)
	}
	return conn
}

func frame(packet []byte) []byte {
	return append(binary.BigEndian.AppendUint16(nil, uint16(len(packet))), packet...)
}

func readFrame(t testing.TB, conn net.Conn) *dns.Msg {
	t.Helper()
	m, err := (&dns.Conn{Conn: conn}).ReadMsg()
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// TestTCPPipelining: many queries in one write, an owned one overtakes a forwarded one (RFC 7766
// 6.2.1.1), and a client that has closed its side still gets all its answers.
func TestTCPPipelining(t *testing.T) {
	release := make(chan struct{})
	up := startUpstream(t, "127.0.9.1", func(w dns.ResponseWriter, q *dns.Msg) {
		<-release
		answerA("198.51.100.7")(w, q)
	})
	_, addr := start(t, Config{}, serverIP, loopbackModel(t, upstreams(up.addr)))
	conn := dialTCP(t, vlanIP, addr)
	var all []byte
	all = append(all, frame(pack(t, func(q *dns.Msg) { q.Id = 1; q.Question[0].Name = "slow.example.org." }))...)
	for id := range uint16(20) {
		all = append(all, frame(pack(t, func(q *dns.Msg) { q.Id = 100 + id }))...)
	}
	// In pieces, as TCP may deliver it.
	for _, piece := range [][]byte{all[:1], all[1:40], all[40:]} {
		if _, err := conn.Write(piece); err != nil {
			t.Fatal(err)
		}
	}
	for id := range uint16(20) {
		if got := readFrame(t, conn); got.Id != 100+id || show(got) != "NOERROR aa A 192.0.2.4" {
			t.Fatalf("answer %d: %d %s", id, got.Id, show(got))
		}
	}
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	close(release)
	if got := readFrame(t, conn); got.Id != 1 || show(got) != "NOERROR A 198.51.100.7" {
		t.Errorf("forwarded answer: %d %s", got.Id, show(got))
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("after the last answer: %d bytes, %v", n, err)
	}
}

// TestTCPIdle: a connection without a whole query within the idle time is closed, dripping bytes or
// not.
func TestTCPIdle(t *testing.T) {
	_, addr := start(t, Config{Limits: Limits{ConnIdle: 50 * time.Millisecond}}, serverIP, loopbackModel(t))
	for name, sent := range map[string][]byte{"silent": nil, "half a query": frame(pack(t, nil))[:20]} {
		conn := dialTCP(t, vlanIP, addr)
		if _, err := conn.Write(sent); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) || n != 0 {
			t.Errorf("%s: %d bytes, %v; want the end", name, n, err)
		}
	}
}

// TestTCPMalformed: what is no query ends the connection without an answer.
func TestTCPMalformed(t *testing.T) {
	_, addr := start(t, Config{}, serverIP, loopbackModel(t))
	for name, sent := range map[string][]byte{
		"empty frame": {0, 0},
		"short frame": {0, 3, 1, 2, 3},
		"a response":  frame(pack(t, func(q *dns.Msg) { q.Response = true })),
	} {
		conn := dialTCP(t, vlanIP, addr)
		if _, err := conn.Write(sent); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("%s: got %d bytes, want the end", name, n)
		}
	}
}

// TestTCPConnectionCaps: one address cannot take all connections, and a closed one makes room.
func TestTCPConnectionCaps(t *testing.T) {
	server, addr := start(t, Config{Limits: Limits{Conns: 3, ClientConns: 2}}, serverIP, loopbackModel(t))
	asks := func(conn *net.TCPConn) bool {
		if _, err := conn.Write(frame(pack(t, nil))); err != nil {
			return false
		}
		_, err := (&dns.Conn{Conn: conn}).ReadMsg()
		return err == nil
	}
	open := func(from string, want bool) *net.TCPConn {
		t.Helper()
		conn := dialTCP(t, from, addr)
		if got := asks(conn); got != want {
			t.Fatalf("connection from %s is served: %t, want %t", from, got, want)
		}
		return conn
	}
	first := open(vlanIP, true)
	open(vlanIP, true)
	open(vlanIP, false)
	open(otherIP, true)
	open(podIP, false)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the place of the closed connection is free", func() bool {
		return asks(dialTCP(t, vlanIP, addr))
	})
	if got := testutil.ToFloat64(server.metrics.connsDeny); got < 2 {
		t.Errorf("%v connections counted as refused, want 2 or more", got)
	}
}

// eventually polls a condition that nothing announces.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(deadline)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			t.Fatalf("after %s still not: %s", deadline, what)
		}
	}
}

// TestMetrics: what an operator sees after some queries; a second server may take over the registry.
func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	_, addr := start(t, Config{Registerer: registry}, serverIP, loopbackModel(t))
	for _, args := range []string{"api." + domainA, "AAAA api." + domainA, "+tcp api." + domainA, "www.example.org"} {
		dig(t, addr, vlanIP, strings.Fields(args)...)
	}
	dig(t, addr, strangerIP, "api."+domainA)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, family := range families {
		if family.GetName() != "oooi_dns_queries_total" {
			continue
		}
		for _, metric := range family.GetMetric() {
			if v := metric.GetCounter().GetValue(); v > 0 {
				got[metric.GetLabel()[1].GetValue()+" "+metric.GetLabel()[0].GetValue()] = v
			}
		}
	}
	want := map[string]float64{"vlan answered": 2, "vlan nodata": 1, "vlan no-upstreams": 1, "none stranger": 1}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("queries %v, want %v", got, want)
	}
	if _, err := NewServer(Config{Registerer: registry}); err != nil {
		t.Errorf("a second server on the registry: %v", err)
	}
}

// TestRunEnds: Run returns nil when its context ends, whether or not there was a model, with queries
// in flight and connections open.
func TestRunEnds(t *testing.T) {
	t.Run("busy", func(t *testing.T) {
		up := startUpstream(t, "127.0.9.1", silence)
		limits := Limits{ConnIdle: time.Hour, Attempt: time.Hour, Forward: time.Hour}
		server, addr := start(t, Config{Limits: limits}, serverIP, loopbackModel(t, upstreams(up.addr)))
		dialTCP(t, vlanIP, addr)
		for i, conn := range []net.Conn{dialUDP(t, vlanIP, addr), dialTCP(t, vlanIP, addr)} {
			packet := pack(t, func(q *dns.Msg) { q.Question[0].Name = fmt.Sprintf("n%d.example.org.", i) })
			if conn.LocalAddr().Network() == "tcp" {
				packet = frame(packet)
			}
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "two queries in flight, two connections open", func() bool {
			return testutil.ToFloat64(server.metrics.inFlight) == 2 && testutil.ToFloat64(server.metrics.conns) == 2
		})
	})
	for _, models := range [][]*Model{nil, {loopbackModel(t)}} {
		t.Run(fmt.Sprint(len(models)), func(t *testing.T) { start(t, Config{}, serverIP, models...) })
	}
}
