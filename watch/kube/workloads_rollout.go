package kube

import (
	"errors"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/plan"
)

// Upgrades. An installation that changes (a new image, say) changes the pods of every Infra, and pods that start anew
// cut the streams of their VLAN. So they go one Infra at a time, in the order of namespace and name, and the next one goes
// when all pods of the one before are ready. The first that does not get ready ends it there, until its pods are ready or
// another release is installed. Infras whose pods are not all ready before come last and hold up nobody: nothing can be
// learned from them, and they must not keep a fix from the rest. What an Infra itself asks for goes at once, and so does the
// first Deployment of an Infra.
//
// The order needs no memory: what is done is in the annotations of the Deployments, for another leader as well.

// changesRelease tells whether a Deployment is to have another spec than it was given last.
func changesRelease(wanted *wantedObject, there *appsv1.Deployment) bool {
	return wanted.object.GetAnnotations()[workload.AnnotationReleaseHash] != there.Annotations[workload.AnnotationReleaseHash]
}

// upgrades tells whether it is only the installation that wants another spec.
func upgrades(wanted *wantedObject, there *appsv1.Deployment) bool {
	return changesRelease(wanted, there) &&
		wanted.object.GetAnnotations()[workload.AnnotationInfraHash] == there.Annotations[workload.AnnotationInfraHash]
}

// wasUpgraded tells whether the present spec of a Deployment came by an upgrade while all its pods were ready.
func wasUpgraded(there *appsv1.Deployment) bool {
	to := there.Annotations[annotationUpgraded]
	return to != "" && to == there.Annotations[workload.AnnotationReleaseHash]
}

// rolledOut tells whether all pods of a Deployment are as its spec says, and ready.
func rolledOut(d *appsv1.Deployment) bool {
	s := &d.Status
	return s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == replicas(d) && s.Replicas == replicas(d) && s.AvailableReplicas == replicas(d)
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// sameDeployment tells whether nothing has changed of what is said about a Deployment.
func sameDeployment(a, b any) bool {
	x, isX := a.(*appsv1.Deployment)
	y, isY := b.(*appsv1.Deployment)
	return isX && isY && x.Generation == y.Generation && equality.Semantic.DeepEqual(x.Annotations, y.Annotations) &&
		x.DeletionTimestamp.IsZero() == y.DeletionTimestamp.IsZero() && equality.Semantic.DeepEqual(x.Status, y.Status)
}

// waits tells whether the Deployment of an Infra has to wait for its turn, and notes it.
func (w *workloads) waits(infra types.NamespacedName, wanted *wantedObject) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.waiting, infra)
	there := w.deployment(infra)
	if there == nil || !upgrades(wanted, there) {
		return false
	}
	if first, _ := w.first(); first == infra {
		return false
	}
	w.waiting[infra] = true
	return true
}

// turn is the Infra whose turn it is to be upgraded: one that is being upgraded, or else the next one of those that are pending,
// which are all that are to be upgraded.
type turn struct {
	first   types.NamespacedName
	pending int
	at      time.Time
}

// first tells whose turn it is, and how many are pending. The lock is held.
func (w *workloads) first() (types.NamespacedName, int) {
	// That a watch is late ends with time.
	if now := w.clock(); w.turn == nil || now.Sub(w.turn.at) >= time.Second {
		w.turn = w.findTurn()
		w.turn.at = now
	}
	return w.turn.first, w.turn.pending
}

func (w *workloads) findTurn() *turn {
	var ready, others, under []types.NamespacedName
	for infra, want := range w.infras {
		d := want.deployment()
		there := w.deployment(infra)
		if d == nil || there == nil || want.deleting() || !there.DeletionTimestamp.IsZero() || ownedBy(want.infra, d, there) != nil {
			continue
		}
		switch {
		case w.awaits(d.key), wasUpgraded(there) && !rolledOut(there) && !upgrades(d, there):
			under = append(under, infra)
		case !upgrades(d, there):
		case rolledOut(there):
			ready = append(ready, infra)
		default:
			others = append(others, infra)
		}
	}
	for _, infras := range [][]types.NamespacedName{under, ready, others} {
		slices.SortFunc(infras, compareNames)
	}
	t := &turn{pending: len(ready) + len(others)}
	if all := slices.Concat(under, ready, others); len(all) > 0 {
		t.first = all[0]
	}
	return t
}

// deployment is the Deployment that an Infra wants; nil: none.
func (i *wantedInfra) deployment() *wantedObject {
	for _, o := range i.objects {
		if o.isDeployment() {
			return o
		}
	}
	return nil
}

// upgradesPending is how many Infras wait to be upgraded, as far as this process decides it.
func (w *workloads) upgradesPending() float64 {
	if _, leads := w.leads(); !leads {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, pending := w.first()
	return float64(pending)
}

// condition says how the VLAN pods of an Infra are; nil: there are to be none.
func (w *workloads) condition(infra *plan.Infra) *metav1.Condition {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := w.infras[infra.Key()]
	said := meta.FindStatusCondition(infra.Object.Status.Conditions, v1alpha1.ConditionVLANPodsReady)
	c := &metav1.Condition{Type: v1alpha1.ConditionVLANPodsReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWorkloadNotWritten}
	switch {
	case want == nil:
		return said // of another Infra of this name, or not planned yet
	case w.settingsErr != nil:
		c.Message = w.settingsErr.Error()
		return c
	case !w.complete() && w.clock().Sub(w.started) < readPatience:
		return said
	case !w.complete():
		c.Message = "what is there cannot be read from the API server: see the log of the hub"
		return c
	}
	if err := w.failures[infra.Key()]; err != nil {
		if _, is := errors.AsType[*notOursError](err); is {
			c.Reason = v1alpha1.ReasonNotOurs
		}
		c.Message = oneLine(err)
		return c
	}
	d := want.deployment()
	if d == nil {
		if want.deleting() {
			return said
		}
		return nil
	}
	there := w.deployment(infra.Key())
	if there == nil {
		c.Message = "the Deployment is not written yet"
		return c
	}
	w.judge(c, infra.Key(), d, there)
	return c
}

// judge fills in a condition about a Deployment that is there. The lock is held.
func (w *workloads) judge(c *metav1.Condition, infra types.NamespacedName, wanted *wantedObject, there *appsv1.Deployment) {
	first, pending := w.first()
	waits := upgrades(wanted, there) && first != infra
	c.Message = counts(there)
	switch progressing := deploymentCondition(there, appsv1.DeploymentProgressing); {
	case rolledOut(there):
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonReady
		if waits {
			c.Reason = v1alpha1.ReasonUpgradeWaiting
		}
	case progressing != nil && progressing.Status == corev1.ConditionFalse && progressing.Reason == "ProgressDeadlineExceeded":
		c.Reason = v1alpha1.ReasonProgressDeadlineExceeded
		c.Message += ": " + progressing.Message
	default:
		c.Reason = v1alpha1.ReasonPodsNotReady
	}
	if failure := deploymentCondition(there, appsv1.DeploymentReplicaFailure); failure != nil && failure.Status == corev1.ConditionTrue {
		c.Message += ": " + failure.Message
	}
	switch {
	case waits:
		c.Message += "; the upgrade waits for Infra " + first.String()
		if ahead := w.deployment(first); ahead != nil && !rolledOut(ahead) {
			c.Message += ", where " + counts(ahead)
		}
	case first == infra && wasUpgraded(there) && pending > 0:
		c.Message += fmt.Sprintf("; the upgrade of other Infras waits for it: %d", pending)
	}
	if c.Status == metav1.ConditionFalse {
		// A missing NetworkAttachmentDefinition, an image, a node: only the pods know.
		c.Message += fmt.Sprintf("; why says kubectl -n %s describe pod -l %s=%s", infra.Namespace, v1alpha1.LabelInfra, v1alpha1.LabelValue(infra.Name))
	}
}

// counts says how many pods there are, and how many there should be.
func counts(d *appsv1.Deployment) string {
	if rolledOut(d) {
		return fmt.Sprintf("%d of %d VLAN pods are ready", d.Status.AvailableReplicas, replicas(d))
	}
	updated := d.Status.UpdatedReplicas
	if d.Status.ObservedGeneration < d.Generation {
		updated = 0
	}
	return fmt.Sprintf("%d of %d VLAN pods are ready, %d of %d are up to date", d.Status.AvailableReplicas, replicas(d), updated, replicas(d))
}

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	if i := slices.IndexFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind }); i >= 0 {
		return &d.Status.Conditions[i]
	}
	return nil
}
