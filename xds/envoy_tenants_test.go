package xds

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// tenant is one hosted cluster with a worker. Its names and its worker stay; the attachment that stands for it changes.
type tenant struct {
	name, worker string
	plane        *controlPlane
}

// attachedAs is the backends of the tenant under the name of any attachment.
func (tn *tenant) attachedAs(name string, addresses []string, sources ...string) []v1alpha1.Backend {
	backends := attachment(tn.name, "", tn.plane.ports, sources...)
	for i := range backends {
		b := &backends[i]
		b.Name = name + strings.TrimPrefix(b.Name, tn.name)
		b.Attachment, b.Addresses = name, addresses
	}
	return backends
}

// resolved are the ways in which a Service of a control plane on 127.0.0.1 is resolved.
var resolved = map[string][]string{
	"ClusterIP":    {"127.0.0.1"},
	"headless":     {"127.0.0.1", "127.0.0.1"},
	"ExternalName": {"localhost"},
}

func startTenants(t *testing.T, workers []string, names ...string) []*tenant {
	t.Helper()
	tenants := make([]*tenant, len(names))
	for i, name := range names {
		tenants[i] = &tenant{name, workers[i], startControlPlane(t, name, "127.0.0.1")}
	}
	return tenants
}

// caller is one way to connect, and the tenants that may answer.
type caller struct {
	source string
	port   int
	sni    string
	owners []string
}

func (c caller) String() string {
	return fmt.Sprintf("sni %q port %d from %s", c.sni, c.port, c.source)
}

// mayGet tells whether an answer ("tenant/service", or "closed") is one that this caller may get.
func (c caller) mayGet(answer string) bool {
	owner, _, _ := strings.Cut(answer, "/")
	return answer == "closed" || slices.Contains(c.owners, owner)
}

// callersOf connect to a tenant by every kind of match.
func callersOf(tn *tenant, stranger string) []caller {
	owners, domain := []string{tn.name}, "."+tn.name+".clusters.example.com"
	return []caller{
		{stranger, 443, "api" + domain, owners},
		{stranger, 6443, "api-int" + domain, owners},
		{stranger, 443, "oauth" + domain, owners},
		{tn.worker, 443, "kubernetes.default", owners},
		{tn.worker, 6443, "kubernetes", owners},
		{tn.worker, 6443, "", owners},
		{tn.worker, 443, "", owners},
	}
}

// However clusters and listeners of two states meet in an Envoy (sent in this order or in that, refused, or left by a control
// plane that is gone), none answers for another tenant.
func TestEnvoyClosesWhereClustersAndListenersDisagree(t *testing.T) {
	for kind, addresses := range resolved {
		t.Run(kind, func(t *testing.T) {
			ip := loopbacks(4)
			serverIP, stranger := ip[0], ip[1]
			tenants := startTenants(t, ip[2:], "a", "b")
			a, b := tenants[0], tenants[1]
			state := func(one, two *tenant) *Snapshot {
				return mustBuild(t, proxyServer(serverIP,
					one.attachedAs("one", addresses, one.worker), two.attachedAs("two", addresses, two.worker)), Options{PortOffset: portOffset})
			}
			mixed := func(clusters, listeners *Snapshot) *Snapshot {
				return &Snapshot{version: "mixed", sets: map[string]*resourceSet{
					clusterType: clusters.sets[clusterType], endpointType: clusters.sets[endpointType], listenerType: listeners.sets[listenerType],
					routeType: listeners.sets[routeType],
				}}
			}
			before, after := state(a, b), state(b, a)
			callers := append(callersOf(a, stranger), callersOf(b, stranger)...)

			s := startServer(t, "127.0.0.1:0")
			s.Apply(testInfra, before)
			startEnvoy(t, "pod-1", s.address)
			for _, step := range []struct {
				what    string
				snap    *Snapshot
				agree   bool
				restart bool // of the control plane, so that Envoy comes back holding what it had
			}{
				{"before", before, true, false},
				{"clusters ahead", mixed(after, before), false, false},
				{"back", before, true, true},
				{"listeners ahead", mixed(before, after), false, false},
				{"after", after, true, true},
			} {
				if step.restart {
					s.stop()
					s = startServer(t, s.address.String())
				}
				s.Apply(testInfra, step.snap)
				waitAcknowledged(t, s.Server)
				for _, c := range callers {
					if !step.agree {
						if got := reaches(c.source, serverIP, c.port, c.sni); got != "closed" {
							t.Errorf("%s: %s: %s answers", step.what, c, got)
						}
						continue
					}
					eventually(t, fmt.Sprintf("%s: %s is answered by its own tenant", step.what, c), func() bool { // a name is to be resolved first
						got := reaches(c.source, serverIP, c.port, c.sni)
						if !c.mayGet(got) {
							t.Errorf("%s: %s: %s answers", step.what, c, got)
						}
						return got != "closed"
					})
				}
			}
		})
	}
}

// Attachments swap their tenants, leave, come back under the name of another, and a worker moves, all while everybody connects.
func TestEnvoyNeverAnswersForAnotherTenant(t *testing.T) {
	for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(protocol, func(t *testing.T) {
			ip := loopbacks(6)
			serverIP, stranger, roamer := ip[0], ip[1], ip[2]
			tenants := startTenants(t, ip[3:], "a", "b", "c")
			callers := []caller{ // the roamer is a's and b's in turn, never c's
				{roamer, 443, "kubernetes.default.svc", []string{"a", "b"}},
				{roamer, 6443, "", []string{"a", "b"}},
			}
			for _, tn := range tenants {
				callers = append(callers, callersOf(tn, stranger)...)
			}
			// Attachments that nothing happens to: the listeners are large, and take Envoy its time.
			var neighbours []v1alpha1.Backend
			for i := range 50 {
				var sources []string
				for j := range 20 {
					sources = append(sources, fmt.Sprintf("10.0.%d.%d", i, j))
				}
				neighbours = append(neighbours, attachment(fmt.Sprintf("neighbour-%d", i), "203.0.113.1", pagePorts, sources...)...)
			}
			rnd := rand.New(rand.NewPCG(11, 11))
			kinds := slices.Sorted(maps.Keys(resolved))
			state := func(moves int, all bool) *Snapshot {
				names := []string{"one", "two", "three"}
				rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				attached := [][]v1alpha1.Backend{neighbours}
				for i, tn := range tenants {
					if !all && rnd.IntN(6) == 0 {
						continue
					}
					sources := []string{tn.worker}
					if i == moves%2 {
						sources = append(sources, roamer)
					}
					addresses := resolved[kinds[0]]
					if rnd.IntN(3) == 0 {
						addresses = resolved[kinds[rnd.IntN(len(kinds))]]
					}
					attached = append(attached, tn.attachedAs(names[i], addresses, sources...))
				}
				return mustBuild(t, proxyServer(serverIP, attached...), Options{PortOffset: portOffset})
			}

			s := startServer(t, "127.0.0.1:0")
			s.Apply(testInfra, state(0, true))
			e := startEnvoy(t, "pod-1", s.address, func(config string) string { return strings.Replace(config, "DELTA_GRPC", protocol, 1) })
			waitAcknowledged(t, s.Server)

			stop := make(chan struct{})
			var mu sync.Mutex
			answers := map[string]int{}
			var wg sync.WaitGroup
			halt := sync.OnceFunc(func() {
				close(stop)
				wg.Wait()
			})
			defer halt()
			for worker := range 6 {
				wg.Go(func() {
					for i := worker; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						c := callers[i%len(callers)]
						got := reaches(c.source, serverIP, c.port, c.sni)
						mu.Lock()
						answers[got]++
						mu.Unlock()
						if !c.mayGet(got) {
							t.Errorf("%s: %s answers", c, got)
						}
					}
				})
			}
			for i := range 24 {
				s.Apply(testInfra, state(i, false))
				if i%4 != 3 { // else the next change comes while this one is under way
					waitAcknowledged(t, s.Server)
				}
			}
			s.Apply(testInfra, state(0, true))
			waitAcknowledged(t, s.Server)
			halt()
			t.Logf("answers: %v", answers)
			for _, tn := range tenants {
				if answers[tn.name+"/kube-apiserver"] == 0 {
					t.Errorf("tenant %s was never reached, so that nothing is shown: %v", tn.name, answers)
				}
			}
			for _, c := range callers {
				eventually(t, fmt.Sprintf("in the end %s is answered", c), func() bool { return reaches(c.source, serverIP, c.port, c.sni) != "closed" })
			}
			if n := e.stat("cluster_manager.cds.update_rejected") + e.stat("listener_manager.lds.update_rejected"); n != 0 {
				t.Errorf("Envoy rejected %d updates", n)
			}
			if n, inPlace := e.stat("listener_manager.listener_modified"), e.stat("listener_manager.listener_in_place_updated"); n != inPlace {
				t.Errorf("%d of %d changes of a listener were in place", inPlace, n)
			}
		})
	}
}

// An attachment that gets another owner costs nobody else a connection, even if the addresses are the same; its own end.
func TestEnvoyChangesAnOwnerInPlace(t *testing.T) {
	for kind, addresses := range resolved {
		t.Run(kind, func(t *testing.T) {
			ip := loopbacks(4)
			serverIP := ip[0]
			tenants := startTenants(t, ip[2:], "a", "b")
			a, b := tenants[0], tenants[1]
			state := func(namespaceOfB string) *v1alpha1.ProxyServer {
				ofB := b.attachedAs("b", addresses, b.worker)
				for i := range ofB {
					ofB[i].TargetNamespace = namespaceOfB
				}
				return proxyServer(serverIP, a.attachedAs("a", addresses, a.worker), ofB)
			}
			s := startServer(t, "127.0.0.1:0")
			s.Apply(testInfra, mustBuild(t, state("clusters-b"), Options{PortOffset: portOffset}))
			e := startEnvoy(t, "pod-1", s.address)
			waitAcknowledged(t, s.Server)
			allReached := func() {
				t.Helper()
				for _, tn := range tenants {
					for _, c := range callersOf(tn, ip[1]) {
						eventually(t, fmt.Sprintf("%s is answered", c), func() bool { // a name is to be resolved first
							got := reaches(c.source, serverIP, c.port, c.sni)
							return got != "closed" && c.mayGet(got)
						})
					}
				}
			}
			allReached()
			kept, ended := streamsOf(t, "a", serverIP, a.worker), streamsOf(t, "b", serverIP, b.worker)

			applyAndWait(t, s.Server, state("renamed-b"))
			allReached()
			for _, gone := range ended { // within the drain time, here one second
				if _, err := gone.conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("the stream %s of the earlier owner ended with %v", gone.name, err)
				}
			}
			allAlive(t, "the owner of another attachment changed", kept)
			if n, inPlace := e.stat("listener_manager.listener_modified"), e.stat("listener_manager.listener_in_place_updated"); n != 2 || inPlace != 2 {
				t.Errorf("%d changes of listeners, %d in place, want 2 of 2", n, inPlace)
			}
			eventually(t, "Envoy has drained the old chains", func() bool { return e.draining() == 0 })
		})
	}
}
