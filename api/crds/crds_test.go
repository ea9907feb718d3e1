package crds

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

const infra = `{apiVersion: hostedcluster.densityops.com/v1alpha1, kind: Infra, metadata: {name: i, namespace: clusters},
spec: {networkConfig: {cidr: 192.0.2.0/24, gateway: 192.0.2.1, networkAttachmentDefinition: vlan100}}}`

const attachment = `{apiVersion: hostedcluster.densityops.com/v1alpha1, kind: InfraClusterAttachment, metadata: {name: a, namespace: clusters},
spec: {infraRef: {name: i}, hostedClusterRef: {name: a}, dns: {clusterName: a, baseDomain: example.com}, appsIngress: {enabled: true}, externalService: {enabled: true}}}`

func parseManifest(t testing.TB, text string) map[string]any {
	t.Helper()
	raw, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var object map[string]any
	if err := utiljson.Unmarshal(raw, &object); err != nil {
		t.Fatal(err)
	}
	return object
}

func load(t testing.TB) map[string]*Schema {
	t.Helper()
	schemas, err := Load()
	if err != nil {
		t.Fatal(err)
	}
	return schemas
}

func TestFiveKinds(t *testing.T) {
	schemas := load(t)
	for _, kind := range []string{"Infra", "InfraClusterAttachment", "DHCPServer", "DNSServer", "ProxyServer"} {
		if schemas[kind] == nil {
			t.Errorf("no schema for %s", kind)
		}
	}
	if len(schemas) < 5 {
		t.Errorf("%d schemas", len(schemas))
	}
}

func TestErrors(t *testing.T) {
	schemas := load(t)
	for _, tc := range []struct {
		kind, base, set string // set is a merge into the manifest
		want            []string
	}{
		{"Infra", infra, `{}`, nil},
		{"Infra", infra, `{status: {anything: 1}}`, nil},
		{"Infra", infra, `{spec: {appsIngress: {anything: {goes: 1}}}}`, nil},
		{"Infra", infra, `{spec: {networkConfg: {}}}`, []string{"spec.networkConfg: is not a field of spec: did you mean networkConfig?"}},
		{"Infra", infra, `{spec: {networkConfig: {CIDR: x}}}`, []string{"spec.networkConfig.CIDR: is not a field of spec.networkConfig: did you mean cidr?"}},
		{"Infra", infra, `{spec: {xyzzy: 1}}`, []string{"spec.xyzzy: is not a field of spec: remove it, or use one of appsIngress, infraComponents, networkConfig, vlanPods"}},
		{"Infra", infra, `{metadata: {lables: {a: b}}}`, []string{"metadata.lables: is not a field of metadata: did you mean labels?"}},
		{"Infra", infra, `{metadata: {labels: {a: 1}}}`, []string{"metadata.labels.a: must be a text, not the number 1: put it in quotes"}},
		{"Infra", infra, `{spec: {networkConfig: {gateway: null}}}`, []string{"spec.networkConfig.gateway: is missing: add it"}},
		{"Infra", infra, `{spec: null}`, []string{"spec: is missing: add it"}},
		{"Infra", infra, `{spec: [1]}`, []string{"spec: must be a mapping of fields, not a list"}},
		{"Infra", infra, `{spec: {networkConfig: {dnsServers: 192.0.2.53}}}`, []string{`spec.networkConfig.dnsServers: must be a list (- a, - b), not the text "192.0.2.53"`}},
		{"Infra", infra, `{spec: {networkConfig: {dnsServers: [1.5, null]}}}`, []string{
			"spec.networkConfig.dnsServers[0]: must be a text, not the number 1.5: put it in quotes",
			"spec.networkConfig.dnsServers[1]: is empty: give a value, or remove the entry",
		}},
		{"Infra", infra, `{spec: {infraComponents: {dhcp: {enabled: "true", mtu: 70000, options: [{code: 0}]}}}}`, []string{
			`spec.infraComponents.dhcp.enabled: must be true or false, not the text "true"`,
			"spec.infraComponents.dhcp.mtu: is 70000: use 0 to 65535",
			"spec.infraComponents.dhcp.options[0].value: is missing: add it",
			"spec.infraComponents.dhcp.options[0].code: is 0: use 1 to 254",
		}},
		{"Infra", infra, `{spec: {infraComponents: {dhcp: {mtu: 1.5}}}}`, []string{"spec.infraComponents.dhcp.mtu: must be a whole number, not the number 1.5"}},
		{"Infra", infra, `{spec: {infraComponents: {proxy: {logLevel: inof}}}}`, []string{
			`spec.infraComponents.proxy.logLevel: "inof" is not a known value: use trace, debug, info, warning, error, critical or off: did you mean info?`,
		}},
		{"Infra", infra, "{spec: {infraComponents: {proxy: {serverIP: " + strings.Repeat("a", 65) + "}}}}", []string{"spec.infraComponents.proxy.serverIP: has 65 characters: use at most 64"}},
		{"Infra", infra, "{spec: {networkConfig: {dnsServers: [" + strings.Repeat("resolv.conf,", 65) + "]}}}", []string{"spec.networkConfig.dnsServers: has 65 entries: use at most 64"}},
		{"Infra", infra, `{spec: {vlanPods: {resources: {limits: {cpu: 1.5, memory: 1 GB}, requests: {cpu: 2, memory: 1Gi}}}}}`, []string{
			"spec.vlanPods.resources.limits.cpu: must be an amount (2, 500m, 128Mi), not the number 1.5: put it in quotes",
			`spec.vlanPods.resources.limits.memory: "1 GB" is not an amount: write a number and, where it needs one, a unit, for example 500m or 128Mi`,
		}},
		{"InfraClusterAttachment", attachment, `{spec: {infraRef: {name: ""}}}`, []string{"spec.infraRef.name: must not be empty: give a value"}},
		{"InfraClusterAttachment", attachment, `{spec: {externalService: {services: [oauth, oauth]}}}`, []string{`spec.externalService.services[1]: "oauth" is already entry 0: remove one`}},
		{"InfraClusterAttachment", attachment, `{spec: {appsIngress: {ports: {http: 1e100}}}}`, []string{"spec.appsIngress.ports.http: must be a whole number, not the number 1e+100"}},
	} {
		object := parseManifest(t, tc.base)
		merge(object, parseManifest(t, tc.set))
		var got []string
		for _, e := range schemas[tc.kind].Apply(object) {
			got = append(got, e.Error())
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\ngot  %s\nwant %s", tc.set, strings.Join(got, "\n     "), strings.Join(tc.want, "\n     "))
		}
	}
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

func TestDefaults(t *testing.T) {
	object := parseManifest(t, infra)
	if errs := load(t)["Infra"].Apply(object); errs != nil {
		t.Fatal(errs)
	}
	got, err := json.Marshal(object["spec"].(map[string]any)["infraComponents"])
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"dhcp":{"enabled":true,"leaseTime":"1h"},"dns":{"cacheTTL":"30s","enabled":true},"proxy":{"enabled":true,"logLevel":"info"}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// server is the API server's own way of checking: the reference that Apply is held to.
type server struct {
	structural *structuralschema.Structural
	validator  validation.SchemaValidator
}

func newServer(t testing.TB, kind string) server {
	t.Helper()
	entries, err := fs.ReadDir(Files(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		raw, err := fs.ReadFile(Files(), entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		var v1 apiextensionsv1.CustomResourceDefinition
		if err := yaml.Unmarshal(raw, &v1); err != nil {
			t.Fatal(err)
		}
		if v1.Spec.Names.Kind != kind {
			continue
		}
		var internal apiextensions.JSONSchemaProps
		if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(v1.Spec.Versions[0].Schema.OpenAPIV3Schema, &internal, nil); err != nil {
			t.Fatal(err)
		}
		structural, err := structuralschema.NewStructural(&internal)
		if err != nil {
			t.Fatal(err)
		}
		validator, _, err := validation.NewSchemaValidator(&internal)
		if err != nil {
			t.Fatal(err)
		}
		return server{structural, validator}
	}
	t.Fatalf("no definition of %s", kind)
	return server{}
}

// apply returns what the API server would refuse, and changes the object as it would.
func (s server) apply(object map[string]any) []string {
	defaulting.PruneNonNullableNullsWithoutDefaults(object, s.structural)
	var errs []string
	unknown := pruning.PruneWithOptions(object, s.structural, true, structuralschema.UnknownFieldPathOptions{TrackUnknownFieldPaths: true})
	for _, path := range unknown {
		errs = append(errs, path+": unknown field")
	}
	defaulting.Default(object, s.structural)
	for _, err := range validation.ValidateCustomResource(nil, object, s.validator) {
		errs = append(errs, err.Error())
	}
	for _, err := range listtype.ValidateListSetsAndMaps(nil, s.structural, object) {
		errs = append(errs, err.Error())
	}
	return errs
}

// FuzzLikeTheAPIServer merges a change into a good manifest and wants Apply to accept exactly what the API
// server accepts, and to arrive at the same object.
func FuzzLikeTheAPIServer(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{spec: null}`, `{spec: {}}`, `{spec: 1}`, `{spec: {networkConfig: {cidr: 1}}}`, `{spec: {networkConfig: {gateway: null, dnsServers: [a, b]}}}`,
		`{spec: {infraComponents: null}}`, `{spec: {infraComponents: {dhcp: null, dns: {enabled: null}, proxy: {logLevel: off}}}}`,
		`{spec: {infraComponents: {dhcp: {enabled: false, mtu: -1, options: [{code: 300, value: ""}], reservations: [{mac: a, x: 1}]}}}}`,
		`{spec: {infraComponents: {proxy: {externalService: {a: [1, {b: null}]}}}}}`, `{spec: {infraComponents: {proxy: {logLevel: loud}}}}`,
		`{spec: {infraRef: {name: ""}, hostedClusterRef: {}, dns: {}}}`, `{spec: {externalService: {services: [oauth, api, oauth], labels: {a: 1}}}}`,
		`{spec: {appsIngress: {ports: {http: 0, https: 65536}, service: null, metallb: {install: 1}}}}`, `{spec: {appsIngress: {ports: {http: 80.0}}}}`,
		`{spec: {appsIngress: {service: {selector: {a: null}}}}}`, `{spec: {controlPlaneNamespace: null, apiServerService: null}}`,
		`{spec: {vlanPods: {resources: {requests: {cpu: 1, memory: 128Mi}, limits: {cpu: 1.5, memory: lots}}, imagePullSecrets: [{}, {name: a}]}}}`,
		`{spec: {vlanPods: {resources: {requests: {cpu: 2.0}}, tolerations: [{key: a, operator: Exists, tolerationSeconds: 5}], nodeSelector: {a: b}}}}`,
		`{spec: {vlanPods: {envoyResources: {limits: {cpu: 500m, memory: "1e3", storage: null}}, imagePullPolicy: Always, priorityClassName: x}}}`,
		`{spec: {vlanPods: {resources: {limits: {cpu: true}}}}}`, `{spec: {vlanPods: {resources: {limits: {cpu: "1 Gi"}}, imagePullPolicy: Sometimes}}}`,
	} {
		f.Add(seed, false)
		f.Add(seed, true)
	}
	schemas := load(f)
	servers := map[string]server{"Infra": newServer(f, "Infra"), "InfraClusterAttachment": newServer(f, "InfraClusterAttachment")}
	f.Fuzz(func(t *testing.T, change string, isAttachment bool) {
		raw, err := yaml.YAMLToJSON([]byte(change))
		if err != nil {
			t.Skip("not YAML")
		}
		var from map[string]any
		if utiljson.Unmarshal(raw, &from) != nil || from == nil {
			t.Skip("not a mapping")
		}
		// These are the business of others: the header, metadata (the API server has a type for it), status.
		for _, k := range []string{"apiVersion", "kind", "metadata", "status"} {
			delete(from, k)
		}
		kind, base := "Infra", infra
		if isAttachment {
			kind, base = "InfraClusterAttachment", attachment
		}
		ours := parseManifest(t, base)
		merge(ours, from)
		theirs := runtime.DeepCopyJSON(ours)
		got, want := schemas[kind].Apply(ours), servers[kind].apply(theirs)
		if (len(got) == 0) != (len(want) == 0) {
			t.Fatalf("%s: ours says %v, the API server %v", change, got, want)
		}
		if len(got) == 0 && !equality.Semantic.DeepEqual(ours, theirs) {
			t.Errorf("%s: ours became\n%v\nthe API server's\n%v", change, ours, theirs)
		}
	})
}

// TestKeywords fails when controller-gen writes a keyword that compile does not read.
func TestKeywords(t *testing.T) {
	known := []string{
		"type", "description", "properties", "required", "items", "default", "enum", "minimum", "maximum", "minLength", "maxLength", "maxItems", "maxProperties", "format",
		"additionalProperties", "x-kubernetes-preserve-unknown-fields", "x-kubernetes-list-type",
		"x-kubernetes-int-or-string", "anyOf", "pattern", // of quantities
		"x-kubernetes-map-type",    // how two writers merge, nothing of the value
		"x-kubernetes-validations", // by Validate
	}
	entries, err := fs.ReadDir(Files(), ".")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		raw, err := fs.ReadFile(Files(), entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		version := parseManifest(t, string(raw))["spec"].(map[string]any)["versions"].([]any)[0].(map[string]any)
		var visit func(path string, s map[string]any)
		visit = func(path string, s map[string]any) {
			for k := range s {
				if !slices.Contains(known, k) {
					t.Errorf("%s: %s: keyword %s is not checked by Apply", entry.Name(), path, k)
				}
			}
			if list := s["x-kubernetes-list-type"]; list != nil && list != "atomic" && list != "set" {
				t.Errorf("%s: %s: list type %s is not checked by Apply", entry.Name(), path, list)
			}
			if format := s["format"]; format != nil && format != "int32" && format != "int64" {
				t.Errorf("%s: %s: format %s is not checked by Apply", entry.Name(), path, format)
			}
			for _, k := range []string{"items", "additionalProperties"} {
				if sub, ok := s[k].(map[string]any); ok {
					visit(path+"."+k, sub)
				}
			}
			if props, ok := s["properties"].(map[string]any); ok {
				for name, p := range props {
					if path != "" || name != "status" {
						visit(path+"."+name, p.(map[string]any))
					}
				}
			}
		}
		visit("", version["schema"].(map[string]any)["openAPIV3Schema"].(map[string]any))
	}
}

func BenchmarkLoad(b *testing.B) {
	for b.Loop() {
		load(b)
	}
}

func BenchmarkApply1000(b *testing.B) {
	s := load(b)["InfraClusterAttachment"]
	base := parseManifest(b, attachment)
	for b.Loop() {
		for range 1000 {
			if errs := s.Apply(runtime.DeepCopyJSON(base)); errs != nil {
				b.Fatal(fmt.Sprint(errs))
			}
		}
	}
}
