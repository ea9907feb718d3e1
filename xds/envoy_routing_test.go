package xds

import (
	"bytes"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestEnvoyRoutesByNameAndSource(t *testing.T) {
	ip := loopbacks(6)
	serverIP, cpA, cpB, workerA, workerB, stranger := ip[0], ip[1], ip[2], ip[3], ip[4], ip[5]
	a, b := startControlPlane(t, "a", cpA), startControlPlane(t, "b", cpB)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP,
		attachment("a", cpA, a.ports, workerA), attachment("b", cpB, b.ports, workerB)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Fatalf("status %+v, version %s", st, s.Version(testInfra))
	}

	for _, c := range []struct {
		source string
		port   int
		sni    string
		want   string
	}{
		{stranger, 443, "api.a.clusters.example.com", "a/kube-apiserver"},
		{stranger, 6443, "api.a.clusters.example.com", "a/kube-apiserver"},
		{workerB, 6443, "api-int.a.clusters.example.com", "a/kube-apiserver"},
		{workerA, 443, "API-INT.B.clusters.EXAMPLE.com", "b/kube-apiserver"},
		{workerA, 443, "oauth.a.clusters.example.com", "a/oauth-openshift"},
		{workerA, 443, "ignition.b.clusters.example.com", "b/ignition-server-proxy"},
		{workerA, 443, "konnectivity.b.clusters.example.com", "b/konnectivity-server"},
		{workerA, 6443, "oauth.a.clusters.example.com", "closed"},
		{workerA, 6443, "konnectivity.a.clusters.example.com", "closed"},
		{workerA, 443, "etcd.a.clusters.example.com", "closed"},
		{workerA, 443, "a.clusters.example.com", "closed"},
		{workerA, 443, "kubernetes", "a/kube-apiserver"},
		{workerB, 443, "kubernetes.default", "b/kube-apiserver"},
		{workerA, 6443, "kubernetes.default.svc", "a/kube-apiserver"},
		{workerB, 6443, "kubernetes.default.svc.cluster.local", "b/kube-apiserver"},
		{workerA, 443, "kubernetes.default.svc.cluster", "closed"},
		{stranger, 443, "kubernetes.default.svc", "closed"},
		{workerA, 6443, "", "a/kube-apiserver"},
		{workerB, 6443, "", "b/kube-apiserver"},
		{workerB, 443, "", "b/kube-apiserver"},
		{stranger, 6443, "", "closed"},
		{stranger, 443, "", "closed"},
	} {
		if got := reaches(c.source, serverIP, c.port, c.sni); got != c.want {
			t.Errorf("port %d sni %q from %s: got %s, want %s", c.port, c.sni, c.source, got, c.want)
		}
	}
	if n := e.stat("cluster_manager.cds.update_rejected") + e.stat("listener_manager.lds.update_rejected"); n != 0 {
		t.Errorf("Envoy rejected %d updates", n)
	}
	eventually(t, "the access log names target, source and server name", func() bool {
		out := e.out.String()
		return strings.Contains(out, `"target":"clusters/a/oauth-openshift"`) && strings.Contains(out, `"sni":"etcd.a.clusters.example.com"`) &&
			strings.Contains(out, workerA)
	})
}

func TestEnvoyWithStateOfTheWorld(t *testing.T) {
	ip := loopbacks(4)
	serverIP, cpA, workerA, stranger := ip[0], ip[1], ip[2], ip[3]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address, func(config string) string { return strings.Replace(config, "DELTA_GRPC", "GRPC", 1) })
	waitAcknowledged(t, s.Server)
	applyAndWait(t, s.Server, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)))
	if got := reaches(workerA, serverIP, 443, "kubernetes"); got != "a/kube-apiserver" {
		t.Errorf("the alias reaches %s", got)
	}
	applyAndWait(t, s.Server, proxyServer(serverIP, attachment("a", cpA, a.ports, stranger)))
	if got := reaches(workerA, serverIP, 443, "kubernetes"); got != "closed" {
		t.Errorf("from a source that went, the alias reaches %s", got)
	}
	for _, ofA := range [][]v1alpha1.Backend{apps("a", cpA, 443, startApp(t, "a", cpA, 0)), nil, apps("a", cpA, 443, startApp(t, "a again", cpA, 0))} {
		applyAndWait(t, s.Server, proxyServer(serverIP, attachment("a", cpA, a.ports), ofA))
		if len(ofA) > 0 {
			if got := answersTo(t, stranger, serverIP, "x.apps.a.clusters.example.com"); !strings.HasPrefix(got, "a") {
				t.Errorf("for apps %s answers", got)
			}
		}
	}
	applyAndWait(t, s.Server, proxyServer(serverIP))
	if n := e.stat("listener_manager.total_listeners_active"); n != 0 {
		t.Errorf("%d listeners without any backend", n)
	}
	if n := e.stat("cluster_manager.active_clusters"); n != 1 { // the control plane
		t.Errorf("%d clusters without any backend", n)
	}
}

// oneByteAtATime sends a ClientHello in as many segments as it has bytes.
type oneByteAtATime struct{ net.Conn }

func (c oneByteAtATime) Write(p []byte) (int, error) {
	for i := range p {
		if _, err := c.Conn.Write(p[i : i+1]); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

func TestEnvoyReadsLongAndFragmentedClientHellos(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, workerA := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	fragmented := func(raw net.Conn, _ *tls.Config) net.Conn { return oneByteAtATime{raw} }
	long := func(raw net.Conn, config *tls.Config) net.Conn {
		for i := range 60 {
			config.NextProtos = append(config.NextProtos, fmt.Sprintf("%0200d", i))
		}
		return raw
	}
	for _, sni := range []string{"oauth.a.clusters.example.com", "kubernetes", ""} {
		want := "a/kube-apiserver"
		if strings.HasPrefix(sni, "oauth") {
			want = "a/oauth-openshift"
		}
		if got := reaches(workerA, serverIP, 443, sni, fragmented); got != want {
			t.Errorf("sni %q, a byte at a time: %s", sni, got)
		}
		if got := reaches(workerA, serverIP, 443, sni, long); got != want {
			t.Errorf("sni %q, 12 KiB: %s", sni, got)
		}
	}
}

// clientHello is what a TLS client says first.
func clientHello(t *testing.T, sni string) []byte {
	t.Helper()
	client, server := net.Pipe()
	said := make(chan []byte, 1)
	go func() {
		buf := make([]byte, 32<<10)
		n, _ := server.Read(buf) // what came counts
		_ = server.Close()
		said <- buf[:n]
	}()
	_ = tls.Client(client, &tls.Config{ServerName: sni, InsecureSkipVerify: true}).Handshake() // it cannot succeed
	_ = client.Close()
	return <-said
}

// answer sends bytes, ends its side, and gives what comes back before the other side closes.
func answer(t *testing.T, source, address string, said []byte) []byte {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	conn, err := dialer.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(said); err != nil && !errors.Is(err, syscall.EPIPE) && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	_ = conn.(*net.TCPConn).CloseWrite() // Envoy may have closed already
	got, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("%.40q is neither answered nor closed", said)
	}
	return got
}

func TestEnvoyClosesWhatIsNotTLS(t *testing.T) {
	ip := loopbacks(4)
	serverIP, cpA, workerA, stranger := ip[0], ip[1], ip[2], ip[3]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)

	hello, nameless := clientHello(t, "unknown.example.com"), clientHello(t, "")
	rnd := rand.New(rand.NewPCG(1, 1))
	noise := make([]byte, 4096)
	for i := range noise {
		noise[i] = byte(rnd.Uint32())
	}
	tooLong := append([]byte(nil), hello...)
	binary.BigEndian.PutUint16(tooLong[3:], 0xffff)
	said := map[string][]byte{
		"nothing":                       {},
		"HTTP":                          []byte("GET /api HTTP/1.1\r\nHost: api.a.clusters.example.com\r\n\r\n"),
		"SSH":                           []byte("SSH-2.0-OpenSSH_9.9\r\n"),
		"HTTP/2":                        []byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
		"SSL 2":                         {0x80, 0x2e, 0x01, 0x00, 0x02, 0x00, 0x15, 0x00, 0x00, 0x00, 0x10},
		"one byte":                      {0x16},
		"a record header":               hello[:5],
		"half a ClientHello":            hello[:len(hello)/2],
		"all but the last byte":         hello[:len(hello)-1],
		"a record longer than TLS has":  tooLong,
		"zeroes":                        make([]byte, 20<<10),
		"noise":                         noise,
		"noise after a record header":   append([]byte{0x16, 3, 1, 0x0f, 0xff}, noise...),
		"an alert":                      {0x15, 3, 1, 0, 2, 2, 40},
		"a ServerHello":                 append([]byte{0x16, 3, 1, 0, 4, 2, 0, 0, 0}, hello...),
		"an endless ClientHello":        append([]byte{0x16, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff, 3, 3}, bytes.Repeat([]byte{0}, 40<<10)...),
		"a ClientHello of a past era":   append([]byte{0x16, 0, 0}, hello[3:]...),
		"application data from nowhere": append([]byte{0x17, 3, 3, 1, 0}, noise[:256]...),
	}
	for what, bytes := range said {
		for _, port := range []int{443, 6443} {
			// From a known worker, too: what is not TLS is never sent to an API server.
			if got := answer(t, workerA, listenerAddress(serverIP, port), bytes); len(got) != 0 {
				t.Errorf("%s on %d is answered: %.60q", what, port, got)
			}
		}
	}
	for i := range 400 { // a byte or two of a ClientHello changed: still nothing for a stranger
		mutated := append([]byte(nil), [][]byte{hello, nameless}[i%2]...)
		for range 1 + i%2 {
			mutated[rnd.IntN(len(mutated))] ^= byte(1 + rnd.IntN(255))
		}
		if got := answer(t, stranger, listenerAddress(serverIP, 443), mutated); len(got) != 0 {
			t.Fatalf("changed ClientHello %x is answered: %.60q", mutated, got)
		}
	}
	if got := reaches(workerA, serverIP, 443, "kubernetes"); got != "a/kube-apiserver" {
		t.Errorf("afterwards a worker reaches %s", got)
	}
	if n := e.stat("cluster.clusters/a/kube-apiserver.upstream_cx_total"); n != 1 {
		t.Errorf("%d connections to the API server, want the last one only", n)
	}
}

func TestEnvoyFollowsEndpointsAndNames(t *testing.T) {
	ip := loopbacks(5)
	serverIP, cpA, first, second, worker := ip[0], ip[1], ip[2], ip[3], ip[4]
	a := startControlPlane(t, "a", cpA)
	port := startTarget(t, "first", netip.AddrPortFrom(netip.MustParseAddr(first), 0))
	startTarget(t, "second", netip.AddrPortFrom(netip.MustParseAddr(second), uint16(port)))
	named := startTarget(t, "named", netip.MustParseAddrPort("127.0.0.1:0"))
	proxy := func(konnectivity ...string) *v1alpha1.ProxyServer {
		p := proxyServer(serverIP, attachment("a", cpA, a.ports))
		for i := range p.Spec.Backends {
			switch b := &p.Spec.Backends[i]; b.TargetService {
			case "konnectivity-server":
				b.Addresses, b.TargetPort = konnectivity, port
			case "ignition-server-proxy":
				b.Addresses, b.TargetPort = []string{"localhost"}, named
			}
		}
		return p
	}
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxy(first, second), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	const konnectivity, ignition = "konnectivity.a.clusters.example.com", "ignition.a.clusters.example.com"
	seen := map[string]bool{}
	for range 8 {
		seen[reaches(worker, serverIP, 443, konnectivity)] = true
	}
	if len(seen) != 2 || !seen["first"] || !seen["second"] {
		t.Errorf("two endpoints answer as %v", seen)
	}
	eventually(t, "a target that is a DNS name is reached", func() bool { return reaches(worker, serverIP, 443, ignition) == "named" })

	held := openStream(t, worker, serverIP, 443, konnectivity)
	modified := e.stat("cluster_manager.cluster_modified")
	applyAndWait(t, s.Server, proxy(second, "203.0.113.1"))
	if n := e.stat("cluster_manager.cluster_modified"); n != modified {
		t.Error("moving endpoints changed a cluster")
	}
	if err := held.alive(); err != nil {
		t.Errorf("a stream to an endpoint: %v", err)
	}
	applyAndWait(t, s.Server, proxy(first)) // from EDS to an address, and back
	if got := reaches(worker, serverIP, 443, konnectivity); got != "first" {
		t.Errorf("one address answers as %s", got)
	}
	applyAndWait(t, s.Server, proxy(second, second))
	eventually(t, "the endpoints are used again", func() bool { return reaches(worker, serverIP, 443, konnectivity) == "second" })
}

func TestEnvoyRoutesWildcardsAndOwnListeners(t *testing.T) {
	ip := loopbacks(6)
	serverIP, cpA, anyone, workerA, cpB, workerB := ip[0], ip[1], ip[2], ip[3], ip[4], ip[5]
	a, b := startControlPlane(t, "a", cpA), startControlPlane(t, "b", cpB)
	httpsA := startTarget(t, "a/apps", netip.AddrPortFrom(netip.MustParseAddr(cpA), 0))
	nested := startTarget(t, "b/apps", netip.AddrPortFrom(netip.MustParseAddr(cpA), 0))
	ofA, ofB := apps("a", cpA, httpsA, 80), apps("b", cpA, nested, 80)
	for i := range ofB {
		ofB[i].Hostname = "*.b.apps.a.clusters.example.com"
	}
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP,
		attachment("a", cpA, a.ports, workerA), attachment("b", cpB, b.ports, workerB), ofA, ofB,
		external("a", cpA, a.ports, 20000), external("b", cpB, b.ports, 20001)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	for _, c := range []struct {
		port      int
		sni, want string
	}{
		{443, "console.apps.a.clusters.example.com", "a/apps"},
		{443, "CONSOLE.Apps.a.clusters.example.com", "a/apps"},
		{443, "x.y.apps.a.clusters.example.com", "a/apps"},
		{443, "console.b.apps.a.clusters.example.com", "b/apps"},
		{443, "x.y.b.apps.a.clusters.example.com", "b/apps"},
		{443, "b.apps.a.clusters.example.com", "closed"}, // the wildcard of b makes the name exist
		{443, "apps.a.clusters.example.com", "closed"},
		{443, "notapps.a.clusters.example.com", "closed"},
		{443, "api.a.clusters.example.com", "a/kube-apiserver"},
		{443, "x.api.a.clusters.example.com", "closed"},
		{6443, "console.apps.a.clusters.example.com", "closed"},
		{20000, "oauth.a.clusters.example.com", "a/oauth-openshift"},
		{20000, "OAuth.a.clusters.example.com", "a/oauth-openshift"},
		{20000, "api.a.clusters.example.com", "closed"},
		{20000, "api-int.a.clusters.example.com", "closed"},
		{20000, "ignition.a.clusters.example.com", "closed"},
		{20000, "konnectivity.a.clusters.example.com", "closed"},
		{20000, "x.oauth.a.clusters.example.com", "closed"},
		{20000, "oauth.b.clusters.example.com", "closed"},
		{20000, "api.b.clusters.example.com", "closed"},
		{20000, "console.apps.a.clusters.example.com", "closed"},
		{20000, "kubernetes", "closed"},
		{20000, "kubernetes.default", "closed"},
		{20000, "kubernetes.default.svc", "closed"},
		{20000, "kubernetes.default.svc.cluster.local", "closed"},
		{20000, "", "closed"},
		{20001, "oauth.b.clusters.example.com", "b/oauth-openshift"},
		{20001, "oauth.a.clusters.example.com", "closed"},
		{20001, "", "closed"},
	} {
		for _, source := range []string{anyone, workerA, workerB} {
			if got := reaches(source, serverIP, c.port, c.sni); got != c.want {
				t.Errorf("port %d sni %q from %s: got %s, want %s", c.port, c.sni, source, got, c.want)
			}
		}
	}
	for source, want := range map[string]string{anyone: "closed", workerA: "a/kube-apiserver", workerB: "b/kube-apiserver"} {
		for _, sni := range []string{"kubernetes", "kubernetes.default.svc.cluster.local", ""} {
			if got := reaches(source, serverIP, 443, sni); got != want {
				t.Errorf("beside wildcards, sni %q from %s: got %s, want %s", sni, source, got, want)
			}
		}
	}
	for _, said := range []string{"GET / HTTP/1.1\r\nHost: oauth.a.clusters.example.com\r\n\r\n", "SSH-2.0-OpenSSH_9.9\r\n"} {
		if got := answer(t, workerA, listenerAddress(serverIP, 20000), []byte(said)); len(got) != 0 {
			t.Errorf("%q is answered: %.60q", said, got)
		}
	}
	if n := e.stat("cluster.clusters/a/oauth-openshift.upstream_cx_total"); n != 6 {
		t.Errorf("%d connections to the OAuth server of a, want one each time that its own name was said", n)
	}
}

func TestEnvoyLimitsConnections(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, workerA := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address, func(config string) string {
		return strings.Replace(config, `max_active_downstream_connections: "100000"`, `max_active_downstream_connections: "2"`, 1)
	})
	waitAcknowledged(t, s.Server)
	first, second := openStream(t, workerA, serverIP, 443, "kubernetes"), openStream(t, workerA, serverIP, 6443, "")
	if got := reaches(workerA, serverIP, 443, "kubernetes"); got != "closed" {
		t.Errorf("one connection too many reaches %s", got)
	}
	if e.stat("listener_manager.total_listeners_active") != 2 { // the admin interface is not limited
		t.Error("both listeners should be active")
	}
	allAlive(t, "a connection too many", []*stream{first, second})
	if err := first.conn.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "there is room again", func() bool { return reaches(workerA, serverIP, 443, "kubernetes") == "a/kube-apiserver" })
}

func TestEnvoyBindsAllAddresses(t *testing.T) {
	ip := loopbacks(3)
	a := startControlPlane(t, "a", ip[1])
	s := startServer(t, "127.0.0.1:0")
	const offset = 31000 // no other test may be on these ports, whatever its address
	s.Apply(testInfra, mustBuild(t, proxyServer("192.0.2.4", attachment("a", ip[1], a.ports, ip[2])), Options{AnyAddress: true, PortOffset: offset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	if got := reaches(ip[2], ip[0], 443+offset-portOffset, "kubernetes"); got != "a/kube-apiserver" {
		t.Errorf("at any address of the host one reaches %s", got)
	}
}

// The address may come later than Envoy: it is claimed at a failover.
func TestEnvoyBindsAnAddressThatIsNotThereYet(t *testing.T) {
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer("192.0.2.4", attachment("a", "203.0.113.1", pagePorts)), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Errorf("status %+v", st)
	}
}
