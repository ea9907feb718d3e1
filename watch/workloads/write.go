package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/plan"
)

// notOursError is about an object of a name that is needed, which belongs to somebody else.
type notOursError struct {
	key objectKey
	of  string
	// namedAfter is what has the name that the object's name is made from.
	namedAfter string
}

func (e *notOursError) Error() string {
	return fmt.Sprintf("%s belongs to %s: delete it, or give the %s another name", e.key, e.of, e.namedAfter)
}

// cachePatience is how long a watch may take to show what was written.
const cachePatience = 10 * time.Second

// errBehind: the watch does not show yet what the API server has.
var errBehind = errors.New("the watch is behind")

func isBehind(err error) bool { return errors.Is(err, errBehind) }

// appliedObject is an object as this process left it, or found it to be as it is wanted.
type appliedObject struct {
	uid types.UID
	// version is the generation, or the resourceVersion of a kind that has none: it moves when somebody edits the object.
	version string
	// before and after are the resourceVersions around the write, and events is how many the watch had shown before it.
	before, after string
	events        int64
	at            time.Time
}

// write brings what belongs to one Infra to what is wanted. One object that cannot be written holds up no other one,
// except that pods wait for all that they need. What is wrong with public Services is an error of its own: each is one
// attachment's.
func (w *Writer) write(ctx context.Context, key types.NamespacedName) (err, public error) {
	w.mu.Lock()
	want := w.infras[key]
	w.mu.Unlock()
	switch {
	case want == nil:
		return w.removeOrphans(ctx, key), nil
	case want.deleting():
		return nil, nil // owner references and removeOrphans take everything away
	case want.err != nil:
		return want.err, nil
	}
	var errs, publicErrs []error
	lacking := false
	for _, object := range want.objects {
		if object.isDeployment() && (lacking || w.waits(key, object)) {
			continue
		}
		err := w.writeObject(ctx, want, object)
		if object.isPublic() {
			w.noteUnwritten(object.key, err)
			publicErrs = append(publicErrs, err)
			continue
		}
		lacking = lacking || err != nil && object.isNeededByPods()
		errs = append(errs, err)
	}
	return errors.Join(append(errs, w.removeUnwanted(ctx, want))...), errors.Join(publicErrs...)
}

// noteUnwritten notes whether a public Service could be written. What the watch has yet to show is no news.
func (w *Writer) noteUnwritten(key objectKey, err error) {
	if isBehind(err) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.unwritten[key]
	if err == nil {
		delete(w.unwritten, key)
	} else {
		w.unwritten[key] = err
	}
	if (before == nil) != (err == nil) || err != nil && before.Error() != err.Error() {
		w.cfg.Changed()
	}
}

// Unwritten says why public Services cannot be written, by their names.
func (w *Writer) Unwritten() map[types.NamespacedName]plan.Refusal {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	refusals := map[types.NamespacedName]plan.Refusal{}
	for key, err := range w.unwritten {
		refusal := plan.Refusal{Reason: v1alpha1.ReasonWorkloadNotWritten, Message: oneLine(err)}
		if _, is := errors.AsType[*notOursError](err); is {
			refusal.Reason = v1alpha1.ReasonNotOurs
		}
		refusals[key.NamespacedName] = refusal
	}
	return refusals
}

// writeObject applies one object, unless it is there as it is wanted.
func (w *Writer) writeObject(ctx context.Context, want *wantedInfra, object *wantedObject) error {
	w.mu.Lock()
	there, events := w.there[object.key], w.events[object.key]
	last := w.applied[object.key]
	awaited := w.awaits(object.key)
	w.mu.Unlock()
	if awaited {
		w.queue.AddAfter(client.ObjectKeyFromObject(want.infra), cachePatience)
		return nil
	}
	uid := types.UID("")
	if there != nil {
		if err := ownedBy(want.infra, object, there); err != nil {
			return err
		}
		if !there.GetDeletionTimestamp().IsZero() {
			return nil // it is made anew when it is gone
		}
		if object.isIn(there, last) {
			w.noteSeen(object.key, there)
			return nil
		}
		uid = there.GetUID()
	} else {
		// The watch sees what has our label. What has it no longer, or never had it, is not to be overwritten unseen.
		unseen, err := w.find(ctx, object)
		if err != nil {
			return err
		}
		if unseen != nil {
			if err := ownedBy(want.infra, object, unseen); err != nil {
				return err
			}
			if !unseen.GetDeletionTimestamp().IsZero() {
				return fmt.Errorf("%s is being deleted", object.key)
			}
			uid, there = unseen.GetUID(), unseen
		}
	}
	return w.apply(ctx, want, object, there, uid, events)
}

// awaits tells whether the watch has still to show that an object was written. The lock is held.
func (w *Writer) awaits(key objectKey) bool {
	a, written := w.applied[key]
	return written && a.before != a.after && a.events == w.events[key] && w.cfg.Clock().Sub(a.at) < cachePatience
}

// ownedBy is nil for an object that is this Infra's to write: the Infra controls it, or shares it, or nobody controls it and
// its labels say that it is this Infra's, or shared.
func ownedBy(infra *v1alpha1.Infra, wanted *wantedObject, there client.Object) error {
	controller := metav1.GetControllerOfNoCopy(there)
	switch {
	case controller != nil && controller.UID == infra.UID:
		return nil
	case controller != nil && controller.Kind == "Infra" && controller.Name == infra.Name && wanted.isControlled():
		return fmt.Errorf("%s belongs to an Infra of this name that is gone: it is written anew when the garbage collector has taken it away", wanted.key)
	case controller != nil && wanted.isPublic() && controller.Kind == "Infra" && !there.GetDeletionTimestamp().IsZero():
		return fmt.Errorf("%s is still that of Infra %s, which the attachment has left: it is made anew when it is gone", wanted.key, controller.Name)
	case controller != nil:
		return &notOursError{wanted.key, controller.Kind + " " + controller.Name, wanted.namedAfter()}
	}
	if !wanted.isControlled() && slices.ContainsFunc(there.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == infra.UID }) {
		return nil
	}
	labels := []string{v1alpha1.LabelInfra, v1alpha1.LabelInfraNamespace}
	if wanted.object.GetLabels()[v1alpha1.LabelInfra] == "" {
		labels = []string{workload.LabelManagedBy, v1alpha1.LabelInfra}
	}
	for _, label := range labels {
		if there.GetLabels()[label] != wanted.object.GetLabels()[label] {
			return &notOursError{wanted.key, "somebody else, by its labels", wanted.namedAfter()}
		}
	}
	return nil
}

// find looks for an object in the API server itself; nil: there is none. Listing needs no right that the watch does not need.
// Of all but Services it is the metadata alone.
func (w *Writer) find(ctx context.Context, object *wantedObject) (client.Object, error) {
	metadata := &metav1.PartialObjectMetadataList{}
	metadata.SetGroupVersionKind(object.gvk.GroupVersion().WithKind(object.gvk.Kind + "List"))
	var list client.ObjectList = metadata
	services := &corev1.ServiceList{}
	if _, is := object.object.(*corev1.Service); is {
		list = services
	}
	err := w.client.List(ctx, list, client.InNamespace(object.key.Namespace), client.MatchingFields{metav1.ObjectNameField: object.key.Name})
	switch {
	case err != nil:
		return nil, fmt.Errorf("look for %s: %w", object.key, err)
	case len(services.Items) > 0:
		return &services.Items[0], nil
	case len(metadata.Items) > 0:
		return &metadata.Items[0], nil
	}
	return nil, nil
}

// apply applies an object: over the one of that UID and no other one, or, without a UID, where there is none.
func (w *Writer) apply(ctx context.Context, want *wantedInfra, object *wantedObject, there client.Object, uid types.UID, events int64) error {
	u := &unstructured.Unstructured{Object: object.contentFor(there)}
	if service, is := there.(*corev1.Service); is {
		version, err := w.clear(ctx, object, service)
		if err != nil {
			return err
		}
		// What somebody has added meanwhile is seen first: the admission policy would refuse to leave it.
		u.SetResourceVersion(version)
	}
	options := []client.ApplyOption{client.FieldOwner(workload.FieldOwner(want.infra, object.object))}
	if uid != "" {
		u.SetUID(uid)
		options = append(options, client.ForceOwnership)
	}
	now := w.cfg.Clock()
	err := w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), options...)
	w.cfg.Writes.Inc()
	switch {
	case apierrors.IsNotFound(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil // the namespace is not there yet, or going
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s: %w: %w", object.key, errBehind, err) // gone, made anew, or made by somebody just now
	case err != nil:
		return fmt.Errorf("apply %s: %w", object.key, err)
	}
	before := ""
	if there != nil {
		before = there.GetResourceVersion()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.applied[object.key] = appliedObject{uid: u.GetUID(), version: versionOf(u), before: before, after: u.GetResourceVersion(), events: events, at: now}
	w.wrote[client.ObjectKeyFromObject(want.infra)] = now
	if object.isDeployment() {
		w.turn = nil
	}
	return nil
}

// noteSeen remembers that an object is as it is wanted.
func (w *Writer) noteSeen(key objectKey, there client.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.applied[key].uid != there.GetUID() {
		w.applied[key] = appliedObject{uid: there.GetUID(), version: versionOf(there)}
	}
}

// removeUnwanted takes away what an Infra wanted once and wants no longer.
func (w *Writer) removeUnwanted(ctx context.Context, want *wantedInfra) error {
	infra := client.ObjectKeyFromObject(want.infra)
	var errs []error
	for _, object := range w.belongingTo(infra) {
		key := w.keyOf(object)
		if want.byKey[key] != nil || !object.GetDeletionTimestamp().IsZero() {
			continue
		}
		switch {
		case metav1.IsControlledBy(object, want.infra), belongsElsewhere(object, infra):
			errs = append(errs, w.remove(ctx, object))
		case slices.ContainsFunc(object.GetOwnerReferences(), func(o metav1.OwnerReference) bool { return o.UID == want.infra.UID }):
			errs = append(errs, w.letGo(ctx, want, object))
		}
	}
	return errors.Join(errs...)
}

// belongsElsewhere tells of an object outside the namespace of its Infra whether it is this Infra's.
func belongsElsewhere(object client.Object, infra types.NamespacedName) bool {
	l := object.GetLabels()
	return l[v1alpha1.LabelInfraNamespace] == infra.Namespace && l[v1alpha1.LabelInfra] == v1alpha1.LabelValue(infra.Name)
}

// belongingTo are the objects that say that they belong to an Infra, in order.
func (w *Writer) belongingTo(infra types.NamespacedName) []client.Object {
	w.mu.Lock()
	defer w.mu.Unlock()
	objects := w.belonging[types.NamespacedName{Namespace: infra.Namespace, Name: v1alpha1.LabelValue(infra.Name)}]
	keys := slices.SortedFunc(maps.Keys(objects), func(a, b objectKey) int {
		return cmp.Or(cmp.Compare(a.kind, b.kind), compareNames(a.NamespacedName, b.NamespacedName))
	})
	sorted := make([]client.Object, len(keys))
	for i, key := range keys {
		sorted[i] = objects[key]
	}
	return sorted
}

// remove deletes one object, and no other one of its name.
func (w *Writer) remove(ctx context.Context, object client.Object) error {
	uid := object.GetUID()
	err := w.client.Delete(ctx, object, client.Preconditions{UID: &uid})
	w.cfg.Writes.Inc()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) { // gone, or another one by now
		return fmt.Errorf("delete %s: %w", w.keyOf(object), err)
	}
	return nil
}

// letGo takes an Infra from the owners of an object that it shares; one without other owners is deleted.
func (w *Writer) letGo(ctx context.Context, want *wantedInfra, object client.Object) error {
	if len(object.GetOwnerReferences()) == 1 {
		return w.remove(ctx, object)
	}
	gvk, err := apiutil.GVKForObject(object, w.client.Scheme())
	if err != nil {
		return err
	}
	// Applying nothing takes away the fields that nobody else applies.
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(gvk)
	u.SetNamespace(object.GetNamespace())
	u.SetName(object.GetName())
	u.SetUID(object.GetUID())
	err = w.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(workload.FieldOwner(want.infra, object)), client.ForceOwnership)
	w.cfg.Writes.Inc()
	if err != nil && !apierrors.IsConflict(err) {
		return fmt.Errorf("let go of %s: %w", w.keyOf(object), err)
	}
	return nil
}

// removeOrphans takes away what an Infra that is gone left in other namespaces, where nothing can be owned. That the Infra
// is gone is what the API says, not the watch.
func (w *Writer) removeOrphans(ctx context.Context, infra types.NamespacedName) error {
	if w.cfg.Infra.Name != "" && v1alpha1.LabelValue(infra.Name) != v1alpha1.LabelValue(w.cfg.Infra.Name) {
		return nil
	}
	orphans := slices.DeleteFunc(w.belongingTo(infra), func(o client.Object) bool {
		return !belongsElsewhere(o, infra) || !o.GetDeletionTimestamp().IsZero()
	})
	if len(orphans) == 0 {
		return nil
	}
	var infras v1alpha1.InfraList
	if err := w.client.List(ctx, &infras, client.InNamespace(infra.Namespace)); err != nil {
		return fmt.Errorf("look for Infra %s: %w", infra, err)
	}
	if slices.ContainsFunc(infras.Items, func(i v1alpha1.Infra) bool { return belongsElsewhere(orphans[0], client.ObjectKeyFromObject(&i)) }) {
		return nil
	}
	var errs []error
	for _, object := range orphans {
		errs = append(errs, w.remove(ctx, object))
	}
	return errors.Join(errs...)
}

// deployment is an Infra's as it is there; nil: there is none. The lock is held.
func (w *Writer) deployment(infra types.NamespacedName) *appsv1.Deployment {
	there, _ := w.there[objectKey{"Deployment", types.NamespacedName{Namespace: infra.Namespace, Name: v1alpha1.VLANName(infra.Name)}}].(*appsv1.Deployment)
	return there
}
