package informer

import (
	"reflect"

	"k8s.io/apimachinery/pkg/util/resourceversion"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// lastApplied is kubectl's own note; it can be as large as the object.
const lastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// Strip takes from an object what nobody reads of any kind, before a cache keeps it.
func Strip(object any) (any, error) {
	o, ok := object.(client.Object)
	if !ok {
		return object, nil
	}
	o.SetManagedFields(nil)
	if annotations := o.GetAnnotations(); annotations[lastApplied] != "" {
		delete(annotations, lastApplied)
		o.SetAnnotations(annotations)
	}
	return object, nil
}

// SameIdentity tells whether two states of one name are of one object, generation and set of owners, and both or neither of them
// is being deleted.
func SameIdentity(old, value client.Object) bool {
	return old.GetUID() == value.GetUID() && old.GetGeneration() == value.GetGeneration() &&
		old.GetDeletionTimestamp().IsZero() == value.GetDeletionTimestamp().IsZero() &&
		reflect.DeepEqual(old.GetOwnerReferences(), value.GetOwnerReferences())
}

// Older compares two resource versions of one kind.
func Older(a, b string) bool {
	if a == "" || b == "" {
		return a == "" && b != ""
	}
	order, err := resourceversion.CompareResourceVersion(a, b)
	return err == nil && order < 0
}
