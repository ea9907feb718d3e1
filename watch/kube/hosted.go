package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/appsingress"
	"github.com/densityops/oooi/watch/plan"
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
	if !h.Leading() {
		h.lookAway()
		return
	}
	var all []appsingress.Attachment
	for a := range attachmentsOf(result) {
		work := a.Apps
		if work == nil || work.Gone || work.Waiting != "" && !work.Remove || !h.isMine(a) || !slices.Contains(a.Object.Finalizers, v1alpha1.FinalizerAppsIngress) {
			continue
		}
		attachment := appsingress.Attachment{
			Key: a.Key(), Kubeconfig: work.Kubeconfig, Addresses: work.Addresses, Port: work.Port,
			Waiting: work.Waiting, Hold: work.Hold != "", Remove: work.Remove,
		}
		if spec := a.Object.Spec.AppsIngress; spec != nil {
			attachment.Spec = *spec
		}
		if last := a.Object.Status.AppsIngressStatus; last != nil {
			attachment.Last = *last
		}
		all = append(all, attachment)
	}
	h.looking = true
	h.hosted.Set(all)
}

// lookAway lets go of all hosted clusters: another process has the lead, or nobody.
func (h *Hub) lookAway() {
	if h.looking {
		h.looking = false
		h.hosted.Set(nil)
	}
}

// isMine is false for an attachment of another Infra than the only one of this hub.
func (h *Hub) isMine(a *plan.Attachment) bool {
	only := h.cfg.Infra
	return only.Name == "" || only.Namespace == a.Object.Namespace && only.Name == a.Object.Spec.InfraRef.Name
}

// attachmentsOf are all attachments of a plan.
func attachmentsOf(result *plan.Result) func(yield func(*plan.Attachment) bool) {
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
	case !work.Remove && !has && work.Waiting == "" && work.Hold == "" && object.DeletionTimestamp.IsZero():
		return h.setFinalizers(ctx, object, append(slices.Clone(object.Finalizers), v1alpha1.FinalizerAppsIngress))
	case !work.Remove || !has:
		return nil
	}
	seen := h.hosted.Observed()[a.Key()]
	if !a.Apps.Gone && !seen.Removed {
		if object.DeletionTimestamp.IsZero() {
			return nil // disabled: it is tried for as long as it takes
		}
		if left := h.patienceWith(object); left > 0 {
			h.queue.AddAfter(infraOf(object), left)
			return nil
		}
		h.sayLeft(object, seen)
	}
	return h.setFinalizers(ctx, object, slices.DeleteFunc(slices.Clone(object.Finalizers), func(f string) bool { return f == v1alpha1.FinalizerAppsIngress }))
}

// patienceWith is for how long a deletion may still be held up.
func (h *Hub) patienceWith(object *v1alpha1.InfraClusterAttachment) time.Duration {
	now := h.cfg.Clock()
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
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

// sayLeft says what is left in a hosted cluster that could not be cleaned up in time.
func (h *Hub) sayLeft(object *v1alpha1.InfraClusterAttachment, seen appsingress.Observation) {
	left := "what apps ingress made there"
	if len(seen.Left) > 0 {
		left = strings.Join(seen.Left, ", ")
	}
	message := fmt.Sprintf("left in the hosted cluster %s/%s, which could not be cleaned up within %s: %s",
		object.HostedClusterNamespace(), object.Spec.HostedClusterRef.Name, removalPatience, left)
	if seen.Status.Message != "" {
		message += " (" + seen.Status.Message + ")"
	}
	h.events.Event(object, corev1.EventTypeWarning, eventLeft, message)
	h.cfg.Log.Warn("an attachment goes, and leaves something behind", "attachment", client.ObjectKeyFromObject(object).String(), "message", message)
}

// setFinalizers changes nothing else of an attachment, and only the version that was read.
func (h *Hub) setFinalizers(ctx context.Context, object *v1alpha1.InfraClusterAttachment, finalizers []string) error {
	changed := object.DeepCopy()
	changed.Finalizers = finalizers
	err := h.client.Patch(ctx, changed, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{}), client.FieldOwner(fieldOwner))
	h.metrics.writes.Inc()
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case apierrors.IsConflict(err):
		h.queue.AddAfter(infraOf(object), firstRetry) // the watch is behind
		return nil
	case err != nil:
		return fmt.Errorf("finalizer of InfraClusterAttachment %s: %w", client.ObjectKeyFromObject(object), err)
	}
	return nil
}

func infraOf(a *v1alpha1.InfraClusterAttachment) types.NamespacedName {
	return types.NamespacedName{Namespace: a.Namespace, Name: a.Spec.InfraRef.Name}
}
