package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
)

var podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// TestFailover breaks the holder in every way. Each time DNS, DHCP and new TLS connections come back, the lease of a worker is
// kept, and no server address is ever claimed by two machines at once. How long it took is printed.
func TestFailover(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	if _, err := w.prober.Run(t.Context(), "ip", "addr", "replace", "192.0.2.60/24", "dev", "vlan0"); err != nil {
		t.Fatal(err)
	}
	var table strings.Builder
	for _, row := range []struct {
		name string
		// disrupt breaks something.
		disrupt func(t *testing.T, holder, standby string) error
		// heal undoes it; nothing to do where it is nil.
		heal func(t *testing.T, holder, standby string) error
		// stays: the holder stays the holder.
		stays bool
		// moves: another pod has to take over. Neither: both are right.
		moves bool
	}{
		{
			name: "stopped", moves: true,
			disrupt: func(t *testing.T, holder, _ string) error {
				return w.Dynamic.Resource(podResource).Namespace(namespace).Delete(t.Context(), holder, metav1.DeleteOptions{})
			},
		},
		{
			name: "pod gone", moves: true,
			disrupt: func(_ *testing.T, holder, _ string) error { return w.nodes.Lose(namespace, holder) },
			heal:    func(t *testing.T, holder, _ string) error { return w.force(t.Context(), holder) },
		},
		{
			name: "oooi killed",
			disrupt: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Signal(namespace, holder, "oooi", syscall.SIGKILL)
			},
		},
		{
			name: "Envoy killed",
			disrupt: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Signal(namespace, holder, "envoy", syscall.SIGKILL)
			},
		},
		{
			name: "oooi frozen", moves: true,
			disrupt: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Signal(namespace, holder, "oooi", syscall.SIGSTOP)
			},
			heal: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Signal(namespace, holder, "oooi", syscall.SIGCONT)
			},
		},
		{
			name: "VLAN link down", moves: true,
			disrupt: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Carrier(namespace, holder, v1alpha1.VLANInterface, false)
			},
			heal: func(_ *testing.T, holder, _ string) error {
				return w.nodes.Carrier(namespace, holder, v1alpha1.VLANInterface, true)
			},
		},
		{
			name: "API cut for the holder", stays: true,
			disrupt: func(_ *testing.T, holder, _ string) error { return w.nodes.CutAPI(namespace, holder, true) },
			heal:    func(_ *testing.T, holder, _ string) error { return w.nodes.CutAPI(namespace, holder, false) },
		},
		{
			name: "API cut for both", stays: true,
			disrupt: func(_ *testing.T, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, holder, true), w.nodes.CutAPI(namespace, standby, true))
			},
			heal: func(_ *testing.T, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, holder, false), w.nodes.CutAPI(namespace, standby, false))
			},
		},
		{
			name: "API cut for both, pod gone", moves: true,
			disrupt: func(_ *testing.T, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, standby, true), w.nodes.CutAPI(namespace, holder, true), w.nodes.Lose(namespace, holder))
			},
			heal: func(t *testing.T, holder, standby string) error {
				return errors.Join(w.nodes.CutAPI(namespace, standby, false), w.force(t.Context(), holder))
			},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			holder, standby := w.pair(t)
			arp := captureARP(t)
			line := w.measure(t, func() {
				if err := row.disrupt(t, holder, standby); err != nil {
					t.Fatal(err)
				}
			})
			fmt.Fprintf(&table, "%-28s %s\n", row.name, line)
			t.Log(line)
			if row.heal != nil {
				if err := row.heal(t, holder, standby); err != nil {
					t.Fatal(err)
				}
			}
			after, _ := w.pair(t)
			if row.stays && after != holder {
				t.Errorf("the holder is %s, and was %s: it ought to stay", after, holder)
			}
			if row.moves && after == holder {
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

// force deletes a pod that nobody will ever end.
func (w *world) force(ctx context.Context, pod string) error {
	now := int64(0)
	return w.Dynamic.Resource(podResource).Namespace(namespace).Delete(ctx, pod, metav1.DeleteOptions{GracePeriodSeconds: &now})
}
