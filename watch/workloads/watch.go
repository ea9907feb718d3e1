package workloads

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/informer"
)

const (
	// watchRetry is after what time a kind that cannot be watched is tried again.
	watchRetry = 5 * time.Second
	// readPatience is how long the objects of VLAN pods may take to be read before it is said that they are not.
	readPatience = 10 * time.Second
)

// objectKey names an object of any kind.
type objectKey struct {
	kind string
	types.NamespacedName
}

func (k objectKey) String() string { return k.kind + " " + k.NamespacedName.String() }

// watch starts an informer for each kind, and has everything planned again when all have been read, or when they should have
// been.
func (w *Writer) watch(ctx context.Context) {
	var registrations []toolscache.ResourceEventHandlerRegistration
	for _, object := range kinds() {
		for {
			registration, err := w.watchKind(ctx, object)
			if err == nil {
				registrations = append(registrations, registration)
				break
			}
			w.cfg.Log.Warn("a kind of the VLAN pods' objects cannot be watched yet, trying again", "kind", fmt.Sprintf("%T", object), "error", err)
			select {
			case <-ctx.Done():
				return
			case <-time.After(watchRetry):
			}
		}
	}
	w.mu.Lock()
	w.registrations = registrations
	w.mu.Unlock()
	late := time.NewTimer(readPatience)
	defer late.Stop()
	for _, r := range registrations {
		for synced := false; !synced; {
			select {
			case <-ctx.Done():
				return
			case <-late.C:
				w.cfg.Log.Warn("the objects of VLAN pods cannot be read yet: nothing is written to them")
				w.cfg.Changed()
			case <-r.HasSyncedChecker().Done():
				synced = true
			}
		}
	}
	w.cfg.Changed()
}

func (w *Writer) watchKind(ctx context.Context, object client.Object) (toolscache.ResourceEventHandlerRegistration, error) {
	watched, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	return watched.AddEventHandler(informer.Handler(func(object client.Object) { w.note(object, true) }, func(object client.Object) { w.note(object, false) }))
}

// note takes in that an object is as it is now, or is there no longer.
func (w *Writer) note(object client.Object, there bool) {
	key := w.keyOf(object)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[key]++
	concerned := w.concerned(key, object)
	before, was := w.there[key]
	if was {
		concerned = append(concerned, w.concerned(key, before)...)
	}
	w.keep(key, object, there)
	if _, ok := object.(*appsv1.Deployment); ok {
		w.turn = nil
		concerned = append(concerned, slices.Collect(maps.Keys(w.waiting))...)
		if !was || !there || !sameDeployment(before, object) {
			w.cfg.Changed()
		}
	}
	w.enqueue(concerned...)
}

// keep has there and belonging hold an object, or no longer hold it. The lock is held.
func (w *Writer) keep(key objectKey, object client.Object, there bool) {
	if before, was := w.there[key]; was {
		for _, infra := range belongsTo(before) {
			delete(w.belonging[infra], key)
			if len(w.belonging[infra]) == 0 {
				delete(w.belonging, infra)
			}
		}
		delete(w.there, key)
	}
	if !there {
		return
	}
	w.there[key] = object
	for _, infra := range belongsTo(object) {
		if w.belonging[infra] == nil {
			w.belonging[infra] = map[objectKey]client.Object{}
		}
		w.belonging[infra][key] = object
	}
}

// belongsTo names the Infras that an object says it belongs to, by its owners and labels, with names as labels have them.
func belongsTo(object client.Object) []types.NamespacedName {
	var infras []types.NamespacedName
	for _, owner := range object.GetOwnerReferences() {
		if owner.Kind == "Infra" {
			infras = append(infras, types.NamespacedName{Namespace: object.GetNamespace(), Name: v1alpha1.LabelValue(owner.Name)})
		}
	}
	if label := object.GetLabels()[v1alpha1.LabelInfra]; label != "" {
		infras = append(infras, types.NamespacedName{Namespace: cmp.Or(object.GetLabels()[v1alpha1.LabelInfraNamespace], object.GetNamespace()), Name: label})
	}
	return infras
}

// concerned are the Infras that an object belongs to, or that want an object of its name; for one that does not exist, its name
// as a label. The lock is held.
func (w *Writer) concerned(key objectKey, object client.Object) []types.NamespacedName {
	belongs := belongsTo(object)
	var infras []types.NamespacedName
	for infra, want := range w.infras {
		label := types.NamespacedName{Namespace: infra.Namespace, Name: v1alpha1.LabelValue(infra.Name)}
		if i := slices.Index(belongs, label); i >= 0 {
			belongs[i] = infra
		} else if want.byKey[key] != nil {
			infras = append(infras, infra)
		}
	}
	infras = append(infras, belongs...)
	slices.SortFunc(infras, compareNames)
	return slices.Compact(infras)
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// synced tells whether all objects have been read. The lock is held.
func (w *Writer) synced() bool {
	return w.registrations != nil && !slices.ContainsFunc(w.registrations, func(r toolscache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
}

// keyOf names an object.
func (w *Writer) keyOf(object client.Object) objectKey {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if kind == "" { // as informers give it
		if gvks, _, err := w.client.Scheme().ObjectKinds(object); err == nil {
			kind = gvks[0].Kind
		}
	}
	return objectKey{kind, client.ObjectKeyFromObject(object)}
}
