package xds

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

// startRawApp stands for an app that does not behave: each of its connections is given to a function, once the first headers are read.
func startRawApp(t *testing.T, address string, behave func(conn *net.TCPConn, in *bufio.Reader)) int32 {
	t.Helper()
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(address)})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.AcceptTCP()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer func() { _ = conn.Close() }()
				in := bufio.NewReader(conn)
				for line := ""; line != "\r\n"; {
					var err error
					if line, err = in.ReadString('\n'); err != nil {
						return
					}
				}
				behave(conn, in)
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		wg.Wait()
	})
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// startDeafApp stands for an app whose node takes no connection: they time out.
func startDeafApp(t *testing.T, address string) int32 {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Close(fd) })
	if err := syscall.Bind(fd, &syscall.SockaddrInet4{Addr: netip.MustParseAddr(address).As4()}); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Listen(fd, 0); err != nil {
		t.Fatal(err)
	}
	bound, err := syscall.Getsockname(fd)
	if err != nil {
		t.Fatal(err)
	}
	port := bound.(*syscall.SockaddrInet4).Port
	for { // until the queue of connections is full
		conn, err := net.DialTimeout("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String(), 2*time.Second)
		if err != nil {
			return int32(port)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
}

// Why an app is not reached is in the access log, in a line of its own: the line of the request cannot tell.
func TestEnvoySaysWhyAnAppIsNotReached(t *testing.T) {
	ip := loopbacks(5)
	serverIP, client, refuses, deaf, works := ip[0], ip[1], ip[2], ip[3], ip[4]
	backends := func(name, vip string, port int32) []v1alpha1.Backend {
		list := apps(name, vip, 443, port)
		list[1].TimeoutSeconds = 1
		return list
	}
	deafPort := startDeafApp(t, deaf)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, backends("a", refuses, 1), backends("b", deaf, deafPort),
		backends("c", works, startApp(t, "c", works, 0))), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	for name, want := range map[string]string{"a": "503", "b": "503", "c": "c"} {
		if got := answersTo(t, client, serverIP, "x.apps."+name+".clusters.example.com"); got != want {
			t.Errorf("for %s %s answers, want %s", name, got, want)
		}
	}
	line := func(parts ...string) func() bool {
		return func() bool {
			return slices.ContainsFunc(strings.Split(e.out.String(), "\n"), func(line string) bool {
				return !slices.ContainsFunc(parts, func(part string) bool { return !strings.Contains(line, part) })
			})
		}
	}
	// Nor is the ordinary end of a connection a failure: that of a WebSocket that the client leaves, or of one that nobody asks on any more.
	if err := openWebSocket(t, client, serverIP, "x.apps.c.clusters.example.com").Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the connections to c have ended", func() bool {
		return e.stat("cluster.clusters/c/oooi-ingress/http.upstream_cx_active")+e.stat("cluster.clusters/c/oooi-ingress/address.upstream_cx_active") == 0
	})
	if got := answersTo(t, client, serverIP, "nobody.example.com"); got != "404" { // the last line
		t.Errorf("for nobody %s answers", got)
	}
	for what, logged := range map[string]func() bool{
		"that a refuses connections":       line(`"target":"clusters/a/oooi-ingress/http"`, `"upstream":"`+refuses+`:1"`, `"flags":"UF`, "Connection_refused"),
		"that connections to b time out":   line(`"target":"clusters/b/oooi-ingress/http"`, fmt.Sprintf(`"upstream":"%s:%d"`, deaf, deafPort), `"flags":"UF`, `"failure":null`),
		"the address in a request's line":  line(`"code":503`, `"source":"`+client+`:`, `"upstream":"envoy://clusters/a/oooi-ingress/http/`+refuses+`:1"`),
		"the WebSocket that was left":      line(`"code":101`, `"target":"clusters/c/oooi-ingress/http"`),
		"the last request":                 line(`"host":"nobody.example.com"`),
		"the address of an app that works": line(`"code":200`, `"upstream":"envoy://clusters/c/oooi-ingress/http/`+works+`:`),
	} {
		eventually(t, "the access log has "+what, logged)
	}
	if n := strings.Count(e.out.String(), "\n"); n != 7 {
		t.Errorf("the access log has %d lines, want one for each request and one for each failure", n)
	}
}

// A connection that is reset, or closed at once, loses nothing of what was said on it before.
func TestEnvoyCarriesLastWords(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client, vipA, vipB := ip[0], ip[1], ip[2], ip[3]
	const rounds = 20
	portA := startRawApp(t, vipA, func(conn *net.TCPConn, _ *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
		// Closing resets it, as the body was not read.
	})
	heard := make(chan string, rounds)
	portB := startRawApp(t, vipB, func(conn *net.TCPConn, in *bufio.Reader) {
		_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
		said, err := io.ReadAll(in)
		heard <- fmt.Sprint(len(said), err)
	})
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vipA, 443, portA), apps("b", vipB, 443, portB)), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	body := strings.Repeat("x", 20_000)
	for range rounds {
		c := dialHTTP(t, client, serverIP)
		if _, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
			t.Fatal(err)
		}
		if response, err := http.ReadResponse(c.in, nil); err != nil || response.StatusCode != http.StatusRequestEntityTooLarge {
			t.Fatalf("an app that answers at once and resets: %v, %v", response, err)
		}
		socket := openWebSocket(t, client, serverIP, "x.apps.b.clusters.example.com")
		if _, err := io.WriteString(socket, body[:3000]); err != nil {
			t.Fatal(err)
		}
		if err := socket.Close(); err != nil {
			t.Fatal(err)
		}
		if got := <-heard; got != "3000 <nil>" {
			t.Fatalf("of a client that said 3000 bytes and closed the app heard %s", got)
		}
	}
}

// Nothing is left of a client that has gone, though the app is stuck: neither before Envoy's internal listener nor behind it.
func TestEnvoyLeavesAStuckApp(t *testing.T) {
	ip := loopbacks(3)
	serverIP, client, vip := ip[0], ip[1], ip[2]
	left, stuck := make(chan error, 3), make(chan struct{})
	port := startRawApp(t, vip, func(_ *net.TCPConn, in *bufio.Reader) {
		_, err := io.Copy(io.Discard, in)
		left <- err
		<-stuck
	})
	defer close(stuck)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vip, 443, port)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	connections := func() (n int) {
		for _, stat := range []string{"cluster.clusters/a/oooi-ingress/http.upstream_cx_active", "cluster.clusters/a/oooi-ingress/address.upstream_cx_active"} {
			n += e.stat(stat)
		}
		return n
	}
	const host = " HTTP/1.1\r\nHost: x.apps.a.clusters.example.com\r\n"
	for what, said := range map[string]string{
		"a request":   "GET /" + host + "\r\n",
		"a WebSocket": "GET /" + host + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"an upload":   "POST /" + host + "Content-Length: 1000\r\n\r\nx",
	} {
		c := dialHTTP(t, client, serverIP)
		if _, err := io.WriteString(c, said); err != nil {
			t.Fatal(err)
		}
		eventually(t, what+" is under way", func() bool { return connections() == 2 })
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-left; err != nil {
			t.Errorf("%s ends for the app with %v", what, err)
		}
		eventually(t, "nothing is left of "+what, func() bool { return connections() == 0 })
	}
}

// A connection inside Envoy does not count for the limit of client connections.
func TestEnvoyCountsAnHTTPClientOnce(t *testing.T) {
	ip := loopbacks(3)
	serverIP, client, vip := ip[0], ip[1], ip[2]
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vip, 443, startApp(t, "a", vip, 0))), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address, func(config string) string {
		return strings.Replace(config, `max_active_downstream_connections: "100000"`, `max_active_downstream_connections: "2"`, 1)
	})
	waitAcknowledged(t, s.Server)
	const host = "x.apps.a.clusters.example.com"
	streams := []*httpStream{openWebSocket(t, client, serverIP, host), openRequest(t, client, serverIP, host)}
	if c := dialHTTP(t, client, serverIP); !c.ended() {
		t.Error("one connection too many is accepted")
	}
	allUnderWay(t, "a connection too many", streams)
}
