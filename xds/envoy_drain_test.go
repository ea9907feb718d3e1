package xds

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// streamsOf opens a stream through every chain of an attachment, by every kind of match.
func streamsOf(t *testing.T, name, serverIP, worker string) []*stream {
	t.Helper()
	domain := "." + name + ".clusters.example.com"
	var streams []*stream
	for _, sni := range []string{"api" + domain, "api-int" + domain, "oauth" + domain, "ignition" + domain, "konnectivity" + domain, "kubernetes.default", ""} {
		streams = append(streams, openStream(t, worker, serverIP, 443, sni))
		if strings.HasPrefix(sni, "api") || !strings.Contains(sni, domain) {
			streams = append(streams, openStream(t, worker, serverIP, 6443, sni))
		}
	}
	return streams
}

func allAlive(t *testing.T, after string, streams []*stream) {
	t.Helper()
	for _, s := range streams {
		if err := s.alive(); err != nil {
			t.Errorf("%s: the stream %s is gone: %v", after, s.name, err)
		}
	}
}

// draining is the number of chains and listeners that Envoy is emptying.
func (e *envoy) draining() int {
	e.t.Helper()
	return e.stat("listener_manager.total_filter_chains_draining") + e.stat("listener_manager.total_listeners_draining")
}

func TestEnvoyKeepsStreamsThatAChangeDoesNotConcern(t *testing.T) {
	ip := loopbacks(8)
	serverIP, workerA, workerB, workerC, newcomer := ip[0], ip[4], ip[5], ip[6], ip[7]
	a, b, c := startControlPlane(t, "a", ip[1]), startControlPlane(t, "b", ip[2]), startControlPlane(t, "c", ip[3])
	withB := func(sources ...string) []v1alpha1.Backend { return attachment("b", ip[2], b.ports, sources...) }
	withA := func(sources ...string) []v1alpha1.Backend { return attachment("a", ip[1], a.ports, sources...) }
	withC := attachment("c", ip[3], c.ports, workerC)
	moved := attachment("c", "203.0.113.7", c.ports, workerC)
	named := withB(workerB)
	named[0].AlternateHostnames = []string{"another.name.example.com"}

	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, withA(workerA), withB(workerB)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	held := append(streamsOf(t, "a", serverIP, workerA), streamsOf(t, "b", serverIP, workerB)...)
	inPlace := e.stat("listener_manager.listener_in_place_updated")

	for _, change := range []struct {
		what  string
		proxy *v1alpha1.ProxyServer
		// updates of the two listeners
		updates int
	}{
		{"a source added", proxyServer(serverIP, withA(workerA, newcomer), withB(workerB)), 2},
		{"a source moved to another attachment", proxyServer(serverIP, withA(workerA), withB(workerB, newcomer)), 2},
		{"a source removed that has streams open", proxyServer(serverIP, withA(workerA), withB(newcomer)), 2},
		{"all sources of an attachment removed", proxyServer(serverIP, withA(), withB(workerB)), 2},
		{"a name added", proxyServer(serverIP, withA(workerA), named), 2},
		{"an attachment added", proxyServer(serverIP, withA(workerA), withB(workerB), withC), 2},
		{"the address of an attachment changed", proxyServer(serverIP, withA(workerA), withB(workerB), moved), 0},
		{"and changed back", proxyServer(serverIP, withA(workerA), withB(workerB), withC), 0},
	} {
		applyAndWait(t, s.Server, change.proxy)
		allAlive(t, change.what, held)
		if n := e.draining(); n != 0 {
			t.Errorf("%s: Envoy drains %d", change.what, n)
		}
		inPlace += change.updates
		if n := e.stat("listener_manager.listener_in_place_updated"); n != inPlace {
			t.Errorf("%s: %d updates in place, want %d", change.what, n, inPlace)
		}
	}

	ofC := streamsOf(t, "c", serverIP, workerC)
	applyAndWait(t, s.Server, proxyServer(serverIP, withA(workerA), withB(workerB)))
	if got := reaches(workerC, serverIP, 443, "api.c.clusters.example.com"); got != "closed" {
		t.Errorf("a removed attachment still answers: %s", got)
	}
	for _, gone := range ofC { // within the drain time, here one second
		if _, err := gone.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the stream %s of a removed attachment ended with %v", gone.name, err)
		}
	}
	allAlive(t, "an attachment removed", held)
	eventually(t, "Envoy has drained the chains of the removed attachment", func() bool { return e.draining() == 0 })
	if n := e.stat("listener_manager.listener_modified"); n != e.stat("listener_manager.listener_in_place_updated") {
		t.Errorf("not all of %d changes of a listener were in place", n)
	}
	if n := e.stat("listener_manager.lds.update_rejected") + e.stat("cluster_manager.cds.update_rejected"); n != 0 {
		t.Errorf("Envoy rejected %d updates", n)
	}
}

func TestEnvoyNoticesNothingOfARestart(t *testing.T) {
	ip := loopbacks(5)
	serverIP, cpA, workerA, workerB, vip := ip[0], ip[1], ip[2], ip[3], ip[4]
	a := startControlPlane(t, "a", cpA)
	ofA := apps("a", vip, 443, startApp(t, "a", vip, 0))
	proxy := proxyServer(serverIP, attachment("a", cpA, a.ports, workerA), ofA)
	for i := range proxy.Spec.Backends {
		if b := &proxy.Spec.Backends[i]; b.TargetService == "konnectivity-server" {
			b.Addresses = []string{cpA, cpA} // as of a headless Service: endpoints are resumed too
		}
	}
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxy, Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	held := streamsOf(t, "a", serverIP, workerA)
	counters := func() (values []int) {
		for _, name := range []string{
			"listener_manager.lds.update_success", "listener_manager.listener_added", "listener_manager.listener_modified",
			"listener_manager.listener_in_place_updated", "listener_manager.listener_removed", "cluster_manager.cds.update_success",
			"http.apps-http.rds.apps-http.update_success", "cluster.clusters/a/konnectivity-server.update_success", "cluster_manager.cluster_added", "cluster_manager.cluster_modified", "cluster_manager.cluster_removed",
		} {
			values = append(values, e.stat(name))
		}
		return values
	}
	heldHTTP := openWebSocket(t, workerA, serverIP, "x.apps.a.clusters.example.com")
	before := counters()

	s.stop()
	eventually(t, "Envoy misses its control plane", func() bool { return e.stat("control_plane.connected_state") == 0 })
	if got := reaches(workerA, serverIP, 6443, ""); got != "a/kube-apiserver" {
		t.Errorf("without a control plane a worker reaches %s", got)
	}
	restarted := startServer(t, s.address.String())
	restarted.Apply(testInfra, mustBuild(t, proxy, Options{PortOffset: portOffset}))
	waitAcknowledged(t, restarted.Server)
	if st := restarted.Status(testInfra)[0]; st.Acknowledged != restarted.Version(testInfra) || st.Error != "" {
		t.Errorf("status %+v", st)
	}
	for i, n := range counters() {
		if n != before[i] {
			t.Errorf("counter %d moved from %d to %d", i, before[i], n)
		}
	}
	if n := metric(t, restarted.registry, "oooi_xds_pushes_total", nil); n != 0 {
		t.Errorf("%v pushes after the restart", n)
	}
	allAlive(t, "a restart", held)
	applyAndWait(t, restarted.Server, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA, workerB), ofA, apps("b", vip, 443, 80)))
	if got := reaches(workerB, serverIP, 6443, ""); got != "a/kube-apiserver" {
		t.Errorf("after the restart a new worker reaches %s", got)
	}
	allAlive(t, "a change after a restart", held)
	if err := heldHTTP.alive(); err != nil {
		t.Errorf("the %s: %v", heldHTTP.name, err)
	}
	if got := answersTo(t, workerB, serverIP, "x.apps.b.clusters.example.com"); got != "503" { // nobody is there
		t.Errorf("for new apps, %s answers", got)
	}
	applyAndWait(t, restarted.Server, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA, workerB)))
}

func TestARestartedEnvoyGetsTheWholeState(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, workerA := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	first := startEnvoy(t, "pod-1", s.address) // before the Infra is known
	eventually(t, "Envoy is turned away", func() bool { return first.stat("cluster.oooi-xds.upstream_rq_total") > 1 })
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)), Options{PortOffset: portOffset}))
	waitAcknowledged(t, s.Server)
	eventually(t, "Envoy serves", func() bool { return reaches(workerA, serverIP, 443, "kubernetes") == "a/kube-apiserver" })
	first.kill()
	eventually(t, "the dead Envoy is noticed", func() bool { return len(s.Status(testInfra)) == 0 })
	second := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	eventually(t, "the new Envoy serves", func() bool { return reaches(workerA, serverIP, 443, "kubernetes") == "a/kube-apiserver" })
	if n := second.stat("cluster_manager.cds.update_success") + second.stat("listener_manager.lds.update_success"); n != 2 {
		t.Errorf("the state came in %d parts, want clusters and listeners", n)
	}
}

func TestEnvoyRefusesOneListenerAndKeepsTheOther(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, workerA := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	squatter, err := net.Listen("tcp", listenerAddress(serverIP, 443))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = squatter.Close() })
	s := startServer(t, "127.0.0.1:0")
	proxy := proxyServer(serverIP, attachment("a", cpA, a.ports, workerA))
	s.Apply(testInfra, mustBuild(t, proxy, Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	st := s.Status(testInfra)[0]
	if st.Acknowledged != "" || !strings.Contains(st.Error, "listener https: ") || !strings.Contains(st.Error, "Address already in use") || strings.Contains(st.Error, "kube-api:") {
		t.Errorf("status %+v", st)
	}
	if n := metric(t, s.registry, "oooi_xds_nacks_total", map[string]string{"type": "listener"}); n == 0 {
		t.Error("no NACK is counted")
	}
	eventually(t, "the other listener serves", func() bool { return reaches(workerA, serverIP, 6443, "") == "a/kube-apiserver" })

	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	applyAndWait(t, s.Server, proxy)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Errorf("once the port is free: %+v", st)
	}
	if got := reaches(workerA, serverIP, 443, "kubernetes"); got != "a/kube-apiserver" {
		t.Errorf("once the port is free a worker reaches %s", got)
	}
}

func TestEnvoyOfARemovedInfraListensNowhere(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, workerA := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports, workerA)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	eventually(t, "Envoy serves", func() bool { return reaches(workerA, serverIP, 443, "kubernetes") == "a/kube-apiserver" })
	s.Remove(testInfra)
	waitAcknowledged(t, s.Server)
	if n := e.stat("listener_manager.total_listeners_active"); n != 0 {
		t.Errorf("%d listeners are left", n)
	}
	eventually(t, "the port is closed", func() bool {
		_, _, err := dial(workerA, serverIP, 443, "kubernetes")
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

// Over many random changes of everything else, no stream of an attachment that stays is lost, and routes are those of the
// last change.
func TestEnvoyKeepsStreamsOverRandomChanges(t *testing.T) {
	ip := loopbacks(14)
	serverIP, workerA, pool := ip[0], ip[5], ip[6:]
	names := []string{"a", "b", "c", "d"}
	planes := map[string]*controlPlane{}
	for i, name := range names {
		planes[name] = startControlPlane(t, name, ip[1+i])
	}
	rnd := rand.New(rand.NewPCG(7, 7))
	// random gives a ProxyServer in which a stays, and the owner of each source of the pool.
	random := func() (*v1alpha1.ProxyServer, map[string]string) {
		sources := map[string][]string{"a": {workerA}}
		owner := map[string]string{}
		for _, source := range pool {
			if name := names[rnd.IntN(len(names))]; rnd.IntN(3) > 0 {
				sources[name] = append(sources[name], source)
				owner[source] = name
			}
		}
		var all [][]v1alpha1.Backend
		for i, name := range names {
			if i > 0 && rnd.IntN(3) == 0 { // it leaves, and its sources with it
				for _, source := range sources[name] {
					delete(owner, source)
				}
				continue
			}
			backends := attachment(name, ip[1+i], planes[name].ports, sources[name]...)
			if rnd.IntN(2) == 0 {
				backends[2].AlternateHostnames = []string{"login." + name + ".example.com"}
			}
			timeout := int32(10 + rnd.IntN(2)) // changes the clusters, those of a too
			for j := range backends {
				backends[j].TimeoutSeconds = timeout
			}
			all = append(all, backends)
		}
		return proxyServer(serverIP, all...), owner
	}

	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", ip[1], planes["a"].ports, workerA)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	held := streamsOf(t, "a", serverIP, workerA)
	for i := range 100 {
		proxy, owner := random()
		s.Apply(testInfra, mustBuild(t, proxy, Options{PortOffset: portOffset}))
		if i%10 > 0 {
			continue // the next change comes while this one is under way
		}
		waitAcknowledged(t, s.Server)
		allAlive(t, fmt.Sprintf("change %d", i), held)
		for _, source := range pool {
			want := "closed"
			if name := owner[source]; name != "" {
				want = name + "/kube-apiserver"
			}
			if got := reaches(source, serverIP, 443, "kubernetes.default"); got != want {
				t.Errorf("change %d: from %s the alias reaches %s, want %s", i, source, got, want)
			}
			if got := reaches(source, serverIP, 6443, ""); got != want {
				t.Errorf("change %d: from %s without a name one reaches %s, want %s", i, source, got, want)
			}
		}
	}
	waitAcknowledged(t, s.Server)
	eventually(t, "Envoy has drained what went", func() bool { return e.draining() == 0 })
	allAlive(t, "all changes", held)
	if st := s.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != s.Version(testInfra) {
		t.Errorf("status %+v", st)
	}
}
