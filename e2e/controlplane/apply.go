package controlplane

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"
)

// Apply does what `kubectl apply --server-side --force-conflicts` does with a stream of manifests in YAML: one after the
// other, unknown fields refused, statuses left alone. Objects without a namespace go to "default". It
// returns the objects as they are on the server, up to the first that is refused.
func (c *ControlPlane) Apply(ctx context.Context, manager string, manifests []byte) ([]*unstructured.Unstructured, error) {
	return c.applyAll(ctx, manager, manifests)
}

// ApplyStatus applies the status of each manifest in a stream of YAML to an object that is there, as its controller would.
func (c *ControlPlane) ApplyStatus(ctx context.Context, manager string, manifests []byte) ([]*unstructured.Unstructured, error) {
	return c.applyAll(ctx, manager, manifests, "status")
}

// ApplyWithStatus applies each manifest and, where it has one, its status, so that a file of other people's objects is there
// as their controllers would leave it. UIDs of theirs are dropped: the API server gives its own.
func (c *ControlPlane) ApplyWithStatus(ctx context.Context, manager string, manifests []byte) error {
	objects, err := Decode(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		object.SetUID("")
		if _, err := c.ApplyObject(ctx, manager, object); err != nil {
			return err
		}
		if object.Object["status"] == nil {
			continue
		}
		if _, err := c.ApplyObject(ctx, manager, object, "status"); err != nil {
			return err
		}
	}
	return nil
}

func (c *ControlPlane) applyAll(ctx context.Context, manager string, manifests []byte, subresources ...string) ([]*unstructured.Unstructured, error) {
	objects, err := Decode(manifests)
	if err != nil {
		return nil, err
	}
	var applied []*unstructured.Unstructured
	for _, object := range objects {
		answer, err := c.ApplyObject(ctx, manager, object, subresources...)
		if err != nil {
			return applied, err
		}
		applied = append(applied, answer)
	}
	return applied, nil
}

// ApplyObject applies one object, or a subresource of it. The error is the API server's own.
func (c *ControlPlane) ApplyObject(ctx context.Context, manager string, object *unstructured.Unstructured, subresources ...string) (*unstructured.Unstructured, error) {
	client, err := c.Resource(object)
	if err != nil {
		return nil, err
	}
	raw, err := json.Marshal(object.Object)
	if err != nil {
		return nil, err
	}
	force := true
	options := metav1.PatchOptions{FieldManager: manager, Force: &force, FieldValidation: metav1.FieldValidationStrict}
	return client.Patch(ctx, object.GetName(), types.ApplyPatchType, raw, options, subresources...)
}

// Resource is the admin's client of the kind and namespace of an object.
func (c *ControlPlane) Resource(object *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.Mapper.Reset() // it may have come since
		mapping, err = c.Mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, err
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.Dynamic.Resource(mapping.Resource), nil
	}
	namespace := object.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	return c.Dynamic.Resource(mapping.Resource).Namespace(namespace), nil
}

// Decode reads a stream of manifests in YAML.
func Decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(manifests)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("manifest %d: %w", len(objects)+1, err)
		}
		raw, err := yaml.YAMLToJSONStrict(document)
		if err != nil {
			return nil, fmt.Errorf("manifest %d: %w", len(objects)+1, err)
		}
		var object map[string]any
		if err := utiljson.Unmarshal(raw, &object); err != nil {
			return nil, fmt.Errorf("manifest %d: %w", len(objects)+1, err)
		}
		if len(object) > 0 {
			objects = append(objects, &unstructured.Unstructured{Object: object})
		}
	}
}
