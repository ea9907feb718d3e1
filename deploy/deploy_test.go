// Package deploy holds the manifests of oooi to what kustomize and a real API server make of them.
package deploy

import (
	"context"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/crds"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// render is what `kubectl apply -k` would apply.
func render(t *testing.T, folder string) []byte {
	t.Helper()
	kustomize, err := stack.Kustomize()
	if err != nil {
		t.Fatal(err)
	}
	text, err := stack.Host("").Run(t.Context(), kustomize, "build", folder)
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

// names lists objects as "Kind name".
func names(t *testing.T, manifests []byte) []string {
	t.Helper()
	objects, err := controlplane.Decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, o := range objects {
		all = append(all, o.GetKind()+" "+o.GetName())
	}
	slices.Sort(all)
	return all
}

// objects lists the objects in the manifests of a folder, kustomizations aside.
func objects(t *testing.T, folder fs.FS) []string {
	t.Helper()
	files, err := fs.Glob(folder, "*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, file := range files {
		if file == "kustomization.yaml" {
			continue
		}
		raw, err := fs.ReadFile(folder, file)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names(t, raw)...)
	}
	slices.Sort(all)
	return all
}

func TestKustomizationsNameEveryFile(t *testing.T) {
	hub := append(objects(t, crds.Files()), objects(t, os.DirFS("hub"))...)
	slices.Sort(hub)
	for folder, want := range map[string][]string{".": hub, "vlan": objects(t, os.DirFS("vlan"))} {
		if got := names(t, render(t, folder)); !slices.Equal(got, want) {
			t.Errorf("deploy/%s renders\n%s\nand the files hold\n%s", folder, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestAPIServerAcceptsEverything applies what is rendered to an API server that knows nothing of oooi, as a user
// would, unknown fields refused. Then the Deployment's pods must be allowed in their namespace.
func TestAPIServerAcceptsEverything(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cp, err := controlplane.Start(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	applied, err := cp.Apply(ctx, "user", render(t, "."))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Apply(ctx, "user", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}")); err != nil {
		t.Fatal(err)
	}
	if _, err := cp.Apply(ctx, "user", render(t, "vlan")); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(applied, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if i < 0 {
		t.Fatal("there is no Deployment")
	}
	template, _, err := unstructured.NestedMap(applied[i].Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetNamespace(applied[i].GetNamespace())
	pod.SetName("hub")
	if _, err := cp.ApplyObject(ctx, "user", pod); err != nil {
		t.Errorf("the Deployment's pods are refused: %v", err)
	}
}
