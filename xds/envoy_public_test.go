package xds

import (
	"net"
	"testing"
)

// TestEnvoyBoundsPublicListeners: who opens connections at one attachment's public address as fast as possible, and says nothing, takes
// none from the listeners that all tenants share, nor from another public one.
func TestEnvoyBoundsPublicListeners(t *testing.T) {
	ip := loopbacks(5)
	serverIP, cpA, cpB, workerA, anyone := ip[0], ip[1], ip[2], ip[3], ip[4]
	a, b := startControlPlane(t, "a", cpA), startControlPlane(t, "b", cpB)
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP,
		attachment("a", cpA, a.ports, workerA), attachment("b", cpB, b.ports),
		external("a", cpA, a.ports, 20000), external("b", cpB, b.ports, 20001)), Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)

	const flood = publicAcceptBurst + 2*publicAccepts
	for range flood {
		conn, err := net.Dial("tcp", listenerAddress(serverIP, 20000))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() }) // nothing was said
	}
	eventually(t, "some of the flood are let in, and some are not", func() bool {
		refused := e.stat("listener_local_ratelimit.external-a.rate_limited")
		return refused > 0 && refused < flood
	})
	for _, c := range []struct {
		source    string
		port      int
		sni, want string
	}{
		{workerA, 443, "oauth.a.clusters.example.com", "a/oauth-openshift"},
		{workerA, 6443, "", "a/kube-apiserver"},
		{anyone, 20001, "oauth.b.clusters.example.com", "b/oauth-openshift"},
	} {
		if got := reaches(c.source, serverIP, c.port, c.sni); got != c.want {
			t.Errorf("during the flood, port %d sni %q: got %s, want %s", c.port, c.sni, got, c.want)
		}
	}
	eventually(t, "the flooded listener serves again", func() bool {
		return reaches(anyone, serverIP, 20000, "oauth.a.clusters.example.com") == "a/oauth-openshift"
	})
}
