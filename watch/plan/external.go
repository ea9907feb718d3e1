package plan

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// External is the public Service of one attachment (product rule 16).
type External struct {
	// Port of the attachment's own Envoy listener, on the pod.
	Port int32
}

// externalKey names the public Service of an attachment.
func externalKey(a *Attachment) types.NamespacedName {
	return types.NamespacedName{Namespace: a.Object.Namespace, Name: v1alpha1.ExternalServiceName(a.Object.Name)}
}

// externalListener is the name of the Envoy listener behind the public Service of an attachment.
func externalListener(attachment string) string { return "external-" + attachment }

// external is what the attachment asks for; nil: nothing.
func (a *Attachment) external() *v1alpha1.ExternalService {
	if e := a.Object.Spec.ExternalService; e != nil && e.Enabled {
		return e
	}
	return nil
}

// publicNames are the names that the public Service leads to, in the order of the five.
func (a *Attachment) publicNames() []string {
	asked := a.external().Services
	if asked == nil {
		return []string{"oauth"}
	}
	var public []string
	for _, name := range names {
		if slices.Contains(asked, v1alpha1.PublicName(name)) {
			public = append(public, name)
		}
	}
	return public
}

// publicService is a public Service as it is in the cluster.
type publicService struct {
	attachment string
	infra      metav1.OwnerReference
	service    *corev1.Service
}

// newPublicService gives the Service if its name is that of a public Service and an Infra controls it.
func newPublicService(s *corev1.Service) (publicService, bool) {
	attachment, ok := strings.CutSuffix(s.Name, v1alpha1.ExternalServiceSuffix)
	owner := metav1.GetControllerOfNoCopy(s)
	if !ok || owner == nil || owner.Kind != "Infra" || !strings.HasPrefix(owner.APIVersion, v1alpha1.GroupVersion.Group+"/") {
		return publicService{}, false
	}
	return publicService{attachment, *owner, s}, true
}

// of tells whether the Service belongs to that Infra. An Infra from a file has no UID.
func (p *publicService) of(infra *Infra) bool {
	return p.infra.Name == infra.Object.Name && (infra.Object.UID == "" || p.infra.UID == infra.Object.UID)
}

// ports are the pod ports that the Service leads to.
func (p *publicService) ports() []int32 {
	var ports []int32
	for i := range p.service.Spec.Ports {
		ports = append(ports, p.service.Spec.Ports[i].TargetPort.IntVal)
	}
	return ports
}

func isExternalPort(port int32) bool {
	return port >= v1alpha1.ExternalPortFirst && port <= v1alpha1.ExternalPortLast
}

func externalPortOf(a *Attachment) int32 {
	if e := a.Object.Status.ExternalService; e != nil && isExternalPort(e.Port) {
		return e.Port
	}
	return 0
}

// assignPorts gives each attachment with a public Service a port of its own on the pods of the Infra: the one that it had,
// else the lowest that nobody has and no public Service leads to. A port that was another's is free only when that
// one's status and Service have let go of it: its VIP must not lead to somebody else's names for an instant.
func assignPorts(infra *Infra, w *index) {
	if !slices.ContainsFunc(infra.Attachments, func(a *Attachment) bool { return a.external() != nil }) {
		return
	}
	had := map[int32]*Attachment{} // by status, the first one
	note := func(a *Attachment) {
		if port := externalPortOf(a); port != 0 && had[port] == nil {
			had[port] = a
		}
	}
	for _, a := range infra.Attachments {
		note(a)
	}
	for _, a := range w.deleting {
		if a.Object.Namespace == infra.Object.Namespace && a.Object.Spec.InfraRef.Name == infra.Object.Name {
			note(a)
		}
	}
	led := map[int32]string{}     // by Service, the attachment that it is named after
	ledTo := map[string][]int32{} // the ports by attachment
	for _, p := range w.publicServices[infra.Object.Namespace] {
		for _, port := range p.ports() {
			if p.of(infra) && isExternalPort(port) && led[port] == "" {
				led[port] = p.attachment
				ledTo[p.attachment] = append(ledTo[p.attachment], port)
			}
		}
	}
	next := int32(v1alpha1.ExternalPortFirst)
	for _, a := range infra.Attachments {
		if a.external() == nil {
			continue
		}
		if port := externalPortOf(a); port != 0 && had[port] == a {
			a.externalPort = port
			continue
		}
		if a.LeftOut != nil || infra.Refused[v1alpha1.ComponentProxy] {
			continue // the listeners stay as they are
		}
		// A status that was lost: the Service still knows.
		if ports := ledTo[a.Object.Name]; len(ports) > 0 && had[ports[0]] == nil {
			a.externalPort = ports[0]
			continue
		}
		for next <= v1alpha1.ExternalPortLast && (had[next] != nil || led[next] != "") {
			next++
		}
		if next <= v1alpha1.ExternalPortLast {
			a.externalPort = next
			next++
		}
	}
}

// wantExternal decides which public Services there are: where the proxy is served, or refused and left as it is.
func wantExternal(infra *Infra) {
	if infra.Proxy == nil && !infra.Refused[v1alpha1.ComponentProxy] {
		return
	}
	for _, a := range infra.Attachments {
		if a.external() != nil && a.LeftOut == nil && a.externalPort != 0 {
			a.External = &External{Port: a.externalPort}
		}
	}
}

// reportExternal writes status.externalService and the condition ExternalServiceReady.
func reportExternal(infra *Infra, a *Attachment, w *index) {
	if a.external() == nil {
		return
	}
	status := &v1alpha1.ExternalServiceStatus{Port: a.externalPort}
	if a.externalPort != 0 {
		a.Status.ExternalService = status
	}
	set := func(status metav1.ConditionStatus, reason, message string) {
		setCondition(&a.Status.Conditions, v1alpha1.ConditionExternalServiceReady, status, reason, message)
	}
	key := externalKey(a)
	switch {
	case a.LeftOut != nil:
		set(metav1.ConditionFalse, a.LeftOut.Reason, "there is no public Service while the attachment is left out")
		return
	case infra.Proxy == nil && !infra.Refused[v1alpha1.ComponentProxy]:
		set(metav1.ConditionFalse, v1alpha1.ReasonProxyDisabled, "there is no proxy to lead to: "+infra.Absence(v1alpha1.ComponentProxy))
		return
	case a.External == nil:
		set(metav1.ConditionFalse, v1alpha1.ReasonNoPortLeft, fmt.Sprintf(
			"every port of %d-%d is that of another attachment's listener: use a second Infra, or disable externalService where it is not needed",
			v1alpha1.ExternalPortFirst, v1alpha1.ExternalPortLast))
		return
	}
	if refusal, unwritten := w.unwritten[key]; unwritten {
		set(metav1.ConditionFalse, refusal.Reason, refusal.Message)
		return
	}
	for _, p := range w.publicServices[key.Namespace] {
		if p.attachment != a.Object.Name || !p.of(infra) {
			continue
		}
		if ingress := p.service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
			status.IP, status.Hostname = ingress[0].IP, ingress[0].Hostname
		}
	}
	if address := slices.DeleteFunc([]string{status.IP, status.Hostname}, func(s string) bool { return s == "" }); len(address) > 0 {
		set(metav1.ConditionTrue, v1alpha1.ReasonPublished, fmt.Sprintf(
			"%s under %s at %s", strings.Join(a.publicNames(), ", "), a.Domain, strings.Join(address, ", ")))
		return
	}
	set(metav1.ConditionFalse, v1alpha1.ReasonWaitingForExternalIP, fmt.Sprintf(
		"Service %s has no address yet: the load balancer of this cluster gives it", key))
}
