package xds

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	overloadv3 "github.com/envoyproxy/go-control-plane/envoy/config/overload/v3"
	internallistener "github.com/envoyproxy/go-control-plane/envoy/extensions/bootstrap/internal_listener/v3"
	connections "github.com/envoyproxy/go-control-plane/envoy/extensions/resource_monitors/downstream_connections/v3"
	upstreamhttp "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"sigs.k8s.io/yaml"
)

const (
	// defaultMaxConnections is enough for ten thousand workers with ten connections each. Envoy needs
	// two file descriptors a connection.
	defaultMaxConnections = 100_000
	// Envoy comes back to a restarted control plane within retryMax.
	retryBase = 100 * time.Millisecond
	retryMax  = 2 * time.Second
)

// BootstrapConfig is what an Envoy must be told before it can ask for the rest.
type BootstrapConfig struct {
	// Infra that it serves, NAMESPACE/NAME.
	Infra string
	// NodeID is unique per Envoy. Empty: each Envoy is told its own when it is started (--service-node).
	NodeID string
	// XDSHost and XDSPort are where the control plane listens; the host is an address or a name.
	XDSHost string
	XDSPort int
	// AdminAddress is the address of Envoy's admin interface, host:port with an IP address.
	AdminAddress string
	// MaxConnections bounds the client connections of all listeners together. 0: 100,000.
	MaxConnections int64
}

// Bootstrap is an Envoy bootstrap in YAML: everything over one incremental stream, a limit for connections, the admin interface.
// Envoy waits for the control plane as long as it takes and never starts with a part.
func Bootstrap(config BootstrapConfig) ([]byte, error) {
	switch {
	case !isInfraName(config.Infra):
		return nil, fmt.Errorf("bootstrap: Infra %q is not NAMESPACE/NAME", config.Infra)
	case config.XDSHost == "":
		return nil, errors.New("bootstrap: the host of the control plane is missing")
	case config.XDSPort < 1 || config.XDSPort > 65535:
		return nil, fmt.Errorf("bootstrap: port %d of the control plane is out of range", config.XDSPort)
	}
	adminAddress, err := hostPort(config.AdminAddress)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: admin address: %w", err)
	}
	cluster, err := xdsCluster(config)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	internal, err := internalListeners()
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	overload, err := overloadManager(config.MaxConnections)
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(&bootstrapv3.Bootstrap{
		Node:  &core.Node{Id: config.NodeID, Cluster: config.Infra},
		Admin: &bootstrapv3.Admin{Address: adminAddress, IgnoreGlobalConnLimit: true},
		DynamicResources: &bootstrapv3.Bootstrap_DynamicResources{
			AdsConfig: &core.ApiConfigSource{
				ApiType:                   core.ApiConfigSource_DELTA_GRPC,
				TransportApiVersion:       core.ApiVersion_V3,
				SetNodeOnFirstMessageOnly: true,
				GrpcServices: []*core.GrpcService{{TargetSpecifier: &core.GrpcService_EnvoyGrpc_{
					EnvoyGrpc: &core.GrpcService_EnvoyGrpc{
						ClusterName: cluster.Name,
						RetryPolicy: &core.RetryPolicy{RetryBackOff: &core.BackoffStrategy{
							BaseInterval: durationpb.New(retryBase), MaxInterval: durationpb.New(retryMax),
						}},
					},
				}}},
			},
			CdsConfig: adsSource(),
			LdsConfig: adsSource(),
		},
		StaticResources:     &bootstrapv3.Bootstrap_StaticResources{Clusters: []*clusterv3.Cluster{cluster}},
		OverloadManager:     overload,
		BootstrapExtensions: []*core.TypedExtensionConfig{internal},
		LayeredRuntime:      resetsEndHere(),
	})
	if err != nil {
		return nil, fmt.Errorf("bootstrap: %w", err)
	}
	return yaml.JSONToYAML(text)
}

// isInfraName tells whether a name is NAMESPACE/NAME.
func isInfraName(name string) bool {
	namespace, rest, ok := strings.Cut(name, "/")
	return ok && namespace != "" && rest != "" && !strings.Contains(rest, "/")
}

func hostPort(address string) (*core.Address, error) {
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	number, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%q: port %q is not a number up to 65535", address, port)
	}
	if _, err := netip.ParseAddr(host); err != nil {
		return nil, fmt.Errorf("%q: %q is not an IP address", address, host)
	}
	return socketAddress(host, uint32(number)), nil
}

// xdsCluster is the control plane as an upstream of Envoy.
func xdsCluster(config BootstrapConfig) (*clusterv3.Cluster, error) {
	const name = "oooi-xds"
	http2, err := marshalAny(&upstreamhttp.HttpProtocolOptions{
		UpstreamProtocolOptions: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_{
			ExplicitHttpConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig{
				ProtocolConfig: &upstreamhttp.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
					Http2ProtocolOptions: &core.Http2ProtocolOptions{ConnectionKeepalive: &core.KeepaliveSettings{
						Interval: durationpb.New(pingInterval), Timeout: durationpb.New(pingTimeout),
					}},
				},
			},
		},
	})
	if err != nil {
		return nil, err
	}
	kind := clusterv3.Cluster_STATIC
	if _, err := netip.ParseAddr(config.XDSHost); err != nil {
		kind = clusterv3.Cluster_STRICT_DNS
	}
	return &clusterv3.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: kind},
		ConnectTimeout:                durationpb.New(time.Second),
		TypedExtensionProtocolOptions: map[string]*anypb.Any{"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": http2},
		UpstreamConnectionOptions:     &clusterv3.UpstreamConnectionOptions{TcpKeepalive: buildKeepalive()},
		LoadAssignment: &endpointv3.ClusterLoadAssignment{
			ClusterName: name,
			Endpoints: []*endpointv3.LocalityLbEndpoints{{LbEndpoints: []*endpointv3.LbEndpoint{{
				HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
					Address: socketAddress(config.XDSHost, uint32(config.XDSPort)),
				}},
			}}}},
		},
	}, nil
}

// internalListeners lets Envoy connect to itself without a socket, with no more buffered on the way than on a real connection.
func internalListeners() (*core.TypedExtensionConfig, error) {
	config, err := marshalAny(&internallistener.InternalListener{BufferSizeKb: wrapperspb.UInt32(bufferLimit >> 10)})
	if err != nil {
		return nil, err
	}
	return &core.TypedExtensionConfig{Name: "envoy.bootstrap.internal_listener", TypedConfig: config}, nil
}

// resetsEndHere makes Envoy end a connection in order, with all that it has read, where the connection behind it was reset. By
// default it would reset it: between a request and its target, where the two meet inside Envoy, an answer that a router gave before it
// reset, and what a client said last before it went, would be lost.
//
// These are guards of Envoy 1.40. Envoy removes guards in time: one that no longer knows them logs the error "Using a removed guard" and
// goes on, with resets passed on or not, and says that a later one will refuse the bootstrap.
func resetsEndHere() *bootstrapv3.LayeredRuntime {
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "oooi",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"envoy.reloadable_features.propagate_downstream_rst_to_upstream":              structpb.NewBoolValue(false),
			"envoy.reloadable_features.propagate_upstream_rst_through_tunneled_tcp_proxy": structpb.NewBoolValue(false),
		}}},
	}}}
}

// overloadManager limits the client connections of all listeners together, so that a flood cannot exhaust Envoy's file
// descriptors. The admin interface is outside the limit.
func overloadManager(limit int64) (*overloadv3.OverloadManager, error) {
	if limit <= 0 {
		limit = defaultMaxConnections
	}
	monitor, err := marshalAny(&connections.DownstreamConnectionsConfig{MaxActiveDownstreamConnections: limit})
	if err != nil {
		return nil, err
	}
	return &overloadv3.OverloadManager{ResourceMonitors: []*overloadv3.ResourceMonitor{{
		Name:       "envoy.resource_monitors.global_downstream_max_connections",
		ConfigType: &overloadv3.ResourceMonitor_TypedConfig{TypedConfig: monitor},
	}}}, nil
}
