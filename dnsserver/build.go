package dnsserver

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

// View says which answers a client gets.
type View string

// The views. A client outside both is refused.
const (
	ViewVLAN View = "vlan"
	ViewPods View = "pods"
)

const (
	viewVLAN int8 = iota
	viewPods
	viewNone
	viewCount
)

var viewNames = [viewCount]View{ViewVLAN, ViewPods, "none"}

// Options are what Build needs besides the DNSServer.
type Options struct {
	// PodNetworks are the networks whose clients get view pods. None: only the VLAN may ask.
	PodNetworks []netip.Prefix
}

// PrivateNetworks are the private, shared and loopback ranges of IPv4 (RFC 1918, RFC 6598, RFC 1122
// 3.2.1.3): who gets view pods unless told otherwise.
func PrivateNetworks() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix("100.64.0.0/10"),
		netip.MustParsePrefix("127.0.0.0/8"),
	}
}

// Model is what one DNS server answers: immutable, safe for any number of goroutines.
type Model struct {
	vlan      netip.Prefix
	pods      []netip.Prefix
	server    netip.AddrPort
	tables    [viewNone]*table
	upstreams []upstream
}

// upstream is one resolver, or the resolvers that resolv.conf names when it is asked.
type upstream struct {
	addr       netip.AddrPort
	resolvConf bool
}

func (u upstream) String() string {
	if u.resolvConf {
		return resolvConf
	}
	return u.addr.String()
}

// resolvConf among the upstreams means the resolvers of the machine.
const resolvConf = "resolv.conf"

// Build turns the spec of a DNSServer into what is answered. It is pure. The error names every
// field that is wrong.
func Build(server *v1alpha1.DNSServer, opts Options) (*Model, error) {
	b := builder{spec: &server.Spec}
	m := b.build(opts)
	if err := errors.Join(b.errs...); err != nil {
		return nil, fmt.Errorf("DNSServer %s/%s: %w", server.Namespace, server.Name, err)
	}
	return m, nil
}

// ServerAddr is where the spec wants the server to listen.
func (m *Model) ServerAddr() netip.AddrPort { return m.server }

type builder struct {
	spec *v1alpha1.DNSServerSpec
	errs []error
}

func (b *builder) wrong(field, format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf("spec.%s: %s", field, fmt.Sprintf(format, args...)))
}

func (b *builder) build(opts Options) *Model {
	network := b.spec.NetworkConfig
	m := &Model{pods: slices.Clone(opts.PodNetworks)}
	vlan, err := netip.ParsePrefix(network.SecondaryNetworkCIDR)
	if err != nil || !vlan.Addr().Is4() {
		b.wrong("networkConfig.secondaryNetworkCIDR", "%q is not an IPv4 prefix", network.SecondaryNetworkCIDR)
	}
	m.vlan = vlan.Masked()
	port := network.DNSPort
	if port == 0 {
		port = 53
	}
	if port < 1 || port > 65535 {
		b.wrong("networkConfig.dnsPort", "%d is not a port", port)
	}
	m.server = netip.AddrPortFrom(b.address("networkConfig.serverIP", network.ServerIP), uint16(port))
	var internal netip.Addr
	if network.InternalProxyIP != "" {
		internal = b.address("networkConfig.internalProxyIP", network.InternalProxyIP)
	}
	b.checkCacheTTL()
	m.tables = b.tables(internal)
	for i, text := range b.spec.UpstreamDNS {
		field := fmt.Sprintf("upstreamDNS[%d]", i)
		u, err := parseUpstream(text)
		switch {
		case err != nil:
			b.wrong(field, "%v", err)
		case u.addr.Addr() == m.server.Addr() && m.server.IsValid():
			b.wrong(field, "%s is this server itself; name another resolver", text)
		case !slices.Contains(m.upstreams, u):
			m.upstreams = append(m.upstreams, u)
		}
	}
	return m
}

func (b *builder) address(field, text string) netip.Addr {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is4() || addr.IsUnspecified() {
		b.wrong(field, "%q is not an IPv4 address", text)
		return netip.Addr{}
	}
	return addr
}

// checkCacheTTL refuses what a cache could not use; there is none yet.
func (b *builder) checkCacheTTL() {
	if b.spec.CacheTTL == "" {
		return
	}
	if ttl, err := time.ParseDuration(b.spec.CacheTTL); err != nil || ttl < 0 {
		b.wrong("cacheTTL", "%q is not a duration of zero or more, for example 30s", b.spec.CacheTTL)
	}
}

func (b *builder) tables(internal netip.Addr) [viewNone]*table {
	var vlan, pods []entry
	seen := map[string]int{}
	for i, static := range b.spec.StaticEntries {
		field := fmt.Sprintf("staticEntries[%d]", i)
		wire, err := wireName(static.Hostname)
		if err != nil {
			b.wrong(field+".hostname", "%q %v", static.Hostname, err)
			continue
		}
		if first, twice := seen[wire]; twice {
			b.wrong(field+".hostname", "%q is the name of staticEntries[%d] already", static.Hostname, first)
			continue
		}
		seen[wire] = i
		e := entry{wire: wire, state: statePending}
		if static.IP != "" {
			e.state, e.addr = stateAddress, b.address(field+".ip", static.IP)
		}
		vlan = append(vlan, e)
		switch static.PodView {
		case "", v1alpha1.PodViewSame:
			pods = append(pods, e)
		case v1alpha1.PodViewInternalProxy:
			state := stateAddress
			if !internal.IsValid() {
				state = stateUnresolved
			}
			pods = append(pods, entry{wire: wire, state: state, addr: internal})
		case v1alpha1.PodViewHidden:
			pods = append(pods, entry{wire: wire, state: stateHidden})
		case v1alpha1.PodViewForwarded:
		default:
			b.wrong(field+".podView", "%q is none of Same, InternalProxy, Hidden, Forwarded", static.PodView)
		}
	}
	if len(b.errs) > 0 {
		return [viewNone]*table{}
	}
	return [viewNone]*table{viewVLAN: newTable(vlan), viewPods: newTable(pods)}
}

// parseUpstream reads "ip", "ip:port" or "resolv.conf".
func parseUpstream(text string) (upstream, error) {
	if text == resolvConf {
		return upstream{resolvConf: true}, nil
	}
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		ip, ipErr := netip.ParseAddr(text)
		if ipErr != nil {
			return upstream{}, fmt.Errorf("%q is neither an address, nor address:port, nor %s", text, resolvConf)
		}
		addr = netip.AddrPortFrom(ip, 53)
	}
	if addr.Port() == 0 || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() {
		return upstream{}, fmt.Errorf("%q is no address that can be asked", text)
	}
	return upstream{addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}, nil
}

// viewOf is the view of a client. The VLAN comes first: it may lie inside a private range.
func (m *Model) viewOf(client netip.Addr) int8 {
	client = client.Unmap()
	if m.vlan.Contains(client) {
		return viewVLAN
	}
	for _, network := range m.pods {
		if network.Contains(client) {
			return viewPods
		}
	}
	return viewNone
}
