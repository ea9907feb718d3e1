package workloads

import (
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/deploy/workload"
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
func (w *Writer) waits(infra types.NamespacedName, wanted *wantedObject) bool {
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
func (w *Writer) first() (types.NamespacedName, int) {
	// That a watch is late ends with time.
	if now := w.cfg.Clock(); w.turn == nil || now.Sub(w.turn.at) >= time.Second {
		w.turn = w.findTurn()
		w.turn.at = now
	}
	return w.turn.first, w.turn.pending
}

func (w *Writer) findTurn() *turn {
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
func (w *Writer) upgradesPending() float64 {
	if _, leads := w.cfg.Lead(); !leads {
		return 0
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	_, pending := w.first()
	return float64(pending)
}
