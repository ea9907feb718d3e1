package xds

import (
	"maps"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

// sotwWire is a state-of-the-world stream: each response carries the whole of its type. While clusters are
// being replaced that is the old and the new ones together.
type sotwWire struct {
	discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer
}

// StreamAggregatedResources implements ADS, state of the world.
func (svc *service) StreamAggregatedResources(stream discovery.AggregatedDiscoveryService_StreamAggregatedResourcesServer) error {
	return svc.serve(sotwWire{stream})
}

func (w sotwWire) receive() (*request, error) {
	req, err := w.Recv()
	if err != nil {
		return nil, err
	}
	return &request{
		node:        req.GetNode(),
		typeURL:     req.GetTypeUrl(),
		nonce:       req.GetResponseNonce(),
		errorDetail: req.GetErrorDetail(),
		wholeState:  true,
		subscribe: func(p *publisher, sub *subscription) {
			names := req.GetResourceNames()
			if sub != nil {
				sub.replace(names)
				return
			}
			sub = p.subscribe(req.GetTypeUrl(), len(names) == 0, nil)
			sub.replace(names)
			// An Envoy that comes back says which version it has.
			if wanted := p.wanted(req.GetTypeUrl()); setVersion(wanted) == req.GetVersionInfo() {
				sub.owesFirst = false
				for _, r := range wanted {
					sub.held[r.Name] = r
				}
			}
		},
	}, nil
}

// replace sets the names that are asked for. What is asked for no more is no longer held.
func (sub *subscription) replace(names []string) {
	clear(sub.names)
	for _, name := range names {
		if name == "*" {
			sub.wildcard = true
			continue
		}
		sub.names[name] = true
	}
	maps.DeleteFunc(sub.held, func(name string, _ *discovery.Resource) bool { return !sub.wants(name) })
}

func (w sotwWire) encode(p *publisher, st *step, nonce string) func() error {
	state := p.after(st)
	response := &discovery.DiscoveryResponse{
		VersionInfo: setVersion(state),
		TypeUrl:     st.typeURL,
		Resources:   make([]*anypb.Any, 0, len(state)),
		Nonce:       nonce,
	}
	for _, r := range state {
		response.Resources = append(response.Resources, r.Resource)
	}
	return func() error { return w.Send(response) }
}
