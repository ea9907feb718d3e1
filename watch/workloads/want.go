package workloads

import (
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/plan"
)

// wantedInfra is what an Infra wants to be there.
type wantedInfra struct {
	infra       *v1alpha1.Infra
	attachments workload.Attachments
	settings    *workload.Settings

	objects []*wantedObject // in the order in which they are written
	byKey   map[objectKey]*wantedObject
	err     error // why nothing is known to be wanted
}

func (i *wantedInfra) deleting() bool { return !i.infra.DeletionTimestamp.IsZero() }

// Planned takes in what a plan wants.
func (w *Writer) Planned(result *plan.Result) {
	if w == nil {
		return
	}
	_, leads := w.cfg.Lead()
	w.mu.Lock()
	defer w.mu.Unlock()
	var dirty []types.NamespacedName
	infras := map[types.NamespacedName]*wantedInfra{}
	for _, infra := range result.Infras {
		key := infra.Key()
		if w.cfg.Infra.Name != "" && key != w.cfg.Infra {
			continue
		}
		infras[key] = w.want(infra, w.infras[key])
		if infras[key] != w.infras[key] {
			dirty = append(dirty, key)
			w.queue.Forget(key)
		}
	}
	for key := range w.infras {
		if infras[key] == nil {
			dirty = append(dirty, key)
			w.queue.Forget(key)
			delete(w.failures, key)
			delete(w.waiting, key)
			delete(w.wrote, key)
		}
	}
	w.infras, w.turn = infras, nil
	maps.DeleteFunc(w.unwritten, func(key objectKey, _ error) bool {
		for _, want := range infras {
			if want.byKey[key] != nil {
				return false
			}
		}
		return true
	})
	if !leads || !w.complete() {
		w.missed = true
		return
	}
	if w.missed { // what another leader has met meanwhile is not known
		w.missed = false
		dirty = slices.Collect(maps.Keys(infras))
		for key, object := range w.there {
			dirty = append(dirty, w.concerned(key, object)...)
		}
		for key := range w.failures {
			w.queue.Forget(key)
		}
	}
	if len(dirty) > 0 {
		dirty = slices.AppendSeq(dirty, maps.Keys(w.waiting))
	}
	slices.SortFunc(dirty, compareNames)
	for _, key := range slices.Compact(dirty) {
		w.queue.Add(key)
	}
}

// want is what an Infra of a plan wants; the one before, when nothing has changed that it depends on. The lock is held.
func (w *Writer) want(infra *plan.Infra, before *wantedInfra) *wantedInfra {
	now := &wantedInfra{infra: infra.Object, settings: w.settings, attachments: w.attachmentsOf(infra), byKey: map[objectKey]*wantedObject{}}
	if before != nil && before.settings == now.settings && before.infra.UID == now.infra.UID && before.infra.Generation == now.infra.Generation &&
		before.deleting() == now.deleting() && equality.Semantic.DeepEqual(before.attachments, now.attachments) {
		return before
	}
	if w.settings != nil && !now.deleting() {
		now.err = w.build(now)
	}
	return now
}

// attachmentsOf are what an Infra's objects depend on besides the Infra itself.
func (w *Writer) attachmentsOf(infra *plan.Infra) workload.Attachments {
	var of workload.Attachments
	for _, a := range infra.Attachments {
		if namespace := a.Object.ControlPlaneNamespace(); a.LeftOut == nil && w.cfg.HasNamespace(namespace) {
			of.ControlPlanes = append(of.ControlPlanes, namespace)
		}
		if public := a.Object.Spec.ExternalService; a.External != nil {
			of.External = append(of.External, workload.External{
				Attachment: a.Object.Name, Port: a.External.Port, AddressPool: public.AddressPoolName,
				Labels: public.Labels, Annotations: public.Annotations,
			})
		}
	}
	slices.Sort(of.ControlPlanes)
	of.ControlPlanes = slices.Compact(of.ControlPlanes)
	return of
}

func (w *Writer) build(want *wantedInfra) error {
	objects, err := workload.Build(want.infra, want.attachments, *want.settings)
	if err != nil {
		return err
	}
	for _, object := range objects {
		o, err := newWantedObject(w.keyOf(object), want.infra, object)
		if err != nil {
			return err
		}
		want.objects = append(want.objects, o)
		want.byKey[o.key] = o
	}
	return nil
}

// complete tells whether everything is known that must be before something is written: the objects that are there, the
// settings, and a plan. The lock is held.
func (w *Writer) complete() bool { return w.infras != nil && w.settings != nil && w.synced() }
