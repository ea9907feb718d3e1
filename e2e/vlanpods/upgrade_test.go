package vlanpods

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// TestUpgrade applies a release with another image while workers hold streams, open connections and ask for names: the hub
// upgrades itself, then the VLAN pods, the standby first. Every stream is reset exactly once.
func TestUpgrade(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	w.startRelays(t)
	before, standby := w.pair(t)
	arp := captureARP(t)

	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	streams := make([]*heldStream, 20)
	for i := range streams {
		streams[i] = &heldStream{}
		group.Go(func() { streams[i].run(ctx) })
	}
	eventually(t, "all streams", func(context.Context) error {
		for i, s := range streams {
			if !s.isOpen() {
				return fmt.Errorf("stream %d is not open", i)
			}
		}
		return nil
	})

	manifests, err := kustomize(t.Context(), "deploy")
	if err != nil {
		t.Fatal(err)
	}
	const next = "oooi:next"
	w.nodes.SetImage(next, w.images.oooi)
	m := w.measure(t, func() {
		if _, err := w.Apply(t.Context(), "kubectl", bytes.ReplaceAll(manifests, []byte("image: "+oooiName), []byte("image: "+next))); err != nil {
			t.Fatal(err)
		}
		w.rolled(t, next)
	})
	after, _ := w.pair(t)
	if after == before || after == standby {
		t.Errorf("the holder is %s, one of the pods from before the upgrade", after)
	}
	// A stream that was quiet at the wrong moment notices late.
	eventually(t, "all streams opened again after the upgrade", func(context.Context) error {
		for i, s := range streams {
			if !s.isOpen() || s.count() == 0 {
				return fmt.Errorf("stream %d was reset %d times, open: %t", i, s.count(), s.isOpen())
			}
		}
		return nil
	})
	var resets, most int
	for _, s := range streams {
		resets, most = resets+s.count(), max(most, s.count())
	}
	t.Logf("%d streams, %d resets, at most %d for one", len(streams), resets, most)
	// A pod that starts takes processor time from all others here; what that alone does is seen in the direct calls.
	handedOver := m.at(arp.handedOver(t, addressProxy))
	t.Logf("time without an answer:\nat the hand-over  %s\nlongest           %s", line(handedOver), line(m.longest()))
	for _, o := range handedOver {
		if o.length() > time.Second {
			t.Logf("%s%s", o.details(), arp.history(addressProxy))
		}
	}
	if most > 1 {
		t.Errorf("a stream was reset %d times", most)
	}
	arp.oneAtATime(t, w.hardwareAddress(t, after), true)

	// The tests that follow know the image by its name.
	if _, err := w.Apply(t.Context(), "kubectl", manifests); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hub as it was", func(ctx context.Context) error { return w.available(ctx, "oooi-system", "oooi") })
	w.rolled(t, oooiName)
}

// rolled waits until all VLAN pods have an image, and are ready.
func (w *world) rolled(t *testing.T, image string) {
	t.Helper()
	eventually(t, image+" in VLAN pods", func(ctx context.Context) error {
		d, err := w.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(namespace).Get(ctx, v1alpha1.VLANName(infra), metav1.GetOptions{})
		if err != nil {
			return err
		}
		containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
		if now := containers[0].(map[string]any)["image"]; now != image {
			return fmt.Errorf("the image is %v", now)
		}
		return w.available(ctx, namespace, v1alpha1.VLANName(infra))
	})
}

// heldStream is a worker's long connection to its API server, opened again whenever it ends.
type heldStream struct {
	mu     sync.Mutex
	open   bool
	resets int
}

func (h *heldStream) isOpen() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.open
}

func (h *heldStream) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.resets
}

func (h *heldStream) run(ctx context.Context) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	call := stack.Call{Host: w.workerA, To: netip.MustParseAddrPort(addressProxy + ":443"), SNI: "api." + domain(clusterA)}
	for ctx.Err() == nil {
		dialing, cancel := context.WithTimeout(ctx, time.Second)
		stream, _, err := call.Hold(dialing, w.site.CA)
		cancel()
		if err == nil {
			h.hold(ctx, stream, ticker)
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// hold uses a stream until it ends.
func (h *heldStream) hold(ctx context.Context, stream *stack.Stream, ticker *time.Ticker) {
	h.set(true, 0)
	defer func() { _ = stream.Close() }() // it is broken, or nobody needs it any more
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if stream.Alive() != nil {
			h.set(false, 1)
			return
		}
	}
}

func (h *heldStream) set(open bool, resets int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.open = open
	h.resets += resets
}
