package xds

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"strings"

	admin "github.com/envoyproxy/go-control-plane/envoy/admin/v3"
	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	csds "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/densityops/oooi/api/v1alpha1"
)

// StreamClientStatus implements CSDS: one answer to each request.
func (svc *service) StreamClientStatus(stream csds.ClientStatusDiscoveryService_StreamClientStatusServer) error {
	for {
		// Between requests only the client's end or the server's hard stop ends the stream.
		req, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		response, err := svc.FetchClientStatus(stream.Context(), req)
		if err != nil {
			return err
		}
		if err := stream.Send(response); err != nil {
			return err
		}
	}
}

// FetchClientStatus implements CSDS: what each connected Envoy has been sent, and whether it acknowledged it.
func (svc *service) FetchClientStatus(_ context.Context, req *csds.ClientStatusRequest) (*csds.ClientStatusResponse, error) {
	var matches []func(string) bool
	for _, m := range req.GetNodeMatchers() {
		if len(m.GetNodeMetadatas()) > 0 {
			return nil, status.Error(codes.InvalidArgument, "node_matchers: only node_id can be matched")
		}
		match, err := stringMatch(m.GetNodeId())
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "node_matchers: %v", err)
		}
		matches = append(matches, match)
	}
	response := &csds.ClientStatusResponse{}
	for _, ses := range svc.server.allSessions() {
		id := ses.node.GetId()
		if len(matches) == 0 || slices.ContainsFunc(matches, func(match func(string) bool) bool { return match(id) }) {
			response.Config = append(response.Config, ses.clientConfig(!req.GetExcludeResourceContents()))
		}
	}
	return response, nil
}

// allSessions of all Infras, by Infra and then in the order of connecting.
func (s *Server) allSessions() []*session {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*session
	for _, name := range slices.Sorted(maps.Keys(s.infras)) {
		all = append(all, s.infras[name].sessions...)
	}
	return all
}

// clientConfig is one Envoy's state, resource by resource.
func (ses *session) clientConfig(contents bool) *csds.ClientConfig {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	config := &csds.ClientConfig{Node: ses.node, ClientScope: fmt.Sprintf("stream %d", ses.id)}
	for _, typeURL := range servedTypes {
		sub := ses.pub.types[typeURL]
		if sub == nil {
			continue
		}
		names := map[string]bool{}
		for name := range sub.held {
			names[name] = true
		}
		for _, r := range ses.pub.wanted(typeURL) {
			names[r.Name] = true
		}
		for _, name := range slices.Sorted(maps.Keys(names)) {
			resource := ses.pub.resourceStatus(typeURL, name)
			if !contents {
				resource.XdsConfig = nil
				if resource.ErrorState != nil {
					resource.ErrorState.FailedConfiguration = nil
				}
			}
			config.GenericXdsConfigs = append(config.GenericXdsConfigs, resource)
		}
	}
	return config
}

// resourceStatus tells how far one resource has come: what Envoy serves, and what became of the target's version.
func (p *publisher) resourceStatus(typeURL, name string) *csds.ClientConfig_GenericXdsConfig {
	sub := p.types[typeURL]
	held, target := sub.held[name], p.target.sets[typeURL].byName[name]
	out := &csds.ClientConfig_GenericXdsConfig{TypeUrl: typeURL, Name: name}
	if held != nil {
		out.VersionInfo, out.XdsConfig = held.Version, held.Resource
	}
	refused, isRefused := sub.refused[name]
	switch {
	case isRefused:
		out.ConfigStatus, out.ClientStatus = csds.ConfigStatus_ERROR, admin.ClientResourceStatus_NACKED
		out.ErrorState = &admin.UpdateFailureState{Details: refused.message, VersionInfo: refused.version}
		if target != nil {
			out.ErrorState.FailedConfiguration = target.Resource
		}
	case target != nil && sub.has(target):
		out.ConfigStatus, out.ClientStatus = csds.ConfigStatus_SYNCED, admin.ClientResourceStatus_ACKED
	case p.inFlight[typeURL].carries(name):
		out.ConfigStatus, out.ClientStatus = csds.ConfigStatus_STALE, admin.ClientResourceStatus_REQUESTED
	default:
		out.ConfigStatus, out.ClientStatus = csds.ConfigStatus_NOT_SENT, admin.ClientResourceStatus_REQUESTED
	}
	return out
}

// carries tells whether a step, if there is one, changes a resource.
func (st *step) carries(name string) bool {
	return st != nil && (slices.Contains(st.remove, name) ||
		slices.ContainsFunc(st.add, func(r *discovery.Resource) bool { return r.Name == name }))
}

// stringMatch makes a predicate of an Envoy string matcher; none at all matches everything.
func stringMatch(m *matcherv3.StringMatcher) (func(string) bool, error) {
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = v1alpha1.LowerASCII
	}
	with := func(test func(s, pattern string) bool, pattern string) func(string) bool {
		return func(s string) bool { return test(fold(s), fold(pattern)) }
	}
	switch pattern := m.GetMatchPattern().(type) {
	case nil:
		return func(string) bool { return true }, nil
	case *matcherv3.StringMatcher_Exact:
		return with(func(s, p string) bool { return s == p }, pattern.Exact), nil
	case *matcherv3.StringMatcher_Prefix:
		return with(strings.HasPrefix, pattern.Prefix), nil
	case *matcherv3.StringMatcher_Suffix:
		return with(strings.HasSuffix, pattern.Suffix), nil
	case *matcherv3.StringMatcher_Contains:
		return with(strings.Contains, pattern.Contains), nil
	case *matcherv3.StringMatcher_SafeRegex:
		re, err := regexp.Compile("^(?:" + pattern.SafeRegex.GetRegex() + ")$")
		if err != nil {
			return nil, err
		}
		return re.MatchString, nil
	default:
		return nil, fmt.Errorf("string matcher %T is not supported", pattern)
	}
}
