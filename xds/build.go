package xds

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	matcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Options say where the listeners bind.
type Options struct {
	// AnyAddress binds all addresses of the pod instead of the ProxyServer's serverIP.
	AnyAddress bool
	// PortOffset is added to each listener's port, so that an unprivileged user can run Envoy.
	PortOffset int
}

// sharedListeners are the listeners that all attachments of an Infra share, by the port that
// backends name.
var sharedListeners = map[int32]string{httpPort: httpListener, 443: "https", 6443: "kube-api"}

// wildcardPorts are the ports of shared listeners on which wildcards lead somewhere: those of apps.
var wildcardPorts = map[int32]bool{httpPort: true, 443: true}

// Build turns a ProxyServer into the resources of its Envoys. It is pure: equal input, backends in any
// order, gives equal resources and versions.
//
// A backend without addresses gets no chain, no cluster and no match. Whatever would let one attachment
// take what is another's (a name or a source in two attachments) is an error, as is a backend that
// contradicts another of the same target; the error names the ProxyServer and the backend. The targetNamespace tells the
// tenant: an attachment has one, for targets elsewhere (apps) too.
func Build(proxy *v1alpha1.ProxyServer, opts Options) (*Snapshot, error) {
	b := builder{
		namespace: proxy.Namespace,
		opts:      opts,
		targets:   map[string]*target{},
		listeners: map[string]*listener{},
		ports:     map[int32]string{},
		sources:   map[string]string{},
		claims:    map[string]claim{},
		owners:    map[string]owner{},
		backends:  map[string]bool{},
		known:     map[string]bool{},
	}
	snap, err := b.build(&proxy.Spec)
	if err != nil {
		return nil, fmt.Errorf("ProxyServer %s/%s: %w", proxy.Namespace, proxy.Name, err)
	}
	return snap, nil
}

// builder collects the backends by target and by listener.
type builder struct {
	namespace string
	opts      Options
	address   string
	targets   map[string]*target
	listeners map[string]*listener
	ports     map[int32]string  // port -> listener
	sources   map[string]string // address -> attachment
	claims    map[string]claim  // by attachment
	owners    map[string]owner  // by attachment
	backends  map[string]bool
	// known are the names of all backends, those that lead nowhere included; a wildcard is kept by its suffix.
	known map[string]bool
	// closest are the names that wildcards do not cover, by the wildcard's suffix; made when first asked for.
	closest map[string][]string
}

// claim is what an attachment claimed last: its backends that match by source all name the same sources.
type claim struct {
	prefixes  []string
	addresses []string
}

// owner is the tenant that an attachment stands for.
type owner struct {
	namespace string // of its control plane
	metadata  *core.Metadata
}

// target is one Service of one attachment: it becomes a cluster, and a filter chain of the same name or, on port 80, a virtual host, an
// internal listener and the cluster behind that.
type target struct {
	name    string
	cluster string            // of its addresses
	http    bool              // on port 80: it has a virtual host and no chain
	backend *v1alpha1.Backend // the first that led here
	owner   *core.Metadata
	chain   *listenerv3.FilterChain
	public  *listenerv3.FilterChain  // in a listener of the attachment's own; nil: in none
	onMatch *matcher.Matcher_OnMatch // leads to the chain
	action  []byte                   // the same in wire format
}

// listener is what one listener is to match.
type listener struct {
	name string
	port int32
	// attachment whose own listener it is; empty for a shared one.
	attachment string
	chains     map[string]*target
	// names that lead to a target from any source; a wildcard is kept by its suffix (".apps.example.com").
	names, wildcards map[string]*target
	// bySource are the names (and noServerName) that lead to a target by the client's address.
	bySource map[string][]sourceRoute
}

// noServerName is the key, in listener.bySource, of TLS without a server name.
const noServerName = ""

// sourceRoute says that connections of these sources go to a target.
type sourceRoute struct {
	sources []string // addresses
	target  *target
}

func (b *builder) build(spec *v1alpha1.ProxyServerSpec) (*Snapshot, error) {
	b.address = "0.0.0.0"
	if !b.opts.AnyAddress {
		ip, err := netip.ParseAddr(spec.NetworkConfig.ServerIP)
		if err != nil || !ip.Is4() {
			return nil, fmt.Errorf("networkConfig.serverIP %q is not an IPv4 address", spec.NetworkConfig.ServerIP)
		}
		b.address = ip.String()
	}
	for i := range spec.Backends {
		if err := b.add(&spec.Backends[i]); err != nil {
			return nil, fmt.Errorf("backend %q: %w", spec.Backends[i].Name, err)
		}
	}

	failures, err := connectionFailures()
	if err != nil {
		return nil, err
	}
	resources := map[string][]namedMessage{}
	for name, t := range b.targets {
		cluster, endpoints, err := buildCluster(t)
		if err != nil {
			return nil, fmt.Errorf("backend %q: %w", t.backend.Name, err)
		}
		resources[clusterType] = append(resources[clusterType], namedMessage{t.cluster, cluster})
		if endpoints != nil {
			resources[endpointType] = append(resources[endpointType], namedMessage{t.cluster, endpoints})
		}
		if !t.http {
			continue
		}
		front, internal, err := buildHTTPTarget(t, failures)
		if err != nil {
			return nil, fmt.Errorf("backend %q: %w", t.backend.Name, err)
		}
		resources[clusterType] = append(resources[clusterType], namedMessage{name, front})
		resources[listenerType] = append(resources[listenerType], namedMessage{name, internal})
	}
	m, err := newMatchers()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(b.listeners)) {
		l := b.listeners[name]
		var message *listenerv3.Listener
		if name == httpListener {
			message, err = b.buildHTTPListener(l)
		} else {
			message, err = b.buildListener(l, m)
		}
		if err != nil {
			return nil, fmt.Errorf("listener %q: %w", name, err)
		}
		resources[listenerType] = append(resources[listenerType], namedMessage{name, message})
	}
	resources[routeType] = []namedMessage{{httpListener, b.buildRoutes()}}
	return newSnapshot(resources)
}

// add files one backend under its target and its listeners.
func (b *builder) add(backend *v1alpha1.Backend) error {
	if b.backends[backend.Name] {
		return errors.New("there are two of this name")
	}
	b.backends[backend.Name] = true
	if backend.Attachment == "" || backend.TargetService == "" || backend.TargetNamespace == "" {
		return errors.New("attachment, targetNamespace and targetService must be set")
	}
	if strings.Contains(backend.Attachment+backend.TargetService, "/") { // else two targets could have a cluster of one name
		return fmt.Errorf("attachment %q, targetService %q: neither may have a slash", backend.Attachment, backend.TargetService)
	}
	owner, err := b.owner(backend)
	if err != nil {
		return err
	}
	names, err := serverNames(backend)
	if err != nil {
		return err
	}
	for _, name := range names {
		b.known[strings.TrimPrefix(name, "*")] = true
	}
	sources, err := b.claimSources(backend)
	if err != nil {
		return err
	}
	if err := admissible(backend, names); err != nil {
		return err
	}
	if len(backend.Addresses) == 0 || (len(names) == 0 && len(sources) == 0) {
		return nil // it leads nowhere, or nobody leads to it
	}
	t, err := b.target(backend, owner)
	if err != nil {
		return err
	}
	for _, port := range backend.Ports {
		l, err := b.listener(backend, port)
		if err != nil {
			return err
		}
		if l.attachment != "" && t.public == nil {
			if t.public, err = buildPublicChain(t.name, owner); err != nil {
				return err
			}
		}
		if !t.http {
			l.chains[t.name] = t
		}
		if err := l.route(names, sources, t); err != nil {
			return err
		}
	}
	return nil
}

// admissible checks that the listeners of a backend may have its names. A listener of an attachment's own is public, so that
// only names that are spelled out get in; port 80 has no TLS, so that nothing can be told by server name or by its absence, and its
// targets have one address each (see addressSuffix).
func admissible(backend *v1alpha1.Backend, names []string) error {
	if len(backend.Ports) == 0 {
		return errors.New("ports must name at least one port")
	}
	wildcard := slices.ContainsFunc(names, func(name string) bool { return strings.HasPrefix(name, "*.") })
	if backend.Listener != "" {
		switch {
		case len(backend.Ports) != 1:
			return fmt.Errorf("listener %q takes one port, not %d", backend.Listener, len(backend.Ports))
		case strings.Contains(backend.Listener, "/"):
			return fmt.Errorf("listener %q: a name with a slash is that of an internal listener", backend.Listener)
		case isSharedListener(backend.Listener):
			return fmt.Errorf("listener %q is shared by all attachments: leave the field empty", backend.Listener)
		case wildcard || len(names) == 0 || len(backend.SourcePrefixRanges) > 0:
			return fmt.Errorf("listener %q is the attachment's own: it takes host names, without wildcards and sources", backend.Listener)
		}
		return nil
	}
	for _, port := range backend.Ports {
		switch {
		case wildcard && !wildcardPorts[port]:
			return fmt.Errorf("port %d takes no wildcard", port)
		case port != httpPort:
		case len(backend.Ports) > 1:
			return fmt.Errorf("port %d speaks HTTP: its target can have no other port", port)
		case len(names) == 0 || len(backend.SourcePrefixRanges) > 0:
			return fmt.Errorf("port %d takes host names, without sources", port)
		case backend.Headless || len(backend.Addresses) > 1:
			return fmt.Errorf("port %d takes one address, and no endpoints of a headless Service", port)
		}
	}
	return nil
}

func isSharedListener(name string) bool {
	for _, shared := range sharedListeners {
		if name == shared {
			return true
		}
	}
	return false
}

// serverNames are the normalised host names of a backend; none for TLS without a server name.
func serverNames(backend *v1alpha1.Backend) ([]string, error) {
	if backend.Hostname == "" {
		if len(backend.AlternateHostnames) > 0 {
			return nil, errors.New("alternateHostnames need a hostname")
		}
		return nil, nil
	}
	names := make([]string, 0, 1+len(backend.AlternateHostnames))
	for _, raw := range append([]string{backend.Hostname}, backend.AlternateHostnames...) {
		name := v1alpha1.NormalizeDomain(raw)
		if !validServerName(strings.TrimPrefix(name, "*.")) {
			return nil, fmt.Errorf("hostname %q is not a DNS name", raw)
		}
		if strings.HasPrefix(name, "*.") && len(backend.SourcePrefixRanges) > 0 {
			return nil, fmt.Errorf("hostname %q: a wildcard cannot be bound to sources", raw)
		}
		names = append(names, name)
	}
	return names, nil
}

// validServerName tells whether a name in lower case can be a server name in TLS (RFC 6066, section 3).
func validServerName(name string) bool {
	if name == "" || len(name) > 253 {
		return false
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 {
			return false
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return false
			}
		}
	}
	return true
}

// claimSources reads the /32s of a backend and books them for its attachment.
func (b *builder) claimSources(backend *v1alpha1.Backend) ([]string, error) {
	if last := b.claims[backend.Attachment]; slices.Equal(last.prefixes, backend.SourcePrefixRanges) {
		return last.addresses, nil
	}
	sources := make([]string, 0, len(backend.SourcePrefixRanges))
	for _, prefix := range backend.SourcePrefixRanges {
		address := strings.TrimSuffix(prefix, "/32")
		if ip, err := netip.ParseAddr(address); err != nil || !ip.Is4() || len(address) == len(prefix) {
			return nil, fmt.Errorf("source %q is not an IPv4 /32", prefix)
		}
		if owner, taken := b.sources[address]; taken && owner != backend.Attachment {
			return nil, fmt.Errorf("source %s belongs to attachment %q already", prefix, owner)
		}
		b.sources[address] = backend.Attachment
		sources = append(sources, address)
	}
	b.claims[backend.Attachment] = claim{backend.SourcePrefixRanges, sources}
	return sources, nil
}

// owner finds the owner of a backend or makes it. An attachment has one.
func (b *builder) owner(backend *v1alpha1.Backend) (*core.Metadata, error) {
	if known, ok := b.owners[backend.Attachment]; ok {
		if known.namespace != backend.TargetNamespace {
			return nil, fmt.Errorf("targetNamespace %q differs from %q of the same attachment", backend.TargetNamespace, known.namespace)
		}
		return known.metadata, nil
	}
	metadata, err := buildOwner(backend.TargetNamespace)
	if err != nil {
		return nil, err
	}
	b.owners[backend.Attachment] = owner{backend.TargetNamespace, metadata}
	return metadata, nil
}

// target finds the target of a backend or makes it.
func (b *builder) target(backend *v1alpha1.Backend, owner *core.Metadata) (*target, error) {
	name := b.namespace + "/" + backend.Attachment + "/" + backend.TargetService
	http := backend.Listener == "" && slices.Contains(backend.Ports, httpPort)
	cluster := name
	if http {
		name, cluster = name+httpTargetSuffix, name+addressSuffix
	}
	t := b.targets[name]
	if t == nil && http {
		t = &target{name: name, cluster: cluster, http: true, backend: backend, owner: owner}
		b.targets[name] = t
		return t, nil
	}
	if t == nil {
		chain, err := buildChain(name, name, owner, idleTimeout)
		if err != nil {
			return nil, err
		}
		onMatch, err := chainAction(name)
		if err != nil {
			return nil, err
		}
		action, err := proto.MarshalOptions{Deterministic: true}.Marshal(onMatch)
		if err != nil {
			return nil, fmt.Errorf("filter chain action %s: %w", name, err)
		}
		t = &target{name: name, cluster: cluster, backend: backend, owner: owner, chain: chain, onMatch: onMatch, action: action}
		b.targets[name] = t
		return t, nil
	}
	if first := t.backend; t.http != http || first.TargetPort != backend.TargetPort ||
		first.TimeoutSeconds != backend.TimeoutSeconds || !slices.Equal(first.Addresses, backend.Addresses) {
		return nil, fmt.Errorf("target %s differs from that of backend %q", name, first.Name)
	}
	return t, nil
}

// listener finds the listener of a backend's port or makes it: that which the backend names, which is its attachment's own, or
// the shared one.
func (b *builder) listener(backend *v1alpha1.Backend, port int32) (*listener, error) {
	name, attachment := backend.Listener, backend.Attachment
	if name == "" {
		shared, ok := sharedListeners[port]
		if !ok {
			return nil, fmt.Errorf("port %d has no shared listener", port)
		}
		name, attachment = shared, ""
	}
	if bound := int(port) + b.opts.PortOffset; port < 1 || bound < 1 || bound > 65535 {
		return nil, fmt.Errorf("port %d with offset %d is out of range", port, b.opts.PortOffset)
	}
	if other, taken := b.ports[port]; taken && other != name {
		return nil, fmt.Errorf("port %d is that of listener %q already", port, other)
	}
	l := b.listeners[name]
	if l == nil {
		l = &listener{
			name: name, port: port, attachment: attachment, chains: map[string]*target{},
			names: map[string]*target{}, wildcards: map[string]*target{}, bySource: map[string][]sourceRoute{},
		}
		b.listeners[name] = l
		b.ports[port] = name
	}
	if l.port != port {
		return nil, fmt.Errorf("listener %q is on port %d already, not %d", name, l.port, port)
	}
	if l.attachment != attachment {
		return nil, fmt.Errorf("listener %q is that of attachment %q already", name, l.attachment)
	}
	return l, nil
}

// closer are the names right below a wildcard that it does not cover, with all that is below them: those that exist, or have
// names that exist below them (RFC 4592, closest encloser). The DNS server answers by the same rule.
func (b *builder) closer(suffix string) []string {
	if b.closest == nil {
		b.closest = map[string][]string{}
		found := map[string]bool{}
		for name := range b.known {
			// From the whole name to its last labels, "." before each: which of them is a wildcard's suffix?
			rest := "." + strings.TrimPrefix(name, ".")
			for {
				i := strings.IndexByte(rest[1:], '.')
				if i < 0 {
					break
				}
				below := rest[1:]
				rest = rest[1+i:]
				if b.known[rest] && !found[below] {
					found[below] = true
					b.closest[rest] = append(b.closest[rest], below)
				}
			}
		}
		for _, names := range b.closest {
			slices.Sort(names)
		}
	}
	return b.closest[suffix]
}

// route leads the names, and the sources if there are any, to a target.
func (l *listener) route(names, sources []string, t *target) error {
	if len(sources) > 0 {
		if len(names) == 0 {
			names = []string{noServerName}
		}
		for _, name := range names {
			if other := l.names[name]; other != nil {
				return fmt.Errorf("hostname %q leads to %s from any source already", name, other.name)
			}
			l.bySource[name] = append(l.bySource[name], sourceRoute{sources, t})
		}
		return nil
	}
	for i, name := range names {
		to := l.names
		if strings.HasPrefix(name, "*.") {
			name, to = name[1:], l.wildcards
		}
		if other := to[name]; other != nil && other != t {
			return fmt.Errorf("hostname %q leads to %s already", names[i], other.name)
		}
		if routes := l.bySource[name]; len(routes) > 0 {
			return fmt.Errorf("hostname %q leads to %s by source already", name, routes[0].target.name)
		}
		to[name] = t
	}
	return nil
}

// sortedChains are the chains of a listener by name.
func (l *listener) sortedChains() []*listenerv3.FilterChain {
	chains := make([]*listenerv3.FilterChain, 0, len(l.chains))
	for _, name := range slices.Sorted(maps.Keys(l.chains)) {
		chain := l.chains[name].chain
		if l.attachment != "" {
			chain = l.chains[name].public
		}
		chains = append(chains, chain)
	}
	return chains
}
