package appsingress

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
)

// given is what a testdata/NAME.in.yaml holds.
type given struct {
	Name, Namespace  string
	Spec             v1alpha1.AppsIngress `json:"spec"`
	MetalLBNamespace string               `json:"metalLBNamespace"`
}

// TestGolden is what is written, as data: NAME.in.yaml gives NAME.out.yaml.
func TestGolden(t *testing.T) {
	t.Parallel()
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	for _, in := range inputs {
		raw, err := os.ReadFile(in)
		if err != nil {
			t.Fatal(err)
		}
		var g given
		if err := yaml.UnmarshalStrict(raw, &g); err != nil {
			t.Fatalf("%s: %v", in, err)
		}
		w := withDefaults(types.NamespacedName{Namespace: g.Namespace, Name: g.Name}, g.Spec)
		var objects []*unstructured.Unstructured
		if w.MetalLB.Install {
			objects = append(objects, w.subscription(), w.instance(g.MetalLBNamespace))
		}
		if w.ownPool() {
			pool, err := w.pool(g.MetalLBNamespace)
			if err != nil {
				t.Fatalf("%s: %v", in, err)
			}
			objects = append(objects, pool, w.advertisement(g.MetalLBNamespace))
		}
		objects = append(objects, w.service())
		var out bytes.Buffer
		for i, object := range objects {
			text, err := yaml.Marshal(object.Object)
			if err != nil {
				t.Fatal(err)
			}
			if i > 0 {
				out.WriteString("---\n")
			}
			out.Write(text)
		}
		path := strings.TrimSuffix(in, ".in.yaml") + ".out.yaml"
		if *update {
			if err := os.WriteFile(path, out.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatalf("%v: write it with go test ./watch/appsingress -update", err)
		}
		if diff := cmp.Diff(string(want), out.String()); diff != "" {
			t.Errorf("%s differs (go test ./watch/appsingress -update writes it anew), -want +got:\n%s", path, diff)
		}
	}
}

// TestIsAsWanted: what others add does not count, what we applied and no longer want does.
func TestIsAsWanted(t *testing.T) {
	t.Parallel()
	const all = `
metadata:
  labels: {a: b}
spec:
  type: LoadBalancer
  selector: {app: router}
  ports: [{name: http, port: 80, protocol: TCP}]
`
	const owned = `{"f:metadata":{"f:labels":{"f:a":{}}},"f:spec":{"f:type":{},"f:selector":{},"f:ports":{"k:{\"port\":80,\"protocol\":\"TCP\"}":{".":{},"f:name":{},"f:port":{}}}}}`
	for _, test := range []struct {
		name, there, owned string
		is                 bool
	}{
		{"the same", all, owned, true},
		{"a node port", strings.Replace(all, "protocol: TCP", "protocol: TCP, nodePort: 30080", 1), owned, true},
		{"a port more", strings.Replace(all, "[{", "[{name: x, port: 81, protocol: TCP}, {", 1), owned, true},
		{"a label more", strings.Replace(all, "a: b", "a: b, c: d", 1), owned, true},
		{"a label more that was ours", strings.Replace(all, "a: b", "a: b, c: d", 1), strings.Replace(owned, `"f:a":{}`, `"f:a":{},"f:c":{}`, 1), false},
		{"a port more that was ours", strings.Replace(all, "[{", "[{name: x, port: 81, protocol: TCP}, {", 1), strings.Replace(owned, `"f:ports":{`, `"f:ports":{"k:{\"port\":81,\"protocol\":\"TCP\"}":{},`, 1), false},
		{"another label", strings.Replace(all, "a: b", "a: c", 1), owned, false},
		{"another selector", strings.Replace(all, "router", "stolen", 1), owned, false},
		{"a selector more", strings.Replace(all, "router", "router, x: y", 1), owned, false},
		{"no port", strings.Replace(all, "port: 80", "port: 81", 1), owned, false},
		{"nothing", "{}", owned, false},
	} {
		there, want := &unstructured.Unstructured{}, &unstructured.Unstructured{}
		for _, o := range []struct {
			text   string
			object *unstructured.Unstructured
		}{{test.there, there}, {all, want}} {
			if err := yaml.Unmarshal([]byte(o.text), &o.object.Object); err != nil {
				t.Fatal(err)
			}
		}
		there.SetManagedFields([]metav1.ManagedFieldsEntry{{Manager: fieldOwner, Operation: metav1.ManagedFieldsOperationApply, FieldsV1: metav1.NewFieldsV1(test.owned)}})
		if is := isAsWanted(there, want); is != test.is {
			t.Errorf("%s: %v", test.name, is)
		}
	}
}

// TestOverlap of pools, in the spellings that MetalLB takes.
func TestOverlap(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		pool, addresses string
		is              bool
	}{
		{"192.0.2.0-192.0.2.9", "192.0.2.9-192.0.2.20", true},
		{"192.0.2.0 - 192.0.2.8", "192.0.2.9-192.0.2.20", false},
		{"192.0.2.21/29", "192.0.2.9-192.0.2.20", true},
		{"192.0.2.24/29", "192.0.2.9-192.0.2.20", false},
		{"2001:db8::/64", "192.0.2.9-192.0.2.20", false},
		{"nonsense", "192.0.2.9-192.0.2.20", false},
	} {
		pool := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"addresses": []any{test.pool}}}}
		if is := overlap(pool, test.addresses); is != test.is {
			t.Errorf("%s and %s: %v", test.pool, test.addresses, is)
		}
	}
}
