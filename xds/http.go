package xds

import (
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	accesslog "github.com/envoyproxy/go-control-plane/envoy/config/accesslog/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerfilter "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcm "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// httpPort is the one port on which Envoy speaks HTTP, and routes by Host.
	httpPort = 80
	// httpListener is the name of its listener, of that listener's only chain, and of its route configuration.
	httpListener = "apps-http"
	// httpTargetSuffix tells an HTTP target, with its cluster and its internal listener, from that of TLS to the same Service.
	httpTargetSuffix = "/http"
	// addressSuffix is that of the cluster of its address. It sorts before the other: Envoy knows a new address before it gives
	// up the connections that it kept to the old one. So it is for one address only: endpoints that come by EDS come after both.
	addressSuffix = "/address"

	// requestHeadersTimeout is how long a client may take over the headers of one request.
	requestHeadersTimeout = clientHelloTimeout
	// keepAliveTimeout is how long a client's connection may be without a request: as long as an OpenShift router keeps one.
	keepAliveTimeout = 300 * time.Second
	// httpIdleTimeout is how long a request or a WebSocket may be without a byte: as long as an OpenShift router lets a tunnel be.
	httpIdleTimeout = time.Hour
	// upstreamKeepAliveTimeout is how long a connection to a router may be without a request. It is short: a request that meets a
	// connection which the router just closed is lost, as there are no retries; and Envoy keeps the connections that it opened for a
	// client for that long after the client has gone.
	upstreamKeepAliveTimeout = 2 * time.Second
)

// noHost is the virtual host of the names that must not fall to a wildcard: it has no route.
const noHost = "none"

// buildHTTPListener is the listener of port 80. All that it says is constant: what is served where comes by RDS, since Envoy
// would drain the whole chain at each change of an inline route table.
//
// Envoy speaks HTTP/1.1 only here, where one length of a message is the only one: a request with two (Content-Length and
// Transfer-Encoding) is refused and its connection closed, and no two clients share a connection to a target (see speakHTTP).
// HTTP/1.0, which knows requests without Host, is refused.
func (b *builder) buildHTTPListener(l *listener) (*listenerv3.Listener, error) {
	log, err := buildAccessLog(map[string]any{
		"time":     "%START_TIME%",
		"listener": l.name,
		"target":   "%UPSTREAM_CLUSTER%",
		"source":   "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS%",
		"host":     "%REQ(:AUTHORITY):255%",
		"method":   "%REQ(:METHOD):32%",
		"code":     "%RESPONSE_CODE%",
		"details":  "%RESPONSE_CODE_DETAILS%",
		"upstream": "%UPSTREAM_HOST%",
		"received": "%BYTES_RECEIVED%",
		"sent":     "%BYTES_SENT%",
		"duration": "%DURATION%",
		"flags":    "%RESPONSE_FLAGS%",
	})
	if err != nil {
		return nil, err
	}
	router, err := marshalAny(&routerfilter.Router{SuppressEnvoyHeaders: true})
	if err != nil {
		return nil, err
	}
	manager, err := marshalAny(&hcm.HttpConnectionManager{
		CodecType:  hcm.HttpConnectionManager_HTTP1,
		StatPrefix: l.name,
		RouteSpecifier: &hcm.HttpConnectionManager_Rds{Rds: &hcm.Rds{
			ConfigSource: adsSource(), RouteConfigName: l.name,
		}},
		HttpFilters: []*hcm.HttpFilter{{
			Name:       "envoy.filters.http.router",
			ConfigType: &hcm.HttpFilter_TypedConfig{TypedConfig: router},
		}},
		AccessLog: []*accesslog.AccessLog{log},

		RequestHeadersTimeout:     durationpb.New(requestHeadersTimeout),
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(keepAliveTimeout)},
		StreamIdleTimeout:         durationpb.New(httpIdleTimeout),
		UpgradeConfigs:            []*hcm.HttpConnectionManager_UpgradeConfig{{UpgradeType: "websocket"}},

		// Clients are strangers, whatever their address: what they say in x-envoy-* counts for nothing.
		UseRemoteAddress: wrapperspb.Bool(true),
		InternalAddressConfig: &hcm.HttpConnectionManager_InternalAddressConfig{CidrRanges: []*core.CidrRange{
			{AddressPrefix: "0.0.0.0", PrefixLen: wrapperspb.UInt32(32)}, // nobody; an empty list would be all private addresses
		}},
		// What the target sees is what the client said.
		NormalizePath:                wrapperspb.Bool(false),
		PathWithEscapedSlashesAction: hcm.HttpConnectionManager_KEEP_UNCHANGED,
		StripTrailingHostDot:         true, // no router knows a Host with one
		ServerHeaderTransformation:   hcm.HttpConnectionManager_PASS_THROUGH,
		GenerateRequestId:            wrapperspb.Bool(false),
		PreserveExternalRequestId:    true,
	})
	if err != nil {
		return nil, err
	}
	message := b.newListener(l)
	message.FilterChains = []*listenerv3.FilterChain{{
		Name: l.name,
		Filters: []*listenerv3.Filter{{
			Name:       "envoy.filters.network.http_connection_manager",
			ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: manager},
		}},
	}}
	return message, nil
}

// oneHost is a Host that is one name. Envoy makes one of several (RFC 9112, section 3.2, has them refused), "a,b", which would match by
// the end of the last.
var oneHost = &routev3.HeaderMatcher{
	Name: ":authority",
	HeaderMatchSpecifier: &routev3.HeaderMatcher_StringMatch{StringMatch: &matcherv3.StringMatcher{
		MatchPattern: &matcherv3.StringMatcher_SafeRegex{SafeRegex: &matcherv3.RegexMatcher{Regex: `[0-9A-Za-z_.-]+(:[0-9]+)?`}},
	}},
}

// buildRoutes is the route configuration of port 80: one virtual host a target. A Host that none of them has gets 404. It exists
// without any target, too, so that an Envoy whose listener drains learns that its last routes have gone before their clusters go.
//
// Each route takes only endpoints of its owner, as each chain does. What is under way when a route goes ends with the internal listener
// of its target.
func (b *builder) buildRoutes() *routev3.RouteConfiguration {
	config := &routev3.RouteConfiguration{
		Name: httpListener,
		// By default the port is part of the name; Envoy compares names without case anyway.
		IgnorePortInHostMatching: true,
		// The client's address is what Envoy saw, and nothing that the client said before. X-Forwarded-Proto is Envoy's too.
		RequestHeadersToAdd: []*core.HeaderValueOption{{
			Header:       &core.HeaderValue{Key: "x-forwarded-for", Value: "%DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT%"},
			AppendAction: core.HeaderValueOption_OVERWRITE_IF_EXISTS_OR_ADD,
		}},
		RequestHeadersToRemove: []string{"forwarded", "x-real-ip", "x-envoy-external-address"},
	}
	l := b.listeners[httpListener]
	if l == nil {
		return config
	}
	domains := map[*target][]string{}
	for name, t := range l.names {
		domains[t] = append(domains[t], name)
	}
	closed := map[string]bool{}
	for suffix, t := range l.wildcards {
		domains[t] = append(domains[t], "*"+suffix)
		for _, name := range b.closer(suffix) {
			for domain, routed := range map[string]bool{name: l.names[name] != nil, "*." + name: l.wildcards["."+name] != nil} {
				if !routed {
					closed[domain] = true
				}
			}
		}
	}
	for t, names := range domains {
		slices.Sort(names)
		config.VirtualHosts = append(config.VirtualHosts, &routev3.VirtualHost{
			Name:    t.name,
			Domains: names,
			Routes: []*routev3.Route{{
				Match: &routev3.RouteMatch{
					PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}, Headers: []*routev3.HeaderMatcher{oneHost},
				},
				Action: &routev3.Route_Route{Route: &routev3.RouteAction{
					ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: t.name},
					MetadataMatch:    t.owner,
					Timeout:          durationpb.New(0), // none: answers may be as long as they like
				}},
			}},
		})
	}
	slices.SortFunc(config.VirtualHosts, func(a, b *routev3.VirtualHost) int { return strings.Compare(a.GetName(), b.GetName()) })
	if len(closed) > 0 {
		config.VirtualHosts = append(config.VirtualHosts, &routev3.VirtualHost{Name: noHost, Domains: slices.Sorted(maps.Keys(closed))})
	}
	return config
}

// buildHTTPTarget gives the cluster that the requests of an HTTP target go to, and the internal listener, of the same name, that the
// cluster's connections go through, inside Envoy, to the cluster of the target's address. Envoy cannot end some of the requests
// of port 80, but it drains a listener that goes, and a chain that changes: when the target goes, or becomes another tenant's, what
// is under way ends with the drain time. Such a connection does not count for BootstrapConfig.MaxConnections.
func buildHTTPTarget(t *target, log *accesslog.AccessLog) (*clusterv3.Cluster, *listenerv3.Listener, error) {
	chain, err := buildChain(t.name, t.cluster, t.owner, idleTimeout)
	if err != nil {
		return nil, nil, err
	}
	cluster := newCluster(t.name)
	cluster.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}
	cluster.LoadAssignment = &endpointv3.ClusterLoadAssignment{
		ClusterName: t.name,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &core.Address{Address: &core.Address_EnvoyInternalAddress{EnvoyInternalAddress: &core.EnvoyInternalAddress{
					AddressNameSpecifier: &core.EnvoyInternalAddress_ServerListenerName{ServerListenerName: t.name},
					EndpointId:           addressOf(t.backend),
				}}},
			}},
			Metadata: t.owner,
		}}}},
	}
	if err := speakHTTP(cluster); err != nil {
		return nil, nil, err
	}
	return cluster, &listenerv3.Listener{
		Name:                          t.name,
		ListenerSpecifier:             &listenerv3.Listener_InternalListener{InternalListener: &listenerv3.Listener_InternalListenerConfig{}},
		PerConnectionBufferLimitBytes: wrapperspb.UInt32(bufferLimit),
		FilterChains:                  []*listenerv3.FilterChain{chain},
		AccessLog:                     []*accesslog.AccessLog{log},
	}, nil
}

// connectionFailures is the access log of internal listeners: one line for each connection to a target that failed, as the request's own
// line cannot say why. The client is in that one.
func connectionFailures() (*accesslog.AccessLog, error) {
	log, err := buildAccessLog(map[string]any{
		"time":     "%START_TIME%",
		"listener": httpListener,
		"target":   "%FILTER_CHAIN_NAME%",
		"upstream": "%UPSTREAM_HOST%",
		"duration": "%DURATION%",
		"flags":    "%RESPONSE_FLAGS%",
		"failure":  "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
	})
	if err != nil {
		return nil, err
	}
	log.Filter = &accesslog.AccessLogFilter{FilterSpecifier: &accesslog.AccessLogFilter_ResponseFlagFilter{
		ResponseFlagFilter: &accesslog.ResponseFlagFilter{}, // any flag
	}}
	return log, nil
}

// isInternal tells an internal listener from those that bind a port.
func isInternal(listener string) bool { return strings.HasSuffix(listener, httpTargetSuffix) }

// addressOf is where the backend of an HTTP target leads, for the access log. As it is part of the cluster, Envoy gives up the idle
// connections that it kept to another address.
func addressOf(backend *v1alpha1.Backend) string {
	return net.JoinHostPort(backend.Addresses[0], strconv.Itoa(int(backend.TargetPort)))
}

// speakHTTP makes the cluster of an HTTP target one of HTTP/1.1. Each client's connection has connections of its own to the
// target: were Envoy and the target ever to disagree where a request ends, the client would get what is its own.
func speakHTTP(cluster *clusterv3.Cluster) error {
	options, err := marshalAny(&upstreamhttp.HttpProtocolOptions{
		CommonHttpProtocolOptions: &core.HttpProtocolOptions{IdleTimeout: durationpb.New(upstreamKeepAliveTimeout)},
		UpstreamProtocolOptions: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
					HttpProtocolOptions: &core.Http1ProtocolOptions{},
				},
			},
		},
	})
	if err != nil {
		return fmt.Errorf("cluster %s: %w", cluster.GetName(), err)
	}
	cluster.TypedExtensionProtocolOptions = map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options}
	cluster.ConnectionPoolPerDownstreamConnection = true
	cluster.CircuitBreakers.Thresholds[0].MaxConnectionPools = wrapperspb.UInt32(math.MaxUint32)
	return nil
}
