// Package deploy holds the manifests of oooi to what kustomize and a real API server make of them.
package deploy

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

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
	hub, vlan := objects(t, os.DirFS("hub")), objects(t, os.DirFS("vlan"))
	kubeconfigs := objects(t, os.DirFS("kubeconfigs"))
	base := slices.Concat(objects(t, crds.Files()), hub, vlan)
	for folder, want := range map[string][]string{
		"hub": hub, "vlan": vlan, "base": base,
		"overlays/kubernetes":   slices.Concat(base, objects(t, os.DirFS("overlays/kubernetes"))),
		".":                     slices.Concat(base, objects(t, os.DirFS("overlays/kubernetes"))),
		"overlays/openshift":    slices.Concat(base, objects(t, os.DirFS("overlays/openshift"))),
		"examples/site":         slices.Concat(base, objects(t, os.DirFS("overlays/kubernetes"))),
		"examples/vlan100":      objects(t, os.DirFS("examples/vlan100")),
		"kubeconfigs":           kubeconfigs,
		"examples/external-dns": objects(t, os.DirFS("examples/external-dns")),
		"examples/apps":         slices.Concat(objects(t, os.DirFS("examples/vlan100")), kubeconfigs),
	} {
		slices.Sort(want)
		if got := names(t, render(t, folder)); !slices.Equal(got, want) {
			t.Errorf("deploy/%s renders\n%s\nand the files hold\n%s", folder, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// TestKubeconfigsElsewhere is the kustomization that the README shows, for another namespace: the account stays the hub's.
func TestKubeconfigsElsewhere(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(readme), "```yaml\n")
	text, _, _ = strings.Cut(text, "```")
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	here, err := filepath.Abs("kubeconfigs")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfigs, err := filepath.Rel(folder, here)
	if err != nil {
		t.Fatal(err)
	}
	text = strings.NewReplacer("https://github.com/densityops/oooi//deploy/kubeconfigs?ref=RELEASE", kubeconfigs, "namespace: clusters", "namespace: elsewhere").Replace(text)
	if err := os.WriteFile(filepath.Join(folder, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	objects, err := controlplane.Decode(render(t, folder))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, fmt.Sprint(o.GetKind(), " ", o.GetNamespace(), " ", o.Object["rules"], " ", o.Object["subjects"]))
	}
	if want := []string{
		"Role elsewhere [map[apiGroups:[] resourceNames:[tenant-1-admin-kubeconfig tenant-2-admin-kubeconfig] resources:[secrets] verbs:[get]]] <nil>",
		"RoleBinding elsewhere <nil> [map[kind:ServiceAccount name:oooi namespace:oooi-system]]",
	}; !slices.Equal(got, want) {
		t.Errorf("it renders\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}
