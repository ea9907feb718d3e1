package controlplane

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/crds"
	"github.com/densityops/oooi/e2e/stack"
)

// definer is the field manager of CustomResourceDefinitions.
const definer = "e2e-definitions"

// neighbours are definitions of the kinds that oooi reads of its neighbours: HyperShift's are generated from
// api/hypershift, the others say no more than that the kind exists.
//
//go:embed neighbours/*.yaml
var neighbours embed.FS

// Neighbours are the definitions that InstallNeighbours knows, as <group>_<plural>.
func Neighbours() []string {
	return []string{
		"hypershift.openshift.io_hostedclusters", "hypershift.openshift.io_nodepools",
		"cluster.x-k8s.io_machines", "kubevirt.io_virtualmachineinstances",
	}
}

// AttachmentDefinitions is the definition of NetworkAttachmentDefinition, which oooi only names. InstallNeighbours knows it
// when it is asked for it.
const AttachmentDefinitions = "k8s.cni.cncf.io_network-attachment-definitions"

// InstallOwn installs the definitions of this API and waits until they are served.
func (c *ControlPlane) InstallOwn(ctx context.Context) error {
	files, err := fs.Glob(crds.Files(), "*.yaml")
	if err != nil {
		return err
	}
	var manifests [][]byte
	for _, file := range files {
		raw, err := fs.ReadFile(crds.Files(), file)
		if err != nil {
			return err
		}
		manifests = append(manifests, raw)
	}
	return c.InstallDefinitions(ctx, manifests...)
}

// InstallNeighbours installs definitions of Neighbours, all unless some are named, and waits until they are served: the
// neighbours' real ones where ../shared/crds has them, beside the checkout, else those of this package.
func (c *ControlPlane) InstallNeighbours(ctx context.Context, names ...string) error {
	if len(names) == 0 {
		names = Neighbours()
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	var manifests [][]byte
	for _, name := range names {
		if !slices.Contains(Neighbours(), name) && name != AttachmentDefinitions {
			return fmt.Errorf("no definition of %s: there are %v and %s", name, Neighbours(), AttachmentDefinitions)
		}
		raw, err := os.ReadFile(filepath.Join(root, "..", "shared", "crds", name+".yaml"))
		if errors.Is(err, fs.ErrNotExist) {
			raw, err = neighbours.ReadFile("neighbours/" + name + ".yaml")
		}
		if err != nil {
			return err
		}
		manifests = append(manifests, raw)
	}
	return c.InstallDefinitions(ctx, manifests...)
}

// InstallDefinitions installs CustomResourceDefinitions, given as YAML, and waits until the API server serves every version of theirs.
func (c *ControlPlane) InstallDefinitions(ctx context.Context, manifests ...[]byte) error {
	var definitions []*unstructured.Unstructured
	for _, manifest := range manifests {
		applied, err := c.Apply(ctx, definer, manifest)
		if err != nil {
			return err
		}
		definitions = append(definitions, applied...)
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, definition := range definitions {
		for _, resource := range served(definition) {
			if err := stack.Until(ctx, resource.String(), func(ctx context.Context) error {
				_, err := c.Dynamic.Resource(resource).List(ctx, metav1.ListOptions{Limit: 1})
				return err
			}); err != nil {
				return errors.Join(err, c.whyNotServed(definition))
			}
		}
	}
	c.Mapper.Reset()
	return nil
}

// whyNotServed is what a definition's conditions say.
func (c *ControlPlane) whyNotServed(definition *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := c.Resource(definition)
	if err != nil {
		return err
	}
	now, err := client.Get(ctx, definition.GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	conditions, _, err := unstructured.NestedSlice(now.Object, "status", "conditions")
	return errors.Join(err, fmt.Errorf("definition %s: %v", definition.GetName(), conditions))
}

// RemoveDefinition removes a definition, named <plural>.<group>, with all of its objects, and waits until it is gone.
func (c *ControlPlane) RemoveDefinition(ctx context.Context, name string) error {
	definitions := c.Dynamic.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if err := definitions.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	defer c.Mapper.Reset()
	return stack.Until(ctx, "the end of "+name, func(ctx context.Context) error {
		_, err := definitions.Get(ctx, name, metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return errors.New("it is still there")
	})
}

// served lists the resources that a definition makes.
func served(definition *unstructured.Unstructured) []schema.GroupVersionResource {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	var resources []schema.GroupVersionResource
	for _, v := range versions {
		version, ok := v.(map[string]any)
		if !ok || version["served"] != true {
			continue
		}
		name, _, _ := unstructured.NestedString(version, "name")
		resources = append(resources, schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
	}
	return resources
}
