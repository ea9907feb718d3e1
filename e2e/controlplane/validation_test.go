package controlplane

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/crds"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

var update = flag.Bool("update", false, "write the golden files anew")

// TestValidation is what people see who apply manifests: what is refused and why, and what is not.
func TestValidation(t *testing.T) {
	t.Parallel()
	c := ForTest(t)
	if _, err := c.Apply(t.Context(), "test", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}")); err != nil {
		t.Fatal(err)
	}
	t.Run("objects older than the rules", func(t *testing.T) { c.older(t) })
	if err := c.InstallOwn(t.Context()); err != nil {
		t.Fatal(err)
	}

	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "watch", "files", "testdata", "page", "page.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	good := map[string]map[string]any{}
	objects, err := c.Apply(t.Context(), "a-person", page)
	if err != nil {
		t.Fatalf("the page's manifests: %v", err)
	}
	again, err := Decode(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range again {
		good[object.GetKind()] = object.Object
	}
	if len(objects) != 3 || len(good) != 2 {
		t.Fatalf("the page has %d objects of %d kinds", len(objects), len(good))
	}

	t.Run("accepted", func(t *testing.T) { c.accepted(t) })
	t.Run("refused", func(t *testing.T) { c.refused(t, good) })
	t.Run("like Validate", func(t *testing.T) { c.likeValidate(t) })
	t.Run("immutable", func(t *testing.T) { c.immutable(t, page) })
}

// older has an object in etcd that the rules of today would refuse: it must go on, and be deletable and repairable.
func (c *ControlPlane) older(t *testing.T) {
	raw, err := fs.ReadFile(crds.Files(), "hostedcluster.densityops.com_infras.yaml")
	if err != nil {
		t.Fatal(err)
	}
	definition := parse(t, string(raw))
	withoutRules(definition)
	lax, err := yaml.Marshal(definition)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.InstallDefinitions(t.Context(), lax); err != nil {
		t.Fatal(err)
	}
	bad := strings.Replace(bareInfra, "gateway: 192.0.2.1", "gateway: 192.0.2", 1)
	if _, err := c.Apply(t.Context(), "a-person", []byte(bad)); err != nil {
		t.Fatal(err)
	}
	if err := c.InstallOwn(t.Context()); err != nil {
		t.Fatal(err)
	}
	const status = `
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: bare, namespace: clusters}
status: {observedGeneration: 1}
`
	if _, err := c.ApplyStatus(t.Context(), "oooi", []byte(status)); err != nil {
		t.Errorf("a status: %v", err)
	}
	labelled := strings.Replace(bad, "metadata: {", "metadata: {labels: {a: b}, ", 1)
	if _, err := c.Apply(t.Context(), "a-person", []byte(labelled)); err != nil {
		t.Errorf("a label: %v", err)
	}
	worse := strings.Replace(bad, "gateway: 192.0.2", "gateway: 192.0", 1)
	if _, err := c.Apply(t.Context(), "a-person", []byte(worse)); err == nil {
		t.Error("another bad gateway is accepted")
	}
	if _, err := c.Apply(t.Context(), "a-person", []byte(bareInfra)); err != nil {
		t.Errorf("the repair: %v", err)
	}
}

// withoutRules takes the rules out of a definition.
func withoutRules(value any) {
	switch v := value.(type) {
	case map[string]any:
		delete(v, "x-kubernetes-validations")
		for _, child := range v {
			withoutRules(child)
		}
	case []any:
		for _, child := range v {
			withoutRules(child)
		}
	}
}

func (c *ControlPlane) accepted(t *testing.T) {
	manifests, err := os.ReadFile(filepath.Join("testdata", "accepted.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		if _, err := c.ApplyObject(t.Context(), "a-person", object); err != nil {
			t.Error(err)
		}
	}
}

// refused compares the answers with the golden file. Whatever the API server refuses, Validate must refuse as well: the
// folder of manifests knows no API server.
func (c *ControlPlane) refused(t *testing.T, good map[string]map[string]any) {
	file := filepath.Join("testdata", "refused.txt")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "\t") {
			continue
		}
		got.WriteString(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		kind, change, _ := strings.Cut(strings.TrimSpace(line), " ")
		object := &unstructured.Unstructured{Object: good[kind]}
		object = object.DeepCopy()
		object.SetName("bad")
		merge(object.Object, parse(t, change))

		_, err := c.ApplyObject(t.Context(), "a-person", object)
		var status *apierrors.StatusError
		switch {
		case err == nil:
			t.Errorf("%s is accepted", strings.TrimSpace(line))
			continue
		case !errors.As(err, &status) || status.ErrStatus.Details == nil:
			t.Errorf("%s: %v", strings.TrimSpace(line), err)
			continue
		}
		for _, cause := range status.ErrStatus.Details.Causes {
			fmt.Fprintf(&got, "\t%s: %s\n", cause.Field, cause.Message)
		}
		if problems := validate(t, object.DeepCopy().Object); problems == 0 {
			t.Errorf("%s is refused by the API server, and not by Validate", strings.TrimSpace(line))
		}
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want := strings.Split(string(text), "\n")
	for n, line := range strings.Split(got.String(), "\n") {
		if n >= len(want) || line != want[n] {
			t.Fatalf("%s:%d: the API server says\n%s\nnot (go test -update, once this is what it should say)\n%s", file, n+1, line, strings.Join(want[min(n, len(want)):min(n+1, len(want))], ""))
		}
	}
}

// odd are texts that look like something.
var odd = []string{
	"", " ", ".", "-", "a", "A", "a.", "a b", "a.b", "a..b", "-a", "a_b", "a/b", "0", "00", "1", "0a", "é", "resolv.conf", "kubernetes", "kubernetes.default.svc.",
	"0s", "30s", "-30s", "+1h", "1h30m", "1.5h", ".5h", "1.h", "90m0.5s", "1000000h", "9999999999h", "8760h0m0.000000000s", "3600000000000ns", "60000000us", "60000000µs", "1d",
	"192.0.2.9", "192.0.2.0", "192.0.2.255", "192.0.2.1", "192.0.2.3", "192.0.2", "192.0.2.09", "192.0.2.300", " 192.0.2.9", "198.51.100.9", "0.0.0.0", "224.0.0.1", "255.255.255.255",
	"::", "::1", "2001:db8::1", "2001:DB8::1", "::ffff:192.0.2.9", "fe80::1%eth0", "192.0.2.9:53", "192.0.2.9:0", "192.0.2.9:00053", "192.0.2.9:65536", "[2001:db8::1]:53", "[2001:db8::1]", "[fe80::1%eth0]:53",
	"192.0.2.0/24", "192.0.0.0/16", "192.0.2.9/24", "192.0.2.0/24 ", "192.0.2.0/33", "192.0.2.0/024", "0.0.0.0/0", "10.0.0.0/7", "128.0.0.0/1", "192.0.0.0/7", "::ffff:192.0.2.0/120", "2001:db8::/64", "224.0.0.0/4",
	"192.0.2.200-192.0.2.209", "192.0.2.209-192.0.2.200", "192.0.2.200 - 192.0.2.209", "192.0.2.200-", "2001:db8::1-2001:db8::2",
	"52:54:00:12:34:56", "52-54-00-12-34-56", "5254.0012.3456", "53:54:00:12:34:56", "52:54-00:12:34:56", "52:54:00:12:34:56:78:90", "00:00:00:00:00:00", "0000.0000.0000",
	"proxy.infra", "proxy.infra.svc", "proxy.infra.svc.", "proxy.infra.svc.cluster.local.", "proxy.infra.sv", "proxy.infra.", "proxy..svc", "oauth-openshift", "0xc0", "0x", "0xc", "true", "1,2", "192.0.2.9,\t192.0.2.10",
	"registry.example.com:5000/a/b:c@sha256:0", "a.example.com/b", "/b", strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 119) + "a", strings.Repeat("a.", 120) + "a", strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127),
}

// likeValidate puts odd texts into every field: what a rule refuses, the checks without an API server must refuse as well.
func (c *ControlPlane) likeValidate(t *testing.T) {
	manifests, err := os.ReadFile(filepath.Join("testdata", "accepted.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := Decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for _, object := range objects {
		if name := object.GetName(); name != "every-field" && name != "any-case" {
			continue
		}
		if n := validate(t, object.DeepCopy().Object); n > 0 {
			t.Fatalf("%s: %d problems before any change", object.GetName(), n)
		}
		client, err := c.Resource(object)
		if err != nil {
			t.Fatal(err)
		}
		object.SetName("odd")
		for _, field := range texts(object.Object["spec"], "spec") {
			for _, text := range odd {
				before := field.set(text)
				raw, err := json.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				options := metav1.PatchOptions{FieldManager: "a-person", DryRun: []string{metav1.DryRunAll}}
				_, err = client.Patch(t.Context(), "odd", types.ApplyPatchType, raw, options)
				if err != nil && !apierrors.IsInvalid(err) {
					t.Fatalf("%s = %q: %v", field.path, text, err)
				}
				if err != nil {
					refused++
					if strings.Contains(err.Error(), "rule evaluation error") {
						t.Errorf("%s = %q: %v", field.path, text, err)
					}
					if validate(t, object.DeepCopy().Object) == 0 {
						t.Errorf("%s = %q: only the API server refuses it: %v", field.path, text, err)
					}
				}
				field.set(before)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d objects were refused", refused)
	}
}

// text is one text of an object, and how to change it: set returns the one before.
type text struct {
	path string
	set  func(string) string
}

// texts lists all texts in a value, map keys aside.
func texts(value any, path string) []text {
	var found []text
	visit := func(child any, path string, put func(string)) {
		if s, ok := child.(string); ok {
			found = append(found, text{path, func(next string) string {
				before := s
				put(next)
				s = next
				return before
			}})
			return
		}
		found = append(found, texts(child, path)...)
	}
	switch v := value.(type) {
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			visit(v[k], path+"."+k, func(s string) { v[k] = s })
		}
	case []any:
		for i, child := range v {
			visit(child, fmt.Sprintf("%s[%d]", path, i), func(s string) { v[i] = s })
		}
	}
	return found
}

func (c *ControlPlane) immutable(t *testing.T, page []byte) {
	for _, tc := range []struct{ from, to, want string }{
		{
			"hostedClusterRef:\n    name: example-hcp-a", "hostedClusterRef:\n    name: example-hcp-c",
			"spec.hostedClusterRef: Invalid value: cannot be changed, because an attachment stands for one hosted cluster: delete it and create one for the other cluster",
		},
		{"clusterName: example-hcp-a", "clusterName: renamed", ""},
		{"infraRef:\n    name: tenant-vlan100", "infraRef:\n    name: other-vlan", ""},
		{"networkAttachmentDefinition: vlan100", "networkAttachmentDefinition: vlan100-new", ""},
		{"192.0.2.", "203.0.113.", ""},
	} {
		changed := strings.ReplaceAll(string(page), tc.from, tc.to)
		if changed == string(page) {
			t.Fatalf("the page does not say %q", tc.from)
		}
		_, err := c.Apply(t.Context(), "a-person", []byte(changed))
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%q to %q: %v", tc.from, tc.to, err)
		case tc.want != "" && (err == nil || !strings.HasSuffix(err.Error(), tc.want)):
			t.Errorf("%q to %q:\ngot  %v\nwant %s", tc.from, tc.to, err, tc.want)
		}
	}
}

var schemas = sync.OnceValues(crds.Load)

// validate counts what the checks find that need no API server: the schema's and Validate's.
func validate(t *testing.T, object map[string]any) int {
	t.Helper()
	schemas, err := schemas()
	if err != nil {
		t.Fatal(err)
	}
	kind := object["kind"].(string)
	if errs := schemas[kind].Apply(object); len(errs) > 0 {
		return len(errs)
	}
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	if kind == "Infra" {
		var infra v1alpha1.Infra
		if err := json.Unmarshal(raw, &infra); err != nil {
			t.Fatal(err)
		}
		return len(infra.Validate())
	}
	var attachment v1alpha1.InfraClusterAttachment
	if err := json.Unmarshal(raw, &attachment); err != nil {
		t.Fatal(err)
	}
	return len(attachment.Validate())
}

func parse(t *testing.T, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	var parsed map[string]any
	if err := utiljson.Unmarshal(raw, &parsed); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return parsed
}

func merge(into, from map[string]any) {
	for k, v := range from {
		a, isMap := into[k].(map[string]any)
		b, alsoMap := v.(map[string]any)
		if isMap && alsoMap {
			merge(a, b)
			continue
		}
		into[k] = v
	}
}
