package plan

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// The rules that decide about a connection.
const (
	// RuleServerName: the server name is a name of one cluster.
	RuleServerName = "server-name"
	// RuleAlias: the server name is an alias, so the source decides.
	RuleAlias = "alias"
	// RuleNoServerName: there is no server name, so the source decides.
	RuleNoServerName = "no-server-name"
	// RulePort: nothing listens on that port.
	RulePort = "port"
)

// Verdict says where one TLS connection to the proxy of one Infra goes, and why.
type Verdict struct {
	// Infra as namespace/name.
	Infra string `json:"infra"`
	// Routed is true when the connection reaches a target, false when it is closed.
	Routed bool `json:"routed"`
	// Rule that decided: server-name, alias, no-server-name or port.
	Rule string `json:"rule"`
	// Attachment whose cluster is reached, or would be.
	Attachment string `json:"attachment,omitempty"`
	// Target as namespace/service:port.
	Target string `json:"target,omitempty"`
	// Addresses of the target.
	Addresses []string `json:"addresses,omitempty"`
	// Backend of the ProxyServer.
	Backend string `json:"backend,omitempty"`
	// FilterChain and cluster of Envoy.
	FilterChain string `json:"filterChain,omitempty"`
	// Why, for a person.
	Why string `json:"why"`
}

// Explain says where TLS connections from a source with a server name (empty: none) to a port of the
// proxy go: one verdict for each Infra that Concerned gives.
func (r *Result) Explain(source netip.Addr, serverName string, port int, infra string) []Verdict {
	var verdicts []Verdict
	for _, i := range r.Concerned(source, infra) {
		verdicts = append(verdicts, i.explain(source, serverName, port))
	}
	return verdicts
}

// Concerned gives the Infras whose VLAN the source lies in; for a source outside every VLAN all of them. infra
// narrows it to one ("namespace/name"; empty: no narrowing).
func (r *Result) Concerned(source netip.Addr, infra string) []*Infra {
	var inside, all []*Infra
	for _, i := range r.Infras {
		if infra != "" && i.Key().String() != infra {
			continue
		}
		all = append(all, i)
		if i.cidr.Contains(source) {
			inside = append(inside, i)
		}
	}
	if len(inside) > 0 {
		return inside
	}
	return all
}

func (i *Infra) explain(source netip.Addr, serverName string, port int) Verdict {
	v := Verdict{Infra: i.Key().String(), Rule: RuleServerName}
	name := strings.ToLower(serverName)
	switch {
	case name == "":
		v.Rule = RuleNoServerName
	case slices.Contains(Aliases, name):
		v.Rule = RuleAlias
	}
	switch {
	case i.Proxy == nil:
		v.Why = "the proxy of this Infra is not served: " + i.Absence(v1alpha1.ComponentProxy)
		return v
	case port != portHTTPS && port != portKubeAPI:
		v.Rule = RulePort
		v.Why = fmt.Sprintf("Envoy listens on %d and %d, not on %d", portHTTPS, portKubeAPI, port)
		return v
	case v.Rule == RuleServerName:
		i.explainServerName(&v, name, port)
	default:
		i.explainSource(&v, source, port)
	}
	return v
}

// Absence says why a component has no child.
func (i *Infra) Absence(component v1alpha1.Component) string {
	c := &i.Object.Spec.InfraComponents
	enabled := map[v1alpha1.Component]*bool{
		v1alpha1.ComponentDHCP:  c.DHCP.Enabled,
		v1alpha1.ComponentDNS:   c.DNS.Enabled,
		v1alpha1.ComponentProxy: c.Proxy.Enabled,
	}[component]
	if !v1alpha1.On(enabled) {
		return fmt.Sprintf("infraComponents.%s.enabled is false", component)
	}
	if len(i.problems) == 0 {
		return "there is no such child"
	}
	return joinProblems(i.problems)
}

func (i *Infra) explainServerName(v *Verdict, name string, port int) {
	for _, b := range i.Proxy.Spec.Backends {
		if b.Hostname != name || len(b.SourcePrefixRanges) > 0 {
			continue
		}
		if !slices.Contains(b.Ports, int32(port)) {
			v.Attachment, v.Backend = b.Attachment, b.Name
			v.Why = fmt.Sprintf("%s of attachment %s is served on port %s only", name, b.Attachment, portList(b.Ports))
			return
		}
		i.route(v, b, fmt.Sprintf("the server name %s belongs to attachment %s, from any source", name, b.Attachment))
		return
	}
	for _, a := range i.Attachments {
		if a.LeftOut != nil && slices.ContainsFunc(names, func(n string) bool { return n+"."+a.Domain == name }) {
			v.Attachment = a.Object.Name
			v.Why = fmt.Sprintf("attachment %s is left out (%s): %s", a.Object.Name, a.LeftOut.Reason, a.LeftOut.Message)
			return
		}
	}
	v.Why = fmt.Sprintf("no attachment of this Infra has the name %s", name)
	if strings.HasSuffix(name, ".") {
		v.Why += "; a server name has no trailing dot (RFC 6066 section 3)"
	}
}

func (i *Infra) explainSource(v *Verdict, source netip.Addr, port int) {
	subject := "TLS without a server name"
	if v.Rule == RuleAlias {
		subject = "an alias"
	}
	if claims := i.Disputed[source]; claims != nil {
		v.Why = fmt.Sprintf("%s goes by source, and %s is disputed (%s): it is shown by Machine %s of attachment %s and Machine %s of attachment %s",
			subject, source, v1alpha1.ReasonDuplicateSourceIP, claims[0].Machine, claims[0].Attachment, claims[1].Machine, claims[1].Attachment)
		return
	}
	for _, a := range i.Attachments {
		for _, s := range a.Sources {
			if s.Address != source {
				continue
			}
			v.Attachment = a.Object.Name
			if a.LeftOut != nil {
				v.Why = fmt.Sprintf("%s goes by source, and %s belongs to attachment %s, which is left out (%s): %s",
					subject, source, a.Object.Name, a.LeftOut.Reason, a.LeftOut.Message)
				return
			}
			shown := "shows"
			if s.Remembered {
				shown = "showed last"
			}
			who := fmt.Sprintf("Machine %s of attachment %s %s %s", s.Machine, a.Object.Name, shown, source)
			if s.Machine == "" { // known from the children only
				who = fmt.Sprintf("%s is a source of attachment %s", source, a.Object.Name)
			}
			i.routeBySource(v, a, port, subject+" goes by source, and "+who)
			return
		}
	}
	v.Why = fmt.Sprintf("%s goes by source, and no Machine of any attachment shows %s", subject, source)
	if !i.cidr.Contains(source) {
		v.Why += fmt.Sprintf("; sources are addresses of %s", i.cidr)
	}
}

func (i *Infra) routeBySource(v *Verdict, a *Attachment, port int, why string) {
	for _, b := range i.Proxy.Spec.Backends {
		alias := b.Hostname != ""
		if b.Attachment == a.Object.Name && len(b.SourcePrefixRanges) > 0 && alias == (v.Rule == RuleAlias) && slices.Contains(b.Ports, int32(port)) {
			i.route(v, b, why)
			return
		}
	}
	v.Why = why + ", but there is no such route"
}

func (i *Infra) route(v *Verdict, b v1alpha1.Backend, why string) {
	v.Attachment, v.Backend, v.Why = b.Attachment, b.Name, why
	v.Target = fmt.Sprintf("%s/%s:%d", b.TargetNamespace, b.TargetService, b.TargetPort)
	v.FilterChain = fmt.Sprintf("%s/%s/%s", i.Object.Namespace, b.Attachment, b.TargetService)
	v.Addresses = b.Addresses
	v.Routed = len(b.Addresses) > 0
	if !v.Routed {
		v.Why += "; closed, because the target has no address: " + i.missingTarget(b)
	}
}

func (i *Infra) missingTarget(b v1alpha1.Backend) string {
	for _, a := range i.Attachments {
		if a.Object.Name != b.Attachment {
			continue
		}
		for _, c := range a.Status.Conditions {
			if c.Type == v1alpha1.ConditionControlPlaneFound && c.Status == metav1.ConditionFalse {
				return c.Message
			}
		}
	}
	return "unknown"
}

func portList(ports []int32) string {
	texts := make([]string, len(ports))
	for i, p := range ports {
		texts[i] = fmt.Sprint(p)
	}
	return strings.Join(texts, " and ")
}
