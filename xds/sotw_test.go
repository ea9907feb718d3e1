package xds

import (
	"context"
	"slices"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
)

// sotwClient speaks state-of-the-world ADS.
type sotwClient struct {
	t       testing.TB
	stream  discovery.AggregatedDiscoveryService_StreamAggregatedResourcesClient
	version map[string]string // acknowledged, by type
}

func connectSotW(t testing.TB, p *inProcess, id string) *sotwClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(p.conn).StreamAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	c := &sotwClient{t: t, stream: stream, version: map[string]string{}}
	return c
}

func (c *sotwClient) ask(typeURL, nonce string, detail *rpcstatus.Status, names ...string) {
	c.t.Helper()
	err := c.stream.Send(&discovery.DiscoveryRequest{
		Node: &core.Node{Id: "pod-1", Cluster: testInfra}, TypeUrl: typeURL, VersionInfo: c.version[typeURL],
		ResourceNames: names, ResponseNonce: nonce, ErrorDetail: detail,
	})
	if err != nil {
		c.t.Fatal(err)
	}
}

// expect receives a response, which must hold this many resources.
func (c *sotwClient) expect(typeURL string, count int) *discovery.DiscoveryResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	if r.GetTypeUrl() != typeURL || len(r.GetResources()) != count {
		c.t.Fatalf("got %d × %s, want %d × %s", len(r.GetResources()), r.GetTypeUrl(), count, typeURL)
	}
	return r
}

func (c *sotwClient) ack(r *discovery.DiscoveryResponse, names ...string) {
	c.t.Helper()
	c.version[r.GetTypeUrl()] = r.GetVersionInfo()
	c.ask(r.GetTypeUrl(), r.GetNonce(), nil, names...)
}

func (c *sotwClient) nack(r *discovery.DiscoveryResponse) {
	c.t.Helper()
	c.ask(r.GetTypeUrl(), r.GetNonce(), &rpcstatus.Status{Code: 13, Message: "no"})
}

func TestStateOfTheWorld(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectSotW(t, p, "pod-1")
	c.ask(clusterType, "", nil)
	c.ack(c.expect(clusterType, 4))
	c.ask(listenerType, "", nil)
	c.ack(c.expect(listenerType, 2))
	p.settled(t, testInfra)

	// Make before break: old and new clusters together, listeners, the new clusters alone.
	p.Apply(testInfra, mustBuild(t, page("b"), Options{}))
	c.ack(c.expect(clusterType, 8))
	c.ack(c.expect(listenerType, 2))
	c.ack(c.expect(clusterType, 4))
	p.settled(t, testInfra)

	// A refused version is not sent again, and the clusters of the last good one stay.
	p.Apply(testInfra, mustBuild(t, page("c"), Options{}))
	c.ack(c.expect(clusterType, 8))
	c.nack(c.expect(listenerType, 2))
	c.nack(c.expect(listenerType, 2)) // the new https with the old kube-api
	c.nack(c.expect(listenerType, 2)) // the old https with the new kube-api
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "listener https: no; listener kube-api: no" {
		t.Errorf("status %+v", st)
	}
	p.Apply(testInfra, mustBuild(t, page("b", "c"), Options{}))
	c.ack(c.expect(listenerType, 2))
	p.settled(t, testInfra)

	// An answer to an older response says nothing about the newer one.
	p.Apply(testInfra, mustBuild(t, page("b"), Options{}))
	r := c.expect(listenerType, 2)
	c.ask(listenerType, "1", nil)
	c.ack(r)
	c.ack(c.expect(clusterType, 4))
	p.settled(t, testInfra)

	// Nothing left: an empty response each.
	p.Apply(testInfra, mustBuild(t, page(), Options{}))
	c.ack(c.expect(listenerType, 0))
	c.ack(c.expect(clusterType, 0))
	p.settled(t, testInfra)
}

func TestStateOfTheWorldAfterARestart(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectSotW(t, p, "pod-1")
	c.ask(clusterType, "", nil)
	c.ack(c.expect(clusterType, 4))
	c.ask(listenerType, "", nil)
	c.ack(c.expect(listenerType, 2))
	p.settled(t, testInfra)

	restarted := serveInProcess(t)
	restarted.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	again := connectSotW(t, restarted, "pod-1")
	again.version = c.version
	again.ask(clusterType, "", nil)
	again.ask(listenerType, "", nil)
	eventually(t, "Envoy counts as up to date", func() bool {
		st := restarted.Status(testInfra)
		return len(st) == 1 && st[0].Acknowledged == restarted.Version(testInfra)
	})
	if n := metric(t, restarted.registry, "oooi_xds_pushes_total", nil); n != 0 {
		t.Errorf("%v pushes after a restart with the same input", n)
	}
	restarted.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	again.ack(again.expect(clusterType, 8))
	again.ack(again.expect(listenerType, 2))
	restarted.settled(t, testInfra)
}

func TestStateOfTheWorldEndpoints(t *testing.T) {
	headless := func(addresses ...string) *Snapshot {
		proxy := page("a")
		for i := range proxy.Spec.Backends {
			if slices.Contains([]string{"konnectivity-server", "oauth-openshift"}, proxy.Spec.Backends[i].TargetService) {
				proxy.Spec.Backends[i].Addresses = addresses
			}
		}
		return mustBuild(t, proxy, Options{})
	}
	p := serveInProcess(t)
	p.Apply(testInfra, headless("10.0.0.1", "10.0.0.2"))
	c := connectSotW(t, p, "pod-1")
	c.ask(clusterType, "", nil)
	c.ack(c.expect(clusterType, 4))
	c.ask(endpointType, "", nil, "clusters/a/konnectivity-server")
	r := c.expect(endpointType, 1)
	c.ack(r, "clusters/a/konnectivity-server", "clusters/a/oauth-openshift") // asks for one more on the way
	c.ack(c.expect(endpointType, 2), "clusters/a/konnectivity-server", "clusters/a/oauth-openshift")
	c.ask(listenerType, "", nil)
	c.ack(c.expect(listenerType, 2))
	p.Apply(testInfra, headless("10.0.0.1", "10.0.0.3"))
	c.ack(c.expect(endpointType, 2), "clusters/a/konnectivity-server", "clusters/a/oauth-openshift")
	p.settled(t, testInfra)
}

func TestStateOfTheWorldRoutes(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, withApps(page("a"), "a"), Options{}))
	c := connectSotW(t, p, "pod-1")
	c.ask(clusterType, "", nil)
	c.ack(c.expect(clusterType, 7))
	c.ask(listenerType, "", nil)
	c.ack(c.expect(listenerType, 4))
	c.ask(routeType, "", nil, "apps-http")
	r := c.expect(routeType, 1)
	c.ack(r, "apps-http")
	p.settled(t, testInfra)

	// The listener goes, and with it the question for its routes, while these are on their way: Envoy need not answer.
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c.ack(c.expect(listenerType, 3)) // the internal listener is still there
	r = c.expect(routeType, 1)
	c.ask(routeType, r.GetNonce(), nil)
	c.ack(c.expect(listenerType, 2))
	c.ack(c.expect(clusterType, 4))
	p.settled(t, testInfra)
}
