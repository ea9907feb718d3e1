package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// disruption is one way to break the holder.
type disruption struct {
	name string
	// disrupt breaks something.
	disrupt func(ctx context.Context, holder, standby string) error
	// heal undoes it; nothing to do where it is nil.
	heal func(ctx context.Context, holder, standby string) error
	// stays: the holder stays the holder.
	stays bool
	// moves: another pod has to take over. Neither: both are right.
	moves bool
	// stranded are services that come back when it is healed, not before.
	stranded []string
	// target is how long services are away at most; 0: not at all.
	target time.Duration
	// unmeasured: it is of no interest for the table of make bench-failover.
	unmeasured bool
}

// disruptions are all ways to break the holder.
func (w *world) disruptions() []disruption {
	signal := func(container string, s syscall.Signal) func(context.Context, string, string) error {
		return func(_ context.Context, holder, _ string) error {
			return w.nodes.Signal(namespace, holder, container, s)
		}
	}
	carrier := func(on bool) func(context.Context, string, string) error {
		return func(_ context.Context, holder, _ string) error {
			return w.nodes.Carrier(namespace, holder, v1alpha1.VLANInterface, on)
		}
	}
	force := func(ctx context.Context, holder, _ string) error { return w.force(ctx, holder) }
	return []disruption{
		{
			name: "stopped", moves: true, target: 200 * time.Millisecond,
			disrupt: func(ctx context.Context, holder, _ string) error {
				return w.Dynamic.Resource(podResource).Namespace(namespace).Delete(ctx, holder, metav1.DeleteOptions{})
			},
		},
		{
			name: "pod gone", moves: true, target: 2 * time.Second,
			disrupt: func(_ context.Context, holder, _ string) error { return w.nodes.Lose(namespace, holder) },
			heal:    force,
		},
		// The kubelet kills what runs, and the standby is told nothing.
		{name: "killed", moves: true, target: 2 * time.Second, disrupt: force, unmeasured: true},
		{name: "oooi killed", target: 3 * time.Second, disrupt: signal("oooi", syscall.SIGKILL)},
		{name: "Envoy killed", target: 3 * time.Second, disrupt: signal("envoy", syscall.SIGKILL)},
		{
			name: "oooi frozen", moves: true, target: 3 * time.Second,
			disrupt: signal("oooi", syscall.SIGSTOP), heal: signal("oooi", syscall.SIGCONT),
		},
		{name: "VLAN link down", moves: true, target: 2 * time.Second, disrupt: carrier(false), heal: carrier(true)},
		{
			name: "API cut for the holder", stays: true,
			disrupt: func(_ context.Context, holder, _ string) error { return w.nodes.CutAPI(namespace, holder, true) },
			heal:    func(_ context.Context, holder, _ string) error { return w.nodes.CutAPI(namespace, holder, false) },
		},
		{
			name: "API cut for both", stays: true,
			disrupt: func(_ context.Context, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, holder, true), w.nodes.CutAPI(namespace, standby, true))
			},
			heal: func(_ context.Context, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, holder, false), w.nodes.CutAPI(namespace, standby, false))
			},
		},
		// Without the API the new holder cannot mark itself, and the Services lead to where they led.
		{
			name: "API cut for both, pod gone", moves: true, target: 2 * time.Second, stranded: []string{serviceOfIPs}, unmeasured: true,
			disrupt: func(_ context.Context, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, standby, true), w.nodes.CutAPI(namespace, holder, true), w.nodes.Lose(namespace, holder))
			},
			heal: func(ctx context.Context, holder, standby string) error {
				if err := w.nodes.CutAPI(namespace, standby, false); err != nil {
					return err
				}
				// The pod that is gone is still there for the API server, and must not be in the way of the Services.
				service, err := w.clusterIP(ctx, v1alpha1.ProxyServiceName(infra))
				if err != nil {
					return err
				}
				waiting, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				err = stack.Until(waiting, "the Service", func(ctx context.Context) error {
					return w.reachedAt(ctx, "", netip.AddrPortFrom(service, 443))
				})
				return errors.Join(err, w.force(ctx, holder))
			},
		},
	}
}

// TestFailover breaks the holder in every way. Each time DNS, DHCP and new TLS connections come back by themselves, and so do the
// Services where there is an API; the lease of a worker is kept, and no server address is ever claimed by two machines at once. How
// long it took is printed.
func TestFailover(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	w.startRelays(t)
	var table strings.Builder
	for _, d := range w.disruptions() {
		t.Run(d.name, func(t *testing.T) {
			holder, standby := w.pair(t)
			arp := captureARP(t)
			outages, after := w.breakHolder(t, &d, holder, standby)
			fmt.Fprintf(&table, "%-28s %s\n", d.name, line(outages))
			t.Log(line(outages))
			if d.stays && after != holder {
				t.Errorf("the holder is %s, and was %s: it ought to stay", after, holder)
			}
			if d.moves && after == holder {
				t.Errorf("the holder is still %s", after)
			}
			// Asked for nothing, a server gives a known machine what it has.
			if lease := w.boot(t, w.workerA, netlab.Udhcpc, ""); lease.Address != workerA {
				t.Errorf("the worker that had %s gets %s", workerA, lease.Address)
			}
			arp.oneAtATime(t, w.hardwareAddress(t, after), after != holder)
			if t.Failed() {
				t.Log(w.nodes.Tails(15))
			}
		})
	}
	t.Logf("longest time without an answer:\n%s", table.String())
}

// breakHolder breaks the holder, measures, and heals. It returns the holder after that.
func (w *world) breakHolder(t testing.TB, d *disruption, holder, standby string) ([]*outage, string) {
	t.Helper()
	m := w.measure(t, func() {
		if err := d.disrupt(t.Context(), holder, standby); err != nil {
			t.Fatal(err)
		}
	}, d.stranded...)
	if d.heal != nil {
		if err := d.heal(t.Context(), holder, standby); err != nil {
			t.Fatal(err)
		}
	}
	after, _ := w.pair(t)
	return m.longest(), after
}

// force deletes a pod at once, whether or not somebody ends it.
func (w *world) force(ctx context.Context, pod string) error {
	now := int64(0)
	return w.Dynamic.Resource(podResource).Namespace(namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &now})
}
