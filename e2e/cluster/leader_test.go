package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// processStatus is what tests read of a process's /status.
type processStatus struct {
	Leading, Stale bool
}

func (p *process) status(ctx context.Context) (processStatus, error) {
	var s processStatus
	text, err := p.Get(ctx, "/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// leads is a condition: the process is the one that writes, or is not.
func (p *process) leads(want bool) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := p.status(ctx)
		if err == nil && s.Leading != want {
			err = fmt.Errorf("%s leads: %t, want %t", p.name, s.Leading, want)
		}
		return err
	}
}

// twoClusters is the page, served, with connections of both clusters' workers held open. Whatever a test does to
// processes meanwhile, nobody on the VLAN may notice.
type twoClusters struct {
	site    *site
	vlan    vlan
	envoy   *stack.Envoy
	streams map[string]*stack.Stream
	// counters and generations as they were when everything was at rest.
	counters    map[string]int64
	generations map[string]int64
}

// moving are Envoy's counters that move with whatever it is sent.
var moving = []string{
	"listener_manager.lds.update_success", "listener_manager.lds.update_rejected", "cluster_manager.cds.update_success", "cluster_manager.cds.update_rejected",
	"listener_manager.listener_added", "listener_manager.listener_modified", "listener_manager.listener_in_place_updated",
	"listener_manager.listener_removed", "cluster_manager.cluster_added", "cluster_manager.cluster_modified", "cluster_manager.cluster_removed",
}

// children of the example's Infra, by kind.
var children = map[string]string{"ProxyServer": infra + "-proxy", "DNSServer": infra + "-dns", "DHCPServer": infra + "-dhcp"}

// serveTwoClusters applies the page, waits until it is served in full by a process that it starts, and keeps asking for names until the test
// ends: one wrong answer, or none, fails it.
func (s *site) serveTwoClusters(t *testing.T, serving *process) *twoClusters {
	t.Helper()
	w := &twoClusters{site: s, vlan: s.vlan(1), streams: map[string]*stack.Stream{}}
	v := w.vlan
	s.startBackends(t, "example-hcp-a", 1)
	s.startBackends(t, "example-hcp-b", 2)
	s.apply(t, s.page(t, v), s.neighbours(t, v))
	serving.start(t)
	w.envoy = s.startEnvoy(t, serving, infra, "envoy-1")
	within(t, "the page", s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"), w.everyRoute())
	for name, call := range map[string]stack.Call{
		"alias": v.call(117, "kubernetes", portHTTPS), "no name": v.call(118, "", portKubeAPI),
		"konnectivity": v.call(117, "konnectivity.example-hcp-a.clusters.example.com", portHTTPS),
	} {
		stream, _, err := call.Hold(t.Context(), s.CA)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		w.streams[name] = stream
		t.Cleanup(func() { _ = stream.Close() }) // Envoy may have gone
	}
	w.rest(t)
	return w
}

// everyRoute is a condition: names and routes of both clusters are as the page says.
func (w *twoClusters) everyRoute() func(context.Context) error {
	v, s := w.vlan, w.site
	return all(
		v.resolves("api.example-hcp-a.clusters.example.com", v.address(4)),
		v.resolves("konnectivity.example-hcp-b.clusters.example.com", v.address(4)),
		v.resolves("kubernetes", v.address(4)),
		v.resolves("www.example.com", stack.UpstreamAnswer),
		s.answers(v.call(117, "kubernetes", portHTTPS), "example-hcp-a/kube-apiserver"),
		s.answers(v.call(118, "", portKubeAPI), "example-hcp-b/kube-apiserver"),
		s.answers(v.call(119, "oauth.example-hcp-b.clusters.example.com", portHTTPS), "example-hcp-b/oauth-openshift"),
		s.answers(v.call(119, "kubernetes", portHTTPS), "closed"),
	)
}

// rest waits until Envoy has been told everything, and notes how things are then.
func (w *twoClusters) rest(t *testing.T) {
	t.Helper()
	within(t, "everything acknowledged", w.site.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged"))
	w.generations = map[string]int64{}
	for kind, key := range children {
		object, err := w.site.fetch(t.Context(), ours(kind, key))
		if err != nil {
			t.Fatal(err)
		}
		w.generations[kind] = object.GetGeneration()
	}
	w.counters = w.count(t)
}

func (w *twoClusters) count(t *testing.T) map[string]int64 {
	t.Helper()
	counters, err := w.envoy.Counters(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return counters
}

// alive fails the test when a stream was cut.
func (w *twoClusters) alive(t *testing.T) {
	t.Helper()
	for name, stream := range w.streams {
		if err := stream.Alive(); err != nil {
			t.Errorf("the stream %q is cut: %v", name, err)
		}
	}
}

// untouched fails the test when Envoy was sent anything, or a child was changed, since the last rest.
func (w *twoClusters) untouched(t *testing.T, when string) {
	t.Helper()
	w.alive(t)
	after := w.count(t)
	for _, name := range moving {
		if after[name] != w.counters[name] {
			t.Errorf("%s: Envoy's %s went from %d to %d: it was sent something though nothing had changed", when, name, w.counters[name], after[name])
		}
	}
	for kind, key := range children {
		object, err := w.site.fetch(t.Context(), ours(kind, key))
		if err != nil {
			t.Fatal(err)
		}
		if got := object.GetGeneration(); got != w.generations[kind] {
			t.Errorf("%s: the generation of %s %s went from %d to %d though nothing had changed", when, kind, key, w.generations[kind], got)
		}
	}
}

// asking asks for a name of each cluster, over and over, until stop is called. An answer that is not the right one fails
// the test; none at all fails it, too, unless the server may be away for a moment.
func (w *twoClusters) asking(t *testing.T, mayBeAway bool) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	var wrong []string
	answers := 0
	running.Go(func() {
		for ctx.Err() == nil {
			for _, name := range []string{"api.example-hcp-a.clusters.example.com", "kubernetes", "ignition.example-hcp-b.clusters.example.com"} {
				got, err := ask(ctx, w.vlan.address(250), w.vlan.dns(), name)
				switch {
				case ctx.Err() != nil:
				case err != nil && !mayBeAway:
					wrong = append(wrong, fmt.Sprintf("%s: %v", name, err))
				case err == nil && got != w.vlan.address(4):
					wrong = append(wrong, fmt.Sprintf("%s: %s", name, got))
				case err == nil:
					answers++
				}
			}
			timer := time.NewTimer(20 * time.Millisecond) // a pause, not a wait for anything
			select {
			case <-ctx.Done():
			case <-timer.C:
			}
			timer.Stop()
		}
	})
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			running.Wait()
			if len(wrong) > 0 {
				t.Errorf("%d wrong answers, the first ones: %s", len(wrong), strings.Join(wrong[:min(5, len(wrong))], "; "))
			}
			if answers == 0 && !mayBeAway {
				t.Error("no name was ever answered")
			}
		})
	}
	t.Cleanup(stop)
	return stop
}

// aWorkerComes adds a Machine to a cluster and waits until it has its routes.
func (w *twoClusters) aWorkerComes(t *testing.T, name string, worker int) {
	t.Helper()
	w.site.apply(t, fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: %s
  namespace: clusters-example-hcp-b
  annotations: {hypershift.openshift.io/nodePool: clusters/example-hcp-b}
spec:
  clusterName: example-hcp-b
  bootstrap: {dataSecretName: user-data-example-hcp-b}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KubevirtMachine, name: %s}
status:
  addresses:
    - {type: InternalIP, address: %s}
`, name, name, w.vlan.address(worker)))
	within(t, "the routes of "+name, w.site.answers(w.vlan.call(worker, "kubernetes", portHTTPS), "example-hcp-b/kube-apiserver"))
}

// TestLeaders has two hubs, of which one leads: it crashes, freezes, and stops properly.
func TestLeaders(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t, byHand)
	first, second := s.newHub(t).start(t), s.newHub(t)
	within(t, "the first hub to lead", first.leads(true))
	second.start(t)
	w := s.serveTwoClusters(t, s.newServing(t))
	within(t, "the second hub to follow", second.leads(false))
	stop := w.asking(t, false)

	first.kill(t)
	within(t, "the second hub to take over", second.leads(true))
	w.untouched(t, "the leader was killed")
	w.aWorkerComes(t, "after-a-crash", 130)
	first.start(t)
	within(t, "the first hub to follow", first.leads(false), second.leads(true))

	// A leader that is frozen, and wakes up when another one leads, must not write what it planned before.
	w.rest(t)
	second.signal(t, syscall.SIGSTOP)
	within(t, "the first hub to take over", first.leads(true))
	w.untouched(t, "the leader is frozen")
	w.aWorkerComes(t, "while-it-is-frozen", 131)
	w.rest(t)
	second.signal(t, syscall.SIGCONT)
	within(t, "the frozen one to know", second.leads(false), first.leads(true))
	w.untouched(t, "the frozen leader woke up")

	// One that stops gives the Lease back: nobody waits for it to run out (15 s).
	if err := first.run.Stop(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := stack.Until(ctx, "the other hub to lead at once", second.leads(true)); err != nil {
		t.Error(err)
	}
	w.untouched(t, "the leader stopped")
	w.aWorkerComes(t, "after-a-stop", 132)
	w.alive(t)
	stop()
	within(t, "the last word", s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"), w.everyRoute(), func(context.Context) error {
		if log := second.run.Log(); strings.Contains(log, "level=ERROR") {
			return errors.New("the log of the hub has an error")
		}
		return nil
	})
}
