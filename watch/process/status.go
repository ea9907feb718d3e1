package process

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// FieldOwner is the name under which the hub writes. A serving process writes its share of a status under one of its own.
const FieldOwner = "oooi"

// PendingPatience is how long an Envoy may take for its answer before that is worth a write of those who serve, and a word of the hub:
// the object may be large, and Envoy answers within milliseconds.
const PendingPatience = time.Second

// ApplyStatus applies the status of an object as one owner of its fields.
func ApplyStatus(ctx context.Context, c client.Client, object client.Object, status any, owner string) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(status)
	if err != nil {
		return err
	}
	gvks, _, err := c.Scheme().ObjectKinds(object)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{Object: map[string]any{"status": content}}
	u.SetGroupVersionKind(gvks[0])
	u.SetNamespace(object.GetNamespace())
	u.SetName(object.GetName())
	u.SetUID(object.GetUID()) // an object that was made anew is another one
	return c.Status().Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(owner), client.ForceOwnership)
}
