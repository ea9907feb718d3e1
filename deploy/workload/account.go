package workload

import (
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// shared names what all Infras of a namespace have in common. It goes with the last of them.
func (b *builder) shared() metav1.ObjectMeta {
	labels := b.labels()
	delete(labels, v1alpha1.LabelInfra)
	return metav1.ObjectMeta{
		Namespace: b.infra.Namespace, Name: v1alpha1.VLANAccount, Labels: labels,
		OwnerReferences: []metav1.OwnerReference{b.owner()},
	}
}

// account is whom VLAN pods are. Its token goes into the one container that needs it.
func (b *builder) account() Object {
	automount := false
	return &corev1.ServiceAccount{
		TypeMeta:                     metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta:                   b.shared(),
		AutomountServiceAccountToken: &automount,
	}
}

// binding gives the account the one fixed role, in the Infra's namespace and nowhere else.
func (b *builder) binding() Object {
	return &rbacv1.RoleBinding{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
		ObjectMeta: b.shared(),
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: v1alpha1.VLANAccount},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: b.infra.Namespace, Name: v1alpha1.VLANAccount}},
	}
}
