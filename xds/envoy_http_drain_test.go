package xds

import (
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"

	"github.com/densityops/oooi/api/v1alpha1"
)

// external is the backend that the plan writes for a public name of an attachment.
func external(name, address string, ports portOf, port int32) []v1alpha1.Backend {
	b := attachment(name, address, ports)[2] // oauth
	b.Name, b.Listener, b.Ports = v1alpha1.BackendName(name, "external-oauth"), "external-"+name, []int32{port}
	return []v1alpha1.Backend{b}
}

// drainedHTTP counts what Envoy ended of port 80 because of a change.
func (e *envoy) drainedHTTP() int {
	return e.stat("http.apps-http.downstream_cx_drain_close")
}

func TestEnvoyKeepsStreamsWhileAppsComeAndGo(t *testing.T) {
	ip := loopbacks(8)
	serverIP, workerA, vipA, vipB, otherVIP := ip[0], ip[3], ip[4], ip[5], ip[6]
	a, b := startControlPlane(t, "a", ip[1]), startControlPlane(t, "b", ip[2])
	target := func(name, address string) int32 {
		return startTarget(t, name, netip.AddrPortFrom(netip.MustParseAddr(address), 0))
	}
	httpsA, httpsB, httpA, httpB := target("a/apps", vipA), target("b/apps", vipB), startApp(t, "a", vipA, 0), startApp(t, "b", vipB, 0)
	startApp(t, "b at another address", otherVIP, httpB)
	withA := append(append(attachment("a", ip[1], a.ports, workerA), apps("a", vipA, httpsA, httpA)...), external("a", ip[1], a.ports, 20000)...)
	withB := attachment("b", ip[2], b.ports, ip[7])
	appsB, moved, externalB := apps("b", vipB, httpsB, httpB), apps("b", otherVIP, httpsB, httpB), external("b", ip[2], b.ports, 20001)
	another := apps("b", vipB, httpsB, httpB)
	for i := range another {
		another[i].AlternateHostnames = []string{"*.other.example.com"}
	}

	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, withA, withB), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	const host, hostB = "console.apps.a.clusters.example.com", "console.apps.b.clusters.example.com"
	held := append(streamsOf(t, "a", serverIP, workerA), streamsOf(t, "b", serverIP, ip[7])...)
	held = append(held, openStream(t, workerA, serverIP, 443, host), openStream(t, workerA, serverIP, 20000, "oauth.a.clusters.example.com"))
	heldHTTP := []*httpStream{openRequest(t, workerA, serverIP, host), openWebSocket(t, workerA, serverIP, host)}
	idle := dialHTTP(t, workerA, serverIP) // a connection between two requests
	asks := func(after string, c *httpConn, host, want string) {
		t.Helper()
		response, answer := c.ask(t, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
		if got := answer.App; got != want && !strings.HasPrefix(response.Status, want) {
			t.Errorf("%s: for %s %q answers, %s; want %s", after, host, got, response.Status, want)
		}
	}
	asks("at first", idle, host, "a")
	inPlace, added := e.stat("listener_manager.listener_in_place_updated"), e.stat("listener_manager.listener_added")

	for _, change := range []struct {
		what  string
		proxy *v1alpha1.ProxyServer
		// updates of the https listener, listeners added (of port 80 only an internal one), and who answers for b
		updates, added int
		answers        string
	}{
		{"apps of b added", proxyServer(serverIP, withA, withB, appsB), 1, 1, "b"},
		{"their address changed", proxyServer(serverIP, withA, withB, moved), 0, 0, "b at another address"},
		{"another name of them", proxyServer(serverIP, withA, withB, another), 1, 0, "b"},
		{"their HTTP removed", proxyServer(serverIP, withA, withB, appsB[:1]), 1, 0, "404"},
		{"their HTTPS removed, their HTTP back", proxyServer(serverIP, withA, withB, appsB[1:]), 1, 1, "b"},
		{"all of them removed", proxyServer(serverIP, withA, withB), 0, 0, "404"},
		{"public names of b added", proxyServer(serverIP, withA, withB, externalB), 0, 1, "404"},
		{"public names of b removed, apps added", proxyServer(serverIP, withA, withB, appsB), 1, 1, "b"},
		{"both", proxyServer(serverIP, withA, withB, appsB, externalB), 0, 1, "b"},
		{"neither", proxyServer(serverIP, withA, withB), 1, 0, "404"},
	} {
		applyAndWait(t, s.Server, change.proxy)
		allAlive(t, change.what, held)
		for _, stream := range heldHTTP {
			if err := stream.alive(); err != nil {
				t.Errorf("%s: the %s is gone: %v", change.what, stream.name, err)
			}
		}
		asks(change.what, idle, host, "a")
		asks(change.what, idle, hostB, change.answers)
		inPlace += change.updates
		added += change.added
		if n, m := e.stat("listener_manager.listener_in_place_updated"), e.stat("listener_manager.listener_added"); n != inPlace || m != added {
			t.Errorf("%s: %d updates of listeners in place and %d listeners added, want %d and %d", change.what, n, m, inPlace, added)
		}
		eventually(t, change.what+": Envoy has drained what went", func() bool { return e.draining() == 0 })
	}
	if n := e.drainedHTTP(); n != 0 {
		t.Errorf("%d connections of port 80 were drained", n)
	}
	if n := e.stat("listener_manager.listener_modified"); n != inPlace {
		t.Errorf("%d changes of a listener, %d in place", n, inPlace)
	}
	if n := e.stat("listener_manager.lds.update_rejected") + e.stat("cluster_manager.cds.update_rejected") + e.stat("http.apps-http.rds.apps-http.update_rejected"); n != 0 {
		t.Errorf("Envoy rejected %d updates", n)
	}

	// The last apps go: what is still open of them ends with the listener's drain time, here one second.
	applyAndWait(t, s.Server, proxyServer(serverIP, attachment("a", ip[1], a.ports, workerA), withB))
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Errorf("status %+v", st)
	}
	for _, stream := range heldHTTP {
		if !stream.ended() {
			t.Errorf("the %s goes on though its listener has gone", stream.name)
		}
	}
	allAlive(t, "the last apps removed", held[:len(held)-2])
	eventually(t, "Envoy has drained what went", func() bool { return e.draining() == 0 })
	applyAndWait(t, s.Server, proxyServer(serverIP, withA, withB)) // and they come back
	eventually(t, "the apps of a are back", func() bool { return answersTo(t, workerA, serverIP, host) == "a" })
}

// underWay opens a request of each kind that can last, and sees each live.
func underWay(t *testing.T, source, server, host string) []*httpStream {
	t.Helper()
	streams := []*httpStream{
		openRequest(t, source, server, host), openWebSocket(t, source, server, host),
		openDownload(t, source, server, host), openUpload(t, source, server, host),
	}
	allUnderWay(t, "at first", streams)
	return streams
}

func allUnderWay(t *testing.T, after string, streams []*httpStream) {
	t.Helper()
	for _, s := range streams {
		if err := s.alive(); err != nil {
			t.Errorf("%s: the %s is gone: %v", after, s.name, err)
		}
	}
}

// finishUpload ends the upload of those under way: that it lived, only its answer tells.
func finishUpload(t *testing.T, after string, streams []*httpStream, app string) {
	t.Helper()
	upload := streams[len(streams)-1]
	if _, answer := upload.ask(t, "0\r\n\r\n"); answer.App != app || strings.Trim(answer.Body, "x") != "" || answer.Body == "" {
		t.Errorf("%s: the %s ends with %+v", after, upload.name, answer)
	}
}

// What is under way to apps that go ends with the drain time, here one second; what is under way to others, on the same port, does not.
func TestEnvoyEndsRequestsWhoseAppsGo(t *testing.T) {
	ip := loopbacks(7)
	serverIP, client, vipA, vipB, vipC, otherVIP := ip[0], ip[1], ip[2], ip[3], ip[4], ip[5]
	portA, portB, portC := startApp(t, "a", vipA, 0), startApp(t, "b", vipB, 0), startApp(t, "c", vipC, 0)
	startApp(t, "b at another address", otherVIP, portB)
	appsA, appsB, appsC := apps("a", vipA, 443, portA), apps("b", vipB, 443, portB), apps("c", vipC, 443, portC)
	slower := apps("b", vipB, 443, portB)
	slower[1].TimeoutSeconds = 7
	const hostA, hostB = "x.apps.a.clusters.example.com", "x.apps.b.clusters.example.com"
	before := proxyServer(serverIP, appsA, appsB, appsC)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, before, Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	ofA := underWay(t, client, serverIP, hostA)
	kept := dialHTTP(t, client, serverIP)

	for _, change := range []struct {
		what    string
		proxy   *v1alpha1.ProxyServer
		answers string // for b
		ends    bool   // what is under way to b
	}{
		{"another address of b", proxyServer(serverIP, appsA, apps("b", otherVIP, 443, portB), appsC), "b at another address", false},
		{"another timeout of b", proxyServer(serverIP, appsA, slower, appsC), "b", false},
		{"the apps of b removed", proxyServer(serverIP, appsA, appsC), "404", true},
		{"b and c left out over a conflict", proxyServer(serverIP, appsA), "404", true},
		{"another owner of b", proxyServer(serverIP, appsA, appsAs("b", "d", vipB, portB), appsC), "404", true},
		{"b and c exchange their owners", proxyServer(serverIP, appsA, appsAs("b", "c", vipC, portC), appsAs("c", "b", vipB, portB)), "b", true},
	} {
		applyAndWait(t, s.Server, before)
		ofB := underWay(t, client, serverIP, hostB)
		applyAndWait(t, s.Server, change.proxy)
		response, answer := kept.ask(t, "GET / HTTP/1.1\r\nHost: "+hostB+"\r\n\r\n")
		if got := answer.App; got != change.answers && !strings.HasPrefix(response.Status, change.answers) {
			t.Errorf("%s: for b %q answers, %s; want %s", change.what, got, response.Status, change.answers)
		}
		if change.ends {
			for _, stream := range ofB {
				if !stream.ended() {
					t.Errorf("%s: the %s goes on", change.what, stream.name)
				}
			}
		}
		eventually(t, change.what+": Envoy has drained what went", func() bool { return e.draining() == 0 })
		if !change.ends {
			allUnderWay(t, change.what, ofB)
			finishUpload(t, change.what, ofB, "b")
		}
		allUnderWay(t, change.what, ofA)
	}

	// What comes back while Envoy still drains what it was is new: the end of the old one is not its end.
	for what, proxy := range map[string]*v1alpha1.ProxyServer{
		"removed and back at once":       proxyServer(serverIP, appsA, appsC),
		"another owner and back at once": proxyServer(serverIP, appsA, appsAs("b", "d", vipB, portB), appsC),
	} {
		applyAndWait(t, s.Server, before)
		ofB := underWay(t, client, serverIP, hostB)
		applyAndWait(t, s.Server, proxy)
		applyAndWait(t, s.Server, before)
		again := underWay(t, client, serverIP, hostB)
		for _, stream := range ofB {
			if !stream.ended() {
				t.Errorf("%s: the %s of before goes on", what, stream.name)
			}
		}
		eventually(t, what+": Envoy has drained what went", func() bool { return e.draining() == 0 })
		allUnderWay(t, what, again)
		finishUpload(t, what, again, "b")
		if _, answer := kept.ask(t, "GET / HTTP/1.1\r\nHost: "+hostB+"\r\n\r\n"); answer.App != "b" {
			t.Errorf("%s: for b %q answers", what, answer.App)
		}
		if got := answersTo(t, client, serverIP, hostB); got != "b" {
			t.Errorf("%s: for b, on a new connection, %s answers", what, got)
		}
		allUnderWay(t, what, ofA)
	}
	allUnderWay(t, "all of it", ofA)
	finishUpload(t, "all of it", ofA, "a")
	if n := e.drainedHTTP(); n != 0 {
		t.Errorf("%d connections of port 80 were drained", n)
	}
}

// While apps come and go, a request for them is answered by them or by 404: never by an error, never not at all.
func TestEnvoyAnswersWhileAppsComeAndGo(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client := ip[0], ip[1]
	appsA, appsB := apps("a", ip[2], 443, startApp(t, "a", ip[2], 0)), apps("b", ip[3], 443, startApp(t, "b", ip[3], 0))
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, appsA), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	dialHTTP(t, client, serverIP) // it listens

	stop := make(chan struct{})
	var wg sync.WaitGroup
	halt := sync.OnceFunc(func() {
		close(stop)
		wg.Wait()
	})
	defer halt()
	var mu sync.Mutex
	answers := map[string]int{}
	for range 4 {
		wg.Go(func() {
			transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).DialContext}
			defer transport.CloseIdleConnections()
			c := &http.Client{Transport: transport, Timeout: patience}
			for {
				select {
				case <-stop:
					return
				default:
				}
				got := ask(c, serverIP, "x.apps.b.clusters.example.com")
				mu.Lock()
				answers[got]++
				mu.Unlock()
			}
		})
	}
	for range 30 {
		applyAndWait(t, s.Server, proxyServer(serverIP, appsA, appsB))
		applyAndWait(t, s.Server, proxyServer(serverIP, appsA))
	}
	halt()
	t.Logf("answers: %v", answers)
	for got := range answers {
		if got != "b" && got != "404" {
			t.Errorf("%d times the answer is %s", answers[got], got)
		}
	}
	if answers["b"] == 0 || answers["404"] == 0 {
		t.Error("not both answers came, so that nothing is shown")
	}
}

// A bad route configuration costs nobody else anything, and the last good one stays, clusters that it leads to included.
func TestEnvoyKeepsTheLastGoodRoutes(t *testing.T) {
	ip := loopbacks(6)
	serverIP, worker := ip[0], ip[4]
	a := startControlPlane(t, "a", ip[1])
	httpA, httpB := startApp(t, "a", ip[2], 0), startApp(t, "b", ip[3], 0)
	withA := attachment("a", ip[1], a.ports, worker)
	appsA, appsB := apps("a", ip[2], 443, httpA), apps("b", ip[3], 443, httpB)
	// refused says of one name that it is in two virtual hosts.
	refused := func(proxy *v1alpha1.ProxyServer) *Snapshot {
		snap := mustBuild(t, proxy, Options{PortOffset: portOffset})
		config := &routev3.RouteConfiguration{}
		if err := snap.sets[routeType].sorted[0].GetResource().UnmarshalTo(config); err != nil {
			t.Fatal(err)
		}
		config.VirtualHosts = append(config.VirtualHosts, &routev3.VirtualHost{Name: "again", Domains: config.GetVirtualHosts()[0].GetDomains()})
		bad, err := newSnapshot(map[string][]namedMessage{routeType: {{httpListener, config}}})
		if err != nil {
			t.Fatal(err)
		}
		snap.version, snap.sets[routeType] = bad.version, bad.sets[routeType]
		return snap
	}
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, refused(proxyServer(serverIP, withA, appsA)))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	const words = "routeconfiguration apps-http: Only unique values for domains are permitted. Duplicate entry of domain *.apps.a.clusters.example.com"
	if st := s.Status(testInfra)[0]; st.Acknowledged != "" || !strings.Contains(st.Error, words) {
		t.Errorf("refused at the start: %+v", st)
	}
	if got := reaches(worker, serverIP, 443, "kubernetes"); got != "a/kube-apiserver" {
		t.Errorf("without routes of port 80 the alias reaches %s", got)
	}
	if got := answersTo(t, worker, serverIP, "x.apps.a.clusters.example.com"); got != "404" {
		t.Errorf("without routes %s answers", got)
	}

	applyAndWait(t, s.Server, proxyServer(serverIP, withA, appsA, appsB))
	good := s.Version(testInfra)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != good {
		t.Errorf("after the mend: %+v", st)
	}
	s.Apply(testInfra, refused(proxyServer(serverIP, withA, appsA))) // b is gone from it
	waitAcknowledged(t, s.Server)
	if st := s.Status(testInfra)[0]; st.Acknowledged != good || !strings.Contains(st.Error, words) {
		t.Errorf("refused: %+v", st)
	}
	for _, name := range []string{"a", "b"} {
		if got := answersTo(t, worker, serverIP, "x.apps."+name+".clusters.example.com"); got != name {
			t.Errorf("with the last good routes %s answers for %s", got, name)
		}
	}
	if n := metric(t, s.registry, "oooi_xds_nacks_total", map[string]string{"type": "routeconfiguration"}); n != 2 {
		t.Errorf("%v NACKs of routes are counted, want 2", n)
	}
	applyAndWait(t, s.Server, proxyServer(serverIP, withA, appsA))
	if got := answersTo(t, worker, serverIP, "x.apps.b.clusters.example.com"); got != "404" {
		t.Errorf("once the routes are good, %s answers for b", got)
	}
	if n := e.stat("cluster_manager.active_clusters"); n != 1+len(pagePorts)+len(appsOf("a")) {
		t.Errorf("%d clusters are left", n)
	}
}

func TestARestartedEnvoyGetsItsRoutesInOneGo(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client := ip[0], ip[3]
	httpA, httpB := startApp(t, "a", ip[1], 0), startApp(t, "b", ip[2], 0)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, apps("a", ip[1], 443, httpA), apps("b", ip[2], 443, httpB)), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address).kill()
	eventually(t, "the dead Envoy is noticed", func() bool { return len(s.Status(testInfra)) == 0 })
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	for _, name := range []string{"a", "b"} {
		if got := answersTo(t, client, serverIP, "x.apps."+name+".clusters.example.com"); got != name {
			t.Errorf("%s answers for %s", got, name)
		}
	}
	for _, of := range []string{"cluster_manager.cds", "listener_manager.lds", "http.apps-http.rds.apps-http"} {
		if n := e.stat(of + ".update_success"); n != 1 {
			t.Errorf("%s: the state came in %d parts", of, n)
		}
	}
}
