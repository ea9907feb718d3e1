package v1alpha1

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/densityops/oooi/api/dhcpoption"
)

// Limits of what one object may ask for.
const (
	minPrefixBits = 8
	maxPrefixBits = 30
	minLeaseTime  = time.Minute
	maxLeaseTime  = 365 * 24 * time.Hour
	// minMTU is the least that an IPv4 link must carry (RFC 2132 section 5.1).
	minMTU = 68
	// maxOptionAddresses is how many addresses one DHCP option carries.
	maxOptionAddresses = dhcpoption.MaxBytes / 4
	// maxDomainLength leaves room for the longest of the five names, konnectivity.<domain>, in the
	// 253 characters of a DNS name (RFC 1035 section 2.3.4).
	maxDomainLength = 253 - len("konnectivity.")
)

// logLevels are those that Envoy knows.
var logLevels = []string{"trace", "debug", "info", "warning", "error", "critical", "off"}

// publicNames are the five names of a hosted cluster.
var publicNames = []PublicName{"api", "api-int", "oauth", "ignition", "konnectivity"}

// aliasNames are the names that belong to no cluster in particular, because every cluster has them.
var aliasNames = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}

// otherTargets are the control-plane Services that are routed to besides the API server. Filter chains are
// named after their Service, so apiServerService must differ from them.
var otherTargets = []string{"oauth-openshift", "ignition-server-proxy", "konnectivity-server"}

// Validate returns everything that is wrong with the Infra as far as the Infra alone can tell, in the order of
// its fields. Fields that were not defaulted yet count as having their defaults; the deprecated
// single-cluster fields are not looked at. It reads nothing but the object.
func (i *Infra) Validate() []Problem {
	c := &checker{}
	c.name("", "metadata.name", i.Name, subdomainRule)
	c.optionalName("", "metadata.namespace", i.Namespace, labelRule)
	c.network(&i.Spec)
	c.dhcp(&i.Spec.InfraComponents.DHCP)
	c.dns(&i.Spec.InfraComponents.DNS)
	c.proxy(&i.Spec.InfraComponents.Proxy)
	return c.problems
}

// checker collects the problems of one object.
type checker struct {
	problems []Problem
	// cidr is invalid when networkConfig.cidr is: then nothing is compared with it.
	cidr    netip.Prefix
	gateway netip.Addr
	// servers are the addresses of the enabled components, those that parse.
	servers []server
}

// server is the address of one enabled component.
type server struct {
	component Component
	addr      netip.Addr
}

func (c *checker) add(component Component, reason, field, format string, args ...any) {
	c.problems = append(c.problems, Problem{Component: component, Reason: reason, Field: field, Message: fmt.Sprintf(format, args...)})
}

// nameRule is one of the rules of Kubernetes for names, and how to keep to it.
type nameRule struct {
	check func(string) []string
	hint  string
}

var (
	subdomainRule = nameRule{validation.IsDNS1123Subdomain, "use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"}
	labelRule     = nameRule{validation.IsDNS1123Label, "use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"}
	serviceRule   = nameRule{validation.IsDNS1035Label, "use up to 63 lower-case letters, digits and dashes, with a letter first and no dash last"}
	keyRule       = nameRule{
		func(key string) []string { return validation.IsQualifiedName(strings.ToLower(key)) },
		"use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be",
	}
	valueRule = nameRule{validation.IsValidLabelValue, "use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends"}
)

// name checks a required name.
func (c *checker) name(component Component, field, value string, rule nameRule) {
	if value == "" {
		c.add(component, ReasonInvalid, field, "is empty: give a name")
		return
	}
	c.optionalName(component, field, value, rule)
}

func (c *checker) optionalName(component Component, field, value string, rule nameRule) {
	if value != "" && len(rule.check(value)) > 0 {
		c.add(component, ReasonInvalid, field, "%q is not a valid name: %s", value, rule.hint)
	}
}

// ipv4 parses an address; when it is not one of IPv4 it says so and returns the zero Addr.
func (c *checker) ipv4(component Component, field, value string) netip.Addr {
	addr, err := netip.ParseAddr(value)
	switch {
	case err != nil:
		c.add(component, ReasonInvalid, field, "%q is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros", value)
	case !addr.Is4():
		c.add(component, ReasonIPv6NotSupported, field, "%q is an IPv6 address: only IPv4 is supported", value)
	default:
		return addr
	}
	return netip.Addr{}
}

// host checks that an address can be one host's in the CIDR.
func (c *checker) host(component Component, field string, addr netip.Addr) {
	if !addr.IsValid() || !c.cidr.IsValid() {
		return
	}
	switch {
	case !c.cidr.Contains(addr):
		c.add(component, ReasonAddressOutsideCIDR, field, "%s is outside the CIDR %s: choose an address of %s-%s", addr, c.cidr, c.cidr.Addr().Next(), lastAddr(c.cidr).Prev())
	case addr == c.cidr.Addr():
		c.add(component, ReasonAddressOutsideCIDR, field, "%s is the network address of %s, no host can have it: choose another", addr, c.cidr)
	case addr == lastAddr(c.cidr):
		c.add(component, ReasonAddressOutsideCIDR, field, "%s is the broadcast address of %s, no host can have it: choose another", addr, c.cidr)
	}
}

// network checks networkConfig, and collects the addresses that others are compared with.
func (c *checker) network(spec *InfraSpec) {
	n := &spec.NetworkConfig
	c.cidr = c.parseCIDR("spec.networkConfig.cidr", n.CIDR)
	if n.Gateway == "" {
		c.add("", ReasonInvalid, "spec.networkConfig.gateway", "is empty: give the address of the VLAN's router")
	} else {
		c.gateway = c.ipv4("", "spec.networkConfig.gateway", n.Gateway)
		c.host("", "spec.networkConfig.gateway", c.gateway)
	}
	c.name("", "spec.networkConfig.networkAttachmentDefinition", n.NetworkAttachmentDefinition, subdomainRule)
	c.optionalName("", "spec.networkConfig.networkAttachmentNamespace", n.NetworkAttachmentNamespace, labelRule)

	components := &spec.InfraComponents
	for _, s := range []struct {
		component Component
		enabled   *bool
		serverIP  string
	}{
		{ComponentDHCP, components.DHCP.Enabled, components.DHCP.ServerIP},
		{ComponentDNS, components.DNS.Enabled, components.DNS.ServerIP},
		{ComponentProxy, components.Proxy.Enabled, components.Proxy.ServerIP},
	} {
		if addr, err := netip.ParseAddr(s.serverIP); err == nil && addr.Is4() && On(s.enabled) {
			c.servers = append(c.servers, server{s.component, addr})
		}
	}
	c.upstreams(n.DNSServers, components)
}

// parseCIDR returns the zero Prefix when the CIDR cannot be used.
func (c *checker) parseCIDR(field, value string) netip.Prefix {
	prefix, err := netip.ParsePrefix(value)
	switch {
	case value == "":
		c.add("", ReasonInvalid, field, "is empty: give the network of the VLAN, for example 192.0.2.0/24")
	case err != nil:
		c.add("", ReasonInvalid, field, "%q is not a CIDR: write network/length, for example 192.0.2.0/24", value)
	case !prefix.Addr().Is4():
		c.add("", ReasonIPv6NotSupported, field, "%q is an IPv6 network: only IPv4 is supported", value)
	case prefix.Addr().IsMulticast() || prefix.Masked().Addr().IsUnspecified():
		c.add("", ReasonInvalid, field, "%s holds no addresses of hosts: give the network of the VLAN", prefix)
	case prefix.Bits() < minPrefixBits || prefix.Bits() > maxPrefixBits:
		c.add("", ReasonInvalid, field, "%s has a prefix length of %d: use one of %d to %d", prefix, prefix.Bits(), minPrefixBits, maxPrefixBits)
	case prefix != prefix.Masked():
		c.add("", ReasonInvalid, field, "%s has host bits set: write %s", prefix, prefix.Masked())
	default:
		return prefix
	}
	return netip.Prefix{}
}

// upstreams checks dnsServers. They matter to the DNS server; without one, to what DHCP tells the workers.
func (c *checker) upstreams(values []string, components *InfraComponents) {
	component := ComponentDNS
	if !On(components.DNS.Enabled) {
		component = ComponentDHCP
	}
	seen := map[netip.AddrPort]int{}
	resolvConf, advertised := -1, 0
	for n, value := range values {
		field := fmt.Sprintf("spec.networkConfig.dnsServers[%d]", n)
		if value == "resolv.conf" {
			if resolvConf >= 0 {
				c.add(component, ReasonInvalid, field, "%q is already entry %d: remove one", value, resolvConf)
			}
			resolvConf = n
			continue
		}
		upstream, err := netip.ParseAddrPort(value)
		if err != nil {
			addr, err := netip.ParseAddr(value)
			if err != nil {
				c.add(component, ReasonInvalid, field, "%q is not a resolver: write an address (192.0.2.53), an address and a port (192.0.2.53:5353) or resolv.conf", value)
				continue
			}
			upstream = netip.AddrPortFrom(addr, 53)
		}
		if upstream.Addr().Is4() && upstream.Port() == 53 {
			advertised++
		}
		upstream = netip.AddrPortFrom(upstream.Addr().Unmap(), upstream.Port())
		addr := upstream.Addr()
		switch first, dup := seen[upstream]; {
		case dup:
			c.add(component, ReasonInvalid, field, "%q is already entry %d: remove one", value, first)
			continue
		case addr.IsUnspecified() || addr.IsMulticast() || addr.Zone() != "" || upstream.Port() == 0:
			c.add(component, ReasonInvalid, field, "%q is not an address that can be asked: give a resolver's own address, and a port of 1 to 65535", value)
		case c.isServer(ComponentDNS, addr):
			c.add(component, ReasonInvalid, field, "%s is this Infra's own DNS server, so queries would run in circles: give the resolver above it", addr)
		}
		seen[upstream] = n
	}
	if component == ComponentDHCP && advertised > maxOptionAddresses {
		c.add(component, ReasonInvalid, "spec.networkConfig.dnsServers",
			"has %d addresses, DNS is disabled, and the DHCP option that tells clients of them holds %d: remove some", advertised, maxOptionAddresses)
	}
}

// isServer tells whether the address is that of an enabled component.
func (c *checker) isServer(component Component, addr netip.Addr) bool {
	return slices.Contains(c.servers, server{component, addr})
}

// serverIP checks the address of one component: present when enabled, and like no other.
func (c *checker) serverIP(component Component, enabled *bool, value string) {
	field := "spec.infraComponents." + string(component) + ".serverIP"
	if value == "" {
		if On(enabled) {
			c.add(component, ReasonAddressMissing, field, "is empty, and the component is enabled: give it an address of the VLAN, or set enabled: false")
		}
		return
	}
	addr := c.ipv4(component, field, value)
	if !addr.IsValid() || !On(enabled) {
		return
	}
	c.host(component, field, addr)
	if addr == c.gateway {
		c.add(component, ReasonAddressConflict, field, "%s is the gateway's address as well: choose another", addr)
	}
	for _, other := range c.servers {
		if other.component != component && other.addr == addr {
			c.add(component, ReasonAddressConflict, field, "%s is infraComponents.%s.serverIP as well: each server needs an address of its own", addr, other.component)
		}
	}
}

func (c *checker) image(component Component, field, value string) {
	if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r > '~' }) {
		c.add(component, ReasonInvalid, field, "%q is not an image reference: write registry/name:tag without spaces", value)
	}
}

func (c *checker) dhcp(d *DHCPComponent) {
	const field = "spec.infraComponents.dhcp."
	c.serverIP(ComponentDHCP, d.Enabled, d.ServerIP)
	c.pool(d)
	if d.LeaseTime != "" {
		switch lease, err := time.ParseDuration(d.LeaseTime); {
		case err != nil:
			c.add(ComponentDHCP, ReasonInvalid, field+"leaseTime", "%q is not a duration: write a number and a unit, for example 1h or 30m", d.LeaseTime)
		case lease < minLeaseTime || lease > maxLeaseTime:
			c.add(ComponentDHCP, ReasonInvalid, field+"leaseTime", "%s is not between 1m and 8760h (one year): choose a lease time in between", d.LeaseTime)
		}
	}
	c.image(ComponentDHCP, field+"image", d.Image)
	c.options(d)
	if d.MTU != 0 && (d.MTU < minMTU || d.MTU > 65535) {
		c.add(ComponentDHCP, ReasonInvalid, field+"mtu", "%d is not an MTU: use %d to 65535, or 0 to advertise none", d.MTU, minMTU)
	}
	seen := map[netip.Addr]int{}
	for n, value := range d.NTPServers {
		f := fmt.Sprintf("%sntpServers[%d]", field, n)
		addr := c.ipv4(ComponentDHCP, f, value)
		if first, dup := seen[addr]; dup && addr.IsValid() {
			c.add(ComponentDHCP, ReasonInvalid, f, "%s is already entry %d: remove one", addr, first)
			continue
		}
		seen[addr] = n
	}
	if len(d.NTPServers) > maxOptionAddresses {
		c.add(ComponentDHCP, ReasonInvalid, field+"ntpServers", "has %d entries, and a DHCP option holds %d: remove some", len(d.NTPServers), maxOptionAddresses)
	}
	c.searchDomains(d.SearchDomains)
	c.reservations(d)
}

// pool checks rangeStart and rangeEnd, and that nothing else lives between them.
func (c *checker) pool(d *DHCPComponent) {
	const startField, endField = "spec.infraComponents.dhcp.rangeStart", "spec.infraComponents.dhcp.rangeEnd"
	bound := func(field, value string) netip.Addr {
		if value != "" {
			return c.ipv4(ComponentDHCP, field, value)
		}
		if On(d.Enabled) {
			c.add(ComponentDHCP, ReasonAddressMissing, field, "is empty, and DHCP is enabled: give the pool both ends, or set enabled: false")
		}
		return netip.Addr{}
	}
	start, end := bound(startField, d.RangeStart), bound(endField, d.RangeEnd)
	if !start.IsValid() || !end.IsValid() || !On(d.Enabled) {
		return
	}
	if end.Less(start) {
		c.add(ComponentDHCP, ReasonPoolReversed, endField, "%s is below rangeStart %s: exchange the two", end, start)
		return
	}
	if !c.cidr.IsValid() {
		return
	}
	outside := false
	for _, b := range []struct {
		field string
		addr  netip.Addr
	}{{startField, start}, {endField, end}} {
		if !c.cidr.Contains(b.addr) {
			outside = true
			c.add(ComponentDHCP, ReasonPoolOutsideCIDR, b.field, "%s is outside the CIDR %s: choose an address of %s-%s", b.addr, c.cidr, c.cidr.Addr().Next(), lastAddr(c.cidr).Prev())
		}
	}
	if outside {
		return
	}
	holds := func(addr netip.Addr, what string) {
		if addr.IsValid() && !addr.Less(start) && !end.Less(addr) {
			field := startField
			if addr != start && addr == end {
				field = endField
			}
			c.add(ComponentDHCP, ReasonPoolHoldsAddress, field, "the pool %s-%s holds %s, %s: move the pool or the address", start, end, addr, what)
		}
	}
	holds(c.cidr.Addr(), "the network address")
	holds(c.gateway, "the gateway")
	for _, s := range c.servers {
		holds(s.addr, "infraComponents."+string(s.component)+".serverIP")
	}
	holds(lastAddr(c.cidr), "the broadcast address")
}

func (c *checker) reservations(d *DHCPComponent) {
	macs, ips := map[string]int{}, map[netip.Addr]int{}
	for n, r := range d.Reservations {
		field := fmt.Sprintf("spec.infraComponents.dhcp.reservations[%d]", n)
		mac, err := net.ParseMAC(r.MAC)
		switch {
		case err != nil || len(mac) != 6:
			c.add(ComponentDHCP, ReasonInvalid, field+".mac", "%q is not a hardware address: write six pairs of hexadecimal digits, for example 52:54:00:12:34:56", r.MAC)
		case mac[0]&1 != 0 || mac.String() == "00:00:00:00:00:00":
			c.add(ComponentDHCP, ReasonInvalid, field+".mac", "%s cannot be the address of one network card: write the card's own", mac)
		default:
			if first, dup := macs[mac.String()]; dup {
				c.add(ComponentDHCP, ReasonInvalid, field+".mac", "%s is already in reservation %d: remove one", mac, first)
			} else {
				macs[mac.String()] = n
			}
		}
		if r.IP == "" && r.Hostname == "" {
			c.add(ComponentDHCP, ReasonInvalid, field, "has neither ip nor hostname: give one, or remove the reservation")
		}
		if r.IP != "" {
			c.reservedIP(field+".ip", r.IP, n, ips)
		}
		if r.Hostname != "" {
			if err := checkDomain(NormalizeDomain(r.Hostname)); err != nil {
				c.add(ComponentDHCP, ReasonInvalid, field+".hostname", "%q is not a host name: %s", r.Hostname, err)
			}
		}
	}
}

func (c *checker) reservedIP(field, value string, n int, seen map[netip.Addr]int) {
	addr := c.ipv4(ComponentDHCP, field, value)
	if !addr.IsValid() {
		return
	}
	c.host(ComponentDHCP, field, addr)
	if addr == c.gateway {
		c.add(ComponentDHCP, ReasonAddressConflict, field, "%s is the gateway's address: choose another", addr)
	}
	for _, s := range c.servers {
		if s.addr == addr {
			c.add(ComponentDHCP, ReasonAddressConflict, field, "%s is infraComponents.%s.serverIP: choose another", addr, s.component)
		}
	}
	if first, dup := seen[addr]; dup {
		c.add(ComponentDHCP, ReasonInvalid, field, "%s is already in reservation %d: remove one", addr, first)
		return
	}
	seen[addr] = n
}

func (c *checker) dns(d *DNSComponent) {
	const field = "spec.infraComponents.dns."
	c.serverIP(ComponentDNS, d.Enabled, d.ServerIP)
	c.image(ComponentDNS, field+"image", d.Image)
	if d.CacheTTL != "" {
		switch ttl, err := time.ParseDuration(d.CacheTTL); {
		case err != nil:
			c.add(ComponentDNS, ReasonInvalid, field+"cacheTTL", "%q is not a duration: write a number and a unit, for example 30s, or 0s for no cache", d.CacheTTL)
		case ttl < 0:
			c.add(ComponentDNS, ReasonInvalid, field+"cacheTTL", "%s is negative: write 0s for no cache", d.CacheTTL)
		}
	}
}

func (c *checker) proxy(p *ProxyComponent) {
	const field = "spec.infraComponents.proxy."
	c.serverIP(ComponentProxy, p.Enabled, p.ServerIP)
	if p.InternalProxyService != "" {
		// It is the DNS server that answers with it; Envoy does not care.
		c.internalProxy(field+"internalProxyService", p.InternalProxyService)
	}
	c.image(ComponentProxy, field+"proxyImage", p.ProxyImage)
	c.image(ComponentProxy, field+"managerImage", p.ManagerImage)
	if p.LogLevel != "" && !slices.Contains(logLevels, p.LogLevel) {
		c.add(ComponentProxy, ReasonInvalid, field+"logLevel", "%q is not a log level: use one of %s", p.LogLevel, strings.Join(logLevels, ", "))
	}
}

// internalProxy accepts an IPv4 address, name, name.namespace, name.namespace.svc and the latter with any
// cluster domain behind it.
func (c *checker) internalProxy(field, value string) {
	if _, err := netip.ParseAddr(value); err == nil {
		if addr := c.ipv4(ComponentDNS, field, value); addr.IsValid() && (addr.IsUnspecified() || addr.IsMulticast()) {
			c.add(ComponentDNS, ReasonInvalid, field, "%s cannot be the address of a Service: give its ClusterIP or its name", addr)
		}
		return
	}
	labels := strings.Split(value, ".")
	if len(labels) > 3 && labels[len(labels)-1] == "" {
		labels = labels[:len(labels)-1] // the root of a fully qualified name
	}
	ok := len(labels) < 3 || labels[2] == "svc"
	for _, label := range labels {
		ok = ok && len(validation.IsDNS1123Label(label)) == 0
	}
	if !ok {
		c.add(ComponentDNS, ReasonInvalid, field, "%q is neither an IPv4 address nor the name of a Service: write name, name.namespace or name.namespace.svc.cluster.local", value)
	}
}

// ParseAddressRange parses "first-last" (both included) or a CIDR (all of its addresses) of IPv4: the form of
// appsIngress.metallb.ipAddressPoolRange, which is MetalLB's.
func ParseAddressRange(s string) (first, last netip.Addr, err error) {
	defer func() {
		if err != nil {
			first, last = netip.Addr{}, netip.Addr{}
		}
	}()
	if strings.Contains(s, "/") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(s))
		switch {
		case err != nil:
			return first, last, fmt.Errorf("%q is not a CIDR: write network/length or first-last, for example 192.0.2.200-192.0.2.209", s)
		case !prefix.Addr().Is4():
			return first, last, fmt.Errorf("%q is an IPv6 range: only IPv4 is supported", s)
		case prefix != prefix.Masked():
			return first, last, fmt.Errorf("%s has host bits set: write %s", prefix, prefix.Masked())
		}
		return prefix.Addr(), lastAddr(prefix), nil
	}
	left, right, found := strings.Cut(s, "-")
	first, errFirst := netip.ParseAddr(strings.TrimSpace(left))
	last, errLast := netip.ParseAddr(strings.TrimSpace(right))
	switch {
	case !found || errFirst != nil || errLast != nil:
		return first, last, fmt.Errorf("%q is not a range: write first-last or a CIDR, for example 192.0.2.200-192.0.2.209", s)
	case !first.Is4() || !last.Is4():
		return first, last, fmt.Errorf("%q is an IPv6 range: only IPv4 is supported", s)
	case last.Less(first):
		return first, last, fmt.Errorf("%q is reversed: write %s-%s", s, last, first)
	}
	return first, last, nil
}

// lastAddr is the broadcast address of an IPv4 prefix.
func lastAddr(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		a[bit/8] |= 0x80 >> (bit % 8)
	}
	return netip.AddrFrom4(a)
}

// checkDomain tells why a normalised name is no DNS name of hosts (RFC 1123 section 2.1).
func checkDomain(name string) error {
	if name == "" {
		return errors.New("it is empty")
	}
	if len(name) > 253 {
		return fmt.Errorf("it has %d characters, more than 253", len(name))
	}
	for label := range strings.SplitSeq(name, ".") {
		switch {
		case label == "":
			return errors.New("it has an empty label: remove one of the dots")
		case len(validation.IsDNS1123Label(label)) > 0:
			return fmt.Errorf("its label %q must be 1 to 63 letters, digits or dashes, with no dash at either end", label)
		}
	}
	return nil
}
