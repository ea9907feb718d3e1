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
	// RuleAppsName: the server name lies under *.apps of one cluster.
	RuleAppsName = "apps-name"
	// RuleHTTPHost: the connection is plain HTTP, and its Host lies under *.apps of one cluster.
	RuleHTTPHost = "http-host"
	// RulePublicName: the port is that of an attachment's own listener, which takes nothing but its public names.
	RulePublicName = "public-name"
	// RuleAlias: the server name is an alias, so the source decides.
	RuleAlias = "alias"
	// RuleNoServerName: there is no server name, so the source decides.
	RuleNoServerName = "no-server-name"
	// RulePort: nothing listens on that port.
	RulePort = "port"
)

// Connection is one connection to the proxy of an Infra.
type Connection struct {
	Source netip.Addr
	// Name is the server name of TLS, or the Host of HTTP on port 80; empty: none.
	Name string
	// Port of the proxy. With Listener: ignored.
	Port int
	// Listener is the name of an attachment's own listener, external-<attachment>; empty: the one of the port.
	Listener string
}

// Verdict says where one connection to the proxy of one Infra goes, and why.
type Verdict struct {
	// Infra as namespace/name.
	Infra string `json:"infra"`
	// Routed is true when the connection reaches a target, false when it is closed.
	Routed bool `json:"routed"`
	// Rule that decided: server-name, apps-name, http-host, public-name, alias, no-server-name or port.
	Rule string `json:"rule"`
	// Attachment whose cluster is reached, or would be.
	Attachment string `json:"attachment,omitempty"`
	// Target as namespace/service:port, or as service:port in the hosted cluster.
	Target string `json:"target,omitempty"`
	// Addresses of the target.
	Addresses []string `json:"addresses,omitempty"`
	// Backend of the ProxyServer.
	Backend string `json:"backend,omitempty"`
	// FilterChain and cluster of Envoy; for plain HTTP its cluster.
	FilterChain string `json:"filterChain,omitempty"`
	// Why, for a person.
	Why string `json:"why"`
}

// Explain says where a connection to the proxy goes: one verdict for each Infra that Concerned gives.
func (r *Result) Explain(c Connection, infra string) []Verdict {
	var verdicts []Verdict
	for _, i := range r.Concerned(c.Source, infra) {
		verdicts = append(verdicts, i.explain(c))
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

func (i *Infra) explain(c Connection) Verdict {
	v := Verdict{Infra: i.Key().String(), Rule: RuleServerName}
	name := v1alpha1.LowerASCII(c.Name)
	listener := c.Listener
	if listener == "" && i.Proxy != nil {
		listener = i.ownListener(c.Port)
	}
	switch {
	case listener != "":
		v.Rule = RulePublicName
	case c.Port == portHTTP:
		v.Rule = RuleHTTPHost
	case name == "":
		v.Rule = RuleNoServerName
	case slices.Contains(Aliases, name):
		v.Rule = RuleAlias
	}
	switch {
	case i.Proxy == nil:
		v.Why = "the proxy of this Infra is not served: " + i.Absence(v1alpha1.ComponentProxy)
	case v.Rule == RulePublicName:
		i.explainPublicName(&v, listener, name)
	case v.Rule == RuleHTTPHost && i.listensOn(portHTTP):
		i.explainHost(&v, name)
	case c.Port != portHTTPS && c.Port != portKubeAPI:
		v.Rule = RulePort
		ports := fmt.Sprintf("%d and %d", portHTTPS, portKubeAPI)
		if i.listensOn(portHTTP) {
			ports = fmt.Sprintf("%d, %d and %d", portHTTP, portHTTPS, portKubeAPI)
		}
		v.Why = fmt.Sprintf("Envoy listens on %s, not on %d", ports, c.Port)
	case v.Rule == RuleServerName:
		i.explainServerName(&v, name, c.Port)
	default:
		i.explainSource(&v, c.Source, c.Port)
	}
	return v
}

// ownListener is the name of the attachment's own listener on a port; empty: there is none.
func (i *Infra) ownListener(port int) string {
	for _, b := range i.Proxy.Spec.Backends {
		if b.Listener != "" && slices.Contains(b.Ports, int32(port)) {
			return b.Listener
		}
	}
	return ""
}

func (i *Infra) listensOn(port int32) bool {
	return slices.ContainsFunc(i.Proxy.Spec.Backends, func(b v1alpha1.Backend) bool {
		return b.Listener == "" && slices.Contains(b.Ports, port)
	})
}

// explainPublicName explains connections to the listener behind the public Service of one attachment.
func (i *Infra) explainPublicName(v *Verdict, listener, name string) {
	var public []string
	for _, b := range i.Proxy.Spec.Backends {
		if b.Listener != listener {
			continue
		}
		v.Attachment = b.Attachment
		if b.Hostname == name {
			i.route(v, b, fmt.Sprintf("%s is a public name of attachment %s, from any source", name, b.Attachment))
			return
		}
		public = append(public, b.Hostname)
	}
	if len(public) == 0 {
		v.Why = fmt.Sprintf("there is no listener %s: its attachment has no public Service, or none that is served", listener)
		return
	}
	v.Why = fmt.Sprintf("the public Service of attachment %s leads to %s only", v.Attachment, strings.Join(public, ", "))
}

// explainHost explains plain HTTP, which goes by its Host: a trailing dot and a port in it do not matter.
func (i *Infra) explainHost(v *Verdict, host string) {
	if name, port, found := strings.Cut(host, ":"); found && port != "" && strings.Trim(port, "0123456789") == "" {
		host = name
	}
	host = strings.TrimSuffix(host, ".")
	if host == "" {
		v.Why = "HTTP without a Host leads nowhere (answered 404 or 400)"
		return
	}
	if strings.Trim(host, "0123456789abcdefghijklmnopqrstuvwxyz_.-") != "" {
		v.Why = fmt.Sprintf("the Host %q is no host name, and leads nowhere (answered 404 or 400)", host)
		return
	}
	if b := i.wildcardOf(host, portHTTP); b != nil {
		i.route(v, *b, fmt.Sprintf("the Host %s lies under %s of attachment %s, from any source", host, b.Hostname, b.Attachment))
		return
	}
	v.Why = i.noName(v, host) + " (answered 404)"
}

// wildcardOf is the backend whose wildcard a name lies under, the longest one; nil: none.
func (i *Infra) wildcardOf(name string, port int32) *v1alpha1.Backend {
	var longest *v1alpha1.Backend
	for n := range i.Proxy.Spec.Backends {
		b := &i.Proxy.Spec.Backends[n]
		suffix, wildcard := strings.CutPrefix(b.Hostname, "*")
		if !wildcard || b.Listener != "" || !slices.Contains(b.Ports, port) || len(name) <= len(suffix) || !strings.HasSuffix(name, suffix) {
			continue
		}
		if longest == nil || len(b.Hostname) > len(longest.Hostname) {
			longest = b
		}
	}
	return longest
}

// noName says why no attachment has a name, and which one would.
func (i *Infra) noName(v *Verdict, name string) string {
	for _, a := range i.Attachments {
		if a.Domain == "" {
			continue // known from the children only
		}
		apps := strings.HasSuffix(name, ".apps."+a.Domain)
		if !apps && !slices.ContainsFunc(names, func(n string) bool { return n+"."+a.Domain == name }) {
			continue
		}
		switch {
		case a.LeftOut != nil:
			v.Attachment = a.Object.Name
			return fmt.Sprintf("attachment %s is left out (%s): %s", a.Object.Name, a.LeftOut.Reason, a.LeftOut.Message)
		case !apps || a.vip.IsValid():
		case !a.Object.AppsEnabled():
			v.Attachment = a.Object.Name
			return fmt.Sprintf("apps ingress of attachment %s is not enabled", a.Object.Name)
		default:
			v.Attachment = a.Object.Name
			why := "its hosted cluster has no VIP"
			if s := a.Status.AppsIngressStatus; s != nil {
				why = fmt.Sprintf("%s, %s: %s", s.Phase, s.Reason, s.Message)
			}
			return fmt.Sprintf("*.apps.%s of attachment %s is not published (%s)", a.Domain, a.Object.Name, why)
		}
	}
	return fmt.Sprintf("no attachment of this Infra has the name %s", name)
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
		if b.Hostname != name || b.Listener != "" || len(b.SourcePrefixRanges) > 0 || strings.HasPrefix(name, "*") {
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
	if b := i.wildcardOf(name, int32(port)); b != nil {
		v.Rule = RuleAppsName
		i.route(v, *b, fmt.Sprintf("the server name %s lies under %s of attachment %s, from any source", name, b.Hostname, b.Attachment))
		return
	}
	if b := i.wildcardOf(name, portHTTPS); b != nil {
		v.Rule, v.Attachment, v.Backend = RuleAppsName, b.Attachment, b.Name
		v.Why = fmt.Sprintf("%s of attachment %s is served on port %s only", b.Hostname, b.Attachment, portList(b.Ports))
		return
	}
	v.Why = i.noName(v, name)
	if v.Attachment != "" {
		return
	}
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
	if v.Rule == RuleHTTPHost {
		v.FilterChain += "/http"
	}
	if strings.HasPrefix(b.Hostname, "*.") { // the router
		v.Target = fmt.Sprintf("%s:%d in the hosted cluster", b.TargetService, b.TargetPort)
	}
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
