package serve

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/miekg/dns"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	infra      = "clusters/vlan"
	portOffset = 21000
	patience   = 10 * time.Second // of tests, for what must come
)

const (
	listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"
	routeType    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
)

func TestNewNamesWaitForTheirRoutes(t *testing.T) {
	s := start(t, "127.0.31.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.31.4")

	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")

	s.Apply([]Children{s.children("a", "b")})
	envoy.await("api.b.example.com") // received, not acknowledged
	if got := s.ask("api.b.example.com."); got != "REFUSED" {
		t.Errorf("the name is answered %s before Envoy has its route", got)
	}
	if got := s.ask("api.a.example.com."); got != "127.0.31.4" {
		t.Errorf("a name that was there before is answered %s meanwhile", got)
	}
	envoy.acknowledge()
	s.awaitAnswer("api.b.example.com.", "127.0.31.4")

	s.Apply([]Children{s.children("a")})
	envoy.awaitGone("api.b.example.com")
	if got := s.ask("api.b.example.com."); got != "REFUSED" {
		t.Errorf("the name is still answered %s when Envoy is told to drop its route", got)
	}
}

func TestNamesDoNotWaitForeverForEnvoy(t *testing.T) {
	s := start(t, "127.0.32.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.32.4")
	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")

	s.Apply([]Children{s.children("a", "b")})
	envoy.await("api.b.example.com")
	s.awaitAnswer("api.b.example.com.", "127.0.32.4") // never acknowledged
}

// The answer on the VLAN is the VIP itself and waits for nothing; that of pods leads to the proxy, and waits for its route there.
func TestNamesOfAppsWaitForTheirRoutesInViewPodsOnly(t *testing.T) {
	const app, vip, proxy = "console.apps.a.example.com.", "127.0.45.200", "127.0.45.250"
	pod := netip.MustParseAddr(podAddress)
	s := start(t, "127.0.45.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.45.4")
	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")

	withApps := s.children("a")
	withApps.DNS.Spec.NetworkConfig.InternalProxyIP = proxy
	withApps.DNS.Spec.StaticEntries = append(withApps.DNS.Spec.StaticEntries,
		v1alpha1.StaticEntry{Hostname: "*.apps.a.example.com", IP: vip, PodView: v1alpha1.PodViewInternalProxy})
	ahead := withApps // the DNS child arrives before the proxy child
	ahead.Proxy = s.children("a").Proxy
	s.Apply([]Children{ahead})
	s.awaitAnswer(app, vip)
	if got := s.askFrom(pod, app); got != "NXDOMAIN" {
		t.Errorf("without a route pods are answered %s", got)
	}

	for port, role := range map[int32]string{443: "apps-https", 80: "apps-http"} {
		withApps.Proxy.Spec.Backends = append(withApps.Proxy.Spec.Backends, v1alpha1.Backend{
			Name: "a-" + role, Attachment: "a", Hostname: "*.apps.a.example.com", Ports: []int32{port},
			TargetService: "oooi-ingress", TargetNamespace: "clusters-a", TargetPort: port, Addresses: []string{vip},
		})
	}
	s.Apply([]Children{withApps})
	envoy.await("apps-http")
	envoy.acknowledge()
	envoy.send(&discovery.DeltaDiscoveryRequest{TypeUrl: routeType, ResourceNamesSubscribe: []string{"apps-http"}})
	if got := envoy.next().GetTypeUrl(); got != routeType { // received, not acknowledged
		t.Fatalf("Envoy is sent %s", got)
	}
	if got := s.askFrom(pod, app); got != "NXDOMAIN" {
		t.Errorf("before Envoy has the route pods are answered %s", got)
	}
	if got := s.ask(app); got != vip {
		t.Errorf("on the VLAN the name is answered %s meanwhile", got)
	}
	envoy.acknowledge()
	s.await("the answer of pods", func() bool { return s.askFrom(pod, app) == proxy })

	s.Apply([]Children{s.children("a")})
	for envoy.next().GetTypeUrl() != listenerType { // the listener goes
	}
	for _, source := range []netip.Addr{pod, s.address(117)} {
		if got := s.askFrom(source, app); got != "REFUSED" {
			t.Errorf("%s is still answered %s when Envoy is told to drop the route", source, got)
		}
	}
}

func TestNothingListensBeforeTheFirstChildren(t *testing.T) {
	s := start(t, "127.0.33.0/24")
	if err := s.Ready(); err == nil {
		t.Error("ready before the first children")
	}
	// Whoever listens on the address now is not the server.
	l, err := net.Listen("tcp", s.cfg.XDSListen)
	if err != nil {
		t.Fatalf("the xDS server listens before the first children: %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	s.Apply(nil)
	s.await("ready", func() bool { return s.Ready() == nil })
}

func TestServerThatCannotStartIsTriedAgain(t *testing.T) {
	s := start(t, "127.0.34.0/24")
	address := net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.address(3), 53+portOffset))
	squatter, err := net.ListenUDP("udp4", address)
	if err != nil {
		t.Fatal(err)
	}
	s.Apply([]Children{s.children("a")})
	s.await("the problem in the state", func() bool {
		st := s.State()
		return len(st) == 1 && st[0].DNS != nil && !st[0].DNS.Ready && st[0].DNS.Message != "starting" && st[0].DHCP != nil && st[0].DHCP.Ready
	})
	if err := squatter.Close(); err != nil {
		t.Fatal(err)
	}
	s.awaitAnswer("api.a.example.com.", "127.0.34.4")
	s.await("ready", func() bool { return s.Ready() == nil })
}

func TestInfraThatGoesIsServedNoLonger(t *testing.T) {
	s := start(t, "127.0.35.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.35.4")
	s.Apply(nil)
	s.await("DNS to stop", func() bool { return s.ask("api.a.example.com.") == "no answer" })
	if st := s.State(); len(st) != 0 {
		t.Errorf("state of an Infra that has gone: %+v", st)
	}
}

func TestWrongChildKeepsTheLastGoodOne(t *testing.T) {
	s := start(t, "127.0.36.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.36.4")
	wrong := s.children("a")
	wrong.DHCP.Spec.LeaseConfig.RangeEnd = "127.0.36.1"
	wrong.DNS.Spec.UpstreamDNS = []string{"not an address"}
	s.Apply([]Children{wrong})
	s.await("both refusals", func() bool {
		st := s.State()[0]
		return st.DHCP != nil && !st.DHCP.Ready && st.DNS != nil && !st.DNS.Ready
	})
	if got := s.ask("api.a.example.com."); got != "127.0.36.4" {
		t.Errorf("the last good name is answered %s", got)
	}
}

func TestInfraThatComesBackKeepsItsRoutes(t *testing.T) {
	s := start(t, "127.0.38.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.38.4")
	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")
	s.Apply([]Children{s.children("a", "b")})
	envoy.await("api.b.example.com") // not acknowledged: the publisher waits
	gone := s.sorted()[0]
	s.Apply(nil)
	s.Apply([]Children{s.children("a", "b")})
	select {
	case <-gone.done:
	case <-time.After(patience):
		t.Fatal("the publisher of the Infra that went does not end")
	}
	s.awaitAnswer("api.b.example.com.", "127.0.38.4")
	if s.xds.Version(infra) == "" {
		t.Error("the end of the Infra that went took the routes of the one that came back")
	}
}

func TestManyChangesWhileANameWaits(t *testing.T) {
	s := start(t, "127.0.44.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.44.4")
	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")
	for range 2000 { // each gives up the wait for the one before
		s.Apply([]Children{s.children("a", "b")})
	}
	s.awaitAnswer("api.b.example.com.", "127.0.44.4") // at the latest after routePatience
}

func TestEachNewNameWaitsForItsOwnRoute(t *testing.T) {
	s := start(t, "127.0.39.0/24")
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.39.4")
	envoy := s.connectEnvoy()
	envoy.acknowledgeAll("api.a.example.com")
	s.Apply([]Children{s.children("a", "b")})
	envoy.await("api.b.example.com")
	s.Apply([]Children{s.children("a")}) // the name goes before it was published
	envoy.acknowledge()
	envoy.awaitGone("api.b.example.com")
	envoy.acknowledge()
	time.Sleep(routePatience) // what must not be counted for the next name
	s.Apply([]Children{s.children("a", "c")})
	envoy.await("api.c.example.com")
	if got := s.ask("api.c.example.com."); got != "REFUSED" {
		t.Errorf("the name is answered %s before Envoy has its route", got)
	}
}

func TestLeaseFileThatCannotBeOpenedTakesOnlyDHCP(t *testing.T) {
	state := t.TempDir()
	if err := os.WriteFile(filepath.Join(state, "leases.db"), []byte("this is no lease file"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := startWith(t, "127.0.40.0/24", state)
	s.Apply([]Children{s.children("a")})
	s.awaitAnswer("api.a.example.com.", "127.0.40.4")
	if st := s.State()[0]; st.DHCP == nil || st.DHCP.Ready || !strings.Contains(st.DHCP.Message, "leases.db") {
		t.Errorf("state of DHCP: %+v", st.DHCP)
	}
}

// site is a Server with what a test asks of it.
type site struct {
	*Server
	t    *testing.T
	cidr netip.Prefix
}

func start(t *testing.T, cidr string) *site {
	t.Helper()
	return startWith(t, cidr, t.TempDir())
}

func startWith(t *testing.T, cidr, stateDir string) *site {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	xdsListen := l.Addr().String()
	_ = l.Close()
	server, err := New(Config{
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Roles: []Role{RoleXDS, RoleDNS, RoleDHCP},
		XDSListen: xdsListen, StateDir: stateDir, PortOffset: portOffset, LeasesChanged: func() {},
		PodNetworks: []netip.Prefix{netip.MustParsePrefix(podAddress + "/32")},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
		if err := server.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return &site{Server: server, t: t, cidr: netip.MustParsePrefix(cidr)}
}

// address is the nth address of the VLAN.
func (s *site) address(n byte) netip.Addr {
	b := s.cidr.Addr().As4()
	b[3] = n
	return netip.AddrFrom4(b)
}

// children of an Infra with attachments of the given names.
func (s *site) children(attachments ...string) Children {
	meta := metav1.ObjectMeta{Namespace: "clusters", Name: "vlan"}
	c := Children{
		Infra: infra,
		DHCP: &v1alpha1.DHCPServer{ObjectMeta: meta, Spec: v1alpha1.DHCPServerSpec{
			NetworkConfig: v1alpha1.DHCPNetworkConfig{CIDR: s.cidr.String(), Gateway: s.address(1).String(), ServerIP: s.address(2).String()},
			LeaseConfig:   v1alpha1.LeaseConfig{RangeStart: s.address(100).String(), RangeEnd: s.address(199).String(), LeaseTime: "1h"},
		}},
		DNS: &v1alpha1.DNSServer{ObjectMeta: meta, Spec: v1alpha1.DNSServerSpec{
			NetworkConfig: v1alpha1.DNSNetworkConfig{ServerIP: s.address(3).String(), ProxyIP: s.address(4).String(), SecondaryNetworkCIDR: s.cidr.String(), DNSPort: 53},
		}},
		Proxy: &v1alpha1.ProxyServer{ObjectMeta: meta, Spec: v1alpha1.ProxyServerSpec{
			NetworkConfig: v1alpha1.ProxyNetworkConfig{ServerIP: s.address(4).String()},
		}},
	}
	for _, name := range attachments {
		hostname := "api." + name + ".example.com"
		c.DNS.Spec.StaticEntries = append(c.DNS.Spec.StaticEntries, v1alpha1.StaticEntry{Hostname: hostname, IP: s.address(4).String()})
		c.Proxy.Spec.Backends = append(c.Proxy.Spec.Backends, v1alpha1.Backend{
			Name: name + "-kube-apiserver", Attachment: name, Hostname: hostname, Ports: []int32{443, 6443},
			TargetService: "kube-apiserver", TargetNamespace: "clusters-" + name, TargetPort: 6443,
			Addresses: []string{"127.0.0.9"}, TimeoutSeconds: 30,
		})
	}
	return c
}

func (s *site) await(what string, condition func() bool) {
	s.t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			s.t.Fatalf("%s did not come within %v; state: %+v", what, patience, s.State())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// podAddress is one from which the DNS server is asked in view pods.
const podAddress = "127.0.0.1"

// ask asks the DNS server from the VLAN: an address, a response code, or "no answer".
func (s *site) ask(name string) string {
	s.t.Helper()
	return s.askFrom(s.address(117), name)
}

func (s *site) askFrom(source netip.Addr, name string) string {
	s.t.Helper()
	client := &dns.Client{Timeout: time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: source.AsSlice()}}}
	reply, _, err := client.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), fmt.Sprintf("%s:%d", s.address(3), 53+portOffset))
	switch {
	case err != nil:
		return "no answer"
	case len(reply.Answer) == 1:
		return reply.Answer[0].(*dns.A).A.String()
	}
	return dns.RcodeToString[reply.Rcode]
}

func (s *site) awaitAnswer(name, want string) {
	s.t.Helper()
	s.await(name+" to be answered "+want, func() bool { return s.ask(name) == want })
}

// envoy is an xDS client that acknowledges when the test says so.
type envoy struct {
	t      *testing.T
	stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
	// unacknowledged is the response that the test holds.
	unacknowledged *discovery.DeltaDiscoveryResponse
}

func (s *site) connectEnvoy() *envoy {
	s.t.Helper()
	conn, err := grpc.NewClient(s.cfg.XDSListen, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	ctx, cancel := context.WithTimeout(s.t.Context(), 3*patience)
	s.t.Cleanup(cancel)
	stream, err := discovery.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	e := &envoy{t: s.t, stream: stream}
	node := &core.Node{Id: "envoy-1", Cluster: infra}
	for _, kind := range []string{"type.googleapis.com/envoy.config.cluster.v3.Cluster", listenerType} {
		e.send(&discovery.DeltaDiscoveryRequest{Node: node, TypeUrl: kind})
		node = nil
	}
	return e
}

func (e *envoy) send(request *discovery.DeltaDiscoveryRequest) {
	e.t.Helper()
	if err := e.stream.Send(request); err != nil {
		e.t.Fatal(err)
	}
}

// next receives a response and holds it, after acknowledging the one held before.
func (e *envoy) next() *discovery.DeltaDiscoveryResponse {
	e.t.Helper()
	if e.unacknowledged != nil {
		e.acknowledge()
	}
	response, err := e.stream.Recv()
	if err != nil {
		e.t.Fatalf("xDS stream: %v", err)
	}
	e.unacknowledged = response
	return response
}

func (e *envoy) acknowledge() {
	e.t.Helper()
	e.send(&discovery.DeltaDiscoveryRequest{TypeUrl: e.unacknowledged.GetTypeUrl(), ResponseNonce: e.unacknowledged.GetNonce()})
	e.unacknowledged = nil
}

// await receives until listeners that hold the name come, and holds that response.
func (e *envoy) await(name string) {
	e.t.Helper()
	for !e.nextListeners(func(text string) bool { return strings.Contains(text, name) }) {
	}
}

func (e *envoy) awaitGone(name string) {
	e.t.Helper()
	for !e.nextListeners(func(text string) bool { return !strings.Contains(text, name) }) {
	}
}

func (e *envoy) nextListeners(want func(string) bool) bool {
	response := e.next()
	if response.GetTypeUrl() != listenerType {
		return false
	}
	var text string
	for _, r := range response.GetResources() {
		text += string(r.GetResource().GetValue())
	}
	return len(response.GetResources()) > 0 && want(text)
}

// acknowledgeAll acknowledges everything up to listeners that hold the name.
func (e *envoy) acknowledgeAll(name string) {
	e.t.Helper()
	e.await(name)
	e.acknowledge()
}

func TestNameWithoutBackendIsNotPublished(t *testing.T) {
	s := start(t, "127.0.37.0/24")
	ahead := s.children("a")
	ahead.DNS = s.children("a", "b").DNS // the DNS child arrived before the proxy child
	ahead.DNS.Spec.StaticEntries = append(ahead.DNS.Spec.StaticEntries,
		v1alpha1.StaticEntry{Hostname: "kubernetes", IP: s.address(4).String(), PodView: v1alpha1.PodViewForwarded})
	s.Apply([]Children{ahead})
	s.awaitAnswer("api.a.example.com.", "127.0.37.4")
	if got := s.ask("api.b.example.com."); got != "REFUSED" {
		t.Errorf("a name without a route is answered %s", got)
	}
	if got := s.ask("kubernetes."); got != "NXDOMAIN" {
		t.Errorf("an alias without a route is answered %s", got)
	}
	s.Apply([]Children{s.children("a", "b")})
	s.awaitAnswer("api.b.example.com.", "127.0.37.4")
}
