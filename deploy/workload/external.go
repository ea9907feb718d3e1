package workload

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/densityops/oooi/api/v1alpha1"
)

// httpsPort is the one that is public.
const httpsPort = 443

// External is one attachment with public names.
type External struct {
	// Attachment is its name.
	Attachment string
	// Port is that of its own listener of Envoy. Outside of v1alpha1.ExternalPortFirst to ExternalPortLast it has none, and there is
	// no Service: any other port would open what all attachments share.
	Port int32
	// AddressPool is the MetalLB pool that the address comes from. Empty: MetalLB, or whoever gives addresses, chooses.
	AddressPool string
	// Labels and Annotations that the user wants on the Service. Those that oooi sets itself, and all keys under
	// hostedcluster.densityops.com, are not his to set.
	Labels, Annotations map[string]string
}

// external gives a public Service for each attachment that has a listener of its own, in the order of their names.
func (b *builder) external(all []External) []Object {
	var services []Object
	for _, e := range slices.SortedFunc(slices.Values(all), func(a, b External) int { return cmp.Compare(a.Attachment, b.Attachment) }) {
		if e.Port >= v1alpha1.ExternalPortFirst && e.Port <= v1alpha1.ExternalPortLast {
			services = append(services, b.externalService(e))
		}
	}
	return services
}

// externalService leads from a public address to the one listener of Envoy that knows the public names of one attachment and
// nothing else. Node ports and the status are not ours to say.
func (b *builder) externalService(e External) Object {
	port := servicePort("https", corev1.ProtocolTCP, httpsPort)
	port.TargetPort = intstr.FromInt32(e.Port)
	service := b.service(v1alpha1.ExternalServiceName(e.Attachment), []corev1.ServicePort{port})
	service.Spec.Type = corev1.ServiceTypeLoadBalancer

	labels := v1alpha1.ServiceLabels(e.Labels)
	maps.Copy(labels, service.Labels)
	labels[v1alpha1.LabelAttachment] = v1alpha1.LabelValue(e.Attachment)
	service.Labels = labels

	if annotations := v1alpha1.ServiceAnnotations(e.Annotations, e.AddressPool); len(annotations) > 0 {
		service.Annotations = annotations
	}
	return service
}
