package hub

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
)

// TestANewLeaderWaitsForItsWatch: attachments that were changed or gone before it got the lead are not acted upon as they were.
func TestANewLeaderWaitsForItsWatch(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	h.stock = &stock{version: "9", versions: map[types.UID]string{"1": "7"}}
	for _, test := range []struct {
		what, uid, version string
		orders             int
	}{
		{"as it was before", "1", "5", 0},
		{"as it was then", "1", "7", 1},
		{"as it is now", "1", "10", 1},
		{"gone then", "2", "8", 0},
		{"made after it", "2", "10", 1},
	} {
		object := attached(types.UID(test.uid), 1)
		object.ResourceVersion = test.version
		if orders := h.orders(resultOf(object, plan.AppsWork{})); len(orders) != test.orders {
			t.Errorf("%s: %d orders, want %d", test.what, len(orders), test.orders)
		}
		if h.isBehind() != (test.orders == 0) {
			t.Errorf("%s: behind is %v, and decides whether it is looked at again", test.what, h.isBehind())
		}
	}
}

// TestAnotherLeadInheritsNothing of the one before, though it was won again before anybody looked.
func TestAnotherLeadInheritsNothing(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	object := attached("1", 1)
	result := resultOf(object, plan.AppsWork{})
	h.look(t, result)
	h.remembered["1"] = v1alpha1.InfraClusterAttachmentStatus{}
	h.released["2"] = "5"
	h.dropStock()
	if h.Leading() {
		t.Error("it may write by the plan of the lead before")
	}
	h.plannedTerm.Store(h.beginTerm())
	if !h.Leading() {
		t.Error("it does not lead with a plan of its own")
	}
	if len(h.remembered) > 0 || len(h.released) > 0 || len(h.hosted.Observed()) > 0 || h.looking {
		t.Errorf("remembered %v, released %v, observed %v, looking %v", h.remembered, h.released, h.hosted.Observed(), h.looking)
	}
	h.lookInto(result)
	if h.looking {
		t.Error("it looks into hosted clusters without knowing what is there")
	}
	h.stock = &stock{}
	h.remembered["1"] = v1alpha1.InfraClusterAttachmentStatus{}
	h.beginTerm()
	if len(h.remembered) == 0 {
		t.Error("the next plan of the same lead has forgotten what the last one said")
	}
	h.look(t, result)
}

// renewing is a Lease that nobody takes.
type renewing struct{ resourcelock.Interface }

func (renewing) Update(context.Context, resourcelock.LeaderElectionRecord) error { return nil }

// TestALateRenewal: another process may have had the lead, which is known before anything may be written again.
func TestALateRenewal(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	var calls []string
	h.lock = &timedLock{
		Interface: renewing{},
		lost: func() {
			calls = append(calls, "lost")
			if h.Leading() {
				t.Error("it leads before it knows that the lead was lost")
			}
		},
		regained: func() {
			calls = append(calls, "regained")
			if !h.Leading() {
				t.Error("it does not lead again")
			}
		},
	}
	for _, last := range []time.Time{time.Now(), time.Now().Add(-renewDeadline)} {
		h.lock.renewed.Store(&last)
		if len(calls) > 0 {
			t.Errorf("after a renewal in time: %v", calls)
		}
		if err := h.lock.Update(t.Context(), resourcelock.LeaderElectionRecord{}); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(calls, []string{"lost", "regained"}) {
		t.Errorf("after a late one: %v", calls)
	}
}

// noting tells of the lists that are asked for.
type noting struct {
	client.Client
	asked chan struct{}
}

func (n *noting) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	n.asked <- struct{}{}
	return n.Client.List(ctx, list, options...)
}

// TestTakeStock takes it of a real API server.
func TestTakeStock(t *testing.T) {
	t.Parallel()
	c := controlplane.ForTest(t)
	if err := c.InstallOwn(t.Context()); err != nil {
		t.Fatal(err)
	}
	objects, err := c.Apply(t.Context(), "test", []byte(`
{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}
---
{apiVersion: hostedcluster.densityops.com/v1alpha1, kind: InfraClusterAttachment, metadata: {namespace: clusters, name: a}, spec: {
  infraRef: {name: vlan}, hostedClusterRef: {name: a}, dns: {clusterName: a, baseDomain: example.com}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	h := leadingHub(t)
	h.world, h.cfg.Log, h.stock = newWorld(nil, nil, nil), slog.New(slog.DiscardHandler), nil
	writer, err := client.New(c.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	asks := &noting{Client: writer, asked: make(chan struct{}, 3)} // as many as are asked for here
	h.client = asks
	if err := h.takeStock(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-asks.asked
	if got, want := h.stock.versions, versionsOf(objects[1]); !maps.Equal(got, want) {
		t.Errorf("the versions are %v, want %v", got, want)
	}
	if h.stock.version == "" || informer.Older(h.stock.version, objects[1].GetResourceVersion()) {
		t.Errorf("they are of version %q", h.stock.version)
	}
	select {
	case <-h.world.changed:
	default:
		t.Error("nothing is planned with it")
	}

	// The lead is lost while the API server is slow to answer, and another one is won.
	h.dropStock()
	if err := c.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	taken := make(chan error)
	go func() { taken <- h.takeStock(t.Context()) }()
	<-asks.asked
	h.dropStock()
	if err := c.APIServer.Thaw(); err != nil {
		t.Fatal(err)
	}
	if err := <-taken; err != nil || h.stock != nil {
		t.Errorf("the stock of one lead counts in the next: %v (%v)", h.stock, err)
	}

	if err := c.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := h.takeStock(t.Context()); err == nil || h.stock != nil {
		t.Error("there is a stock without an API server")
	}
}

func versionsOf(objects ...*unstructured.Unstructured) map[types.UID]string {
	versions := map[types.UID]string{}
	for _, o := range objects {
		versions[o.GetUID()] = o.GetResourceVersion()
	}
	return versions
}
