package xds

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/densityops/oooi/api/v1alpha1"
)

var bothListeners = []string{"https", "kube-api"}

// page is the ProxyServer of the two clusters of the source page, or of one of them.
func page(attachments ...string) *v1alpha1.ProxyServer {
	var all [][]v1alpha1.Backend
	for _, name := range attachments {
		all = append(all, attachment(name, "198.51.100."+fmt.Sprint(name[0]), pagePorts, "192.0.2."+fmt.Sprint(name[0])))
	}
	return proxyServer("192.0.2.4", all...)
}

func TestANewEnvoyGetsClustersThenListeners(t *testing.T) {
	p := serveInProcess(t)
	snap := mustBuild(t, page("a", "b"), Options{})
	p.Apply(testInfra, snap)
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a", "b"), bothListeners)
	p.settled(t, testInfra)
	want := []v1alpha1.EnvoyStatus{{Name: "pod-1", Sent: snap.Version(), Acknowledged: snap.Version()}}
	if got := p.Status(testInfra); !slices.Equal(got, want) {
		t.Errorf("status %+v, want %+v", got, want)
	}
}

func TestMakeBeforeBreak(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a", "b"), bothListeners)

	p.Apply(testInfra, mustBuild(t, page("a", "c"), Options{}))
	c.ack(c.expect(clusterType, targetsOf("c"), nil))
	c.ack(c.expect(listenerType, bothListeners, nil))
	c.ack(c.expect(clusterType, nil, targetsOf("b")))

	p.Apply(testInfra, mustBuild(t, page(), Options{})) // a conflict excluded everybody
	c.ack(c.expect(listenerType, nil, bothListeners))
	c.ack(c.expect(clusterType, nil, targetsOf("a", "c")))
	p.settled(t, testInfra)
}

func TestAnEnvoyWithoutRoutesIsAnsweredToo(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page(), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(nil, nil)
	p.settled(t, testInfra)
}

func TestAWorkerOrANameTouchesListenersOnly(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a", "b"), bothListeners)

	proxy := page("a", "b")
	proxy.Spec.Backends[5].SourcePrefixRanges = append(proxy.Spec.Backends[5].SourcePrefixRanges, "192.0.2.200/32")
	p.Apply(testInfra, mustBuild(t, proxy, Options{}))
	c.ack(c.expect(listenerType, bothListeners, nil))

	proxy.Spec.Backends[2].AlternateHostnames = []string{"login.example.com"} // oauth: port 443 only
	p.Apply(testInfra, mustBuild(t, proxy, Options{}))
	c.ack(c.expect(listenerType, []string{"https"}, nil))
	p.settled(t, testInfra)
}

func TestAReconnectOrARestartPushesNothing(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	clusters := c.expect(clusterType, targetsOf("a"), nil)
	c.ack(clusters)
	c.ask(listenerType)
	listeners := c.expect(listenerType, bothListeners, nil)
	c.ack(listeners)
	p.settled(t, testInfra)
	versions := func(r *discovery.DeltaDiscoveryResponse) map[string]string {
		known := map[string]string{}
		for _, resource := range r.GetResources() {
			known[resource.GetName()] = resource.GetVersion()
		}
		return known
	}

	restarted := serveInProcess(t)
	again := page("a")
	slices.Reverse(again.Spec.Backends) // the order says nothing
	restarted.Apply(testInfra, mustBuild(t, again, Options{}))
	c = connectDelta(t, restarted, testInfra, "pod-1")
	c.resume(clusterType, versions(clusters))
	c.resume(listenerType, versions(listeners))
	eventually(t, "Envoy counts as up to date", func() bool {
		st := restarted.Status(testInfra)
		return len(st) == 1 && st[0].Acknowledged == restarted.Version(testInfra)
	})
	if n := metric(t, restarted.registry, "oooi_xds_pushes_total", nil); n != 0 {
		t.Errorf("%v pushes after a restart with the same input", n)
	}

	// What went while Envoy was away is removed, after the listeners, and what came is added.
	restarted.Apply(testInfra, mustBuild(t, page("b"), Options{}))
	c.ack(c.expect(clusterType, targetsOf("b"), nil))
	c.ack(c.expect(listenerType, bothListeners, nil))
	c.ack(c.expect(clusterType, nil, targetsOf("a")))
}

func TestAClusterIsNotRemovedBeforeTheListenersAreAskedFor(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page(), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.resume(clusterType, map[string]string{"clusters/a/kube-apiserver": "old"})
	c.resume(listenerType, map[string]string{"https": "old"})
	c.ack(c.expect(listenerType, nil, []string{"https"}))
	c.ack(c.expect(clusterType, nil, []string{"clusters/a/kube-apiserver"}))
}

func TestARefusedListenerIsParkedAndTheRestGoesOn(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	good := p.Version(testInfra)
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a"), bothListeners)
	p.settled(t, testInfra)

	bad := mustBuild(t, page("b"), Options{})
	p.Apply(testInfra, bad)
	c.ack(c.expect(clusterType, targetsOf("b"), nil))
	c.nack(c.expect(listenerType, bothListeners, nil), "https: cannot bind; kube-api: fine")
	c.nack(c.expect(listenerType, []string{"https"}, nil), "https: cannot bind")
	c.ack(c.expect(listenerType, []string{"kube-api"}, nil))
	p.settled(t, testInfra) // a refusal is an answer
	st := p.Status(testInfra)[0]
	if st.Sent != bad.Version() || st.Acknowledged != good || st.Error != "listener https: https: cannot bind" {
		t.Errorf("status %+v", st)
	}
	if n := metric(t, p.registry, "oooi_xds_nacks_total", map[string]string{"infra": testInfra, "type": "listener"}); n != 2 {
		t.Errorf("%v NACKs counted, want 2", n)
	}
	// The last good listener still leads to the clusters of a: they stay. The same snapshot again is another try.
	p.Apply(testInfra, bad)
	c.nack(c.expect(listenerType, []string{"https"}, nil), "https: cannot bind")
	p.settled(t, testInfra)

	p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	c.ack(c.expect(listenerType, bothListeners, nil))
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != p.Version(testInfra) {
		t.Errorf("status after the fix %+v", st)
	}
}

func TestOneBadClusterAmongManyIsFound(t *testing.T) {
	p := serveInProcess(t)
	names := []string{"a", "b", "c", "d", "e"}
	p.Apply(testInfra, mustBuild(t, page(names...), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	const bad = "clusters/d/oauth-openshift"
	c.ask(clusterType)
	held := map[string]bool{}
	for len(held) < 5*len(pagePorts)-1 {
		r, err := c.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(r.GetResources(), func(res *discovery.Resource) bool { return res.GetName() == bad }) {
			c.nack(r, "no such address")
			continue
		}
		for _, res := range r.GetResources() {
			held[res.GetName()] = true
		}
		c.ack(r)
	}
	// The bad one may be the last that is tried alone.
	c.ask(listenerType)
	for {
		r, err := c.stream.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if r.GetTypeUrl() == listenerType {
			c.ack(r)
			break
		}
		c.nack(r, "no such address")
	}
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "cluster "+bad+": no such address" || st.Acknowledged != "" {
		t.Errorf("status %+v", st)
	}
}

func TestWhoIsNotServedIsToldWhy(t *testing.T) {
	p := serveInProcess(t)
	p.Apply("tenants/secret", mustBuild(t, page("a"), Options{}))
	for _, c := range []struct {
		cluster, id string
		code        codes.Code
		says        string
	}{
		{"", "pod-1", codes.InvalidArgument, "node.cluster is empty: set it to NAMESPACE/NAME of the Infra"},
		{"clusters/nope", "pod-1", codes.NotFound, `node.cluster "clusters/nope" is no Infra`},
		{"tenants/secret", "", codes.InvalidArgument, "node.id is empty"},
		{strings.Repeat("x", 1<<20), "pod-1", codes.InvalidArgument, "node.id has 5 bytes and node.cluster 1048576: 512 are the most"},
		{"tenants/secret", strings.Repeat("x", 9<<20), codes.ResourceExhausted, "larger than max"},
	} {
		client := connectDelta(t, p, c.cluster, c.id)
		client.ask(clusterType)
		err := client.ended()
		if status.Code(err) != c.code || !strings.Contains(err.Error(), c.says) || c.cluster == "clusters/nope" && strings.Contains(err.Error(), "secret") {
			t.Errorf("cluster %q id %q: %v", c.cluster, c.id, err)
		}
	}
	p.Apply("clusters/nope", mustBuild(t, page("a"), Options{})) // the Infra comes, and Envoy tries again
	connectDelta(t, p, "clusters/nope", "pod-1").start(targetsOf("a"), bothListeners)
}

// A stream that says nothing is no Envoy: it must not stay, nor keep what an Envoy says of its extensions.
func TestStreamsThatSayNothingEnd(t *testing.T) {
	p := serveInProcess(t)
	p.firstRequest = time.Millisecond
	silent := connectDelta(t, p, testInfra, "pod-1")
	if err := silent.ended(); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "no request within") {
		t.Errorf("a silent stream: %v", err)
	}
	p = serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	envoy := connectDelta(t, p, testInfra, "pod-2")
	envoy.node.Extensions = []*core.Extension{{Name: "envoy.filters.network.tcp_proxy"}}
	envoy.node.UserAgentName = "envoy"
	envoy.start(targetsOf("a"), bothListeners)
	if kept := p.allSessions()[0].node; len(kept.GetExtensions()) > 0 || kept.GetUserAgentName() != "envoy" {
		t.Errorf("of its node is kept %v", kept)
	}
}

func TestARemovedInfraLosesItsListeners(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	p.Apply("clusters/other", mustBuild(t, page("b"), Options{}))
	c, other := connectDelta(t, p, testInfra, "pod-1"), connectDelta(t, p, "clusters/other", "pod-1")
	c.start(targetsOf("a"), bothListeners)
	other.start(targetsOf("b"), bothListeners)

	p.Remove(testInfra)
	c.ack(c.expect(listenerType, nil, bothListeners))
	c.ack(c.expect(clusterType, nil, targetsOf("a")))
	p.settled(t, testInfra)
	late := connectDelta(t, p, testInfra, "pod-2")
	late.ask(clusterType)
	if err := late.ended(); status.Code(err) != codes.NotFound {
		t.Errorf("an Envoy of a removed Infra: %v", err)
	}
	if v := p.Version(testInfra); v != "" {
		t.Errorf("a removed Infra has version %q", v)
	}

	p.Apply(testInfra, mustBuild(t, page("a"), Options{})) // it comes back
	c.ack(c.expect(clusterType, targetsOf("a"), nil))
	c.ack(c.expect(listenerType, bothListeners, nil))
	p.settled(t, testInfra)

	p.Remove(testInfra)
	c.hangUp()
	eventually(t, "nothing is left of it", func() bool {
		return p.Status(testInfra) == nil && metric(t, p.registry, "oooi_xds_snapshot_bytes", map[string]string{"infra": testInfra}) == 0
	})
	p.Remove(testInfra) // once more is no harm
	other.ask(endpointType, "nobody")
	other.ack(other.expect(endpointType, nil, []string{"nobody"}))
}

func TestTwoEnvoysOfOneNameAreToldApart(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	first := connectDelta(t, p, testInfra, "same")
	first.start(targetsOf("a"), bothListeners)
	second := connectDelta(t, p, testInfra, "same")
	second.ask(clusterType)
	second.ack(second.expect(clusterType, targetsOf("a"), nil))
	second.ask(listenerType)
	second.nack(second.expect(listenerType, bothListeners, nil), "no")
	second.nack(second.expect(listenerType, []string{"https"}, nil), "no")
	second.ack(second.expect(listenerType, []string{"kube-api"}, nil))
	p.settled(t, testInfra)
	v := p.Version(testInfra)
	want := []v1alpha1.EnvoyStatus{
		{Name: "same", Sent: v, Acknowledged: v},
		{Name: "same#2", Sent: v, Error: "listener https: no"},
	}
	if got := p.Status(testInfra); !slices.Equal(got, want) {
		t.Errorf("status %+v, want %+v", got, want)
	}
	if n := metric(t, p.registry, "oooi_xds_connected_envoys", map[string]string{"infra": testInfra}); n != 2 {
		t.Errorf("%v Envoys connected, want 2", n)
	}
	second.hangUp()
	eventually(t, "the one that left is gone", func() bool { return slices.Equal(p.Status(testInfra), want[:1]) })
}

func TestAnEnvoyThatDoesNotAnswerHoldsUpNobody(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	frozen := connectDelta(t, p, testInfra, "frozen")
	frozen.ask(clusterType) // and never reads
	eventually(t, "the frozen Envoy is connected", func() bool { return len(p.Status(testInfra)) == 1 })
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a"), bothListeners)
	for range 50 {
		p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
		p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	}
	p.Apply(testInfra, mustBuild(t, page("z"), Options{}))
	wait := c.acknowledgeAll()
	eventually(t, "the other Envoy has the last snapshot", func() bool { return p.Status(testInfra)[1].Acknowledged == p.Version(testInfra) })
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.WaitAcknowledged(ctx, testInfra); !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for the frozen Envoy: %v", err)
	}
	frozen.hangUp()
	p.settled(t, testInfra)
	c.hangUp()
	wait()
}

func TestWaitingForNobodyReturnsAtOnce(t *testing.T) {
	p := serveInProcess(t)
	p.settled(t, "clusters/unknown")
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	p.settled(t, testInfra)
}

// An Envoy that is still starting has no listener: names must not be published yet.
func TestAStartingEnvoyHasNotAnswered(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	c.ack(c.expect(clusterType, targetsOf("a"), nil))
	ctx, cancel := context.WithCancel(context.Background())
	waited := make(chan error, 1)
	go func() { waited <- p.WaitAcknowledged(ctx, testInfra) }()
	cancel()
	if err := <-waited; err == nil {
		t.Error("a starting Envoy counts as having answered")
	}
	c.ask(listenerType)
	r := c.expect(listenerType, bothListeners, nil)
	c.ack(r)
	p.settled(t, testInfra)
}

func TestEndpointsMoveWithoutTheirCluster(t *testing.T) {
	headless := func(addresses ...string) *Snapshot {
		proxy := page("a")
		for i := range proxy.Spec.Backends {
			if b := &proxy.Spec.Backends[i]; b.TargetService == "konnectivity-server" {
				b.Addresses = addresses
			}
		}
		return mustBuild(t, proxy, Options{})
	}
	const target = "clusters/a/konnectivity-server"
	p := serveInProcess(t)
	p.Apply(testInfra, headless("10.0.0.1", "10.0.0.2"))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	c.ack(c.expect(clusterType, targetsOf("a"), nil))
	c.ask(endpointType, target)
	c.ack(c.expect(endpointType, []string{target}, nil))
	c.ask(listenerType)
	c.ack(c.expect(listenerType, bothListeners, nil))

	p.Apply(testInfra, headless("10.0.0.3", "10.0.0.2"))
	c.ack(c.expect(endpointType, []string{target}, nil))
	p.Apply(testInfra, headless("10.0.0.2", "10.0.0.3")) // the order says nothing
	p.settled(t, testInfra)

	p.Apply(testInfra, headless("10.0.0.2")) // one address is part of the cluster
	c.ack(c.expect(clusterType, []string{target}, nil))
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: endpointType, ResourceNamesUnsubscribe: []string{target}})
	p.Apply(testInfra, headless("10.0.0.2", "10.0.0.4"))
	c.ack(c.expect(clusterType, []string{target}, nil))
	c.ask(endpointType, target)
	c.ack(c.expect(endpointType, []string{target}, nil))
	// A changed cluster warms with endpoints that come after it, the same as before.
	changed := page("a")
	for i := range changed.Spec.Backends {
		if b := &changed.Spec.Backends[i]; b.TargetService == "konnectivity-server" {
			b.Addresses, b.TimeoutSeconds = []string{"10.0.0.2", "10.0.0.4"}, 5
		}
	}
	p.Apply(testInfra, mustBuild(t, changed, Options{}))
	cluster := c.expect(clusterType, []string{target}, nil) // Envoy acknowledges it when it is warm
	c.ack(c.expect(endpointType, []string{target}, nil))
	c.ack(cluster)
	// A name that nobody has is answered, so that nobody waits for it.
	c.ask(endpointType, "clusters/a/nothing")
	c.ack(c.expect(endpointType, nil, []string{"clusters/a/nothing"}))
	p.settled(t, testInfra)
}

func TestRefusedEndpointsDoNotHoldUpTheRest(t *testing.T) {
	headless := func(addresses ...string) *Snapshot {
		proxy := page("a")
		proxy.Spec.Backends[2].Addresses = addresses
		return mustBuild(t, proxy, Options{})
	}
	const target = "clusters/a/oauth-openshift"
	p := serveInProcess(t)
	p.Apply(testInfra, headless("10.0.0.1", "10.0.0.2"))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	c.expect(clusterType, targetsOf("a"), nil) // not acknowledged: it never gets warm
	c.ask(endpointType, target)
	c.nack(c.expect(endpointType, []string{target}, nil), "no such address")
	c.ask(listenerType)
	c.ack(c.expect(listenerType, bothListeners, nil))
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "clusterloadassignment "+target+": no such address" || st.Acknowledged != "" {
		t.Errorf("status %+v", st)
	}
	p.Apply(testInfra, headless("10.0.0.1", "10.0.0.3"))
	c.ack(c.expect(endpointType, []string{target}, nil))
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "" || st.Acknowledged != p.Version(testInfra) {
		t.Errorf("status once fixed %+v", st)
	}
}

func TestAnUnknownTypeIsIgnored(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask("type.googleapis.com/envoy.service.runtime.v3.Runtime", "x")
	c.start(targetsOf("a"), bothListeners)
}

func TestStoppingEndsTheStreams(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a"), bothListeners)
	p.stop()
	if err := c.ended(); status.Code(err) != codes.Unavailable {
		t.Errorf("the stream ended with %v", err)
	}
	p.Apply(testInfra, mustBuild(t, page("b"), Options{})) // nobody listens; nothing blocks
	p.settled(t, testInfra)
}

func TestOnlyLoopbackIsServed(t *testing.T) {
	l, err := net.Listen("tcp", "0.0.0.0:0")
	if err != nil {
		t.Fatal(err)
	}
	err = NewServer(testLog(t), prometheus.NewRegistry()).Serve(context.Background(), l)
	if err == nil || !strings.Contains(err.Error(), "listen on 127.0.0.1") {
		t.Errorf("Serve: %v", err)
	}
	if _, err := l.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener is still open: %v", err)
	}
}

func TestServeSaysWhenItsListenerFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := NewServer(testLog(t), prometheus.NewRegistry()).Serve(context.Background(), l); err == nil || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("Serve: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(targetsOf("a"), bothListeners)
	p.settled(t, testInfra)
	p.Apply(testInfra, mustBuild(t, page("b"), Options{}))
	c.ack(c.expect(clusterType, targetsOf("b"), nil))
	c.ack(c.expect(listenerType, bothListeners, nil))
	c.ack(c.expect(clusterType, nil, targetsOf("a")))
	p.settled(t, testInfra)
	for _, m := range []struct {
		name, kind string
		want       float64
	}{
		{"oooi_xds_pushes_total", "cluster", 3},
		{"oooi_xds_acks_total", "cluster", 3},
		{"oooi_xds_pushes_total", "listener", 2},
		{"oooi_xds_acks_total", "listener", 2},
		{"oooi_xds_nacks_total", "listener", 0},
		{"oooi_xds_ack_seconds", "", 1},
		{"oooi_xds_snapshot_resources", "cluster", 4},
		{"oooi_xds_snapshot_resources", "listener", 2},
	} {
		labels := map[string]string{"infra": testInfra, "type": m.kind}
		if got := metric(t, p.registry, m.name, labels); got != m.want {
			t.Errorf("%s of %q is %v, want %v", m.name, m.kind, got, m.want)
		}
	}
	if metric(t, p.registry, "oooi_xds_snapshot_bytes", nil) < 1000 {
		t.Error("the snapshot has no size")
	}
}

// chainsOf are the filter chains of a listener in a snapshot.
func chainsOf(t testing.TB, snap *Snapshot, name string) []*listenerv3.FilterChain {
	t.Helper()
	l := &listenerv3.Listener{}
	if err := proto.Unmarshal(snap.sets[listenerType].byName[name].GetResource().GetValue(), l); err != nil {
		t.Fatal(err)
	}
	return l.GetFilterChains()
}

// Everything at once, for the race detector: what counts in the end is the last snapshot.
func TestApplyWhileEverybodyLooks(t *testing.T) {
	p := serveInProcess(t)
	snaps := []*Snapshot{
		mustBuild(t, page("a"), Options{}), mustBuild(t, page("a", "b"), Options{}), mustBuild(t, page("c"), Options{}), mustBuild(t, page(), Options{}),
	}
	p.Apply(testInfra, snaps[0])
	var clients []*deltaClient
	var waits []func()
	for i := range 3 {
		c := connectDelta(t, p, testInfra, fmt.Sprintf("pod-%d", i))
		c.ask(clusterType)
		c.ask(listenerType)
		clients, waits = append(clients, c), append(waits, c.acknowledgeAll())
	}
	eventually(t, "all are connected", func() bool { return len(p.Status(testInfra)) == 3 })
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for j := range 50 {
				switch {
				case i == 0:
					p.Apply(testInfra, snaps[j%len(snaps)])
				case i == 1 && j%10 == 0:
					p.Remove("clusters/other")
					p.Apply("clusters/other", snaps[1])
				case i == 2:
					statusOf(t, p, "pod-1")
				default:
					p.Status(testInfra)
					p.Version(testInfra)
				}
			}
		})
	}
	wg.Wait()
	p.Apply(testInfra, snaps[1])
	p.settled(t, testInfra)
	for _, st := range p.Status(testInfra) {
		if st.Acknowledged != snaps[1].Version() || st.Error != "" {
			t.Errorf("status %+v, want %s", st, snaps[1].Version())
		}
	}
	for i, c := range clients {
		c.hangUp()
		waits[i]()
	}
}

func TestServeThatIsStoppedAtOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for range 20 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		if err := NewServer(testLog(t), prometheus.NewRegistry()).Serve(ctx, l); err != nil {
			t.Fatal(err)
		}
	}
}

// withApps is page with the apps of some attachments.
func withApps(proxy *v1alpha1.ProxyServer, attachments ...string) *v1alpha1.ProxyServer {
	for _, name := range attachments {
		proxy.Spec.Backends = append(proxy.Spec.Backends, apps(name, "198.51.100.200", 443, 80)...)
	}
	return proxy
}

// appsOf are the names of the clusters of the apps of some attachments.
func appsOf(attachments ...string) []string {
	var names []string
	for _, name := range attachments {
		names = append(names, "clusters/"+name+"/oooi-ingress", "clusters/"+name+"/oooi-ingress/address", "clusters/"+name+"/oooi-ingress/http")
	}
	return names
}

// listenersWith are the names of the listeners when some attachments have apps, which have an internal listener each.
func listenersWith(attachments ...string) []string {
	names := []string{"apps-http"}
	for _, name := range attachments {
		names = append(names, "clusters/"+name+"/oooi-ingress/http")
	}
	return append(names, "https", "kube-api")
}

var appsRoutes = []string{"apps-http"}

// sorted joins and sorts lists.
func sorted(lists ...[]string) []string { return slices.Sorted(slices.Values(slices.Concat(lists...))) }

func TestRoutesComeAfterListenersAndGoBeforeClusters(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, withApps(page("a", "b"), "a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(sorted(targetsOf("a", "b"), appsOf("a")), listenersWith("a"))
	if st := p.Status(testInfra)[0]; st.Acknowledged != "" {
		t.Errorf("before Envoy asked for its routes: %+v", st)
	}
	c.ask(routeType, "apps-http")
	c.ack(c.expect(routeType, appsRoutes, nil))
	p.settled(t, testInfra)

	p.Apply(testInfra, mustBuild(t, withApps(page("a", "b"), "a", "b"), Options{}))
	c.ack(c.expect(clusterType, appsOf("b"), nil))
	c.ack(c.expect(listenerType, []string{"clusters/b/oooi-ingress/http", "https"}, nil)) // apps-http is as it was
	c.ack(c.expect(routeType, appsRoutes, nil))
	p.settled(t, testInfra)

	p.Apply(testInfra, mustBuild(t, withApps(page("a", "b"), "b"), Options{}))
	c.ack(c.expect(listenerType, []string{"https"}, nil))
	routes := c.expect(routeType, appsRoutes, nil)
	if text := fmt.Sprint(routes); strings.Contains(text, "clusters/a/") {
		t.Errorf("the routes still lead to a: %s", text)
	}
	c.nack(routes, "no")
	p.settled(t, testInfra) // the clusters of a and its internal listener stay, as the last good routes lead there
	if st := p.Status(testInfra)[0]; st.Error != "routeconfiguration apps-http: no" || st.Acknowledged == p.Version(testInfra) {
		t.Errorf("status %+v", st)
	}
	if got := summary(statusOf(t, p, "")[0]); !slices.Contains(got, "apps-http ERROR no") || !slices.Contains(got, "apps-http SYNCED") {
		t.Errorf("CSDS: %q", got)
	}

	// The last apps go: the routes, which a draining listener may still have, lead nowhere before internal listeners and clusters go.
	p.Apply(testInfra, mustBuild(t, page("a", "b"), Options{}))
	c.ack(c.expect(listenerType, []string{"https"}, []string{"apps-http"}))
	routes = c.expect(routeType, appsRoutes, nil)
	if text := fmt.Sprint(routes); strings.Contains(text, "clusters/") {
		t.Errorf("the routes still lead somewhere: %s", text)
	}
	c.ack(routes)
	c.ack(c.expect(listenerType, nil, []string{"clusters/a/oooi-ingress/http", "clusters/b/oooi-ingress/http"}))
	c.ack(c.expect(clusterType, nil, sorted(appsOf("a", "b"))))
	p.settled(t, testInfra)
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesUnsubscribe: appsRoutes}) // the listener has drained

	p.Apply(testInfra, mustBuild(t, withApps(page("a", "b"), "a"), Options{})) // and they come back
	c.ack(c.expect(clusterType, appsOf("a"), nil))
	c.ack(c.expect(listenerType, []string{"apps-http", "clusters/a/oooi-ingress/http", "https"}, nil))
	c.ask(routeType, "apps-http")
	c.ack(c.expect(routeType, appsRoutes, nil))
	p.settled(t, testInfra)

	p.Remove(testInfra)
	c.ack(c.expect(listenerType, nil, listenersWith()))
	c.ack(c.expect(routeType, appsRoutes, nil))
	c.ack(c.expect(listenerType, nil, []string{"clusters/a/oooi-ingress/http"}))
	c.ack(c.expect(clusterType, nil, sorted(targetsOf("a", "b"), appsOf("a"))))
	p.settled(t, testInfra)
}

// A listener that Envoy does not acknowledge before it has its routes gets them.
func TestAListenerMayWaitForItsRoutes(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, withApps(page("a"), "a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	c.ack(c.expect(clusterType, sorted(targetsOf("a"), appsOf("a")), nil))
	c.ask(listenerType)
	listeners := c.expect(listenerType, listenersWith("a"), nil)
	c.ask(routeType, "apps-http")
	c.ack(c.expect(routeType, appsRoutes, nil))
	c.ack(listeners)
	p.settled(t, testInfra)
}

// An Envoy that gives up routes while they are on their way may never answer.
func TestRoutesThatAreGivenUpHoldUpNothing(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, withApps(page("a"), "a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.start(sorted(targetsOf("a"), appsOf("a")), listenersWith("a"))
	c.ask(routeType, "apps-http")
	c.ack(c.expect(routeType, appsRoutes, nil))
	p.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c.ack(c.expect(listenerType, []string{"https"}, []string{"apps-http"}))
	c.expect(routeType, appsRoutes, nil)
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesUnsubscribe: appsRoutes})
	c.ack(c.expect(listenerType, nil, []string{"clusters/a/oooi-ingress/http"}))
	c.ack(c.expect(clusterType, nil, appsOf("a")))
	p.settled(t, testInfra)
}

// A listener that Envoy refuses never asks for routes: nobody waits for them. And an Envoy that is slow to ask holds up no newer state.
func TestNobodyWaitsForRoutesThatAreNotAskedFor(t *testing.T) {
	p := serveInProcess(t)
	p.Apply(testInfra, mustBuild(t, withApps(page(), "a"), Options{}))
	c := connectDelta(t, p, testInfra, "pod-1")
	c.ask(clusterType)
	c.ack(c.expect(clusterType, appsOf("a"), nil))
	c.ask(listenerType)
	c.nack(c.expect(listenerType, []string{"apps-http", "clusters/a/oooi-ingress/http", "https"}, nil), "no")
	c.nack(c.expect(listenerType, []string{"apps-http", "clusters/a/oooi-ingress/http"}, nil), "no")
	c.nack(c.expect(listenerType, []string{"apps-http"}, nil), "cannot bind")
	c.ack(c.expect(listenerType, []string{"clusters/a/oooi-ingress/http"}, nil))
	c.ack(c.expect(listenerType, []string{"https"}, nil))
	p.settled(t, testInfra)
	if st := p.Status(testInfra)[0]; st.Error != "listener apps-http: cannot bind" {
		t.Errorf("status %+v", st)
	}

	p.Apply(testInfra, mustBuild(t, withApps(page(), "a"), Options{}))
	c.ack(c.expect(listenerType, []string{"apps-http"}, nil)) // and does not ask
	p.Apply(testInfra, mustBuild(t, withApps(page(), "a", "b"), Options{}))
	c.ack(c.expect(clusterType, appsOf("b"), nil))
	c.ack(c.expect(listenerType, []string{"clusters/b/oooi-ingress/http", "https"}, nil))
	c.ask(routeType, "apps-http")
	c.ack(c.expect(routeType, appsRoutes, nil))
	p.settled(t, testInfra)
}

// What an Envoy had from a control plane of before: routes are resumed, and lead nowhere once their apps have gone meanwhile.
func TestRoutesAfterARestart(t *testing.T) {
	had := mustBuild(t, withApps(page("a"), "a"), Options{})
	versions := func(typeURL string) map[string]string {
		known := map[string]string{}
		for _, r := range had.sets[typeURL].sorted {
			known[r.GetName()] = r.GetVersion()
		}
		return known
	}
	resume := func(p *inProcess) *deltaClient {
		c := connectDelta(t, p, testInfra, "pod-1")
		c.resume(clusterType, versions(clusterType))
		c.resume(listenerType, versions(listenerType))
		c.send(&discovery.DeltaDiscoveryRequest{
			TypeUrl: routeType, ResourceNamesSubscribe: appsRoutes, InitialResourceVersions: versions(routeType),
		})
		return c
	}
	same := serveInProcess(t)
	same.Apply(testInfra, had)
	resume(same)
	eventually(t, "Envoy counts as up to date", func() bool {
		st := same.Status(testInfra)
		return len(st) == 1 && st[0].Acknowledged == same.Version(testInfra)
	})
	if n := metric(t, same.registry, "oooi_xds_pushes_total", nil); n != 0 {
		t.Errorf("%v pushes after a restart with the same input", n)
	}

	gone := serveInProcess(t)
	gone.Apply(testInfra, mustBuild(t, page("a"), Options{}))
	c := resume(gone)
	c.ack(c.expect(listenerType, []string{"https"}, []string{"apps-http"}))
	c.ack(c.expect(routeType, appsRoutes, nil))
	c.ack(c.expect(listenerType, nil, []string{"clusters/a/oooi-ingress/http"}))
	c.ack(c.expect(clusterType, nil, appsOf("a")))
	gone.settled(t, testInfra)
}
