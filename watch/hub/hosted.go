package hub

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/appsingress"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
)

// What is made in a hosted cluster cannot be owned by an object of this one, so the attachment has a finalizer from before the
// first write there until nothing is left. It never holds up a deletion for longer than removalPatience while a hub
// runs; a hub that comes late takes removalTry at least.
const (
	removalPatience = 60 * time.Second
	removalTry      = 15 * time.Second
)

// eventLeft is the reason of the Event that says what was left in a hosted cluster.
const eventLeft = "LeftInHostedCluster"

// secret reads one Secret. It is never watched: the right to read is given for single names.
func (h *Hub) secret(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	if err := h.client.Get(ctx, key, secret); err != nil {
		return nil, err
	}
	return secret, nil
}

// lookInto hands over what is to be done inside hosted clusters, while this process leads.
func (h *Hub) lookInto(result *plan.Result) {
	if !h.isElected() {
		h.lookAway()
		return
	}
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	if h.stock == nil {
		h.letGo()
		h.wantStock()
		return
	}
	orders := h.orders(result)
	h.looking = true
	h.hosted.Set(orders)
}

// orders are what is to be done inside hosted clusters. The lock is held.
func (h *Hub) orders(result *plan.Result) []appsingress.Attachment {
	var all []appsingress.Attachment
	h.behind = false
	there := map[types.UID]string{}
	for a := range attachmentsOf(result) {
		has := slices.Contains(a.Object.Finalizers, v1alpha1.FinalizerAppsIngress)
		version, released := h.released[a.Object.UID]
		// A newer version is one from after the finalizer went: if it has one, it was put on again.
		released = released && has && !informer.Older(version, a.Object.ResourceVersion)
		if released {
			there[a.Object.UID] = version
		}
		work := a.Apps
		if h.stock.isAheadOf(a.Object) {
			h.behind = true
			continue
		}
		if released || work == nil || work.Gone || work.Waiting != "" && !work.Remove || !h.isMine(a) {
			continue
		}
		attachment := appsingress.Attachment{
			Key: a.Key(), UID: a.Object.UID, Kubeconfig: work.Kubeconfig, Addresses: work.Addresses, Port: work.Port,
			Waiting: work.Waiting, Hold: work.Hold != "", Unfinalized: !has, Remove: work.Remove,
		}
		if spec := a.Object.Spec.AppsIngress; spec != nil {
			attachment.Spec = *spec
		}
		if last := a.Object.Status.AppsIngressStatus; last != nil {
			attachment.Last = *last
		}
		all = append(all, attachment)
	}
	h.released = there // the others have no finalizer any more, or are gone
	return all
}

// lookAway lets go of all hosted clusters: another process has the lead, or nobody.
func (h *Hub) lookAway() {
	clear(h.remembered) // what others write counts from now on
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	h.letGo()
}

// beginTerm gives the lead that a plan is for. What was planned and ordered in one before is forgotten.
func (h *Hub) beginTerm() int64 {
	term := h.term.Load()
	if term != h.plannedTerm.Load() {
		h.lookAway()
	}
	return term
}

// letGo ends what is done inside hosted clusters. The lock is held.
func (h *Hub) letGo() {
	clear(h.released)
	h.behind = false
	if h.looking {
		h.looking = false
		h.hosted.Set(nil)
	}
}

// published are the VIPs that the last plan published; for a process that leads since a moment ago, those that the statuses tell of.
func (h *Hub) published(attachments []*v1alpha1.InfraClusterAttachment) map[types.NamespacedName]netip.Addr {
	vips := map[types.NamespacedName]netip.Addr{}
	if last := h.result.Load(); last != nil && h.looking {
		for a := range attachmentsOf(last) {
			if a.VIP().IsValid() {
				vips[a.Key()] = a.VIP()
			}
		}
		return vips
	}
	for _, a := range attachments {
		s := a.Status.AppsIngressStatus
		if !a.AppsEnabled() || !a.DeletionTimestamp.IsZero() || meta.IsStatusConditionFalse(a.Status.Conditions, v1alpha1.ConditionAccepted) {
			continue // what it shows is not published, though it may still be there
		}
		if c := meta.FindStatusCondition(a.Status.Conditions, v1alpha1.ConditionAppsIngressReady); c != nil && c.Reason == v1alpha1.ReasonRemoving {
			continue
		}
		if s == nil || s.Reason == v1alpha1.ReasonExternalIPDiscoveryFailed || s.Reason == v1alpha1.ReasonMetalLBInstallFailed {
			continue
		}
		if vip, err := netip.ParseAddr(s.ExternalIP); err == nil {
			vips[client.ObjectKeyFromObject(a)] = vip
		}
	}
	return vips
}

// isMine is false for an attachment of another Infra than the only one of this hub.
func (h *Hub) isMine(a *plan.Attachment) bool {
	only := h.cfg.Infra
	return only.Name == "" || only.Namespace == a.Object.Namespace && only.Name == a.Object.Spec.InfraRef.Name
}

// attachmentsOf are all attachments of a plan.
func attachmentsOf(result *plan.Result) iter.Seq[*plan.Attachment] {
	return func(yield func(*plan.Attachment) bool) {
		for _, infra := range result.Infras {
			for _, a := range infra.Attachments {
				if !yield(a) {
					return
				}
			}
		}
		for _, a := range slices.Concat(result.Orphans, result.Deleting) {
			if !yield(a) {
				return
			}
		}
	}
}

// writeFinalizer puts the finalizer on an attachment before anything is made in its hosted cluster, and takes it off when
// nothing is left there, or when the patience with a deletion ends.
func (h *Hub) writeFinalizer(ctx context.Context, a *plan.Attachment, object *v1alpha1.InfraClusterAttachment) error {
	has := slices.Contains(object.Finalizers, v1alpha1.FinalizerAppsIngress)
	switch work := a.Apps; {
	case work == nil:
		return nil
	case !work.Remove && !has && object.DeletionTimestamp.IsZero():
		if seen := h.hosted.Observed()[a.Key()]; seen.UID != object.UID || !seen.Made {
			return nil // nothing is there, and nothing to be made yet
		}
		_, err := h.setFinalizers(ctx, object, append(slices.Clone(object.Finalizers), v1alpha1.FinalizerAppsIngress))
		return err
	case !work.Remove || !has:
		return nil
	}
	free, left := h.release(object)
	if !free {
		return nil
	}
	finalizers := slices.DeleteFunc(slices.Clone(object.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerAppsIngress })
	if done, err := h.setFinalizers(ctx, object, finalizers); !done || err != nil {
		h.keep(object)
		return err
	}
	if left != nil {
		h.sayLeft(object, *left)
	}
	return nil
}

// release decides whether the finalizer goes from an attachment, and if so, that nothing more is made for it until that is
// seen. Left is what was seen last of what stays behind; nil: nothing does.
//
// Who asks goes by a plan and by the object as the watch has it. Neither need be of now, so the newest plan has the word, and only
// about the object as it was planned with: an attachment that was enabled again meanwhile keeps it.
func (h *Hub) release(object *v1alpha1.InfraClusterAttachment) (free bool, left *appsingress.Observation) {
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	a := planned(h.result.Load(), object.UID)
	if a == nil || a.Apps == nil || !a.Apps.Remove || a.Object.Generation != object.Generation || a.Object.DeletionTimestamp.IsZero() != object.DeletionTimestamp.IsZero() {
		return false, nil // the next plan is about it
	}
	seen := h.hosted.Observed()[a.Key()]
	if seen.UID != object.UID {
		seen = appsingress.Observation{}
	}
	if !a.Apps.Gone && !seen.Removed {
		if object.DeletionTimestamp.IsZero() {
			return false, nil // disabled: it is tried for as long as it takes
		}
		if patience := h.patienceWith(object); patience > 0 {
			h.queue.AddAfter(infraOf(object), patience)
			return false, nil
		}
		left = &seen
	}
	h.released[object.UID] = object.ResourceVersion
	return true, left
}

// keep undoes a release: the finalizer is still there.
func (h *Hub) keep(object *v1alpha1.InfraClusterAttachment) {
	h.deletingMu.Lock()
	delete(h.released, object.UID)
	h.deletingMu.Unlock()
	h.world.notify() // what is to be made there goes on
}

// planned is an attachment in a plan; nil: it is not there.
func planned(result *plan.Result, uid types.UID) *plan.Attachment {
	for a := range attachmentsOf(result) {
		if a.Object.UID == uid {
			return a
		}
	}
	return nil
}

// patienceWith is for how long a deletion may still be held up. The lock is held.
func (h *Hub) patienceWith(object *v1alpha1.InfraClusterAttachment) time.Duration {
	now := h.cfg.Clock()
	since, known := h.deleting[object.UID]
	if !known {
		since = now
		h.deleting[object.UID] = since
	}
	left := max(object.DeletionTimestamp.Add(removalPatience).Sub(now), since.Add(removalTry).Sub(now))
	return min(left, since.Add(removalPatience).Sub(now)) // whatever the API server's clock says
}

// forgetDeleted forgets attachments that are gone.
func (h *Hub) forgetDeleted(result *plan.Result) {
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	there := map[types.UID]bool{}
	for _, a := range result.Deleting {
		there[a.Object.UID] = true
	}
	for uid := range h.deleting {
		if !there[uid] {
			delete(h.deleting, uid)
		}
	}
}

// sayLeft says what is left in a hosted cluster that could not be cleaned up in time, and why, in the words of the look that was
// last.
func (h *Hub) sayLeft(object *v1alpha1.InfraClusterAttachment, seen appsingress.Observation) {
	message := fmt.Sprintf("left in the hosted cluster %s/%s, which could not be cleaned up within %s: ",
		object.HostedClusterNamespace(), object.Spec.HostedClusterRef.Name, removalPatience) +
		cmp.Or(seen.Status.Message, "what apps ingress made there; nobody could look")
	h.events.Event(object, corev1.EventTypeWarning, eventLeft, message)
	h.cfg.Log.Warn("an attachment goes, and leaves something behind", "attachment", client.ObjectKeyFromObject(object).String(), "message", message)
}

// setFinalizers changes nothing else of an attachment, and only the version that was read; done is false when there is another.
func (h *Hub) setFinalizers(ctx context.Context, object *v1alpha1.InfraClusterAttachment, finalizers []string) (done bool, err error) {
	changed := object.DeepCopy()
	changed.Finalizers = finalizers
	err = h.client.Patch(ctx, changed, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}), client.FieldOwner(process.FieldOwner))
	h.metrics.writes.Inc()
	switch {
	case apierrors.IsNotFound(err):
		return true, nil // and so it is gone
	case apierrors.IsConflict(err):
		h.queue.AddAfter(infraOf(object), firstRetry) // the watch is behind
		return false, nil
	case err != nil:
		return false, fmt.Errorf("finalizer of InfraClusterAttachment %s: %w", client.ObjectKeyFromObject(object), err)
	}
	return true, nil
}

func infraOf(a *v1alpha1.InfraClusterAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.InfraRef.Name}
}
