package xds

import (
	"fmt"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	acceptlimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/listener/local_ratelimit/v3"
	connectionlimit "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/connection_limit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// A listener of an attachment's own brings the world to an Envoy that all tenants share, and whose listeners together may have
// defaultMaxConnections (BootstrapConfig.MaxConnections). So each public listener has bounds of its own, by which it can use up only a small part of that.
const (
	// publicConnections is how many connections a public listener may have to one target.
	publicConnections = 2000
	// publicAccepts is how many connections a second a public listener lets in, and publicAcceptBurst how many at once.
	publicAccepts, publicAcceptBurst = 100, 500
	// publicClientHelloTimeout is how long one of its clients may take to say what it wants.
	publicClientHelloTimeout = 5 * time.Second
	// publicIdleTimeout is how long one of its connections may be without a byte.
	publicIdleTimeout = time.Hour
)

// buildPublicChain is the filter chain of a target in a listener of the attachment's own.
func buildPublicChain(target string, owner *core.Metadata) (*listenerv3.FilterChain, error) {
	limit, err := marshalAny(&connectionlimit.ConnectionLimit{
		StatPrefix: "public/" + target, MaxConnections: wrapperspb.UInt64(publicConnections),
	})
	if err != nil {
		return nil, fmt.Errorf("filter chain %s: %w", target, err)
	}
	chain, err := buildChain(target, target, owner, publicIdleTimeout)
	if err != nil {
		return nil, err
	}
	chain.Filters = append([]*listenerv3.Filter{{
		Name:       "envoy.filters.network.connection_limit",
		ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: limit},
	}}, chain.Filters...)
	return chain, nil
}

// acceptLimit lets a public listener accept no more than so many connections; what comes on top of that is closed at once.
func acceptLimit(listener string) (*listenerv3.ListenerFilter, error) {
	config, err := marshalAny(&acceptlimit.LocalRateLimit{
		StatPrefix: listener,
		TokenBucket: &typev3.TokenBucket{
			MaxTokens: publicAcceptBurst, TokensPerFill: wrapperspb.UInt32(publicAccepts), FillInterval: durationpb.New(time.Second),
		},
	})
	if err != nil {
		return nil, err
	}
	return &listenerv3.ListenerFilter{
		Name:       "envoy.filters.listener.local_ratelimit",
		ConfigType: &listenerv3.ListenerFilter_TypedConfig{TypedConfig: config},
	}, nil
}
