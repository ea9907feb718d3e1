package plan

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// dialed is one endpoint that workers were told to dial, and by which field.
type dialed struct {
	host  string
	port  int // 0: not said
	field string
	// names of ours that lead to that service, and the ports that they are served on.
	names []string
	ports []int
}

// reportPublishing compares what HyperShift told the workers with what is served here (product rule 21).
func reportPublishing(infra *Infra, a *Attachment, w *index) {
	cluster := w.clusters[a.hostedCluster]
	if cluster == nil {
		setCondition(&a.Status.Conditions, v1alpha1.ConditionPublishedHere, metav1.ConditionUnknown, v1alpha1.ReasonHostedClusterNotFound,
			fmt.Sprintf("HostedCluster %s does not exist: create it or correct hostedClusterRef", a.hostedCluster))
		return
	}
	if unsupported := unsupportedStrategies(cluster); len(unsupported) > 0 {
		setCondition(&a.Status.Conditions, v1alpha1.ConditionPublishedHere, metav1.ConditionFalse, v1alpha1.ReasonUnsupportedPublishing,
			strings.Join(unsupported, "; ")+": publish by Route under the names of "+a.Domain)
		return
	}
	fields := map[string][]string{} // by what is dialed
	var elsewhere []string
	for _, d := range endpointsOf(cluster) {
		if d.isHere(a.Domain, infra.Object.Spec.InfraComponents.Proxy.ServerIP) {
			continue
		}
		endpoint := d.String()
		if fields[endpoint] == nil {
			elsewhere = append(elsewhere, endpoint)
		}
		fields[endpoint] = append(fields[endpoint], d.field)
	}
	for i, endpoint := range elsewhere {
		elsewhere[i] = fmt.Sprintf("%s (%s)", endpoint, strings.Join(fields[endpoint], ", "))
	}
	if text := domainElsewhere(a, cluster); text != "" {
		elsewhere = append(elsewhere, text)
	}
	if len(elsewhere) > 0 {
		setCondition(&a.Status.Conditions, v1alpha1.ConditionPublishedHere, metav1.ConditionFalse, v1alpha1.ReasonPublishedElsewhere,
			fmt.Sprintf("workers will dial %s; served here are the names under %s", strings.Join(elsewhere, "; "), a.Domain))
		return
	}
	setCondition(&a.Status.Conditions, v1alpha1.ConditionPublishedHere, metav1.ConditionTrue, v1alpha1.ReasonAsServed,
		"what HyperShift published is served here")
}

// unsupportedStrategies lists the publishing strategies that cannot lead through an Envoy on 443 and 6443.
func unsupportedStrategies(c *hypershift.HostedCluster) []string {
	var unsupported []string
	for _, s := range c.Spec.Services {
		switch strategy := s.ServicePublishingStrategy.Type; {
		case strategy == "NodePort":
			unsupported = append(unsupported, fmt.Sprintf("%s is published by NodePort, which workers dial on a node's own address and port", s.Service))
		case strategy == "LoadBalancer" && s.Service == "Konnectivity":
			unsupported = append(unsupported, "Konnectivity is published by LoadBalancer, which workers dial on port 8091")
		case strategy == "LoadBalancer" && s.Service != "APIServer":
			unsupported = append(unsupported, fmt.Sprintf("%s is published by LoadBalancer, which HyperShift does not offer for it", s.Service))
		}
	}
	return unsupported
}

// endpointsOf lists what the workers of a cluster dial, as far as HyperShift says it.
func endpointsOf(c *hypershift.HostedCluster) []dialed {
	api := dialed{names: []string{"api", "api-int"}, ports: []int{portHTTPS, portKubeAPI}}
	byService := map[string]dialed{
		"APIServer":    api,
		"OAuthServer":  {names: []string{"oauth"}, ports: []int{portHTTPS}},
		"Ignition":     {names: []string{"ignition"}, ports: []int{portHTTPS}},
		"Konnectivity": {names: []string{"konnectivity"}, ports: []int{portHTTPS}},
	}
	var endpoints []dialed
	add := func(d dialed, host string, port int, field string) {
		if host != "" {
			d.host, d.port, d.field = v1alpha1.NormalizeDomain(host), port, field
			endpoints = append(endpoints, d)
		}
	}
	for _, s := range c.Spec.Services {
		d, known := byService[s.Service]
		if !known {
			continue
		}
		p := &s.ServicePublishingStrategy
		field := fmt.Sprintf("spec.services[%s]", s.Service)
		switch {
		case p.Type == "Route" && p.Route != nil:
			add(d, p.Route.Hostname, portHTTPS, field)
		case p.Type == "LoadBalancer" && p.LoadBalancer != nil:
			add(d, p.LoadBalancer.Hostname, portKubeAPI, field)
		}
	}
	add(api, c.Spec.KubeAPIServerDNSName, 0, "spec.kubeAPIServerDNSName")
	add(api, c.Status.ControlPlaneEndpoint.Host, int(c.Status.ControlPlaneEndpoint.Port), "status.controlPlaneEndpoint")
	host, port := splitHostPort(c.Status.IgnitionEndpoint)
	add(byService["Ignition"], host, port, "status.ignitionEndpoint")
	host, port = splitURL(c.Status.OAuthCallbackURLTemplate)
	add(byService["OAuthServer"], host, port, "status.oauthCallbackURLTemplate")
	return endpoints
}

// isHere tells whether what workers dial is served under the domain. The API server is also served on the proxy's own
// address, by source.
func (d dialed) isHere(domain, proxyIP string) bool {
	here := slices.ContainsFunc(d.names, func(name string) bool { return d.host == name+"."+domain })
	if _, err := netip.ParseAddr(d.host); err == nil && d.host == proxyIP && slices.Contains(d.names, "api") {
		here = true
	}
	return here && (d.port == 0 || slices.Contains(d.ports, d.port))
}

// String is the host, with the port that is dialed unless it is 443.
func (d dialed) String() string {
	if d.port == 0 || d.port == portHTTPS {
		return d.host
	}
	return net.JoinHostPort(d.host, strconv.Itoa(d.port))
}

// domainElsewhere compares the cluster's own domain with the attachment's. It only matters to workers when names are
// derived from it: apps names, or endpoints whose names nobody has chosen.
func domainElsewhere(a *Attachment, c *hypershift.HostedCluster) string {
	if c.Spec.DNS.BaseDomain == "" {
		return ""
	}
	if len(endpointsOf(c)) > 0 && !a.Object.AppsEnabled() {
		return ""
	}
	prefix := c.Name
	if c.Spec.DNS.BaseDomainPrefix != nil {
		prefix = *c.Spec.DNS.BaseDomainPrefix
	}
	domain := v1alpha1.NormalizeDomain(c.Spec.DNS.BaseDomain)
	if prefix != "" {
		domain = v1alpha1.NormalizeDomain(prefix) + "." + domain
	}
	if domain == a.Domain {
		return ""
	}
	return fmt.Sprintf("names under %s (spec.dns)", domain)
}

func splitHostPort(text string) (host string, port int) {
	h, p, err := net.SplitHostPort(text)
	if err != nil {
		return text, 0
	}
	port, _ = strconv.Atoi(p)
	return h, port
}

// placeholders are not allowed in a URL.
var placeholders = strings.NewReplacer("[", "", "]", "")

// splitURL takes host and port out of a URL template such as https://host:443/path/[name].
func splitURL(text string) (host string, port int) {
	u, err := url.Parse(placeholders.Replace(text))
	if err != nil || u.Host == "" {
		return "", 0
	}
	host, port = splitHostPort(u.Host)
	if port == 0 {
		port = portHTTPS
	}
	return host, port
}
