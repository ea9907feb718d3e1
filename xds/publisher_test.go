package xds

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
)

// modelEnvoy applies steps as Envoy does: what it refuses of a step it leaves, the rest it takes. It asks for the endpoints
// of a cluster when it gets the cluster, and withholds the answer until it has them. It asks for the routes of a listener when it
// gets the listener, and for them no more a while after it lost it.
type modelEnvoy struct {
	has     map[string]map[string]*discovery.Resource // by type and name
	refuses map[string]bool                           // versions
	warming map[string]bool                           // clusters without endpoints
	answer  func()                                    // to the clusters
	patient bool                                      // withholds the answer to a listener until it has its routes
	waiting func()                                    // is the answer to the listeners
	failed  bool                                      // routes were refused: the listener waits for them no longer
	words   string                                    // of its refusals
	later   bool                                      // asks for the routes after its answer, and gives them up later still
}

// routes asks for the routes of the listener that Envoy has, or gives up those of one that it has no more.
func (e *modelEnvoy) routes(p *publisher) {
	has, sub := e.has[listenerType][httpListener] != nil, p.types[routeType]
	switch {
	case has && sub == nil:
		sub = p.subscribe(routeType, false, nil)
		sub.change([]string{httpListener}, nil, nil)
	case has && !sub.names[httpListener]:
		sub.change([]string{httpListener}, nil, nil)
	case !has && sub != nil && sub.names[httpListener]:
		delete(e.has[routeType], httpListener)
		e.failed = false
		sub.change(nil, []string{httpListener}, nil)
		p.abandonRoutes()
	}
}

// take applies a step and answers it, now or when the clusters are warm.
func (e *modelEnvoy) take(p *publisher, st *step) {
	for _, name := range st.remove {
		delete(e.has[st.typeURL], name)
	}
	refused := false
	for _, r := range st.add {
		if e.refuses[r.Version] {
			refused = true
			continue
		}
		e.has[st.typeURL][r.Name] = r
		switch {
		case st.typeURL == endpointType:
			delete(e.warming, r.Name)
		case st.typeURL == clusterType && p.target.sets[endpointType].byName[r.Name] != nil:
			e.warming[r.Name] = true
			if endpoints := p.types[endpointType]; !endpoints.names[r.Name] {
				endpoints.change([]string{r.Name}, nil, nil)
			}
		}
	}
	answer := func() {
		if refused {
			p.refusedStep(st.typeURL, e.words)
		} else {
			p.acknowledged(st.typeURL)
		}
	}
	switch {
	case st.typeURL == clusterType:
		e.answer = answer
	case st.typeURL == listenerType && e.patient && !e.failed && e.has[listenerType][httpListener] != nil && e.has[routeType][httpListener] == nil:
		e.waiting = answer
	default:
		answer()
	}
	if st.typeURL == routeType {
		e.failed = e.failed || refused
		if e.waiting != nil {
			e.waiting()
			e.waiting = nil
		}
	}
	if len(e.warming) == 0 && e.answer != nil {
		e.answer()
		e.answer = nil
	}
}

// dangling is a chain whose cluster, or a route whose cluster or internal listener, Envoy does not have, though it had a chance to.
func (e *modelEnvoy) dangling(t *testing.T, refused map[string]bool) string {
	for name, r := range e.has[listenerType] {
		l := &listenerv3.Listener{}
		if err := proto.Unmarshal(r.GetResource().GetValue(), l); err != nil {
			t.Fatal(err)
		}
		for _, chain := range l.GetFilterChains() {
			if name == httpListener {
				continue // its routes lead on
			}
			cluster := chain.GetName()
			if isInternal(name) {
				cluster = strings.TrimSuffix(name, httpTargetSuffix) + addressSuffix
			}
			if e.has[clusterType][cluster] == nil && !refused[cluster] {
				return fmt.Sprintf("listener %s leads to %s, which is not there", name, cluster)
			}
		}
	}
	for _, r := range e.has[routeType] {
		config := &routev3.RouteConfiguration{}
		if err := proto.Unmarshal(r.GetResource().GetValue(), config); err != nil {
			t.Fatal(err)
		}
		for _, host := range config.GetVirtualHosts() {
			for _, typeURL := range []string{clusterType, listenerType} {
				if e.has[typeURL][host.GetName()] == nil && !refused[host.GetName()] {
					return fmt.Sprintf("a route leads to the %s %s, which is not there", shortType(typeURL), host.GetName())
				}
			}
		}
	}
	return ""
}

// Over random changes, with an Envoy that refuses some of them: no listener ever leads to a cluster that is not there, the
// publisher always comes to rest (a refusal makes no loop), and what was not refused arrives.
func TestPublisherOverRandomChanges(t *testing.T) {
	for seed := range uint64(90) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		e := &modelEnvoy{has: map[string]map[string]*discovery.Resource{}, refuses: map[string]bool{}, warming: map[string]bool{}, patient: seed%3 == 1, later: seed%3 == 2, words: "no"}
		if seed%2 == 1 {
			e.words = "cannot bind '192.0.2.4:6443': Address already in use"
		}
		for _, typeURL := range servedTypes {
			e.has[typeURL] = map[string]*discovery.Resource{}
		}
		p := newPublisher(emptySnapshot())
		p.subscribe(clusterType, true, nil)
		p.subscribe(endpointType, false, nil).owesFirst = false
		p.subscribe(listenerType, true, nil)
		everRefused := map[string]bool{}
		for round := range 12 {
			var names []string
			for _, name := range []string{"a", "b", "c", "d"} {
				if rnd.IntN(2) == 0 {
					names = append(names, name)
				}
			}
			proxy := page(names...)
			for i := range proxy.Spec.Backends {
				b := &proxy.Spec.Backends[i]
				b.TimeoutSeconds = int32(1 + round%3)
				if b.TargetService == "konnectivity-server" && b.Attachment != "a" {
					b.Addresses = []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}[:1+round/2%3]
				}
			}
			for _, name := range names {
				if rnd.IntN(3) == 0 {
					proxy.Spec.Backends = append(proxy.Spec.Backends, apps(name, "10.0.0.9", 443, 80)...)
				}
			}
			snap := mustBuild(t, proxy, Options{})
			clear(e.refuses)
			if rnd.IntN(2) == 0 {
				for _, typeURL := range []string{clusterType, listenerType, routeType} {
					for _, r := range snap.sets[typeURL].sorted {
						if rnd.IntN(6) == 0 {
							e.refuses[r.Version] = true
							everRefused[r.Name] = true
						}
					}
				}
			}
			p.retarget(snap)
			steps := 0
			for st := p.next(); st != nil; st = p.next() {
				if steps++; steps > 200 {
					t.Fatalf("seed %d round %d: no rest after %d steps", seed, round, steps)
				}
				e.take(p, st)
				if !e.later || rnd.IntN(2) == 0 {
					e.routes(p)
				}
				if problem := e.dangling(t, everRefused); problem != "" {
					t.Fatalf("seed %d round %d: %s", seed, round, problem)
				}
			}
			settle := func() (sent int) {
				for e.routes(p); ; e.routes(p) { // at last it does
					st := p.next()
					if st == nil {
						return sent
					}
					sent++
					if steps++; steps > 400 {
						t.Fatalf("seed %d round %d: no rest after %d steps", seed, round, steps)
					}
					e.take(p, st)
				}
			}
			settle()
			if seed%2 == 1 {
				refused := p.hasPassing()
				p.retryPassing()
				if sent := settle(); (sent > 0) != refused {
					t.Fatalf("seed %d round %d: a retry sent %d responses, refused for a cause that passes: %t", seed, round, sent, refused)
				}
				if rnd.IntN(2) == 0 { // the cause has passed
					clear(e.refuses)
					p.retryPassing()
					settle()
				}
			} else if p.retryPassing(); p.hasPassing() || settle() > 0 {
				t.Fatalf("seed %d round %d: content that Envoy refused was sent again without a change", seed, round)
			}
			if problem := e.dangling(t, everRefused); problem != "" {
				t.Fatalf("seed %d round %d: %s", seed, round, problem)
			}
			served := []string{clusterType, listenerType}
			if e.has[listenerType][httpListener] != nil {
				served = append(served, routeType)
			}
			for _, typeURL := range served {
				for _, r := range snap.sets[typeURL].sorted {
					if !e.refuses[r.Version] && e.has[typeURL][r.Name] != r && e.has[typeURL][r.Name].GetVersion() != r.Version {
						t.Fatalf("seed %d round %d: %s did not arrive", seed, round, r.Name)
					}
				}
			}
			if len(p.inFlight) > 0 {
				t.Fatalf("seed %d round %d: Envoy waits for %v", seed, round, e.warming)
			}
			if len(e.refuses) == 0 {
				for _, typeURL := range served {
					if got, want := slices.Sorted(maps.Keys(e.has[typeURL])), slices.Sorted(maps.Keys(snap.sets[typeURL].byName)); !slices.Equal(got, want) {
						t.Fatalf("seed %d round %d: Envoy has %v, want %v", seed, round, got, want)
					}
				}
				if p.refusals() != "" {
					t.Fatalf("seed %d round %d: %s", seed, round, p.refusals())
				}
			}
		}
	}
}
