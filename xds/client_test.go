package xds

import (
	"context"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
)

// inProcess is a Server that is served over memory, with a connection to it.
type inProcess struct {
	*Server
	registry *prometheus.Registry
	conn     *grpc.ClientConn
	stop     func()
}

func serveInProcess(t testing.TB) *inProcess {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	reg := prometheus.NewRegistry()
	p := &inProcess{Server: NewServer(testLog(t), reg), registry: reg}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- p.Serve(ctx, l) }()
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	p.conn = conn
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(func() {
		_ = conn.Close() // nothing is sent on it any more
		p.stop()
	})
	return p
}

// deltaClient speaks incremental ADS as Envoy does, one message at a time.
type deltaClient struct {
	t      testing.TB
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	node   *core.Node
	hangUp context.CancelFunc
}

func connectDelta(t testing.TB, p *inProcess, cluster, id string) *deltaClient {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(p.conn).DeltaAggregatedResources(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return &deltaClient{t: t, stream: stream, node: &core.Node{Id: id, Cluster: cluster}, hangUp: cancel}
}

func (c *deltaClient) send(req *discovery.DeltaDiscoveryRequest) {
	c.t.Helper()
	req.Node = c.node // Envoy names itself in the first request only; the server reads it there only
	if err := c.stream.Send(req); err != nil {
		c.t.Fatal(err)
	}
}

// ask subscribes to a type: to everything, or to some names.
func (c *deltaClient) ask(typeURL string, names ...string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL, ResourceNamesSubscribe: names})
}

// resume subscribes to everything of a type, telling what it has.
func (c *deltaClient) resume(typeURL string, versions map[string]string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: typeURL, InitialResourceVersions: versions})
}

// expect receives a response, which must be of a type, add (or update) and remove these resources.
func (c *deltaClient) expect(typeURL string, added, removed []string) *discovery.DeltaDiscoveryResponse {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err != nil {
		c.t.Fatal(err)
	}
	var names []string
	for _, resource := range r.GetResources() {
		names = append(names, resource.GetName())
	}
	if r.GetTypeUrl() != typeURL || !slices.Equal(names, added) || !slices.Equal(r.GetRemovedResources(), removed) {
		c.t.Fatalf("got %s +%v -%v, want %s +%v -%v", shortType(r.GetTypeUrl()), names, r.GetRemovedResources(), shortType(typeURL), added, removed)
	}
	return r
}

func (c *deltaClient) ack(r *discovery.DeltaDiscoveryResponse) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

func (c *deltaClient) nack(r *discovery.DeltaDiscoveryResponse, message string) {
	c.t.Helper()
	c.send(&discovery.DeltaDiscoveryRequest{
		TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(),
		ErrorDetail: &rpcstatus.Status{Code: 13, Message: message},
	})
}

// start goes through the start of an Envoy: clusters, then listeners.
func (c *deltaClient) start(clusters, listeners []string) {
	c.t.Helper()
	c.ask(clusterType)
	c.ack(c.expect(clusterType, clusters, nil))
	c.ask(listenerType)
	c.ack(c.expect(listenerType, listeners, nil))
}

// ended receives the error that ends the stream.
func (c *deltaClient) ended() error {
	c.t.Helper()
	r, err := c.stream.Recv()
	if err == nil {
		c.t.Fatalf("got a response for %s, want the end of the stream", r.GetTypeUrl())
	}
	return err
}

// acknowledgeAll acknowledges whatever comes until the stream ends; wait returns then.
func (c *deltaClient) acknowledgeAll() (wait func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			r, err := c.stream.Recv()
			if err != nil {
				return
			}
			if err := c.stream.Send(&discovery.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}); err != nil {
				return
			}
		}
	}()
	return func() { <-done }
}

// settled waits until all Envoys of an Infra have answered.
func (p *inProcess) settled(t testing.TB, infraName string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := p.WaitAcknowledged(ctx, infraName); err != nil {
		t.Fatal(err)
	}
}

// metric sums the series of a metric whose labels contain the given text, e.g. `infra="a/b",type="listener"`.
func metric(t testing.TB, reg *prometheus.Registry, name string, labels map[string]string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != name {
			continue
		}
	series:
		for _, m := range family.GetMetric() {
			for _, pair := range m.GetLabel() {
				if want, ok := labels[pair.GetName()]; ok && want != pair.GetValue() {
					continue series
				}
			}
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

// targetsOf are the names of the clusters of some attachments, sorted.
func targetsOf(attachments ...string) []string {
	var names []string
	for _, a := range attachments {
		for service := range pagePorts {
			names = append(names, "clusters/"+a+"/"+service)
		}
	}
	slices.SortFunc(names, strings.Compare)
	return names
}
