package xds

import (
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	streamlog "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/stream/v3"
	tlsinspector "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/tls_inspector/v3"
	tcpproxy "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// idleTimeout is longer than any kube watch (an API server ends them within an hour or two) and than the four
	// hours that kubelet keeps an idle exec session. Dead peers are found by TCP keepalive, not by this.
	idleTimeout = 24 * time.Hour
	// clientHelloTimeout is how long a client may take to say what it wants.
	clientHelloTimeout = 15 * time.Second
	// defaultConnectTimeout stands in for a backend without timeoutSeconds.
	defaultConnectTimeout = 30 * time.Second
	// bufferLimit bounds the memory of one connection, each way, in bytes.
	bufferLimit = 32 << 10

	// A peer that vanishes is noticed within a minute: by keepalive when nothing is under way, by
	// TCP_USER_TIMEOUT when sent data is not acknowledged, which would otherwise take the kernel a quarter of an hour.
	keepaliveIdle     = 30 * time.Second
	keepaliveInterval = 10 * time.Second
	keepaliveProbes   = 3
	userTimeout       = keepaliveIdle + keepaliveProbes*keepaliveInterval

	// upstreamHops is the TTL of what Envoy sends to targets, and least that a client's packets must have left when they arrive:
	// Envoy never accepts a connection that it opened itself. Hosts start at 64 or more, and reach a VLAN pod in far fewer
	// than 32 hops; Envoy reaches every target of a cluster in a handful.
	upstreamHops = 31

	// Linux's numbers of socket options: TCP_USER_TIMEOUT (tcp(7)), IP_TTL and IP_MINTTL (ip(7)).
	levelIP        = 0
	ipTTL          = 2
	ipMinTTL       = 21
	levelTCP       = 6
	tcpUserTimeout = 18
)

// Endpoints say whose they are, and a chain says whose it takes, in metadata of this filter and key.
const (
	ownerFilter = "envoy.lb" // the one that Envoy selects endpoints by
	ownerKey    = "owner"
)

// buildOwner says that a target is the owner's, which is a control-plane namespace. It is in wire format already, as each
// chain and each endpoint of the owner has it in it.
func buildOwner(owner string) (*core.Metadata, error) {
	wire, err := proto.MarshalOptions{Deterministic: true}.Marshal(&core.Metadata{FilterMetadata: map[string]*structpb.Struct{
		ownerFilter: {Fields: map[string]*structpb.Value{ownerKey: structpb.NewStringValue(owner)}},
	}})
	if err != nil {
		return nil, fmt.Errorf("owner %q: %w", owner, err)
	}
	metadata := &core.Metadata{}
	metadata.ProtoReflect().SetUnknown(wire)
	return metadata, nil
}

// buildChain is the filter chain of a target, which leads to a cluster, that of the target's addresses. It says nothing but the
// names of the two and the owner: Envoy drains a chain whose proto changes, so host names, sources and addresses must stay out of it.
//
// The name alone does not tell the tenant, as an attachment can become another tenant's. The chain takes only endpoints of the
// owner that it was made for, so that a cluster that is older or newer than the listener gives it none.
//
// A connection without a byte for as long as idle is ended.
func buildChain(target, cluster string, owner *core.Metadata, idle time.Duration) (*listenerv3.FilterChain, error) {
	config, err := marshalAny(&tcpproxy.TcpProxy{
		StatPrefix:       target,
		ClusterSpecifier: &tcpproxy.TcpProxy_Cluster{Cluster: cluster},
		IdleTimeout:      durationpb.New(idle),
		MetadataMatch:    owner,
	})
	if err != nil {
		return nil, fmt.Errorf("filter chain %s: %w", target, err)
	}
	return &listenerv3.FilterChain{
		Name: target,
		Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.tcp_proxy",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: config},
		}},
	}, nil
}

// buildListener is a listener of TLS. Whatever is not a chain or the matcher depends on the listener's name, address and
// port only, because Envoy drains the whole listener when any of it changes.
func (b *builder) buildListener(l *listener, m *matchers) (*listenerv3.Listener, error) {
	inspector, err := marshalAny(&tlsinspector.TlsInspector{CloseConnectionOnClientHelloParsingErrors: true})
	if err != nil {
		return nil, err
	}
	log, err := buildAccessLog(map[string]any{
		"time":      "%START_TIME%",
		"listener":  l.name,
		"target":    "%FILTER_CHAIN_NAME%",
		"source":    "%DOWNSTREAM_REMOTE_ADDRESS%",
		"sni":       "%REQUESTED_SERVER_NAME%",
		"upstream":  "%UPSTREAM_HOST%",
		"received":  "%BYTES_RECEIVED%",
		"sent":      "%BYTES_SENT%",
		"duration":  "%DURATION%",
		"flags":     "%RESPONSE_FLAGS%",
		"closed_by": "%CONNECTION_TERMINATION_DETAILS%",
		"failure":   "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	})
	if err != nil {
		return nil, err
	}
	tree, err := m.tree(l, b.closer)
	if err != nil {
		return nil, err
	}
	message := b.newListener(l)
	message.FilterChains, message.FilterChainMatcher = l.sortedChains(), tree
	message.ListenerFilters = []*listenerv3.ListenerFilter{{
		Name:       "envoy.filters.listener.tls_inspector",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: inspector},
	}}
	message.ListenerFiltersTimeout = durationpb.New(clientHelloTimeout)
	message.AccessLog = []*accesslog.AccessLog{log}
	if l.attachment == "" {
		return message, nil
	}
	limit, err := acceptLimit(l.name)
	if err != nil {
		return nil, err
	}
	message.ListenerFilters = append([]*listenerv3.ListenerFilter{limit}, message.ListenerFilters...)
	message.ListenerFiltersTimeout = durationpb.New(publicClientHelloTimeout)
	return message, nil
}

// newListener is what all listeners of a port have in common.
func (b *builder) newListener(l *listener) *listenerv3.Listener {
	return &listenerv3.Listener{
		Name:                          l.name,
		Address:                       socketAddress(b.address, uint32(int(l.port)+b.opts.PortOffset)),
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		TcpKeepalive:                  buildKeepalive(),
		SocketOptions:                 []*core.SocketOption{buildUserTimeout(), buildLeastTTL()},
		// The address may be claimed after Envoy started, or move here at a failover.
		Freebind: wrapperspb.Bool(!b.opts.AnyAddress),
		// Two Envoys at one address would share its connections, and each knows the routes of its own Infra
		// only: the second one must fail to listen.
		EnableReusePort: wrapperspb.Bool(false),
	}
}

// buildAccessLog is the access log of a listener: one line of JSON when a connection (on port 80: a request) ends, those that
// matched nothing included.
func buildAccessLog(fields map[string]any) (*accesslog.AccessLog, error) {
	format, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, err
	}
	config, err := marshalAny(&streamlog.StdoutAccessLog{AccessLogFormat: &streamlog.StdoutAccessLog_LogFormat{
		LogFormat: &core.SubstitutionFormatString{Format: &core.SubstitutionFormatString_JsonFormat{JsonFormat: format}},
	}})
	if err != nil {
		return nil, err
	}
	return &accesslog.AccessLog{
		Name:       "envoy.access_loggers.stdout",
		ConfigType: &accesslog.AccessLog_TypedConfig{TypedConfig: config},
	}, nil
}

// newCluster is what all clusters of targets have in common.
func newCluster(name string) *clusterv3.Cluster {
	return &clusterv3.Cluster{
		Name:                          name,
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		// Envoy's default of 1024 connections is less than the workers of one cluster open.
		CircuitBreakers: &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
			MaxConnections:     wrapperspb.UInt32(math.MaxUint32),
			MaxPendingRequests: wrapperspb.UInt32(math.MaxUint32),
			MaxRequests:        wrapperspb.UInt32(math.MaxUint32),
		}}},
		// Only endpoints of the owner that the chain or the route asks for; without one the connection is closed, the request answered 503.
		LbSubsetConfig: &clusterv3.Cluster_LbSubsetConfig{
			FallbackPolicy:  clusterv3.Cluster_LbSubsetConfig_NO_FALLBACK,
			SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{{Keys: []string{ownerKey}}},
		},
	}
}

// buildCluster is the cluster of a target's addresses. One address is part of it; the endpoints of a headless Service come by EDS,
// so that they can move without the cluster; a DNS name is resolved by Envoy.
func buildCluster(t *target) (*clusterv3.Cluster, *endpointv3.ClusterLoadAssignment, error) {
	backend := t.backend
	if backend.TargetPort < 1 || backend.TargetPort > 65535 {
		return nil, nil, fmt.Errorf("targetPort %d is out of range", backend.TargetPort)
	}
	connectTimeout := time.Duration(backend.TimeoutSeconds) * time.Second
	if connectTimeout <= 0 {
		connectTimeout = defaultConnectTimeout
	}
	cluster := newCluster(t.cluster)
	cluster.ConnectTimeout = durationpb.New(connectTimeout)
	cluster.UpstreamConnectionOptions = &clusterv3.UpstreamConnectionOptions{TcpKeepalive: buildKeepalive()}
	cluster.UpstreamBindConfig = &core.BindConfig{SocketOptions: []*core.SocketOption{buildUserTimeout(), buildUpstreamTTL()}}
	endpoints, named, err := buildEndpoints(t.cluster, t.owner, backend)
	switch {
	case err != nil:
		return nil, nil, err
	case named:
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_LOGICAL_DNS}
		cluster.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED
		cluster.LoadAssignment = endpoints
		// One name that does not resolve must not hold up the start of everybody else.
		cluster.WaitForWarmOnInit = wrapperspb.Bool(false)
		return cluster, nil, nil
	case len(backend.Addresses) == 1 && !backend.Headless:
		cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
		cluster.LoadAssignment = endpoints
		return cluster, nil, nil
	}
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS}
	cluster.EdsClusterConfig = &clusterv3.Cluster_EdsClusterConfig{EdsConfig: adsSource()}
	return cluster, endpoints, nil
}

// buildEndpoints lists the addresses of a target; named tells that they are one DNS name.
func buildEndpoints(cluster string, owner *core.Metadata, backend *v1alpha1.Backend) (assignment *endpointv3.ClusterLoadAssignment, named bool, err error) {
	var endpoints []*endpointv3.LbEndpoint
	for _, address := range slices.Sorted(slices.Values(backend.Addresses)) {
		if _, err := netip.ParseAddr(address); err != nil {
			name := strings.TrimSuffix(address, ".")
			if len(backend.Addresses) > 1 || !validServerName(v1alpha1.LowerASCII(name)) {
				return nil, false, fmt.Errorf("address %q is neither an IP address nor a single DNS name", address)
			}
			named = true
		}
		endpoints = append(endpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{
				Endpoint: &endpointv3.Endpoint{Address: socketAddress(address, uint32(backend.TargetPort))},
			},
			Metadata: owner,
		})
	}
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints:   []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}},
	}, named, nil
}

func socketAddress(address string, port uint32) *core.Address {
	return &core.Address{Address: &core.Address_SocketAddress{SocketAddress: &core.SocketAddress{
		Address: address, PortSpecifier: &core.SocketAddress_PortValue{PortValue: port},
	}}}
}

// adsSource says that resources come over the aggregated stream.
func adsSource() *core.ConfigSource {
	return &core.ConfigSource{
		ResourceApiVersion:    core.ApiVersion_V3,
		ConfigSourceSpecifier: &core.ConfigSource_Ads{Ads: &core.AggregatedConfigSource{}},
		// However long the control plane takes: never start with a part.
		InitialFetchTimeout: durationpb.New(0),
	}
}

func buildKeepalive() *core.TcpKeepalive {
	return &core.TcpKeepalive{
		KeepaliveProbes:   wrapperspb.UInt32(keepaliveProbes),
		KeepaliveTime:     wrapperspb.UInt32(uint32(keepaliveIdle.Seconds())),
		KeepaliveInterval: wrapperspb.UInt32(uint32(keepaliveInterval.Seconds())),
	}
}

func buildUserTimeout() *core.SocketOption {
	return &core.SocketOption{
		Description: "TCP_USER_TIMEOUT, in milliseconds",
		Level:       levelTCP,
		Name:        tcpUserTimeout,
		Value:       &core.SocketOption_IntValue{IntValue: userTimeout.Milliseconds()},
		State:       core.SocketOption_STATE_PREBIND,
	}
}

// buildUpstreamTTL marks what Envoy sends to a target: see upstreamHops.
func buildUpstreamTTL() *core.SocketOption {
	return &core.SocketOption{
		Description: "IP_TTL, in hops",
		Level:       levelIP,
		Name:        ipTTL,
		Value:       &core.SocketOption_IntValue{IntValue: upstreamHops},
		State:       core.SocketOption_STATE_PREBIND,
	}
}

// buildLeastTTL drops, in the kernel, whatever carries that mark (Generalized TTL Security Mechanism, RFC 5082): a connection
// that leads back to a listener of oooi ends there at the first turn, through kube-proxy's hairpin as well, and whichever Envoy of
// whichever VLAN opened it.
func buildLeastTTL() *core.SocketOption {
	return &core.SocketOption{
		Description: "IP_MINTTL, in hops",
		Level:       levelIP,
		Name:        ipMinTTL,
		Value:       &core.SocketOption_IntValue{IntValue: upstreamHops + 1},
		State:       core.SocketOption_STATE_PREBIND,
	}
}

// marshalAny packs a typed config, deterministically.
func marshalAny(m proto.Message) (*anypb.Any, error) {
	packed := &anypb.Any{}
	err := anypb.MarshalFrom(packed, m, proto.MarshalOptions{Deterministic: true})
	return packed, err
}
