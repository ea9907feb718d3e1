package xds

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/textproto"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

// told is what a request looked like to the app that it reached.
type told struct {
	App, Method, Host, Path string
	Header                  http.Header
	Body                    string
}

// startApp stands for the router of a hosted cluster: it says who it is and what it was asked. /echo gives the body back as it
// comes, a WebSocket whatever comes; /download gives a byte for each that is said at the address which its header Ask-At names.
func startApp(t testing.TB, name, address string, port int32) int32 {
	t.Helper()
	var echoes sync.WaitGroup
	server := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch {
			case r.Header.Get("Upgrade") != "":
				conn, buffered, err := w.(http.Hijacker).Hijack()
				if err != nil {
					t.Error(err)
					return
				}
				echoes.Go(func() {
					_, _ = io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
					_, _ = io.Copy(conn, buffered) // ends when either side closes
					_ = conn.Close()
				})
			case r.URL.Path == "/echo":
				control := http.NewResponseController(w)
				if err := errors.Join(control.EnableFullDuplex(), control.Flush()); err != nil {
					t.Error(err)
					return
				}
				giveBack(w, r.Body)
			case r.URL.Path == "/download":
				asks, err := net.Listen("tcp", "127.0.0.1:0")
				if err != nil {
					t.Error(err)
					return
				}
				defer context.AfterFunc(r.Context(), func() { _ = asks.Close() })()
				defer func() { _ = asks.Close() }()
				w.Header().Set("Ask-At", asks.Addr().String())
				if err := http.NewResponseController(w).Flush(); err != nil {
					return
				}
				from, err := asks.Accept()
				if err != nil {
					return // nobody asks
				}
				defer func() { _ = from.Close() }()
				giveBack(w, from)
			default:
				body, _ := io.ReadAll(r.Body) // what came counts
				w.Header().Set("Server", "router of "+name)
				_ = json.NewEncoder(w).Encode(told{name, r.Method, r.Host, r.RequestURI, r.Header, string(body)})
			}
		}),
	}
	l, err := net.Listen("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), uint16(port)).String())
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l)
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
		echoes.Wait()
	})
	return int32(l.Addr().(*net.TCPAddr).Port)
}

// giveBack answers with each byte as it comes.
func giveBack(w http.ResponseWriter, from io.Reader) {
	control, buf := http.NewResponseController(w), make([]byte, 1)
	for {
		if _, err := io.ReadFull(from, buf); err != nil {
			return
		}
		if _, err := w.Write(buf); err != nil || control.Flush() != nil {
			return
		}
	}
}

// apps are the backends that the plan writes for the apps of an attachment.
func apps(name, vip string, https, http int32) []v1alpha1.Backend {
	backend := func(role string, port, targetPort int32) v1alpha1.Backend {
		return v1alpha1.Backend{
			Name: v1alpha1.BackendName(name, role), Attachment: name, Hostname: "*.apps." + name + ".clusters.example.com", Ports: []int32{port},
			TargetService: "oooi-ingress", TargetNamespace: "clusters-" + name, TargetPort: targetPort, Addresses: []string{vip}, TimeoutSeconds: 30,
		}
	}
	return []v1alpha1.Backend{backend("apps-https", 443, https), backend("apps-http", 80, http)}
}

// httpConn is a client's connection to port 80.
type httpConn struct {
	net.Conn
	in *bufio.Reader
}

func dialHTTP(t testing.TB, source, server string) *httpConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}, Timeout: patience}
	var conn net.Conn
	eventually(t, "port 80 listens", func() bool { // Envoy acknowledges a listener a moment before its workers have it
		var err error
		conn, err = dialer.Dial("tcp", listenerAddress(server, 80))
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			t.Fatal(err)
		}
		return err == nil
	})
	t.Cleanup(func() { _ = conn.Close() })
	c := &httpConn{conn, bufio.NewReader(conn)}
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	return c
}

// wait gives the other side all patience from now on.
func (c *httpConn) wait() error { return c.SetDeadline(time.Now().Add(patience)) }

// ask says something and reads one answer: its status, and, if an app answered, what the app was told.
func (c *httpConn) ask(t testing.TB, said string) (*http.Response, *told) {
	t.Helper()
	if err := c.wait(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, said); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(said, " ")
	response, err := http.ReadResponse(c.in, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.60q: %v", said, err)
	}
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatalf("%.60q: %v", said, err)
	}
	answer := &told{}
	if response.StatusCode == http.StatusOK && method != http.MethodHead {
		if err := json.Unmarshal(body, answer); err != nil {
			t.Fatalf("%.60q: %q: %v", said, body, err)
		}
	}
	return response, answer
}

// ended waits until the other side has closed, and tells whether it has.
func (c *httpConn) ended() bool {
	if err := c.wait(); err != nil {
		return false
	}
	_, err := io.Copy(io.Discard, c.in)
	return err == nil || errors.Is(err, syscall.ECONNRESET)
}

// answersTo is who answers a request for a Host on a connection of its own: an app, or a status.
func answersTo(t testing.TB, source, server, host string) string {
	t.Helper()
	c := dialHTTP(t, source, server)
	defer func() { _ = c.Close() }()
	response, answer := c.ask(t, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
	if response.StatusCode == http.StatusOK {
		return answer.App
	}
	return fmt.Sprint(response.StatusCode)
}

func TestEnvoyRoutesHTTPByHost(t *testing.T) {
	ip := loopbacks(5)
	serverIP, vipA, vipB, client := ip[0], ip[1], ip[2], ip[3]
	portA, portB := startApp(t, "a", vipA, 0), startApp(t, "b", vipB, 0)
	tlsA := startTarget(t, "a/apps", netip.AddrPortFrom(netip.MustParseAddr(vipA), 0))
	below := attachment("c.apps.a", ip[4], pagePorts) // a cluster whose domain lies below the apps of a
	for i := range below {
		b := &below[i]
		b.Name, b.Attachment = strings.Replace(b.Name, "c.apps.a", "c", 1), "c"
	}
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vipA, tlsA, portA), apps("b", vipB, 443, portB), below), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Fatalf("status %+v, version %s", st, s.Version(testInfra))
	}

	for host, want := range map[string]string{
		"console.apps.a.clusters.example.com":       "a",
		"x.y.apps.a.clusters.example.com":           "a",
		"console.apps.b.clusters.example.com":       "b",
		"console.apps.b.clusters.example.com:80":    "b",
		"console.apps.b.clusters.example.com:20080": "b",
		"Console.APPS.b.Clusters.example.com":       "b",
		"console.apps.b.clusters.example.com.":      "b",
		"CONSOLE.apps.b.clusters.example.com.:8080": "b",
		"apps.a.clusters.example.com":               "404",
		"notapps.a.clusters.example.com":            "404",
		"xapps.a.clusters.example.com":              "404",
		"api.a.clusters.example.com":                "404",
		"console.apps.a.clusters.example.com.evil":  "404",
		"console.apps.c.clusters.example.com":       "404",
		"clusters.example.com":                      "404",
		"*":                                         "404",
		"kubernetes":                                "404",
		vipA:                                        "404",
		serverIP:                                    "404",
		"":                                          "404",
		"api.c.apps.a.clusters.example.com":         "404",
		"x.c.apps.a.clusters.example.com":           "404",
		"c.apps.a.clusters.example.com":             "404",
		"xc.apps.a.clusters.example.com":            "a",
	} {
		if got := answersTo(t, client, serverIP, host); got != want {
			t.Errorf("Host %q: %s answers, want %s", host, got, want)
		}
	}
	for sni, want := range map[string]string{
		"console.apps.a.clusters.example.com": "a/apps",
		"x.c.apps.a.clusters.example.com":     "closed",
		"c.apps.a.clusters.example.com":       "closed",
		"xc.apps.a.clusters.example.com":      "a/apps",
		"apps.a.clusters.example.com":         "closed",
	} {
		if got := reaches(client, serverIP, 443, sni); got != want {
			t.Errorf("server name %q: %s answers, want %s", sni, got, want)
		}
	}
	if got := reaches(client, serverIP, 80, "console.apps.a.clusters.example.com"); !strings.Contains(got, "tls: ") && got != "closed" {
		t.Errorf("TLS on port 80: %s", got)
	}
	eventually(t, "the access log names target, source and Host", func() bool {
		return slices.ContainsFunc(strings.Split(e.out.String(), "\n"), func(line string) bool {
			return strings.Contains(line, `"target":"clusters/b/oooi-ingress/http"`) && strings.Contains(line, `"host":"console.apps.b.clusters.example.com:80"`) &&
				strings.Contains(line, `"source":"`+client+":")
		})
	})
}

// What an app sees of a request is what the client said, but for who the client is: that it hears from Envoy only.
func TestEnvoyTellsAppsWhoTheClientIs(t *testing.T) {
	ip := loopbacks(3)
	serverIP, vip, client := ip[0], ip[1], ip[2]
	port := startApp(t, "a", vip, 0)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vip, 443, port)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	const host = "console.apps.a.clusters.example.com"
	c := dialHTTP(t, client, serverIP)
	response, answer := c.ask(t, "PUT /a/../b//c%2Fd/./e%41?q=%20;x=1 HTTP/1.1\r\nHost: "+host+":8080\r\nX-Forwarded-For: 198.51.100.66\r\n"+
		"X-FORWARDED-FOR: 198.51.100.67, 198.51.100.68\r\nForwarded: for=198.51.100.69\r\nX-Real-Ip: 198.51.100.70\r\nX-Forwarded-Proto: https\r\n"+
		"X-Envoy-External-Address: 198.51.100.71\r\nX-Envoy-Retry-On: 5xx\r\nX-Envoy-Max-Retries: 9\r\nX-Envoy-Upstream-Rq-Timeout-Ms: 1\r\nX-Envoy-Original-Path: /x\r\n"+
		"X-Request-Id: mine\r\nX_Under: score\r\nCookie: a=1; b=2\r\nContent-Length: 4\r\n\r\nbody")
	if answer.App != "a" || answer.Method != http.MethodPut || answer.Host != host+":8080" || answer.Path != "/a/../b//c%2Fd/./e%41?q=%20;x=1" || answer.Body != "body" {
		t.Errorf("the app was told %+v", answer)
	}
	for name, want := range map[string]string{
		"X-Forwarded-For": client, "X-Forwarded-Proto": "http", "X-Request-Id": "mine", "X_under": "score", "Cookie": "a=1; b=2", "Forwarded": "", "X-Real-Ip": "",
	} {
		if got := strings.Join(answer.Header[name], " | "); got != want {
			t.Errorf("%s: the app got %q, want %q", name, got, want)
		}
	}
	for name := range answer.Header {
		if strings.HasPrefix(name, "X-Envoy-") {
			t.Errorf("%s: the app got %q", name, answer.Header[name])
		}
	}
	if got := response.Header.Get("Server"); got != "router of a" {
		t.Errorf("Server: the client got %q", got)
	}
	for name := range response.Header {
		if strings.HasPrefix(name, "X-Envoy-") {
			t.Errorf("%s: the client got %q", name, response.Header[name])
		}
	}
	// A URL that names another Host than the header decides both the route and what the app is told (RFC 9112, section 3.2.2).
	if _, answer := c.ask(t, "GET http://"+host+"/x HTTP/1.1\r\nHost: console.apps.b.clusters.example.com\r\n\r\n"); answer.App != "a" || answer.Host != host || answer.Path != "/x" {
		t.Errorf("with an absolute URL the app was told %+v", answer)
	}
	// Nothing is left of a client that has gone.
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Envoy closes the connections that it opened for the client", func() bool {
		return e.stat("cluster.clusters/a/oooi-ingress/http.upstream_cx_active") == 0
	})
}

// A client's connections to an app are its own, so that no answer can come to anybody else.
func TestEnvoySharesNoConnectionToAnApp(t *testing.T) {
	ip := loopbacks(3)
	serverIP, vip, client := ip[0], ip[1], ip[2]
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", vip, 443, startApp(t, "a", vip, 0))), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	clients := []*httpConn{dialHTTP(t, client, serverIP), dialHTTP(t, client, serverIP), dialHTTP(t, client, serverIP)}
	for _, c := range clients {
		c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com\r\n\r\n")
	}
	if n := e.stat("cluster.clusters/a/oooi-ingress/http.upstream_cx_total"); n != len(clients) {
		t.Errorf("%d connections to the app for %d clients, one after the other", n, len(clients))
	}
}

// One connection may ask for the apps of several attachments: each request is routed for itself.
func TestEnvoyRoutesEachRequestOfAConnection(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client := ip[0], ip[3]
	portA, portB := startApp(t, "a", ip[1], 0), startApp(t, "b", ip[2], 0)
	s := startServer(t, "127.0.0.1:0")
	both := proxyServer(serverIP, apps("a", ip[1], 443, portA), apps("b", ip[2], 443, portB))
	s.Apply(testInfra, mustBuild(t, both, Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	c := dialHTTP(t, client, serverIP)
	for range 3 {
		for _, name := range []string{"a", "b"} {
			if _, answer := c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps."+name+".clusters.example.com\r\n\r\n"); answer.App != name {
				t.Errorf("for %s, %q answers", name, answer.App)
			}
		}
		if response, _ := c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps.nobody.clusters.example.com\r\n\r\n"); response.StatusCode != http.StatusNotFound {
			t.Errorf("for nobody: %s", response.Status)
		}
	}
	applyAndWait(t, s.Server, proxyServer(serverIP, apps("b", ip[2], 443, portB)))
	if response, _ := c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com\r\n\r\n"); response.StatusCode != http.StatusNotFound {
		t.Errorf("for a, whose apps went: %s", response.Status)
	}
	if _, answer := c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps.b.clusters.example.com\r\n\r\n"); answer.App != "b" {
		t.Errorf("for b, on the same connection, %q answers", answer.App)
	}
	applyAndWait(t, s.Server, both)
	if _, answer := c.ask(t, "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com\r\n\r\n"); answer.App != "a" {
		t.Errorf("for a, whose apps came back, %q answers", answer.App)
	}
}

// Whatever could be read in two ways is refused, and nothing after it on the connection is looked at.
func TestEnvoyRefusesAmbiguousHTTP(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client := ip[0], ip[3]
	portA, portB := startApp(t, "a", ip[1], 0), startApp(t, "b", ip[2], 0)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", ip[1], 443, portA), apps("b", ip[2], 443, portB)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	const a = "Host: x.apps.a.clusters.example.com\r\n"
	const smuggled = "GET /smuggled HTTP/1.1\r\nHost: x.apps.b.clusters.example.com\r\n\r\n"
	for what, said := range map[string]string{
		"two lengths":               "POST / HTTP/1.1\r\n" + a + "Content-Length: 6\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"two lengths, reversed":     "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n0\r\n\r\n",
		"two Content-Lengths":       "POST / HTTP/1.1\r\n" + a + "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
		"a list of Content-Lengths": "POST / HTTP/1.1\r\n" + a + "Content-Length: 0, 5\r\n\r\n",
		"a signed Content-Length":   "POST / HTTP/1.1\r\n" + a + "Content-Length: +0\r\n\r\n",
		"a coding over chunked":     "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
		"another coding":            "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
		"two codings":               "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		"space before the colon":    "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding : chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"a folded header":           "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding:\r\n chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
		"a chunk of no size":        "POST / HTTP/1.1\r\n" + a + "Transfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
		"a NUL in a header":         "GET / HTTP/1.1\r\n" + a + "X: a\x00b\r\n\r\n",
		"a bare CR in a header":     "GET / HTTP/1.1\r\n" + a + "X: a\rTransfer-Encoding: chunked\r\n\r\n",
		"two Hosts":                 "GET / HTTP/1.1\r\n" + a + "Host: x.apps.b.clusters.example.com\r\n\r\n",
		"no Host":                   "GET / HTTP/1.1\r\n\r\n",
		"HTTP/1.0 without Host":     "GET / HTTP/1.0\r\n\r\n",
		"HTTP/1.0 with Host":        "GET / HTTP/1.0\r\n" + a + "Connection: keep-alive\r\n\r\n",
		"HTTP/0.9":                  "GET /\r\n\r\n",
		"HTTP/2":                    "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"a Host of two":             "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com, x.apps.b.clusters.example.com\r\n\r\n",
		"a Host with a path":        "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com/.apps.b.clusters.example.com\r\n\r\n",
		"a Host with a user":        "GET / HTTP/1.1\r\nHost: x.apps.a.clusters.example.com@x.apps.b.clusters.example.com\r\n\r\n",
		"CONNECT":                   "CONNECT x.apps.a.clusters.example.com:443 HTTP/1.1\r\n" + a + "\r\n",
		"a request line of spaces":  "GET / x HTTP/1.1\r\n" + a + "\r\n",
		"not HTTP":                  "SSH-2.0-OpenSSH_9.9\r\n\r\n",
	} {
		c := dialHTTP(t, client, serverIP)
		if _, err := io.WriteString(c, said+smuggled); err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if err := c.Conn.(*net.TCPConn).CloseWrite(); err != nil && !errors.Is(err, syscall.ENOTCONN) {
			t.Errorf("%s: %v", what, err)
		}
		back, _ := io.ReadAll(c) // a reset is an end, too
		if strings.Contains(string(back), "smuggled") && !slices.Contains([]string{"two Hosts", "a Host of two", "a Host with a path", "a Host with a user", "CONNECT"}, what) {
			t.Errorf("%s: the smuggled request is answered: %.300q", what, back)
		}
		if first, _, _ := strings.Cut(string(back), "\r\n"); strings.Contains(first, " 200 ") {
			t.Errorf("%s: %.200q", what, back)
		}
	}
	for _, hosts := range []string{a + "Host: x.apps.b.clusters.example.com\r\n", "Host: x.apps.a.clusters.example.com,x.apps.b.clusters.example.com\r\n"} {
		c := dialHTTP(t, client, serverIP)
		if response, answer := c.ask(t, "GET / HTTP/1.1\r\n"+hosts+"\r\n"); response.StatusCode != http.StatusNotFound {
			t.Errorf("%q: %s by %q", hosts, response.Status, answer.App)
		}
	}
	// One may have begun: that its body is wrong shows on the way.
	if n := e.stat("cluster.clusters/a/oooi-ingress/http.upstream_rq_total"); n > 1 || e.stat("cluster.clusters/a/oooi-ingress/http.upstream_rq_completed") != 0 {
		t.Errorf("%d ambiguous requests came to a", n)
	}
	if got := answersTo(t, client, serverIP, "x.apps.a.clusters.example.com"); got != "a" {
		t.Errorf("afterwards %s answers", got)
	}
}

// httpStream is a WebSocket or a request that is held open.
type httpStream struct {
	*httpConn
	name string
	said string    // what is said to see whether it lives
	at   io.Writer // where it is said
	back io.Reader // where a byte has to come back; nil: it answers in the end only
}

func openWebSocket(t testing.TB, source, server, host string) *httpStream {
	t.Helper()
	s := newHTTPStream(t, source, server, "WebSocket to "+host, "x")
	s.back = s.in
	s.open(t, "GET /socket HTTP/1.1\r\nHost: "+host+"\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n", "101")
	return s
}

func openRequest(t testing.TB, source, server, host string) *httpStream {
	t.Helper()
	s := newHTTPStream(t, source, server, "request to "+host, "1\r\nx\r\n")
	s.open(t, "POST /echo HTTP/1.1\r\nHost: "+host+"\r\nTransfer-Encoding: chunked\r\n\r\n", "200")
	s.back = httputil.NewChunkedReader(s.in)
	return s
}

func openDownload(t testing.TB, source, server, host string) *httpStream {
	t.Helper()
	s := newHTTPStream(t, source, server, "download from "+host, "x")
	header := s.open(t, "GET /download HTTP/1.1\r\nHost: "+host+"\r\n\r\n", "200")
	asks, err := net.DialTimeout("tcp", header.Get("Ask-At"), patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = asks.Close() })
	s.at, s.back = asks, httputil.NewChunkedReader(s.in)
	return s
}

// openUpload sends a body whose end is answered.
func openUpload(t testing.TB, source, server, host string) *httpStream {
	t.Helper()
	s := newHTTPStream(t, source, server, "upload to "+host, "1\r\nx\r\n")
	if _, err := io.WriteString(s, "POST / HTTP/1.1\r\nHost: "+host+"\r\nTransfer-Encoding: chunked\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return s
}

func newHTTPStream(t testing.TB, source, server, name, said string) *httpStream {
	t.Helper()
	c := dialHTTP(t, source, server)
	return &httpStream{httpConn: c, name: name, said: said, at: c}
}

// open says something and reads the headers of the answer.
func (s *httpStream) open(t testing.TB, said, status string) textproto.MIMEHeader {
	t.Helper()
	if _, err := io.WriteString(s, said); err != nil {
		t.Fatal(err)
	}
	in := textproto.NewReader(s.in)
	first, err := in.ReadLine()
	if err != nil || !strings.Contains(first, " "+status+" ") {
		t.Fatalf("%s: %q, %v", s.name, first, err)
	}
	header, err := in.ReadMIMEHeader()
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	return header
}

// alive sends a byte and waits for one, as far as the stream has that.
func (s *httpStream) alive() error {
	if err := s.wait(); err != nil {
		return err
	}
	if _, err := io.WriteString(s.at, s.said); err != nil || s.back == nil {
		return err
	}
	_, err := io.ReadFull(s.back, make([]byte, 1))
	return err
}
