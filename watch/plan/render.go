package plan

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Manifests gives the result as documents that a person can review: the children of each Infra in
// full, then the Infra and its attachments with nothing but their statuses. Conditions have no times.
func (r *Result) Manifests() ([]map[string]any, error) {
	var documents []map[string]any
	add := func(object any) error {
		document, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return fmt.Errorf("render %T: %w", object, err)
		}
		dropUnset(document)
		documents = append(documents, document)
		return nil
	}
	for _, infra := range r.Infras {
		for _, object := range infra.manifests() {
			if err := add(object); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range slices.Concat(r.Orphans, r.Deleting) {
		if err := add(a.manifest()); err != nil {
			return nil, err
		}
	}
	return documents, nil
}

func (i *Infra) manifests() []any {
	var objects []any
	if i.DHCP != nil {
		objects = append(objects, i.DHCP)
	}
	if i.DNS != nil {
		objects = append(objects, i.DNS)
	}
	if i.Proxy != nil {
		objects = append(objects, i.Proxy)
	}
	objects = append(objects, &struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Status            v1alpha1.InfraStatus `json:"status"`
	}{typeMeta("Infra"), metav1.ObjectMeta{Namespace: i.Object.Namespace, Name: i.Object.Name}, i.Status})
	for _, a := range i.Attachments {
		objects = append(objects, a.manifest())
	}
	return objects
}

func (a *Attachment) manifest() any {
	return &struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Status            v1alpha1.InfraClusterAttachmentStatus `json:"status"`
	}{typeMeta("InfraClusterAttachment"), metav1.ObjectMeta{Namespace: a.Object.Namespace, Name: a.Object.Name}, a.Status}
}

// dropUnset removes what is not known offline: times, what the servers do, the statuses of children. UIDs of owners
// are left out when the manifests have none.
func dropUnset(document map[string]any) {
	switch document["kind"] {
	case "Infra":
		delete(document["status"].(map[string]any), "componentStatus")
	case "InfraClusterAttachment":
	default:
		delete(document, "status")
	}
	var walk func(value any)
	walk = func(value any) {
		switch v := value.(type) {
		case map[string]any:
			for key, inner := range v {
				if inner == nil || key == "uid" && inner == "" {
					delete(v, key)
					continue
				}
				walk(inner)
			}
		case []any:
			for _, inner := range v {
				walk(inner)
			}
		}
	}
	walk(document)
}
