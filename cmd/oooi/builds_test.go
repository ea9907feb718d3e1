package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/dnsserver"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/xds"
)

// Whatever people and clusters write, the servers take what is planned from it: a mistake that they would refuse
// belongs to Validate or to the plan, which can say what is wrong and keep the rest going.

const (
	exampleDir = "../../examples/two-clusters"
	casesDir   = "../../watch/plan/testdata"
	fullDir    = "../../watch/files/testdata/bad" // every field of every kind, set
)

// builds remembers what the servers said of a child: most of what is tried changes one child, or none.
type builds map[string]error

// refusals plans the objects and gives what the servers refuse of it, and how many children there were.
func (b builds) refusals(t *testing.T, objects plan.Objects) (refused []error, children int) {
	t.Helper()
	build := func(child any, build func() error) {
		text, err := json.Marshal(child)
		if err != nil {
			t.Fatal(err)
		}
		err, known := b[string(text)]
		if !known {
			err = build()
			b[string(text)] = err
		}
		children++
		if err != nil {
			refused = append(refused, err)
		}
	}
	for _, infra := range plan.Plan(plan.Input{Objects: objects}).Infras {
		if infra.DHCP != nil {
			build(infra.DHCP, func() error { _, err := dhcpserver.Build(infra.DHCP); return err })
		}
		if infra.DNS != nil {
			opts := dnsserver.Options{PodNetworks: dnsserver.PrivateNetworks()}
			build(infra.DNS, func() error { _, err := dnsserver.Build(infra.DNS, opts); return err })
		}
		if infra.Proxy != nil {
			build(infra.Proxy, func() error { _, err := xds.Build(infra.Proxy, xds.Options{}); return err })
		}
	}
	return refused, children
}

// loadText loads manifests as `oooi render` does. Objects that Validate finds fault with are among them.
func loadText(t *testing.T, texts ...string) plan.Objects {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	loaded, err := files.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range loaded.Problems {
		t.Error(p.Error())
	}
	return loaded.Objects
}

func readText(t *testing.T, paths ...string) []string {
	t.Helper()
	var texts []string
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, string(text))
	}
	return texts
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	paths, err := filepath.Glob(pattern)
	if err != nil || len(paths) == 0 {
		t.Fatalf("no %s: %v", pattern, err)
	}
	return paths
}

// TestServersTakeTheCases goes through the cases that the plan is tested with.
func TestServersTakeTheCases(t *testing.T) {
	example := strings.Join(readText(t, glob(t, exampleDir+"/*.yaml")...), "\n---\n")
	for _, path := range glob(t, casesDir+"/*.in.yaml") {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".in.yaml"), func(t *testing.T) {
			refused, children := builds{}.refusals(t, loadText(t, patch(t, example, readText(t, path)[0])))
			if children == 0 {
				t.Error("nothing is planned")
			}
			for _, err := range refused {
				t.Error(err)
			}
		})
	}
}

// patch merges the documents of a case into those of the example that have their kind, namespace and name.
func patch(t *testing.T, example, changes string) string {
	t.Helper()
	documents := map[string]any{}
	for part := range strings.SplitSeq(example+"\n---\n"+changes, "\n---\n") {
		var document map[string]any
		if err := yaml.Unmarshal([]byte(part), &document); err != nil {
			t.Fatal(err)
		}
		metadata, _ := document["metadata"].(map[string]any)
		key := fmt.Sprint(document["kind"], metadata["namespace"], metadata["name"])
		if document != nil {
			documents[key] = merge(documents[key], document)
		}
	}
	var text bytes.Buffer
	for _, key := range slices.Sorted(maps.Keys(documents)) {
		part, err := yaml.Marshal(documents[key])
		if err != nil {
			t.Fatal(err)
		}
		text.WriteString("---\n" + string(part))
	}
	return text.String()
}

// merge is a JSON merge patch (RFC 7396).
func merge(target, patch any) any {
	changes, ok := patch.(map[string]any)
	if !ok {
		return patch
	}
	old, _ := target.(map[string]any)
	merged := map[string]any{}
	maps.Copy(merged, old)
	for key, value := range changes {
		if value == nil {
			delete(merged, key)
		} else {
			merged[key] = merge(merged[key], value)
		}
	}
	return merged
}

// worlds are objects to be made odd: the example with another Infra on its network, their DHCP alone, and every field of every kind.
func worlds(t *testing.T) map[string]plan.Objects {
	t.Helper()
	const other = `
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: other, namespace: clusters}
spec:
  networkConfig: {cidr: 192.0.2.0/24, gateway: 192.0.2.1, networkAttachmentDefinition: vlan100, networkAttachmentNamespace: default}
  infraComponents:
    dhcp: {enabled: false}
    dns: {serverIP: 192.0.2.8}
    proxy: {serverIP: 192.0.2.9}
`
	const dhcpAlone = `
---
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: tenant-vlan100, namespace: clusters}
spec: {infraComponents: {dns: {enabled: false}, proxy: {enabled: false}}}
`
	example := strings.Join(readText(t, glob(t, exampleDir+"/*.yaml")...), "\n---\n")
	every := loadText(t, readText(t, glob(t, fullDir+"/*.yaml")...)...)
	every.Attachments[0].Status.Sources = []v1alpha1.Source{{Machine: "full", UID: every.Machines[0].UID, Address: "192.0.2.117", MAC: "52:54:00:12:34:56"}}
	return map[string]plan.Objects{
		"example":     loadText(t, patch(t, example, other)),
		"DHCP alone":  {Infras: loadText(t, patch(t, example, other+dhcpAlone)).Infras},
		"every field": every,
	}
}

// field is one value somewhere in the objects.
type field struct {
	path  string
	value reflect.Value
}

// fields finds each value that can be set below v.
func fields(path string, v reflect.Value) []field {
	var all []field
	if v.CanSet() && !isObject(v.Type()) {
		all = append(all, field{path, v})
	}
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			all = append(all, fields(path, v.Elem())...)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && !skipped[f.Name] {
				all = append(all, fields(path+"."+f.Name, v.Field(i))...)
			}
		}
	case reflect.Slice:
		// The third of a kind is like the second.
		for i := range min(v.Len(), 2) {
			all = append(all, fields(fmt.Sprintf("%s[%d]", path, i), v.Index(i))...)
		}
	}
	return all
}

// isObject tells whether a type is that of a whole object, or of many of them.
func isObject(t reflect.Type) bool {
	if t.Kind() == reflect.Slice {
		t = t.Elem()
	}
	if t.Kind() != reflect.Pointer || t.Elem().Kind() != reflect.Struct {
		return false
	}
	_, named := t.Elem().FieldByName("Namespace")
	return named
}

// twice tells whether there are two objects of one name, which neither a cluster nor a folder ever gives.
func twice(objects plan.Objects) bool {
	seen := map[string]bool{}
	v := reflect.ValueOf(objects)
	for i := range v.NumField() {
		for n := range v.Field(i).Len() {
			object := reflect.Indirect(v.Field(i).Index(n))
			if object.Kind() != reflect.Struct {
				continue
			}
			name := object.FieldByName("Name")
			if !name.IsValid() {
				name = object.FieldByName("Service")
			}
			key := fmt.Sprint(object.Type(), object.FieldByName("Namespace"), "/", name)
			if seen[key] {
				return true
			}
			seen[key] = true
		}
	}
	return false
}

// skipped are fields that neither the plan nor a server reads.
var skipped = func() map[string]bool {
	names := map[string]bool{}
	for name := range strings.FieldsSeq(`TypeMeta ExternalService Conditions LoadBalancer
		GenerateName SelfLink ResourceVersion Generation CreationTimestamp DeletionTimestamp DeletionGracePeriodSeconds Finalizers OwnerReferences ManagedFields
		NodePort ExternalIPs SessionAffinity SessionAffinityConfig LoadBalancerIP LoadBalancerSourceRanges LoadBalancerClass ExternalTrafficPolicy HealthCheckNodePort
		PublishNotReadyAddresses IPFamilies IPFamilyPolicy AllocateLoadBalancerNodePorts InternalTrafficPolicy TrafficDistribution AppProtocol`) {
		names[name] = true
	}
	return names
}()

// oddTexts are values that something, somewhere, does not take.
var oddTexts = []string{
	"", " ", "a", "A.", " a ", "a b", "a_b", "-a", "a..b", "a.b.c", ".", "*", "*.a", "K.example.com", "é", "a\x00b", "a,b", "0xab", "0xab.b", "0x",
	"0", "1", "-1", "70000", "1h", "1ns", "1000000h", "true", "resolv.conf", "None", "ExternalName", "info",
	"192.0.2.0", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.100", "192.0.2.150", "192.0.2.199", "192.0.2.255", "198.51.100.53",
	"0.0.0.0", "255.255.255.255", "224.0.0.1", "127.0.0.1", "::", "::1", "2001:db8::1", "fe80::1%eth0", "::ffff:192.0.2.9", "::ffff:192.0.2.3", "192.0.2.9%eth0",
	"192.0.2.3:53", "192.0.2.3:5353", "[::ffff:192.0.2.3]:53", "192.0.2.9:0", "192.0.2.1-192.0.2.254", "192.0.2.100-192.0.2.199", "192.0.2.9-192.0.2.5", "0.0.0.0/0", "192.0.2.0/24",
	"192.0.2.96/27", "192.0.2.4/32", "::/0", "10.0.0.0/8", "192.0.2.128/31",
	"52:54:00:12:34:56", "52-54-00-12-34-57", "5254.0012.3456", "zz:zz:zz:zz:zz:zz", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "52:54:00:12:34:56:78:90",
	"kubernetes", "kubernetes.default.svc.cluster.local", "api", "apps", "oauth-openshift", "ignition-server-proxy", "full", "example-hcp-a", "clusters", "clusters-full",
	"api.example-hcp-a.clusters.example.com", "example-hcp-b",
	strings.Repeat("a", 63), strings.Repeat("a", 64), strings.Repeat("a.", 126) + "a", strings.Repeat("a.", 127) + "a", strings.Repeat("x", 300),
}

var oddNumbers = []int64{-1 << 31, -1, 0, 1, 2, 53, 68, 80, 119, 121, 249, 254, 255, 443, 6443, 65535, 65536, 1<<31 - 1}

// oddities are the odd values of a field.
func oddities(v reflect.Value) []reflect.Value {
	var odd []reflect.Value
	switch v.Kind() {
	case reflect.String:
		for _, text := range oddTexts {
			odd = append(odd, reflect.ValueOf(text).Convert(v.Type()))
		}
	case reflect.Int, reflect.Int32, reflect.Int64:
		for _, n := range oddNumbers {
			odd = append(odd, reflect.ValueOf(n).Convert(v.Type()))
		}
	case reflect.Bool:
		odd = append(odd, reflect.ValueOf(!v.Bool()).Convert(v.Type()))
	case reflect.Pointer:
		odd = append(odd, reflect.Zero(v.Type()), reflect.New(v.Type().Elem()))
	case reflect.Slice:
		odd = append(odd, reflect.Zero(v.Type()), reflect.AppendSlice(v.Slice3(0, v.Len(), v.Len()), v))
		if v.Type().Elem().Kind() == reflect.String {
			for _, n := range []int{63, 64, 79, 300} {
				// Each another one, whether they are to be addresses or names.
				addresses, names := reflect.MakeSlice(v.Type(), n, n), reflect.MakeSlice(v.Type(), n, n)
				for i := range n {
					addresses.Index(i).SetString(fmt.Sprintf("198.51.%d.%d", 100+i/250, i%250+1))
					names.Index(i).SetString(fmt.Sprintf("a%d.example.com", i))
				}
				odd = append(odd, addresses, names)
			}
		}
	}
	return odd
}

// TestServersTakeOddFields sets each field of each object to each odd value: alone, and then a few at a time.
func TestServersTakeOddFields(t *testing.T) {
	for name, objects := range worlds(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := fields("", reflect.ValueOf(&objects).Elem())
			known, tried, served := builds{}, 0, 0
			failures := map[string]bool{}
			try := func(what string) {
				if twice(objects) {
					return
				}
				refused, children := known.refusals(t, objects)
				tried++
				served += children
				for _, err := range refused {
					// One example of each is enough to see what is wrong.
					if kind := strings.Map(letters, err.Error()); !failures[kind] && len(failures) < 30 {
						failures[kind] = true
						t.Errorf("%s\n\t%v", what, err)
					}
				}
			}
			for _, f := range all {
				old := reflect.New(f.value.Type()).Elem()
				old.Set(f.value)
				for _, odd := range oddities(f.value) {
					f.value.Set(odd)
					try(fmt.Sprintf("%s = %.100q", f.path, fmt.Sprint(odd)))
					f.value.Set(old)
				}
			}
			random := rand.New(rand.NewPCG(1, 2))
			for range 500 {
				var what []string
				var restore []func()
				for range 2 + random.IntN(3) {
					f := all[random.IntN(len(all))]
					values := oddities(f.value)
					if len(values) == 0 {
						continue
					}
					old := reflect.New(f.value.Type()).Elem()
					old.Set(f.value)
					odd := values[random.IntN(len(values))]
					what = append(what, fmt.Sprintf("%s = %.100q", f.path, fmt.Sprint(odd)))
					f.value.Set(odd)
					restore = append(restore, func() { f.value.Set(old) })
				}
				try(strings.Join(what, "\n"))
				for _, undo := range slices.Backward(restore) {
					undo()
				}
			}
			if served < tried {
				t.Errorf("%d children of %d tries: too few to tell anything", served, tried)
			}
			t.Logf("%d fields, %d tries, %d children", len(all), tried, served)
		})
	}
}

// letters drops what makes two errors of one kind different.
func letters(r rune) rune {
	if '0' <= r && r <= '9' {
		return -1
	}
	return r
}

// TestServersTakeOddOptions gives every DHCP option each odd value, and a few good ones.
func TestServersTakeOddOptions(t *testing.T) {
	infra := loadText(t, readText(t, exampleDir+"/infra.yaml")...).Infras[0]
	off := false
	infra.Spec.InfraComponents.DNS.Enabled, infra.Spec.InfraComponents.Proxy.Enabled = &off, &off
	infra.Spec.InfraComponents.DHCP.Options = make([]v1alpha1.DHCPOption, 1)
	texts := slices.Concat(oddTexts, []string{
		"192.0.2.7,192.0.2.8", "192.0.2.7, 192.0.2.8,192.0.2.9", strings.TrimSuffix(strings.Repeat("192.0.2.7,", 63), ","), strings.TrimSuffix(strings.Repeat("192.0.2.7,", 64), ","),
		"198.51.100.0/24 192.0.2.9", "0.0.0.0/0 192.0.2.9", "198.51.100.0/24", "198.51.100.7/24 ::1", strings.TrimSuffix(strings.Repeat("198.51.100.0/24 192.0.2.9,", 128), ","),
		"0x" + strings.Repeat("00", 255), "0x" + strings.Repeat("00", 256), "0x" + strings.Repeat("00", 1024), "0x" + strings.Repeat("00", 1025), "0x080ac0000201",
	})
	known, accepted := builds{}, 0
	for code := int32(-1); code <= 256; code++ {
		for _, text := range texts {
			infra.Spec.InfraComponents.DHCP.Options[0] = v1alpha1.DHCPOption{Code: code, Value: text}
			refused, children := known.refusals(t, plan.Objects{Infras: []*v1alpha1.Infra{infra}})
			for _, err := range refused {
				t.Errorf("%.100q: %v", text, err)
			}
			accepted += children
		}
	}
	if accepted < 1000 {
		t.Errorf("only %d values were accepted", accepted)
	}
}
