package plan

import (
	"fmt"
	"hash/fnv"
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

// assignPorts gives each attachment with a public Service a port of its own on the pods of the Infra: the one that it has, else
// one that nobody has. Where a public VIP leads is what counts: a port belongs to the attachment whose Service leads to it,
// whatever statuses say, and is free only when no Service and no status has it. An attachment that came from another Infra
// brings its status along, and must not take the port of one that is here.
func assignPorts(infra *Infra, w *index) {
	if !slices.ContainsFunc(infra.Attachments, func(a *Attachment) bool { return a.external() != nil }) {
		return
	}
	owners := map[int32]string{}  // attachments by port
	ledTo := map[string][]int32{} // ports by attachment
	for _, p := range w.publicServices[infra.Object.Namespace] {
		for _, port := range p.ports() {
			if p.of(infra) && isExternalPort(port) && owners[port] == "" {
				owners[port] = p.attachment
				ledTo[p.attachment] = append(ledTo[p.attachment], port)
			}
		}
	}
	note := func(a *Attachment) {
		if port := externalPortOf(a); port != 0 && owners[port] == "" {
			owners[port] = a.Object.Name
		}
	}
	for _, a := range infra.Attachments {
		note(a)
	}
	for _, a := range infra.deleting {
		note(a)
	}
	for _, a := range infra.Attachments {
		name := a.Object.Name
		switch port := externalPortOf(a); {
		case a.external() == nil:
		case port != 0 && owners[port] == name:
			a.externalPort = port
		case a.LeftOut != nil || infra.Refused[v1alpha1.ComponentProxy]: // the listeners stay as they are
		case len(ledTo[name]) > 0: // a status that was lost: the Service still knows
			a.externalPort = ledTo[name][0]
		default:
			a.externalPort = freePort(name, owners)
			owners[a.externalPort] = name
		}
	}
}

// freePort is a port that nobody has; 0: there is none. It starts from a number made of the name, so that a port which
// somebody has let go of is not the next one's at once: what leads to it from elsewhere may take a while to notice.
func freePort(attachment string, owners map[int32]string) int32 {
	const all = v1alpha1.ExternalPortLast - v1alpha1.ExternalPortFirst + 1
	h := fnv.New32a()
	_, _ = h.Write([]byte(attachment)) // never fails
	first := h.Sum32() % all
	for n := range uint32(all) {
		if port := v1alpha1.ExternalPortFirst + int32((first+n)%all); owners[port] == "" {
			return port
		}
	}
	return 0
}

// wantExternal decides which public Services there are: where the proxy is served, or refused and left as it is.
func wantExternal(infra *Infra) {
	if infra.Proxy == nil && !infra.Refused[v1alpha1.ComponentProxy] {
		return
	}
	for _, a := range infra.Attachments {
		// Envoy does not listen on a port that is new to a refused Infra.
		if infra.Refused[v1alpha1.ComponentProxy] && externalPortOf(a) != a.externalPort {
			a.externalPort = 0 // nor is it remembered, or the next plan would take it for one that is served
		}
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
	case a.External == nil && infra.Refused[v1alpha1.ComponentProxy]:
		set(metav1.ConditionFalse, v1alpha1.ReasonWaitingForExternalIP, "there is no public Service yet: "+infra.Absence(v1alpha1.ComponentProxy))
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
	written := false
	for _, p := range w.publicServices[key.Namespace] {
		if p.attachment != a.Object.Name || !p.of(infra) {
			continue
		}
		written = true
		if ingress := p.service.Status.LoadBalancer.Ingress; len(ingress) > 0 {
			status.IP, status.Hostname = ingress[0].IP, ingress[0].Hostname
		}
	}
	if address := slices.DeleteFunc([]string{status.IP, status.Hostname}, func(s string) bool { return s == "" }); len(address) > 0 {
		set(metav1.ConditionTrue, v1alpha1.ReasonPublished, fmt.Sprintf(
			"%s under %s at %s", strings.Join(a.publicNames(), ", "), a.Domain, strings.Join(address, ", ")))
		return
	}
	if !written {
		set(metav1.ConditionFalse, v1alpha1.ReasonWaitingForExternalIP, fmt.Sprintf(
			"Service %s is not written yet: the hub does it that writes the VLAN pods of the Infra", key))
		return
	}
	set(metav1.ConditionFalse, v1alpha1.ReasonWaitingForExternalIP, fmt.Sprintf(
		"Service %s has no address yet: the load balancer of this cluster gives it", key))
}
