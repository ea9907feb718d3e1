package xds

import (
	"net"
	"strings"
	"testing"
)

// A port that somebody else has is a cause that passes: the listener comes as soon as the port is free, without a change.
func TestEnvoyGetsAListenerAgainWhenItsPortIsFree(t *testing.T) {
	ip := loopbacks(2)
	serverIP, cpA := ip[0], ip[1]
	a := startControlPlane(t, "a", cpA)
	taken, err := net.Listen("tcp", listenerAddress(serverIP, 6443))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = taken.Close() })
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, mustBuild(t, proxyServer(serverIP, attachment("a", cpA, a.ports)), Options{PortOffset: portOffset}))
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	if st := s.Status(testInfra)[0]; !strings.Contains(st.Error, "listener kube-api: ") || st.Acknowledged != "" {
		t.Fatalf("with its port taken, the status is %+v", st)
	}
	if got := reaches(cpA, serverIP, 443, "api.a.clusters.example.com"); got != "a/kube-apiserver" {
		t.Errorf("beside it, port 443 reaches %s", got)
	}
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "Envoy has taken the listener", func() bool {
		st := s.Status(testInfra)[0]
		return st.Error == "" && st.Acknowledged == s.Version(testInfra)
	})
	if got := reaches(cpA, serverIP, 6443, "api.a.clusters.example.com"); got != "a/kube-apiserver" {
		t.Errorf("once the port is free it reaches %s", got)
	}
}
