package crds

import (
	"cmp"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"reflect"
	"regexp"
	"slices"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// files are the manifests as controller-gen writes them, one definition each.
//
//go:embed *.yaml
var files embed.FS

// Files are the manifests of the definitions, for whoever wants to apply them.
func Files() fs.FS { return files }

// Schema is what one kind may look like.
type Schema struct {
	// Kind is the name of the kind, for example Infra.
	Kind string

	root node
	// status is set for the kinds of this API: their statuses are written by oooi, and ignored but for StatusField.
	status *node
}

// Load parses the embedded definitions and returns a Schema for each kind, by its name.
func Load() (map[string]*Schema, error) {
	entries, err := files.ReadDir(".")
	if err != nil {
		return nil, fmt.Errorf("read the embedded definitions: %w", err)
	}
	schemas := make(map[string]*Schema, len(entries))
	for _, entry := range entries {
		raw, err := files.ReadFile(entry.Name())
		if err != nil {
			return nil, fmt.Errorf("read the embedded definitions: %w", err)
		}
		s, err := parse(raw)
		if err != nil {
			return nil, fmt.Errorf("definition %s: %w", entry.Name(), err)
		}
		schemas[s.Kind] = s
	}
	return schemas, nil
}

func parse(raw []byte) (*Schema, error) {
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.Unmarshal(raw, &crd); err != nil {
		return nil, err
	}
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Schema == nil || crd.Spec.Versions[0].Schema.OpenAPIV3Schema == nil {
		return nil, fmt.Errorf("has %d versions or no schema, want one version with a schema", len(crd.Spec.Versions))
	}
	props := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	statusProps := props.Properties["status"]
	status, err := compile(&statusProps)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	delete(props.Properties, "status")
	props.Properties["metadata"] = metadata()
	root, err := compile(props)
	if err != nil {
		return nil, err
	}
	return &Schema{Kind: crd.Spec.Names.Kind, root: *root, status: status}, nil
}

// metadata is what a manifest may say about itself. Definitions leave it open, because the API server checks it
// against its own type (ObjectMeta).
func metadata() apiextensionsv1.JSONSchemaProps {
	text := apiextensionsv1.JSONSchemaProps{Type: "string"}
	integer := apiextensionsv1.JSONSchemaProps{Type: "integer", Format: "int64"}
	texts := apiextensionsv1.JSONSchemaProps{Type: "object", AdditionalProperties: &apiextensionsv1.JSONSchemaPropsOrBool{Schema: &text}}
	open := true
	objects := apiextensionsv1.JSONSchemaProps{Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{
		Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: &open},
	}}
	return apiextensionsv1.JSONSchemaProps{Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{
		"name": text, "generateName": text, "namespace": text, "selfLink": text, "uid": text, "resourceVersion": text,
		"generation": integer, "creationTimestamp": text, "deletionTimestamp": text, "deletionGracePeriodSeconds": integer,
		"labels": texts, "annotations": texts, "ownerReferences": objects, "managedFields": objects,
		"finalizers": {Type: "array", Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &text}},
	}}
}

// node is one level of a schema, prepared for checking.
type node struct {
	kind       string // object, array, string, integer, number, boolean, quantity
	properties map[string]*node
	names      []string // of properties, sorted
	required   []string
	values     *node // of a map
	items      *node
	open       bool // unknown fields are kept
	set        bool // no value twice
	enum       []string
	minimum    *float64
	maximum    *float64
	minLength  int64
	most       *int64         // characters of a text, entries of a list or map
	bits       int            // of an integer
	pattern    *regexp.Regexp // of a quantity
	fallback   any            // the default, nil for none
	self       reflect.Type   // of a value that decodes itself
}

func compile(s *apiextensionsv1.JSONSchemaProps) (*node, error) {
	n := &node{kind: s.Type, required: slices.Sorted(slices.Values(s.Required)), minimum: s.Minimum, maximum: s.Maximum, bits: 64}
	if s.Format == "int32" {
		n.bits = 32
	}
	if s.MinLength != nil {
		n.minLength = *s.MinLength
	}
	if s.XIntOrString {
		// The only values of two types are quantities, as of CPU and memory.
		var err error
		if n.pattern, err = regexp.Compile(s.Pattern); err != nil {
			return nil, fmt.Errorf("pattern: %w", err)
		}
		n.kind = "quantity"
	}
	n.most = cmp.Or(s.MaxLength, s.MaxItems, s.MaxProperties)
	n.open = s.XPreserveUnknownFields != nil && *s.XPreserveUnknownFields
	n.set = s.XListType != nil && *s.XListType == "set"
	for _, e := range s.Enum {
		var value string
		if err := json.Unmarshal(e.Raw, &value); err != nil {
			return nil, fmt.Errorf("enum value %s: %w", e.Raw, err)
		}
		n.enum = append(n.enum, value)
	}
	if s.Default != nil {
		if err := utiljson.Unmarshal(s.Default.Raw, &n.fallback); err != nil {
			return nil, fmt.Errorf("default %s: %w", s.Default.Raw, err)
		}
	}
	var err error
	if s.AdditionalProperties != nil && s.AdditionalProperties.Schema != nil {
		if n.values, err = compile(s.AdditionalProperties.Schema); err != nil {
			return nil, err
		}
	}
	if s.Items != nil && s.Items.Schema != nil {
		if n.items, err = compile(s.Items.Schema); err != nil {
			return nil, err
		}
	}
	if len(s.Properties) > 0 {
		n.properties = make(map[string]*node, len(s.Properties))
	}
	for name, p := range s.Properties {
		if n.properties[name], err = compile(&p); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	n.names = slices.Sorted(maps.Keys(n.properties))
	return n, nil
}
