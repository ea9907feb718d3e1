package workloads

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"
)

func TestCoversIgnoresOnlyWhatOthersMayAdd(t *testing.T) {
	for _, c := range []struct {
		name, wanted, there string
		want                bool
	}{
		{"the same", "{a: {b: 1}}", "{a: {b: 1}}", true},
		{"a default", "{a: {b: 1}}", "{a: {b: 1, c: 2}, d: 3}", true},
		{"another value", "{a: {b: 1}}", "{a: {b: 2}}", false},
		{"a missing field", "{a: {b: 1}}", "{a: {}}", false},
		{"an empty struct that is left out", "{a: {}}", "{}", true},
		{"another kind of value", "{a: {b: 1}}", "{a: 1}", false},
		{"defaults in a list", "{a: [{b: 1}]}", "{a: [{b: 1, c: 2}]}", true},
		{"one more in a list", "{a: [{b: 1}]}", "{a: [{b: 1}, {c: 2}]}", false},
		{"one less in a list", "{a: [{b: 1}, {c: 2}]}", "{a: [{b: 1}]}", false},
		{"another order", "{a: [1, 2]}", "{a: [2, 1]}", false},
		{"one more label", "{labels: {a: b}}", "{labels: {a: b, c: d}}", true},
		{"one more label of a selector", "{selector: {a: b}}", "{selector: {a: b, c: d}}", false},
		{"an expression beside the labels", "{podSelector: {matchLabels: {a: b}}}", "{podSelector: {matchLabels: {a: b}, matchExpressions: [{key: c}]}}", false},
		{"an empty selector", "{podSelector: {}}", "{podSelector: {}}", true},
		{"no selector any more", "{podSelector: {}}", "{podSelector: {matchLabels: {a: b}}}", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var wanted, there map[string]any
			if err := yaml.Unmarshal([]byte(c.wanted), &wanted); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(c.there), &there); err != nil {
				t.Fatal(err)
			}
			if got := covers(wanted, there); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// TestWhatIsWantedNoLongerMakesAnotherHash is how a hub of another release knows that fields have to go.
func TestWhatIsWantedNoLongerMakesAnotherHash(t *testing.T) {
	hash := func(object *corev1.ConfigMap, owner types.UID) string {
		t.Helper()
		object.OwnerReferences = []metav1.OwnerReference{{UID: owner}}
		o, err := newWantedObject(objectKey{}, nil, object)
		if err != nil {
			t.Fatal(err)
		}
		return (&unstructured.Unstructured{Object: o.content}).GetAnnotations()[annotationApplied]
	}
	two := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}, "x")
	if one := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1"}}, "x"); one == two || one == "" {
		t.Errorf("hashes %q and %q", two, one)
	}
	if again := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}, "y"); again != two {
		t.Error("two Infras that share an object write other hashes")
	}
}
