package plan

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Aliases are the unqualified names of the Kubernetes service (product rule 5).
var Aliases = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}

const (
	portHTTPS   = 443
	portKubeAPI = 6443
	portHTTP    = 80
	// backendsPerAttachment are the five names, the aliases with and without a server name, apps on two ports, and one
	// public name.
	backendsPerAttachment = 10
)

func buildChildren(infra *Infra, w *index) {
	c := &infra.Object.Spec.InfraComponents
	serves := func(component v1alpha1.Component, enabled *bool) bool {
		return v1alpha1.On(enabled) && !infra.Refused[component] && !infra.withdrawn[component]
	}
	proxy := serves(v1alpha1.ComponentProxy, c.Proxy.Enabled)
	if proxy {
		infra.Proxy = buildProxy(infra)
	}
	if serves(v1alpha1.ComponentDNS, c.DNS.Enabled) {
		infra.DNS = buildDNS(infra, w, proxy)
	}
	if serves(v1alpha1.ComponentDHCP, c.DHCP.Enabled) {
		infra.DHCP = buildDHCP(infra, w)
	}
}

// childMeta names a child. The owner is the Infra that the child is made from.
func childMeta(infra *v1alpha1.Infra, name string) metav1.ObjectMeta {
	controller := true
	return metav1.ObjectMeta{
		Namespace: infra.Namespace,
		Name:      name,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Infra",
			Name: infra.Name, UID: infra.UID, Controller: &controller,
		}},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}
}

func buildProxy(infra *Infra) *v1alpha1.ProxyServer {
	spec := &infra.Object.Spec
	p := &v1alpha1.ProxyServer{
		TypeMeta:   typeMeta("ProxyServer"),
		ObjectMeta: childMeta(infra.Object, v1alpha1.ProxyServerName(infra.Object.Name)),
		Spec: v1alpha1.ProxyServerSpec{
			NetworkConfig: v1alpha1.ProxyNetworkConfig{
				ServerIP:                   spec.InfraComponents.Proxy.ServerIP,
				CIDR:                       infra.cidr.String(),
				NetworkAttachmentName:      spec.NetworkConfig.NetworkAttachmentDefinition,
				NetworkAttachmentNamespace: infra.Object.NADNamespace(),
			},
			XDSPort:      18000,
			LogLevel:     spec.InfraComponents.Proxy.LogLevel,
			ProxyImage:   spec.InfraComponents.Proxy.ProxyImage,
			ManagerImage: spec.InfraComponents.Proxy.ManagerImage,
		},
	}
	p.Spec.Backends = make([]v1alpha1.Backend, 0, len(infra.Attachments)*backendsPerAttachment)
	for _, a := range infra.Attachments {
		if a.LeftOut == nil {
			p.Spec.Backends = appendBackends(p.Spec.Backends, a, !infra.byHostUnknown)
		}
	}
	return p
}

// appendBackends appends the routes of one attachment: five names, and the aliases with and without a server name once
// a source is known (product rules 8 and 9).
func appendBackends(backends []v1alpha1.Backend, a *Attachment, byHost bool) []v1alpha1.Backend {
	namespace := a.Object.ControlPlaneNamespace()
	backend := func(role string, t target, ports ...int32) v1alpha1.Backend {
		return v1alpha1.Backend{
			Name:            v1alpha1.BackendName(a.Object.Name, role),
			Attachment:      a.Object.Name,
			Ports:           ports,
			TargetService:   t.service,
			TargetNamespace: namespace,
			TargetPort:      t.targetPort,
			Addresses:       t.addresses,
			Headless:        t.headless,
			TimeoutSeconds:  30,
		}
	}
	named := func(name string, b v1alpha1.Backend) v1alpha1.Backend {
		b.Hostname = name + "." + a.Domain
		return b
	}
	api := a.targets[targetAPI]
	backends = append(backends,
		named("api", backend("kube-apiserver", api, portHTTPS, portKubeAPI)),
		named("api-int", backend("kube-apiserver-internal", api, portHTTPS, portKubeAPI)),
		named("oauth", backend("oauth-openshift", a.targets[targetOAuth], portHTTPS)),
		named("ignition", backend("ignition-server", a.targets[targetIgnition], portHTTPS)),
		named("konnectivity", backend("konnectivity-server", a.targets[targetKonnectivity], portHTTPS)),
	)
	if a.vip.IsValid() {
		https, http := appsTargets(a)
		backends = append(backends, named("*.apps", backend("apps-https", https, portHTTPS)))
		if byHost {
			backends = append(backends, named("*.apps", backend("apps-http", http, portHTTP)))
		}
	}
	if a.external() != nil && a.externalPort != 0 {
		for _, name := range a.publicNames() {
			b := named(name, backend("external-"+name, a.targets[targetOf[name]], a.externalPort))
			b.Listener = externalListener(a.Object.Name)
			backends = append(backends, b)
		}
	}
	if len(a.Sources) == 0 {
		return backends
	}
	ranges := make([]string, 0, len(a.Sources))
	for _, s := range a.Sources {
		ranges = append(ranges, netip.PrefixFrom(s.Address, s.Address.BitLen()).String())
	}
	ranges = slices.Compact(ranges)
	hostname := backend("kubernetes-hostname", api, portHTTPS, portKubeAPI)
	hostname.Hostname, hostname.AlternateHostnames = Aliases[0], Aliases[1:]
	hostname.SourcePrefixRanges = ranges
	ip := backend("kubernetes-ip", api, portKubeAPI, portHTTPS)
	ip.SourcePrefixRanges = ranges
	return append(backends, hostname, ip)
}

// appsTargets are the router of the hosted cluster behind the VIP: by TLS and by plain HTTP.
func appsTargets(a *Attachment) (https, http target) {
	apps := a.Object.Spec.AppsIngress
	router := target{service: cmp.Or(apps.Service.Name, v1alpha1.AppsServiceName), addresses: []string{a.vip.String()}}
	https, http = router, router
	https.targetPort, http.targetPort = cmp.Or(apps.Ports.HTTPS, portHTTPS), cmp.Or(apps.Ports.HTTP, portHTTP)
	return https, http
}

func buildDNS(infra *Infra, w *index, proxy bool) *v1alpha1.DNSServer {
	spec := &infra.Object.Spec
	d := &v1alpha1.DNSServer{
		TypeMeta:   typeMeta("DNSServer"),
		ObjectMeta: childMeta(infra.Object, v1alpha1.DNSServerName(infra.Object.Name)),
		Spec: v1alpha1.DNSServerSpec{
			NetworkConfig: v1alpha1.DNSNetworkConfig{
				ServerIP:                   spec.InfraComponents.DNS.ServerIP,
				SecondaryNetworkCIDR:       spec.NetworkConfig.CIDR,
				DNSPort:                    53,
				NetworkAttachmentName:      spec.NetworkConfig.NetworkAttachmentDefinition,
				NetworkAttachmentNamespace: infra.Object.NADNamespace(),
			},
			UpstreamDNS: spec.NetworkConfig.DNSServers,
			CacheTTL:    spec.InfraComponents.DNS.CacheTTL,
		},
	}
	podView, aliasAddress := v1alpha1.PodViewHidden, ""
	if proxy {
		d.Spec.NetworkConfig.ProxyIP = spec.InfraComponents.Proxy.ServerIP
		d.Spec.NetworkConfig.InternalProxyIP = internalProxyIP(infra, w)
		if spec.InfraComponents.Proxy.InternalProxyService != "" {
			podView = v1alpha1.PodViewInternalProxy
		}
	}
	d.Spec.StaticEntries = make([]v1alpha1.StaticEntry, 0, len(infra.Attachments)*(len(names)+1)+len(Aliases))
	own := func(name, domain, address string) {
		d.Spec.StaticEntries = append(d.Spec.StaticEntries, v1alpha1.StaticEntry{Hostname: name + "." + domain, IP: address, PodView: podView})
	}
	for _, a := range infra.Attachments {
		if a.LeftOut != nil {
			continue
		}
		if proxy {
			for _, name := range names {
				own(name, a.Domain, spec.InfraComponents.Proxy.ServerIP)
			}
			if a.kubeVirt && len(a.Sources) > 0 {
				aliasAddress = spec.InfraComponents.Proxy.ServerIP
			}
		}
		// The VIP is on the VLAN itself, with or without a proxy.
		if a.vip.IsValid() {
			own("*.apps", a.Domain, a.vip.String())
		}
	}
	for _, alias := range Aliases {
		d.Spec.StaticEntries = append(d.Spec.StaticEntries, v1alpha1.StaticEntry{
			Hostname: alias, IP: aliasAddress, PodView: v1alpha1.PodViewForwarded,
		})
	}
	return d
}

// internalProxyIP is the address that internalProxyService stands for; empty: it has none yet.
func internalProxyIP(infra *Infra, w *index) string {
	name := infra.Object.Spec.InfraComponents.Proxy.InternalProxyService
	if address, err := netip.ParseAddr(name); err == nil {
		return address.String()
	}
	key, s := w.service(infra.Object.Namespace, name)
	switch {
	case name == "":
		return ""
	case s == nil:
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionInternalProxyResolved, metav1.ConditionFalse, v1alpha1.ReasonInternalProxyPending,
			"Service "+key.String()+" of proxy.internalProxyService does not exist; outside the VLAN the cluster names answer SERVFAIL until it has a ClusterIP")
		return ""
	case clusterIP(s) == "":
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionInternalProxyResolved, metav1.ConditionFalse, v1alpha1.ReasonInternalProxyPending,
			"Service "+key.String()+" of proxy.internalProxyService has no IPv4 ClusterIP; outside the VLAN the cluster names answer SERVFAIL until it has one")
		return ""
	}
	setCondition(&infra.Status.Conditions, v1alpha1.ConditionInternalProxyResolved, metav1.ConditionTrue, v1alpha1.ReasonResolved,
		"Service "+key.String()+" has the ClusterIP "+clusterIP(s))
	return clusterIP(s)
}

// DHCP options that have a field of their own in the API (RFC 2132 and RFC 3397).
const (
	optionMTU           = 26
	optionNTPServers    = 42
	optionSearchDomains = 119
)

func buildDHCP(infra *Infra, w *index) *v1alpha1.DHCPServer {
	network, dhcp := &infra.Object.Spec.NetworkConfig, &infra.Object.Spec.InfraComponents.DHCP
	d := &v1alpha1.DHCPServer{
		TypeMeta:   typeMeta("DHCPServer"),
		ObjectMeta: childMeta(infra.Object, v1alpha1.DHCPServerName(infra.Object.Name)),
		Spec: v1alpha1.DHCPServerSpec{
			NetworkConfig: v1alpha1.DHCPNetworkConfig{
				CIDR:                       network.CIDR,
				Gateway:                    network.Gateway,
				ServerIP:                   dhcp.ServerIP,
				DNSServers:                 dnsServersFor(infra.Object),
				NetworkAttachmentName:      network.NetworkAttachmentDefinition,
				NetworkAttachmentNamespace: infra.Object.NADNamespace(),
			},
			LeaseConfig: v1alpha1.LeaseConfig{
				RangeStart: dhcp.RangeStart,
				RangeEnd:   dhcp.RangeEnd,
				LeaseTime:  dhcp.LeaseTime,
				Excluded:   excludedAddresses(infra),
			},
			Options:      slices.Clone(dhcp.Options),
			Reservations: reservations(infra, w),
		},
	}
	if dhcp.MTU > 0 {
		d.Spec.Options = append(d.Spec.Options, v1alpha1.DHCPOption{Code: optionMTU, Value: strconv.Itoa(int(dhcp.MTU))})
	}
	if len(dhcp.NTPServers) > 0 {
		d.Spec.Options = append(d.Spec.Options, v1alpha1.DHCPOption{Code: optionNTPServers, Value: strings.Join(dhcp.NTPServers, ",")})
	}
	if len(dhcp.SearchDomains) > 0 {
		d.Spec.Options = append(d.Spec.Options, v1alpha1.DHCPOption{Code: optionSearchDomains, Value: strings.Join(dhcp.SearchDomains, ",")})
	}
	return d
}

// dnsServersFor is what DHCP clients are told to ask: our own server, or the upstream resolvers when it is
// disabled. "resolv.conf" and ports mean nothing to a DHCP client.
func dnsServersFor(infra *v1alpha1.Infra) []string {
	if dns := &infra.Spec.InfraComponents.DNS; v1alpha1.On(dns.Enabled) {
		return []string{dns.ServerIP}
	}
	var servers []string
	for _, text := range infra.Spec.NetworkConfig.DNSServers {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			servers = append(servers, address.String())
		}
		if ap, err := netip.ParseAddrPort(text); err == nil && ap.Addr().Is4() && ap.Port() == 53 {
			servers = append(servers, ap.Addr().String())
		}
	}
	return servers
}

// excludedAddresses are what the pool must never hand out: the addresses that something else on the network has, and
// the apps ranges, refused ones included; those of other Infras on the same NAD as well.
func excludedAddresses(infra *Infra) []string {
	var excluded []string
	for _, r := range reservedAddresses(infra) {
		excluded = append(excluded, r.address.String())
	}
	excluded = append(excluded, appsRangesOf(infra)...)
	for _, other := range infra.neighbours {
		for _, r := range reservedAddresses(other) {
			if text := r.address.String(); !slices.Contains(excluded, text) {
				excluded = append(excluded, text)
			}
		}
		excluded = append(excluded, appsRangesOf(other)...)
	}
	return excluded
}

func appsRangesOf(infra *Infra) []string {
	var ranges []string
	for _, a := range infra.Attachments {
		if a.appsRange.isSet() {
			ranges = append(ranges, a.appsRange.String())
		}
	}
	return ranges
}

// reservations are those of the Infra, and the virtual machines' names by MAC as host names: a node
// without one calls itself localhost.
func reservations(infra *Infra, w *index) []v1alpha1.DHCPReservation {
	reserved := slices.Clone(infra.Object.Spec.InfraComponents.DHCP.Reservations)
	position := make(map[string]int, len(reserved))
	for i, r := range reserved {
		position[normalizeMAC(r.MAC)] = i
	}
	var hosts []v1alpha1.DHCPReservation
	for _, a := range infra.Attachments {
		for _, v := range w.vmis[a.Object.ControlPlaneNamespace()] {
			for _, i := range v.Interfaces {
				// A virtual machine is somebody else's object: what is no hardware address or
				// host name in it is passed over.
				address, err := net.ParseMAC(i.MAC)
				if err != nil || len(address) != 6 || !isHostName(v.Name) {
					continue
				}
				mac := address.String()
				if at, ok := position[mac]; ok {
					if reserved[at].Hostname == "" {
						reserved[at].Hostname = v.Name
					}
					continue
				}
				hosts = append(hosts, v1alpha1.DHCPReservation{MAC: mac, Hostname: v.Name})
			}
		}
	}
	slices.SortFunc(hosts, func(a, b v1alpha1.DHCPReservation) int { return strings.Compare(a.MAC+a.Hostname, b.MAC+b.Hostname) })
	return append(reserved, slices.CompactFunc(hosts, func(a, b v1alpha1.DHCPReservation) bool { return a.MAC == b.MAC })...)
}
