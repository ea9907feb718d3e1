package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/densityops/oooi/api/v1alpha1"
)

// target is one Service of a control plane that names lead to.
type target struct {
	service string
	port    int32
	// addresses as resolved; none: there is no route to it.
	addresses []string
	// targetPort on those addresses: the Service's port, or the pods' behind a headless Service.
	targetPort int32
	// headless: the addresses are endpoints, which move.
	headless bool
	// missing says why there are no addresses.
	missing string
}

// The targets of an attachment, in the order of Attachment.targets (product rule 8).
const (
	targetAPI = iota
	targetOAuth
	targetIgnition
	targetKonnectivity
)

// targetOf is the target that each of the five names leads to.
var targetOf = map[string]int{
	"api": targetAPI, "api-int": targetAPI, "oauth": targetOAuth, "ignition": targetIgnition, "konnectivity": targetKonnectivity,
}

// findTargets finds the four Services of an attachment.
func findTargets(a *Attachment, w *index) []target {
	namespace := a.Object.ControlPlaneNamespace()
	api := a.Object.Spec.APIServerService
	if api == "" {
		api = "kube-apiserver"
	}
	targets := []target{
		targetAPI:          {service: api, port: 6443},
		targetOAuth:        {service: "oauth-openshift", port: 6443},
		targetIgnition:     {service: "ignition-server-proxy", port: 443},
		targetKonnectivity: {service: "konnectivity-server", port: 8091},
	}
	for i := range targets {
		t := &targets[i]
		t.targetPort = t.port
		t.resolve(namespace, w)
	}
	return targets
}

// resolveTargets finds the targets of an attachment and sets its ControlPlaneFound condition.
func resolveTargets(a *Attachment, w *index) {
	namespace := a.Object.ControlPlaneNamespace()
	a.Status.ControlPlaneNamespace = namespace
	a.targets = findTargets(a, w)
	var missing []string
	for i := range a.targets {
		if t := &a.targets[i]; t.missing != "" {
			missing = append(missing, t.missing)
		}
	}
	switch {
	case !w.namespaces[namespace]:
		setCondition(&a.Status.Conditions, v1alpha1.ConditionControlPlaneFound, metav1.ConditionFalse, v1alpha1.ReasonControlPlaneNamespaceNotFound,
			fmt.Sprintf("namespace %s does not exist yet: create the HostedCluster %s, HyperShift creates the namespace", namespace, a.hostedCluster))
	case len(missing) > 0:
		setCondition(&a.Status.Conditions, v1alpha1.ConditionControlPlaneFound, metav1.ConditionFalse, v1alpha1.ReasonServiceNotFound,
			fmt.Sprintf("no route in namespace %s to %s", namespace, strings.Join(missing, ", ")))
	default:
		setCondition(&a.Status.Conditions, v1alpha1.ConditionControlPlaneFound, metav1.ConditionTrue, v1alpha1.ReasonFound,
			"the namespace and the target Services exist")
	}
}

// resolve finds the addresses of the target. What cannot be dialled is missing: a Service is somebody else's object,
// and a mistake in it must cost nobody but its own cluster.
func (t *target) resolve(namespace string, w *index) {
	key := types.NamespacedName{Namespace: namespace, Name: t.service}
	s := w.services[key]
	switch {
	case s == nil:
		t.missing = fmt.Sprintf("Service %s (not found)", t.service)
	case s.Spec.Type == corev1.ServiceTypeExternalName:
		name := v1alpha1.NormalizeDomain(s.Spec.ExternalName)
		if !isHostName(name) {
			t.missing = fmt.Sprintf("Service %s (its externalName %q is not a DNS name)", t.service, s.Spec.ExternalName)
			return
		}
		t.addresses = []string{name}
	case servicePort(s, t.port) == nil && len(s.Spec.Ports) > 0:
		t.missing = fmt.Sprintf("Service %s (has no port %d)", t.service, t.port)
	case s.Spec.ClusterIP == corev1.ClusterIPNone:
		t.resolveHeadless(s, w.endpoints[key])
	case clusterIP(s) != "":
		t.addresses = []string{clusterIP(s)}
	default:
		t.missing = fmt.Sprintf("Service %s (no IPv4 ClusterIP yet)", t.service)
	}
}

// resolveHeadless takes the ready endpoints of a headless Service, at the port of its pods.
func (t *target) resolveHeadless(s *corev1.Service, e *Endpoints) {
	t.headless = true
	if p := servicePort(s, t.port); p != nil && p.TargetPort.IntVal != 0 {
		t.targetPort = p.TargetPort.IntVal
	}
	if t.targetPort < 1 || t.targetPort > 65535 {
		t.missing = fmt.Sprintf("Service %s (its targetPort %d is not a port)", t.service, t.targetPort)
		t.targetPort = t.port
		return
	}
	if e != nil {
		for _, text := range e.Addresses {
			if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
				t.addresses = append(t.addresses, address.String())
			}
		}
	}
	if len(t.addresses) == 0 {
		t.missing = fmt.Sprintf("Service %s (headless, no ready endpoint)", t.service)
	}
}

// isHostName tells whether a name can be looked up: a DNS name that is no address.
func isHostName(name string) bool {
	_, err := netip.ParseAddr(name)
	return err != nil && len(name) <= 253 && len(validation.IsDNS1123Subdomain(name)) == 0 &&
		!slices.ContainsFunc(strings.Split(name, "."), func(label string) bool { return len(label) > validation.DNS1123LabelMaxLength })
}

func servicePort(s *corev1.Service, port int32) *corev1.ServicePort {
	for i := range s.Spec.Ports {
		if s.Spec.Ports[i].Port == port {
			return &s.Spec.Ports[i]
		}
	}
	return nil
}
