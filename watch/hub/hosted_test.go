package hub

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
	"github.com/densityops/oooi/watch/appsingress"
	"github.com/densityops/oooi/watch/plan"
)

// leadingHub is a Hub that leads, for what it decides about hosted clusters: it talks to nobody, and its Secrets do not exist.
func leadingHub(t *testing.T) *Hub {
	t.Helper()
	h := &Hub{
		lock: &timedLock{}, cfg: Config{Clock: time.Now},
		queue:      workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[types.NamespacedName]()),
		remembered: map[types.UID]v1alpha1.InfraClusterAttachmentStatus{}, deleting: map[types.UID]time.Time{}, released: map[types.UID]string{},
		stock: &stock{},
	}
	t.Cleanup(h.queue.ShutDown)
	now := time.Now().Add(time.Hour) // of a lead that lasts for the test
	h.lock.renewed.Store(&now)
	h.elected.Store(true)
	h.hosted = appsingress.New(appsingress.Config{Secret: func(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
		return nil, apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
	}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.hosted.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

// attached is an attachment with our finalizer.
func attached(uid types.UID, generation int64) *v1alpha1.InfraClusterAttachment {
	return &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters", Name: "a", UID: uid, Generation: generation, Finalizers: []string{v1alpha1.FinalizerAppsIngress},
	}}
}

// resultOf is a plan of one attachment.
func resultOf(object *v1alpha1.InfraClusterAttachment, work plan.AppsWork) *plan.Result {
	return &plan.Result{Orphans: []*plan.Attachment{{Object: object, Apps: &work}}}
}

// look hands a plan over, and waits until its attachment was looked at.
func (h *Hub) look(t *testing.T, result *plan.Result) appsingress.Observation {
	t.Helper()
	h.result.Store(result)
	h.lookInto(result)
	a := result.Orphans[0]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var o appsingress.Observation
	if err := stack.Until(ctx, "an observation", func(context.Context) error {
		if o = h.hosted.Observed()[a.Key()]; o.UID != a.Object.UID {
			return fmt.Errorf("there is %+v", o)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestAnAttachmentThatIsMadeAnewInheritsNothing of the one before, whose hosted cluster may be another.
func TestAnAttachmentThatIsMadeAnewInheritsNothing(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	first := attached("1", 1)
	first.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhaseReady, ExternalIP: "192.0.2.9"}
	h.look(t, resultOf(first, plan.AppsWork{}))
	h.remember(&plan.Result{Infras: []*plan.Infra{{Attachments: []*plan.Attachment{{
		Object: first, Status: v1alpha1.InfraClusterAttachmentStatus{ExternalService: &v1alpha1.ExternalServiceStatus{Port: 20000}},
	}}}}})
	for _, test := range []struct {
		uid  types.UID
		same bool
	}{{"1", true}, {"2", false}} {
		objects := plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attached(test.uid, 1)}}
		h.recall(&objects)
		status := objects.Attachments[0].Status
		if apps := status.AppsIngressStatus; (apps != nil && apps.ExternalIP == "192.0.2.9") != test.same {
			t.Errorf("UID %s: apps ingress %+v", test.uid, apps)
		}
		if external := status.ExternalService; (external != nil && external.Port == 20000) != test.same {
			t.Errorf("UID %s: external %+v", test.uid, external)
		}
	}
	h.lookAway()
	objects := plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attached("1", 1)}}
	if h.recall(&objects); objects.Attachments[0].Status.ExternalService != nil {
		t.Error("what was planned before another process had the lead is remembered")
	}
}

// TestRelease: a finalizer goes by the newest plan alone, of the object as it is, and what was seen of this very attachment.
func TestRelease(t *testing.T) {
	t.Parallel()
	deleted := attached("1", 2)
	deleted.DeletionTimestamp = &metav1.Time{Time: time.Now()}
	late := attached("1", 2)
	late.DeletionTimestamp = &metav1.Time{Time: time.Now().Add(-time.Hour)}
	for _, test := range []struct {
		name    string
		planned *plan.Result
		object  *v1alpha1.InfraClusterAttachment
		free    bool
	}{
		{"the HostedCluster is gone", resultOf(attached("1", 1), plan.AppsWork{Remove: true, Gone: true}), attached("1", 1), true},
		{"enabled again, and planned", resultOf(attached("1", 2), plan.AppsWork{}), attached("1", 2), false},
		{"enabled again, and not planned yet", resultOf(attached("1", 1), plan.AppsWork{Remove: true, Gone: true}), attached("1", 2), false},
		{"deleted, and not planned yet", resultOf(attached("1", 1), plan.AppsWork{Remove: true}), deleted, false},
		{"made anew", resultOf(attached("1", 1), plan.AppsWork{Remove: true, Gone: true}), attached("2", 1), false},
		{"disabled, and not removed yet", resultOf(attached("1", 1), plan.AppsWork{Remove: true}), attached("1", 1), false},
		{"deleted just now", resultOf(deleted, plan.AppsWork{Remove: true}), deleted, false},
	} {
		h := leadingHub(t)
		h.result.Store(test.planned)
		if free, left := h.release(test.object); free != test.free || left != nil {
			t.Errorf("%s: %v, left %+v", test.name, free, left)
		}
	}
	// The patience is over for this process, too.
	h := leadingHub(t)
	h.deleting["1"] = time.Now().Add(-time.Hour)
	h.look(t, resultOf(late, plan.AppsWork{Remove: true}))
	if free, left := h.release(late); !free || left == nil || len(left.Left) == 0 {
		t.Errorf("%v, left %+v", free, left)
	}
}

// TestNothingIsMadeWhileAFinalizerGoes: a plan that comes meanwhile, or that was made of an object of before, starts nothing.
func TestNothingIsMadeWhileAFinalizerGoes(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	h.world = newWorld(nil, nil, nil)
	object := attached("1", 1)
	removing := resultOf(object, plan.AppsWork{Remove: true, Gone: true})
	enabled := resultOf(object, plan.AppsWork{})
	h.look(t, enabled)
	h.result.Store(removing)
	if free, _ := h.release(object); !free {
		t.Fatal("the finalizer stays")
	}
	h.lookInto(enabled)
	if seen := h.hosted.Observed(); len(seen) > 0 {
		t.Errorf("looked at: %v", seen)
	}
	// It could not be taken off: all goes on.
	h.keep(object)
	h.look(t, enabled)
	// It was taken off, and is put on again.
	h.result.Store(removing)
	h.release(object)
	h.lookInto(removing)
	without := attached("1", 1)
	without.Finalizers = nil
	h.lookInto(resultOf(without, plan.AppsWork{}))
	h.look(t, enabled)
	// Somebody put it on again before it was seen without.
	h.result.Store(removing)
	object.ResourceVersion = "7"
	h.release(object)
	h.lookInto(enabled)
	if seen := h.hosted.Observed(); len(seen) > 0 {
		t.Errorf("looked at as it was: %v", seen)
	}
	again := attached("1", 1)
	again.ResourceVersion = "9"
	h.look(t, resultOf(again, plan.AppsWork{}))
	// Another process had the lead meanwhile.
	h.result.Store(removing)
	h.release(object)
	h.lookAway()
	h.look(t, enabled)
}

// TestPublished: what the last plan published counts; a process that leads since a moment ago goes by the statuses.
func TestPublished(t *testing.T) {
	t.Parallel()
	h := leadingHub(t)
	object := attached("1", 1)
	object.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhaseDegraded, Reason: v1alpha1.ReasonHostedClusterAccessFailed, ExternalIP: "192.0.2.9"}
	refused := attached("2", 1)
	refused.Name = "b"
	refused.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhaseDegraded, Reason: v1alpha1.ReasonExternalIPDiscoveryFailed, ExternalIP: "192.0.2.9"}
	removed := attached("3", 1)
	removed.Name, removed.Status.AppsIngressStatus = "c", object.Status.AppsIngressStatus
	leftOut := attached("4", 1)
	leftOut.Name, leftOut.Status.AppsIngressStatus = "d", object.Status.AppsIngressStatus
	leftOut.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionFalse}}
	going := attached("5", 1)
	going.Name, going.Status.AppsIngressStatus = "e", object.Status.AppsIngressStatus
	going.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionAppsIngressReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonRemoving}}
	for _, a := range []*v1alpha1.InfraClusterAttachment{object, refused, leftOut, going} {
		a.Spec.AppsIngress = &v1alpha1.AppsIngress{Enabled: true}
	}
	if got, want := fmt.Sprint(h.published([]*v1alpha1.InfraClusterAttachment{object, refused, removed, leftOut, going})), "map[clusters/a:192.0.2.9]"; got != want {
		t.Errorf("after a start: got %s, want %s", got, want)
	}
	h.look(t, resultOf(object, plan.AppsWork{})) // which publishes nothing
	if got := h.published([]*v1alpha1.InfraClusterAttachment{object, refused}); len(got) > 0 {
		t.Errorf("after a plan that publishes nothing: %v", got)
	}
}
