package plan_test

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/diff"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
)

var update = flag.Bool("update", false, "write the golden files anew")

const example = "../../examples/two-clusters"

// TestGolden plans the shipped example as it stands, with and without what stands around it.
func TestGolden(t *testing.T) {
	page := readDocuments(t, filepath.Join(example, "infra.yaml"))
	golden(t, "testdata/page.out.yaml", scene{objects: load(t, page)}.render(t))
	golden(t, "testdata/two-clusters.out.yaml", scene{objects: load(t, readExample(t))}.render(t))
}

// TestRules plans the example with the changes of each testdata/NAME.in.yaml. What a change makes of the
// children and statuses is testdata/NAME.out.diff, a diff against two-clusters.out.yaml.
func TestRules(t *testing.T) {
	before := scene{objects: load(t, readExample(t))}.render(t)
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		name := strings.TrimSuffix(filepath.Base(path), ".in.yaml")
		t.Run(name, func(t *testing.T) {
			after := change(t, readExample(t), path).render(t)
			golden(t, "testdata/"+name+".out.diff", diff.Diff("two-clusters", before, name, after))
		})
	}
}

// TestOrderDoesNotMatter plans each case with its objects in random orders.
func TestOrderDoesNotMatter(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		s := change(t, readExample(t), path)
		objects := s.objects
		want := s.render(t)
		random := rand.New(rand.NewPCG(1, 2))
		for range 5 {
			shuffle(random, objects.Infras)
			shuffle(random, objects.Attachments)
			shuffle(random, objects.HostedClusters)
			shuffle(random, objects.NodePools)
			shuffle(random, objects.Machines)
			shuffle(random, objects.VMIs)
			shuffle(random, objects.Services)
			if got := s.render(t); !bytes.Equal(got, want) {
				t.Errorf("%s: another order gives another result:\n%s", path, cmp.Diff(string(want), string(got)))
			}
		}
	}
}

func shuffle[T any](random *rand.Rand, objects []T) {
	random.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
}

func readExample(t *testing.T) []map[string]any {
	t.Helper()
	return slices.Concat(readDocuments(t, filepath.Join(example, "infra.yaml")), readDocuments(t, filepath.Join(example, "neighbours.yaml")))
}

func readDocuments(t *testing.T, path string) []map[string]any {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var documents []map[string]any
	for part := range strings.SplitSeq(string(text), "\n---\n") {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if document != nil {
			documents = append(documents, document)
		}
	}
	return documents
}

// change merges the documents of a case into those given: a document changes the object of its kind,
// namespace and name, or is a new object. Comment lines say the rest: "# without: KIND NAMESPACE/NAME",
// "# lease: ADDRESS MAC", "# remembered: ATTACHMENT MACHINE UID ADDRESS [MAC]",
// "# observed: ATTACHMENT PHASE REASON VIP MESSAGE" (VIP "-": none), "# port: ATTACHMENT PORT".
func change(t *testing.T, documents []map[string]any, path string) scene {
	t.Helper()
	for _, patch := range readDocuments(t, path) {
		at := slices.IndexFunc(documents, func(d map[string]any) bool { return identity(d) == identity(patch) })
		if at < 0 {
			documents = append(documents, patch)
			continue
		}
		documents[at] = merge(documents[at], patch).(map[string]any)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	result := scene{remembered: map[string][]v1alpha1.Source{}}
	observed, ports := map[string]*v1alpha1.AppsIngressStatus{}, map[string]int32{}
	for line := range strings.SplitSeq(string(text), "\n") {
		if gone, ok := strings.CutPrefix(line, "# without: "); ok {
			at := slices.IndexFunc(documents, func(d map[string]any) bool { return identity(d) == gone })
			if at < 0 {
				t.Fatalf("%s: there is no %s", path, gone)
			}
			documents = slices.Delete(documents, at, at+1)
		}
		if lease, ok := strings.CutPrefix(line, "# lease: "); ok {
			address, mac, _ := strings.Cut(lease, " ")
			result.leases = append(result.leases, plan.Lease{Address: netip.MustParseAddr(address), MAC: mac})
		}
		if source, ok := strings.CutPrefix(line, "# remembered: "); ok {
			f := append(strings.Fields(source), "")
			result.remembered[f[0]] = append(result.remembered[f[0]], v1alpha1.Source{Machine: f[1], UID: f[2], Address: f[3], MAC: f[4]})
		}
		if seen, ok := strings.CutPrefix(line, "# observed: "); ok {
			f := strings.SplitN(seen, " ", 5)
			observed[f[0]] = &v1alpha1.AppsIngressStatus{Phase: f[1], Reason: f[2], ExternalIP: strings.TrimPrefix(f[3], "-"), Message: f[4]}
		}
		if port, ok := strings.CutPrefix(line, "# port: "); ok {
			var attachment string
			var n int32
			if _, err := fmt.Sscan(port, &attachment, &n); err != nil {
				t.Fatalf("%s: %q: %v", path, line, err)
			}
			ports[attachment] = n
		}
	}
	result.objects = load(t, documents)
	for _, a := range result.objects.Attachments {
		a.Status.Sources = result.remembered[a.Name]
		if observed[a.Name] != nil {
			a.Status.AppsIngressStatus = observed[a.Name]
		}
		if ports[a.Name] != 0 {
			a.Status.ExternalService = &v1alpha1.ExternalServiceStatus{Port: ports[a.Name]}
		}
	}
	return result
}

// scene is all that a plan is made from.
type scene struct {
	objects    plan.Objects
	leases     []plan.Lease
	remembered map[string][]v1alpha1.Source
}

func identity(document map[string]any) string {
	metadata, _ := document["metadata"].(map[string]any)
	namespace, _ := metadata["namespace"].(string)
	if namespace == "" {
		return fmt.Sprintf("%v %v", document["kind"], metadata["name"])
	}
	return fmt.Sprintf("%v %s/%v", document["kind"], namespace, metadata["name"])
}

// merge is a JSON merge patch (RFC 7396).
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	old, _ := target.(map[string]any)
	merged := maps.Clone(old)
	if merged == nil {
		merged = map[string]any{}
	}
	for key, value := range changes {
		if value == nil {
			delete(merged, key)
			continue
		}
		merged[key] = merge(merged[key], value)
	}
	return merged
}

func load(t *testing.T, documents []map[string]any) plan.Objects {
	t.Helper()
	var text bytes.Buffer
	for _, document := range documents {
		part, err := yaml.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n")
		text.Write(part)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "manifests.yaml"), text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	loaded, err := files.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded.Problems {
		t.Fatalf("the manifests of this case must be valid: %v", p)
	}
	return loaded.Objects
}

func (s scene) result() *plan.Result {
	return plan.Plan(plan.Input{Objects: s.objects, Leases: map[types.NamespacedName][]plan.Lease{
		{Namespace: "clusters", Name: "tenant-vlan100"}: s.leases,
	}})
}

func (s scene) render(t *testing.T) []byte {
	t.Helper()
	documents, err := s.result().Manifests()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for i, document := range documents {
		part, err := yaml.Marshal(document)
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

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v: write it with go test ./watch/plan -update", err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs (go test ./watch/plan -update writes it anew):\n%s", path, diff.Diff("want", want, "got", got))
	}
}
