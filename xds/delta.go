package xds

import (
	"slices"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// deltaWire is an incremental stream: responses carry changes only.
type deltaWire struct {
	discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer
}

// DeltaAggregatedResources implements ADS, incremental.
func (svc *service) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	return svc.serve(deltaWire{stream})
}

func (w deltaWire) receive() (*request, error) {
	req, err := w.Recv()
	if err != nil {
		return nil, err
	}
	return &request{
		node:        req.GetNode(),
		typeURL:     req.GetTypeUrl(),
		nonce:       req.GetResponseNonce(),
		errorDetail: req.GetErrorDetail(),
		subscribe: func(p *publisher, sub *subscription) {
			names := req.GetResourceNamesSubscribe()
			if sub == nil {
				// A first request without names asks for everything, as does the name "*".
				sub = p.subscribe(req.GetTypeUrl(), len(names) == 0, req.GetInitialResourceVersions())
			}
			sub.change(names, req.GetResourceNamesUnsubscribe(), req.GetInitialResourceVersions())
		},
	}, nil
}

// change adds and removes names. A name that is asked for again is sent again, unless its version is known.
func (sub *subscription) change(add, remove []string, known map[string]string) {
	for _, name := range add {
		if name == "*" {
			sub.wildcard = true
			continue
		}
		sub.names[name] = true
		if _, ok := known[name]; !ok {
			delete(sub.held, name)
			sub.owed[name] = true
		}
	}
	for _, name := range remove {
		if name == "*" {
			sub.wildcard = false
			continue
		}
		delete(sub.names, name)
		delete(sub.owed, name)
		if !sub.wildcard {
			delete(sub.held, name)
		}
	}
}

func (w deltaWire) encode(p *publisher, st *step, nonce string) func() error {
	response := &discovery.DeltaDiscoveryResponse{
		SystemVersionInfo: p.target.version,
		TypeUrl:           st.typeURL,
		Resources:         slices.Clone(st.add),
		RemovedResources:  slices.Clone(st.remove),
		Nonce:             nonce,
	}
	return func() error { return w.Send(response) }
}
