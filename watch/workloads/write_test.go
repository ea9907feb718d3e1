package workloads

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestOwnedByTellsWhoseAnObjectIs(t *testing.T) {
	f := newFleet(t, "a")
	want := f.infras[f.key("a")]
	controlled := want.byKey[objectKey{"PodDisruptionBudget", types.NamespacedName{Namespace: "a", Name: "a-vlan"}}]
	shared := want.byKey[objectKey{"ServiceAccount", types.NamespacedName{Namespace: "a", Name: v1alpha1.VLANAccount}}]
	service := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	service.OwnerReferences = controlled.object.GetOwnerReferences()
	public := &wantedObject{key: objectKey{"Service", types.NamespacedName{Namespace: "a", Name: "hcp-proxy-external"}}, object: service}
	yes := true
	of := func(infra string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Infra", Name: infra, UID: types.UID(infra), Controller: &yes}}
	}
	if err := ownedBy(want.infra, public, &corev1.Service{ObjectMeta: metav1.ObjectMeta{OwnerReferences: of("b"), DeletionTimestamp: &metav1.Time{}}}); err == nil || !strings.Contains(err.Error(), "belongs to Infra b") {
		t.Errorf("a public Service of another Infra: %v", err)
	}
	if err := ownedBy(want.infra, public, &corev1.Service{ObjectMeta: metav1.ObjectMeta{OwnerReferences: of("b"), DeletionTimestamp: &metav1.Time{Time: time.Now()}}}); err == nil || !strings.Contains(err.Error(), "which the attachment has left") {
		t.Errorf("a public Service of the Infra of before, which is going: %v", err)
	}
	for _, c := range []struct {
		name   string
		wanted *wantedObject
		labels map[string]string
		owners []metav1.OwnerReference
		want   string
	}{
		{"controlled", controlled, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "uid of a", Controller: &yes}}, ""},
		{"without owners, by its labels", controlled, controlled.object.GetLabels(), nil, ""},
		{"nobody's", controlled, nil, nil, "belongs to somebody else, by its labels"},
		{"another Infra's", controlled, map[string]string{v1alpha1.LabelInfra: "b"}, nil, "belongs to somebody else, by its labels"},
		{"controlled by somebody else", controlled, controlled.object.GetLabels(), []metav1.OwnerReference{{Kind: "Job", Name: "j", UID: "1", Controller: &yes}}, "belongs to Job j"},
		{"an Infra's that is gone", controlled, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "before", Controller: &yes}}, "an Infra of this name that is gone"},
		{"shared", shared, shared.object.GetLabels(), []metav1.OwnerReference{{Kind: "Infra", Name: "b", UID: "uid of b"}}, ""},
		{"shared, without its label", shared, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "uid of a"}}, ""},
		{"somebody else's of that name", shared, nil, nil, "belongs to somebody else, by its labels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			there := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, OwnerReferences: c.owners}}
			err := ownedBy(want.infra, c.wanted, there)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}
