package vlanpods

import (
	"net/netip"
	"testing"

	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// TestExternal publishes the OAuth servers of two clusters, each at an address of its own that opens nothing else, and does all to
// the one that must not cost the other a connection.
func TestExternal(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w := startPublic(t)
	w.boot(t, w.workerB, netlab.Udhcpc, workerB)

	oauthA, oauthB := "oauth."+domain(clusterA), "oauth."+domain(clusterB)
	w.attach(t, clusterB, asOnThePage(clusterB, poolB, ""))
	portB := w.awaitPublic(t, clusterB, vipB)
	w.awaitPublicly(t, vipB, oauthB, clusterB+"/oauth-openshift")
	proxy, err := w.clusterIP(t.Context(), "tenant-vlan100-proxy")
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(address), port)
	}
	held := w.hold(t, map[string]stack.Call{
		"OAuth at the VIP":           {Host: outsider, To: at(vipB, 443), SNI: oauthB},
		"the API for a worker":       {Host: w.workerB, To: at(addressProxy, 6443), SNI: "api." + domain(clusterB)},
		"konnectivity for a worker":  {Host: w.workerB, To: at(addressProxy, 443), SNI: "konnectivity." + domain(clusterB)},
		"an alias for a worker":      {Host: w.workerB, To: at(addressProxy, 443), SNI: "kubernetes.default.svc"},
		"no name at all of a worker": {Host: w.workerB, To: at(addressProxy, 6443)},
		"OAuth for pods":             {To: at(proxy.String(), 443), SNI: oauthB},
	})
	onlyB := map[string]string{oauthB: clusterB + "/oauth-openshift"}
	if err := w.opens(t.Context(), vipB, onlyB); err != nil {
		t.Error(err)
	}

	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
	portA := w.awaitPublic(t, clusterA, vipA)
	if portA == portB {
		t.Fatalf("both listeners are on port %d", portA)
	}
	w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	held.alive(t, "A was published")
	if err := w.opens(t.Context(), vipA, map[string]string{oauthA: clusterA + "/oauth-openshift"}); err != nil {
		t.Error(err)
	}
	if err := w.opens(t.Context(), vipB, onlyB); err != nil {
		t.Error(err)
	}
}
