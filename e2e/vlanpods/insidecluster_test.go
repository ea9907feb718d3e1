package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
)

// What oooi makes in a hosted cluster.
var (
	serviceResource = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	poolResource    = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	adResource      = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "l2advertisements"}
)

// person applies manifests in a hosted cluster, as its administrator does.
func (c *insideCluster) person(t *testing.T, manifests string) {
	t.Helper()
	if _, err := c.Apply(t.Context(), "a-person", []byte(manifests)); err != nil {
		t.Fatal(err)
	}
}

// merge merges a change into an object.
func (c *insideCluster) merge(t *testing.T, kind schema.GroupVersionResource, namespace, name, change string) {
	t.Helper()
	_, err := c.Dynamic.Resource(kind).Namespace(namespace).Patch(t.Context(), name, types.MergePatchType, []byte(change), metav1.PatchOptions{FieldManager: "a-person"})
	if err != nil {
		t.Fatal(err)
	}
}

// remove deletes an object.
func (c *insideCluster) remove(t *testing.T, kind schema.GroupVersionResource, namespace, name string) {
	t.Helper()
	if err := c.Dynamic.Resource(kind).Namespace(namespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// cloud gives the Service of the router an address as another load-balancer controller does.
func (c *insideCluster) cloud(t *testing.T, address string) {
	t.Helper()
	_, err := c.Dynamic.Resource(serviceResource).Namespace(hosted.IngressNamespace).Patch(t.Context(), "oooi-ingress", types.MergePatchType,
		fmt.Appendf(nil, `{"status": {"loadBalancer": {"ingress": [{"ip": %q}]}}}`, address), metav1.PatchOptions{FieldManager: "cloud-controller"}, "status")
	if err != nil {
		t.Fatal(err)
	}
}

// has is an error unless a field of an object has a value, or a list the one value.
func (c *insideCluster) has(ctx context.Context, kind schema.GroupVersionResource, namespace, name, want string, path ...string) error {
	object, err := c.Dynamic.Resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	value, _, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if list, ok := value.([]any); ok && len(list) == 1 {
		value = list[0]
	}
	if err == nil && fmt.Sprint(value) != want {
		err = fmt.Errorf("%s %s/%s: %s is %v, want %s", kind.Resource, namespace, name, strings.Join(path, "."), value, want)
	}
	return err
}

// isGone is an error while an object is there.
func (c *insideCluster) isGone(ctx context.Context, kind schema.GroupVersionResource, namespace, name string) error {
	_, err := c.Dynamic.Resource(kind).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return errors.Join(fmt.Errorf("%s %s/%s is there", kind.Resource, namespace, name), err)
}

// given is the address that a Service has, or empty.
func (c *insideCluster) given(ctx context.Context, namespace, name string) (string, error) {
	object, err := c.Dynamic.Resource(serviceResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	list, _, err := unstructured.NestedSlice(object.Object, "status", "loadBalancer", "ingress")
	if err != nil || len(list) == 0 {
		return "", err
	}
	address, _, err := unstructured.NestedString(list[0].(map[string]any), "ip")
	return address, err
}

// versions are those of the objects that manifests name.
func (c *insideCluster) versions(t *testing.T, manifests string) []string {
	t.Helper()
	objects, err := controlplane.Decode([]byte(manifests))
	if err != nil {
		t.Fatal(err)
	}
	var versions []string
	for _, object := range objects {
		client, err := c.Resource(object)
		if err != nil {
			t.Fatal(err)
		}
		there, err := client.Get(t.Context(), object.GetName(), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, there.GetResourceVersion())
	}
	return versions
}

// awaitEmpty waits until nothing of oooi is in a hosted cluster.
func (w *appsSide) awaitEmpty(t *testing.T, c *insideCluster) {
	t.Helper()
	eventually(t, "the end of all that was made in "+c.name, func(ctx context.Context) error {
		var left []error
		for _, kind := range []schema.GroupVersionResource{serviceResource, poolResource, adResource} {
			list, err := c.Dynamic.Resource(kind).List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/managed-by=oooi"})
			if err != nil {
				return err
			}
			for _, object := range list.Items {
				left = append(left, fmt.Errorf("%s %s/%s is there", kind.Resource, object.GetNamespace(), object.GetName()))
			}
		}
		return errors.Join(left...)
	})
}
