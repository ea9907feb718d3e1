package workload

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// given is what a testdata/NAME.in.yaml holds.
type given struct {
	Infra       v1alpha1.Infra `json:"infra"`
	Attachments Attachments    `json:"attachments"`
	Settings    Settings       `json:"settings"`
}

func read(t *testing.T, path string) given {
	t.Helper()
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var g given
	if err := yaml.UnmarshalStrict(raw, &g); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	return g
}

// TestGolden is the behaviour as data: NAME.in.yaml gives NAME.out.yaml.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	for _, in := range inputs {
		g := read(t, in)
		objects, err := Build(&g.Infra, g.Attachments, g.Settings)
		if err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		got := render(t, objects)
		path := strings.TrimSuffix(in, ".in.yaml") + ".out.yaml"
		if *update {
			if err := os.WriteFile(path, got, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v: write it with go test ./deploy/workload -update", err)
		}
		if diff := cmp.Diff(string(want), string(got)); diff != "" {
			t.Errorf("%s differs (go test ./deploy/workload -update writes it anew), -want +got:\n%s", path, diff)
		}
	}
}

// render is the objects as a person reads them: without the statuses, which are the API server's.
func render(t *testing.T, objects []Object) []byte {
	t.Helper()
	var text bytes.Buffer
	for i, o := range objects {
		raw, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatal(err)
		}
		delete(fields, "status")
		part, err := yaml.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			text.WriteString("---\n")
		}
		text.Write(part)
	}
	return text.Bytes()
}

func deploymentOf(t *testing.T, g given) *appsv1.Deployment {
	t.Helper()
	objects, err := Build(&g.Infra, g.Attachments, g.Settings)
	if err != nil {
		t.Fatal(err)
	}
	d, ok := objects[len(objects)-1].(*appsv1.Deployment)
	if !ok {
		t.Fatalf("the last one to be written is a %T: the pods must find the rest in place", objects[len(objects)-1])
	}
	return d
}

// TestAttachmentsStartNoPodAnew is what a tenant would notice first: his streams cut because another cluster came.
func TestAttachmentsStartNoPodAnew(t *testing.T) {
	g := read(t, "testdata/page.in.yaml")
	before := deploymentOf(t, g)
	g.Attachments.ControlPlanes = append(g.Attachments.ControlPlanes, "clusters-example-hcp-c")
	g.Attachments.External = append(g.Attachments.External, External{Attachment: "example-hcp-c", Port: 20001})
	if diff := cmp.Diff(before, deploymentOf(t, g)); diff != "" {
		t.Errorf("one attachment more changes the Deployment:\n%s", diff)
	}
}

// TestHashes says for each change whether it goes out at once or waits for its turn.
func TestHashes(t *testing.T) {
	before := deploymentOf(t, read(t, "testdata/page.in.yaml"))
	for name, tc := range map[string]struct {
		change         func(*given)
		infra, release bool
	}{
		"nothing":                  {change: func(*given) {}},
		"a new release":            {change: func(g *given) { g.Settings.Image += "-next" }, release: true},
		"a new Envoy":              {change: func(g *given) { g.Settings.EnvoyImage += "-next" }, release: true},
		"another pull policy":      {change: func(g *given) { g.Settings.PullPolicy = corev1.PullAlways }, release: true},
		"a pull secret":            {change: func(g *given) { g.Settings.PullSecrets = []string{"a"} }, release: true},
		"the Infra pins its image": {change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.ManagerImage = "other" }, infra: true, release: true},
		"the Infra pins the image in use": {
			change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.ManagerImage = g.Settings.Image }, infra: true,
		},
		"another NAD":           {change: func(g *given) { g.Infra.Spec.NetworkConfig.NetworkAttachmentDefinition = "other" }, infra: true, release: true},
		"another log level":     {change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.LogLevel = "debug" }, infra: true, release: true},
		"the default log level": {change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.LogLevel = "" }},
		"without a proxy":       {change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.Enabled = new(bool) }, infra: true, release: true},
		"without DHCP":          {change: func(g *given) { g.Infra.Spec.InfraComponents.DHCP.Enabled = new(bool) }},
		"without DNS":           {change: func(g *given) { g.Infra.Spec.InfraComponents.DNS.Enabled = new(bool) }},
		"another address":       {change: func(g *given) { g.Infra.Spec.InfraComponents.Proxy.ServerIP = "192.0.2.5" }},
		"other nodes":           {change: func(g *given) { g.Infra.Spec.VLANPods = &v1alpha1.VLANPods{NodeSelector: map[string]string{"a": "b"}} }, infra: true, release: true},
	} {
		g := read(t, "testdata/page.in.yaml")
		tc.change(&g)
		after := deploymentOf(t, g)
		differs := func(annotation string) bool {
			return before.Annotations[annotation] != after.Annotations[annotation]
		}
		if got := differs(AnnotationInfraHash); got != tc.infra {
			t.Errorf("%s: the hash of the Infra changes: %t", name, got)
		}
		if got := differs(AnnotationReleaseHash); got != tc.release {
			t.Errorf("%s: the hash of the release changes: %t", name, got)
		}
		if got := !cmp.Equal(before.Spec, after.Spec); got != tc.release {
			t.Errorf("%s: the spec changes: %t", name, got)
		}
	}
}

// TestPinnedTakesNoPart is an Infra that names both images: a release changes nothing of it.
func TestPinnedTakesNoPart(t *testing.T) {
	g := read(t, "testdata/overridden.in.yaml")
	before := deploymentOf(t, g)
	g.Settings = Settings{Image: "a", EnvoyImage: "b", PullPolicy: corev1.PullNever, PullSecrets: []string{"c"}}
	if diff := cmp.Diff(before, deploymentOf(t, g)); diff != "" {
		t.Errorf("the installation changes a pinned Infra:\n%s", diff)
	}
}

func TestErrors(t *testing.T) {
	for want, change := range map[string]func(*given){
		"Infra clusters/tenant-vlan100: no image of oooi is named: start the hub with --vlan-image, or set infraComponents.proxy.managerImage": func(g *given) { g.Settings.Image = "" },
		"Infra clusters/tenant-vlan100: no image of Envoy is named: start the hub with --envoy-image, or set infraComponents.proxy.proxyImage": func(g *given) { g.Settings.EnvoyImage = "" },
		"Infra clusters/tenant-vlan100: has no UID, so nothing can be owned by it: read it from the API server":                                func(g *given) { g.Infra.UID = "" },
		"Infra clusters/a.b: no Service can be named a.b-proxy: give the Infra a name of up to 57 lower-case letters, digits and dashes, a letter first": func(g *given) {
			g.Infra.Name = "a.b"
		},
		"Infra clusters/" + strings.Repeat("a", 58) + ": no Service can be named " + strings.Repeat("a", 58) +
			"-proxy: give the Infra a name of up to 57 lower-case letters, digits and dashes, a letter first": func(g *given) { g.Infra.Name = strings.Repeat("a", 58) },
	} {
		g := read(t, "testdata/page.in.yaml")
		change(&g)
		if objects, err := Build(&g.Infra, g.Attachments, g.Settings); err == nil || err.Error() != want {
			t.Errorf("got  %v and %d objects\nwant %s", err, len(objects), want)
		}
	}
}

func TestDeletedInfraWantsNothing(t *testing.T) {
	g := read(t, "testdata/page.in.yaml")
	g.Infra.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if objects, err := Build(&g.Infra, g.Attachments, g.Settings); err != nil || len(objects) > 0 {
		t.Errorf("%d objects, %v", len(objects), err)
	}
}

// TestOwners: what two Infras of a namespace share is applied under a name for each, all else under one.
func TestOwners(t *testing.T) {
	g := read(t, "testdata/page.in.yaml")
	objects, err := Build(&g.Infra, g.Attachments, g.Settings)
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string][]string{}
	for _, o := range objects {
		owner := FieldOwner(&g.Infra, o)
		owners[owner] = append(owners[owner], o.GetName())
		if o.GetLabels()[LabelManagedBy] != ManagedBy {
			t.Errorf("%s lacks the label by which the hub finds it", o.GetName())
		}
		foreign := o.GetNamespace() != g.Infra.Namespace
		if references := o.GetOwnerReferences(); foreign != (len(references) == 0) || !foreign && references[0].UID != g.Infra.UID {
			t.Errorf("%s in %s is owned by %v", o.GetName(), o.GetNamespace(), references)
		}
		if foreign != (o.GetLabels()[v1alpha1.LabelInfraNamespace] == g.Infra.Namespace) {
			t.Errorf("%s in %s has the labels %v", o.GetName(), o.GetNamespace(), o.GetLabels())
		}
	}
	each := ManagedBy + "-" + string(g.Infra.UID)
	if got := slices.Sorted(maps.Keys(owners)); !slices.Equal(got, []string{ManagedBy, each}) {
		t.Errorf("applied under %v", got)
	}
	if got := owners[each]; !slices.Equal(got, []string{v1alpha1.VLANAccount, v1alpha1.VLANAccount}) {
		t.Errorf("shared: %v", got)
	}
}
