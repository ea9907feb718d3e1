package workload

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/densityops/oooi/api/v1alpha1"
)

// targets are the pods of a control plane that workers reach through Envoy, and their own ports (not those of their
// Services), as HyperShift labels and runs them.
var targets = []struct {
	app   string
	ports []int32
}{
	{"kube-apiserver", []int32{6443, 8091}}, // 8091: the konnectivity server beside it
	{"oauth-openshift", []int32{6443}},
	{"ignition-server-proxy", []int32{8443}},
}

// ways lets the VLAN pods of this Infra, and nobody else, into one control-plane namespace, to exactly the four targets. One
// policy for each kind of pod: one for all would open each pod's ports on the others as well. What is in another namespace
// cannot be owned: the hub deletes it when it is wanted no longer.
func (b *builder) ways(namespace string) []Object {
	var policies []Object
	for _, target := range targets {
		labels := b.labels()
		labels[v1alpha1.LabelInfraNamespace] = b.infra.Namespace
		policies = append(policies, &networkingv1.NetworkPolicy{
			TypeMeta: networkPolicy(),
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace,
				// A namespace holds no dot, so no two Infras have one name.
				Name:   ManagedBy + "." + b.infra.Namespace + "." + b.infra.Name + "." + target.app,
				Labels: labels,
			},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": target.app}},
				PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
				Ingress: []networkingv1.NetworkPolicyIngressRule{{
					From: []networkingv1.NetworkPolicyPeer{{
						NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: b.infra.Namespace}},
						PodSelector:       &metav1.LabelSelector{MatchLabels: b.selector()},
					}},
					Ports: policyPorts(corev1.ProtocolTCP, target.ports...),
				}},
			},
		})
	}
	return policies
}

// walls admits to the VLAN pods, on the pod network, what they serve there. Policies do not reach the VLAN.
func (b *builder) walls(hasDNS, hasProxy bool) Object {
	ports := policyPorts(corev1.ProtocolTCP, httpPort)
	if hasDNS {
		ports = append(ports, policyPorts(corev1.ProtocolUDP, dnsPort)...)
		ports = append(ports, policyPorts(corev1.ProtocolTCP, dnsPort)...)
	}
	if hasProxy {
		for _, p := range proxyPorts {
			ports = append(ports, policyPorts(corev1.ProtocolTCP, p.port)...)
		}
		// Whatever attachments there are: a policy that changes with them could be late for one.
		external, last := policyPorts(corev1.ProtocolTCP, v1alpha1.ExternalPortFirst), int32(v1alpha1.ExternalPortLast)
		external[0].EndPort = &last
		ports = append(ports, external...)
	}
	return &networkingv1.NetworkPolicy{
		TypeMeta:   networkPolicy(),
		ObjectMeta: b.meta(v1alpha1.VLANName(b.infra.Name)),
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: b.selector()},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: ports}},
		},
	}
}

func networkPolicy() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: networkingv1.SchemeGroupVersion.String(), Kind: "NetworkPolicy"}
}

func policyPorts(protocol corev1.Protocol, numbers ...int32) []networkingv1.NetworkPolicyPort {
	var ports []networkingv1.NetworkPolicyPort
	for _, number := range numbers {
		port := intstr.FromInt32(number)
		ports = append(ports, networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: &port})
	}
	return ports
}

func (b *builder) proxyService() Object {
	var ports []corev1.ServicePort
	for _, p := range proxyPorts {
		ports = append(ports, servicePort(p.name, corev1.ProtocolTCP, p.port))
	}
	return b.service(v1alpha1.ProxyServiceName(b.infra.Name), ports)
}

func (b *builder) dnsService() Object {
	return b.service(v1alpha1.DNSServiceName(b.infra.Name), []corev1.ServicePort{
		servicePort("dns", corev1.ProtocolUDP, dnsPort),
		servicePort("dns-tcp", corev1.ProtocolTCP, dnsPort),
	})
}

// service leads to the holder: the one pod that reaches the VLAN.
func (b *builder) service(name string, ports []corev1.ServicePort) *corev1.Service {
	selector := b.selector()
	selector[v1alpha1.LabelHolder] = "true"
	return &corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: b.meta(name),
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeClusterIP, Selector: selector, Ports: ports},
	}
}

// servicePort has a number for a target: names of container ports are for people.
func servicePort(name string, protocol corev1.Protocol, port int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Protocol: protocol, Port: port, TargetPort: intstr.FromInt32(port)}
}
