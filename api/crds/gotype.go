package crds

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
)

var unmarshaler = reflect.TypeFor[json.Unmarshaler]()

// ForType makes the Schema of a kind of somebody else from the Go type that it is decoded into: fields of the
// type must have its types, all others are let through, nothing is required and nothing defaulted. Types that
// decode themselves (times, quantities) are asked. The type must not contain itself.
func ForType[T any](kind string) *Schema {
	return &Schema{Kind: kind, root: *ofType(reflect.TypeFor[T]())}
}

func ofType(t reflect.Type) *node {
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if reflect.PointerTo(t).Implements(unmarshaler) {
		return &node{self: t}
	}
	switch t.Kind() {
	case reflect.String:
		return &node{kind: "string"}
	case reflect.Bool:
		return &node{kind: "boolean"}
	case reflect.Int32:
		return &node{kind: "integer", bits: 32}
	case reflect.Int, reflect.Int64:
		return &node{kind: "integer", bits: 64}
	case reflect.Float64:
		return &node{kind: "number"}
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return &node{kind: "string"}
		}
		return &node{kind: "array", items: ofType(t.Elem())}
	case reflect.Map:
		return &node{kind: "object", values: ofType(t.Elem())}
	case reflect.Struct:
		n := &node{kind: "object", open: true, properties: map[string]*node{}}
		n.addFields(t)
		n.names = slices.Sorted(maps.Keys(n.properties))
		return n
	}
	return &node{}
}

func (n *node) addFields(t reflect.Type) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case name == "-" || !f.IsExported():
		case name == "" && f.Anonymous, strings.Contains(options, "inline"):
			n.addFields(f.Type)
		default:
			n.properties[name] = ofType(f.Type)
		}
	}
}

// readable tells why a type that decodes itself does not take a value.
func readable(value any, t reflect.Type) error {
	raw, err := json.Marshal(value)
	if err != nil {
		return err
	}
	return json.Unmarshal(raw, reflect.New(t).Interface())
}
