package xds

import (
	"sync"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// loopTo is attachment "loop", all of whose targets are Envoy's own listeners.
func loopTo(serverIP string) []v1alpha1.Backend {
	own := portOf{}
	for _, service := range []string{"kube-apiserver", "oauth-openshift", "ignition-server-proxy", "konnectivity-server"} {
		own[service] = 443 + portOffset
	}
	backends := attachment("loop", serverIP, own)
	for i := range backends {
		backends[i].TimeoutSeconds = 1
	}
	return backends
}

// A connection that leads back to Envoy must end at the first turn: each further one would cost two file descriptors, until
// no tenant can connect any more.
func TestEnvoyBreaksALoopAtTheFirstTurn(t *testing.T) {
	ip := loopbacks(3)
	serverIP, cpA, stranger := ip[0], ip[1], ip[2]
	a := startControlPlane(t, "a", cpA)
	s := startServer(t, "127.0.0.1:0")
	loopApps := v1alpha1.Backend{
		Name: v1alpha1.BackendName("loop", "apps-http"), Attachment: "loop", Hostname: "*.apps.loop.clusters.example.com", Ports: []int32{80},
		TargetService: "oooi-ingress", TargetNamespace: "clusters-loop", TargetPort: 80 + portOffset,
		Addresses: []string{serverIP}, TimeoutSeconds: 1,
	}
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports), loopTo(serverIP), []v1alpha1.Backend{loopApps}),
		Options{PortOffset: portOffset}))
	e := startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)

	const clients = 20
	var asked sync.WaitGroup
	for range clients {
		asked.Go(func() {
			if got := reaches(stranger, serverIP, 443, "api.loop.clusters.example.com"); got != "closed" {
				t.Errorf("a loop answers: %s", got)
			}
		})
	}
	asked.Wait()
	accepted := e.stat("listener." + serverIP + "_20443.downstream_cx_total")
	if accepted != clients {
		t.Errorf("Envoy accepted %d connections for those of %d clients: it dials itself", accepted, clients)
	}
	if got := answersTo(t, stranger, serverIP, "x.apps.loop.clusters.example.com"); got != "503" {
		t.Errorf("on port 80 a loop answers: %s", got)
	}
	if accepted := e.stat("listener." + serverIP + "_20080.downstream_cx_total"); accepted != 1 {
		t.Errorf("Envoy accepted %d connections on port 80 for that of one client", accepted)
	}
	if got := reaches(stranger, serverIP, 443, "api.a.clusters.example.com"); got != "a/kube-apiserver" {
		t.Errorf("beside the loop, a's API server: %s", got)
	}
}
