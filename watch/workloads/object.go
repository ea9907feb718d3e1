package workloads

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
)

const (
	// annotationApplied is the hash of what was applied: a field that is wanted no longer makes another hash, over a restart of
	// the hub, too.
	annotationApplied = "hostedcluster.densityops.com/applied-hash"
	// annotationUpgraded is on a Deployment that came to its present release by an upgrade while all its pods were ready. Its
	// value is that of workload.AnnotationReleaseHash. Others wait until all its pods are ready again.
	annotationUpgraded = "hostedcluster.densityops.com/upgraded-to"
)

// wantedObject is an object as package workload builds it.
type wantedObject struct {
	key    objectKey
	gvk    schema.GroupVersionKind
	object client.Object
	// content is what is applied.
	content map[string]any
}

func newWantedObject(key objectKey, infra *v1alpha1.Infra, object client.Object) (*wantedObject, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	delete(content, "status")
	content = withoutNulls(content).(map[string]any)
	hashed := runtime.DeepCopyJSON(content)
	// Each Infra has its own among the owners of what it shares.
	unstructured.RemoveNestedField(hashed, "metadata", "ownerReferences")
	text, err := json.Marshal(hashed)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	sum := sha256.Sum256(text)
	u := &unstructured.Unstructured{Object: content}
	annotate(u, annotationApplied, hex.EncodeToString(sum[:8]))
	return &wantedObject{key: key, gvk: object.GetObjectKind().GroupVersionKind(), object: object, content: content}, nil
}

func annotate(object client.Object, key, value string) {
	annotations := maps.Clone(object.GetAnnotations())
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[key] = value
	object.SetAnnotations(annotations)
}

// isControlled tells whether the Infra controls the object, which it does not share with anybody.
func (o *wantedObject) isControlled() bool { return metav1.GetControllerOfNoCopy(o.object) != nil }

func (o *wantedObject) isDeployment() bool {
	_, is := o.object.(*appsv1.Deployment)
	return is
}

// isPublic tells whether the object is the public Service of one attachment.
func (o *wantedObject) isPublic() bool {
	s, is := o.object.(*corev1.Service)
	return is && s.Spec.Type == corev1.ServiceTypeLoadBalancer
}

// namedAfter is what has the name that the object's name is made from.
func (o *wantedObject) namedAfter() string {
	if o.isPublic() {
		return "attachment"
	}
	return "Infra"
}

// isNeededByPods tells whether pods that start without the object, or with somebody else's, would run under the wrong account
// or with the wrong configuration.
func (o *wantedObject) isNeededByPods() bool {
	switch o.object.(type) {
	case *corev1.ServiceAccount, *rbacv1.RoleBinding, *corev1.ConfigMap:
		return true
	}
	return false
}

// contentFor is what is to be applied over the object that is there.
func (o *wantedObject) contentFor(there client.Object) map[string]any {
	u := &unstructured.Unstructured{Object: runtime.DeepCopyJSON(o.content)}
	if d, is := there.(*appsv1.Deployment); is && upgrades(o, d) && rolledOut(d) || is && wasUpgraded(d) && !changesRelease(o, d) {
		annotate(u, annotationUpgraded, o.object.GetAnnotations()[workload.AnnotationReleaseHash])
	}
	return u.Object
}

// isIn tells whether an object is there as it is wanted. What this process has seen so, or applied itself, is as it is wanted
// until somebody edits it, however the API server writes it.
func (o *wantedObject) isIn(there client.Object, applied appliedObject) bool {
	have, err := runtime.DefaultUnstructuredConverter.ToUnstructured(there)
	if err != nil {
		return false
	}
	metadata, _ := o.content["metadata"].(map[string]any)
	if !covers(metadata["labels"], value(have, "metadata", "labels")) || !covers(metadata["annotations"], value(have, "metadata", "annotations")) {
		return false
	}
	for _, owner := range o.object.GetOwnerReferences() {
		if !hasOwner(there, owner) {
			return false
		}
	}
	if service, is := there.(*corev1.Service); is && o.clearing(service) != nil {
		return false
	}
	if applied.uid == there.GetUID() {
		return applied.version == versionOf(there)
	}
	for field, wanted := range o.content {
		switch field {
		case "apiVersion", "kind", "metadata":
			continue
		}
		if !covers(wanted, have[field]) {
			return false
		}
	}
	return true
}

func hasOwner(object client.Object, owner metav1.OwnerReference) bool {
	for _, o := range object.GetOwnerReferences() {
		if equality.Semantic.DeepEqual(o, owner) {
			return true
		}
	}
	return false
}

func value(content map[string]any, path ...string) any {
	v, _, _ := unstructured.NestedFieldNoCopy(content, path...)
	return v
}

// versionOf is what moves when somebody edits an object, and not when its controller reports: the generation, where there is
// one.
func versionOf(object client.Object) string {
	if generation := object.GetGeneration(); generation > 0 {
		return "generation " + strconv.FormatInt(generation, 10)
	}
	return object.GetResourceVersion()
}

// exact are fields where more is something else.
var exact = map[string]bool{"selector": true, "matchLabels": true, "nodeSelector": true, "podSelector": true, "namespaceSelector": true}

// covers tells whether all that is wanted is there. Fields that others added, or that have defaults, do not count, but a list
// with more entries is another list, and a selector with more labels another selector.
func covers(wanted, there any) bool {
	switch w := wanted.(type) {
	case nil:
		return true
	case map[string]any:
		if len(w) == 0 {
			return true
		}
		t, ok := there.(map[string]any)
		if !ok {
			return false
		}
		for field, v := range w {
			if !covers(v, t[field]) || exact[field] && !covers(t[field], v) {
				return false
			}
		}
		return true
	case []any:
		t, _ := there.([]any)
		if len(w) != len(t) {
			return false
		}
		for i := range w {
			if !covers(w[i], t[i]) {
				return false
			}
		}
		return true
	}
	return equality.Semantic.DeepEqual(wanted, there)
}

// withoutNulls takes away what applying would set to nothing.
func withoutNulls(v any) any {
	switch v := v.(type) {
	case map[string]any:
		kept := map[string]any{}
		for field, inner := range v {
			if inner != nil {
				kept[field] = withoutNulls(inner)
			}
		}
		return kept
	case []any:
		kept := make([]any, len(v))
		for i := range v {
			kept[i] = withoutNulls(v[i])
		}
		return kept
	}
	return v
}
