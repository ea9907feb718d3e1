package workload

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// AnnotationInfraHash is on the Deployment. It changes when the Infra itself asks for other pods: the change goes out
	// at once.
	AnnotationInfraHash = "hostedcluster.densityops.com/infra-hash"
	// AnnotationReleaseHash is on the Deployment. It changes with everything in its spec. When it alone differs, and
	// AnnotationInfraHash does not, the change comes with the installation and is rolled out one Infra at a time.
	AnnotationReleaseHash = "hostedcluster.densityops.com/release-hash"

	// LabelManagedBy is on every object; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy, and the field owner of what is applied.
	ManagedBy = "oooi"
)

// Object is what Build returns: any typed object of Kubernetes, its kind filled in. It has the methods of
// controller-runtime's client.Object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Settings are those of an installation. Each can be overridden by an Infra.
type Settings struct {
	// Image of oooi. Required, unless the Infra names its own.
	Image string
	// EnvoyImage is the image of Envoy. Required, unless the Infra names its own.
	EnvoyImage string
	// PullPolicy of both. Empty: the API server's default.
	PullPolicy corev1.PullPolicy
	// PullSecrets are names of Secrets in the Infra's namespace.
	PullSecrets []string
}

// FieldOwner is the field owner under which an object of an Infra is applied. The ServiceAccount and the RoleBinding are
// shared by all Infras of a namespace, each of which adds its owner reference: applied under one name for all, each would
// take away the others' reference.
func FieldOwner(infra *v1alpha1.Infra, object Object) string {
	if object.GetLabels()[v1alpha1.LabelInfra] == "" {
		return ManagedBy + "-" + string(infra.UID)
	}
	return ManagedBy
}

// Build gives all objects of one Infra, in the order in which they are to be written, their kinds filled in; none when the
// Infra is being deleted or all its components are disabled. controlPlanes are the namespaces of its attachments' control
// planes, in any order. The Infra is read as the API server has it: with a UID, its defaults filled in or not. An error
// says what is wrong with the Infra or missing in the settings.
func Build(infra *v1alpha1.Infra, controlPlanes []string, s Settings) ([]Object, error) {
	return nil, nil
}
