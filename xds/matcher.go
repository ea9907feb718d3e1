package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	matcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	inputs "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// matchers builds the parts of a filter chain matcher. Envoy's own inputs are matched as strings;
// IPMatcher and ServerNameMatcher are left alone, being marked as work in progress.
type matchers struct {
	serverName, sourceIP, transport *xdscore.TypedExtensionConfig
}

func newMatchers() (*matchers, error) {
	m := &matchers{}
	for _, input := range []struct {
		to      **xdscore.TypedExtensionConfig
		name    string
		message proto.Message
	}{
		{&m.serverName, "server-name", &inputs.ServerNameInput{}},
		{&m.sourceIP, "source-ip", &inputs.SourceIPInput{}},
		{&m.transport, "transport-protocol", &inputs.TransportProtocolInput{}},
	} {
		config, err := anypb.New(input.message)
		if err != nil {
			return nil, fmt.Errorf("matcher input %s: %w", input.name, err)
		}
		*input.to = &xdscore.TypedExtensionConfig{Name: input.name, TypedConfig: config}
	}
	return m, nil
}

// tree is the matcher of a whole listener: names first, in one map; then, by predicates that exclude each
// other, the wildcards and what is decided by source. Without a match Envoy closes the connection.
func (m *matchers) tree(l *listener) (*matcher.Matcher, error) {
	list := m.wildcards(l)
	bySource, err := m.bySource(l)
	if err != nil {
		return nil, err
	}
	list = append(list, bySource...)

	var rest *matcher.Matcher
	if len(list) > 0 {
		rest = &matcher.Matcher{MatcherType: &matcher.Matcher_MatcherList_{
			MatcherList: &matcher.Matcher_MatcherList{Matchers: list},
		}}
	}
	if len(l.names) == 0 {
		return rest, nil
	}
	byName := make(map[string]*matcher.Matcher_OnMatch, len(l.names))
	for name, t := range l.names {
		byName[name] = t.action
	}
	root := m.exactMap(m.serverName, byName)
	if rest != nil {
		root.OnNoMatch = toMatcher(rest)
	}
	return root, nil
}

// wildcards match by suffix, the longest first.
func (m *matchers) wildcards(l *listener) []*matcher.Matcher_MatcherList_FieldMatcher {
	suffixes := slices.SortedFunc(maps.Keys(l.wildcards), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var list []*matcher.Matcher_MatcherList_FieldMatcher
	for _, suffix := range suffixes {
		list = append(list, &matcher.Matcher_MatcherList_FieldMatcher{
			Predicate: m.single(m.serverName, &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Suffix{Suffix: suffix}}),
			OnMatch:   l.wildcards[suffix].action,
		})
	}
	return list
}

// bySource gives one source map to all names (and to TLS without one) that share the same sources: the four
// aliases and the nameless case of all attachments, normally. A copy for each would cost five times the bytes.
func (m *matchers) bySource(l *listener) ([]*matcher.Matcher_MatcherList_FieldMatcher, error) {
	type group struct {
		names  []string
		routes []sourceRoute
	}
	var groups []*group
	for _, name := range slices.Sorted(maps.Keys(l.bySource)) {
		routes := l.bySource[name]
		slices.SortFunc(routes, func(a, b sourceRoute) int { return strings.Compare(a.target.name, b.target.name) })
		i := slices.IndexFunc(groups, func(g *group) bool { return slices.EqualFunc(g.routes, routes, sameRoute) })
		if i < 0 {
			groups = append(groups, &group{names: []string{name}, routes: routes})
			continue
		}
		groups[i].names = append(groups[i].names, name)
	}

	var list []*matcher.Matcher_MatcherList_FieldMatcher
	for _, g := range groups {
		byAddress := map[string]*matcher.Matcher_OnMatch{}
		owner := map[string]*target{}
		for _, route := range g.routes {
			for _, address := range route.sources {
				if other := owner[address]; other != nil && other != route.target {
					return nil, fmt.Errorf("source %s leads to both %s and %s", address, other.name, route.target.name)
				}
				owner[address] = route.target
				byAddress[address] = route.target.action
			}
		}
		var predicates []*matcher.Matcher_MatcherList_Predicate
		for _, name := range g.names {
			predicates = append(predicates, m.named(name))
		}
		list = append(list, &matcher.Matcher_MatcherList_FieldMatcher{
			Predicate: anyOf(predicates),
			OnMatch:   toMatcher(m.exactMap(m.sourceIP, byAddress)),
		})
	}
	return list, nil
}

func sameRoute(a, b sourceRoute) bool {
	return a.target == b.target && slices.Equal(a.sources, b.sources)
}

// named holds for one server name; for noServerName, for TLS that has none. Plain text has no server name either, so
// that the transport protocol must say tls.
func (m *matchers) named(name string) *matcher.Matcher_MatcherList_Predicate {
	if name != noServerName {
		return m.single(m.serverName, exactly(name))
	}
	anyName := m.single(m.serverName, &matcher.StringMatcher{
		MatchPattern: &matcher.StringMatcher_SafeRegex{SafeRegex: &matcher.RegexMatcher{
			EngineType: &matcher.RegexMatcher_GoogleRe2{GoogleRe2: &matcher.RegexMatcher_GoogleRE2{}},
			Regex:      ".*",
		}},
	})
	return &matcher.Matcher_MatcherList_Predicate{MatchType: &matcher.Matcher_MatcherList_Predicate_AndMatcher{
		AndMatcher: &matcher.Matcher_MatcherList_Predicate_PredicateList{Predicate: []*matcher.Matcher_MatcherList_Predicate{
			m.single(m.transport, exactly("tls")),
			{MatchType: &matcher.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: anyName}},
		}},
	}}
}

func (m *matchers) single(input *xdscore.TypedExtensionConfig, value *matcher.StringMatcher) *matcher.Matcher_MatcherList_Predicate {
	return &matcher.Matcher_MatcherList_Predicate{MatchType: &matcher.Matcher_MatcherList_Predicate_SinglePredicate_{
		SinglePredicate: &matcher.Matcher_MatcherList_Predicate_SinglePredicate{
			Input:   input,
			Matcher: &matcher.Matcher_MatcherList_Predicate_SinglePredicate_ValueMatch{ValueMatch: value},
		},
	}}
}

func (m *matchers) exactMap(input *xdscore.TypedExtensionConfig, to map[string]*matcher.Matcher_OnMatch) *matcher.Matcher {
	return &matcher.Matcher{MatcherType: &matcher.Matcher_MatcherTree_{MatcherTree: &matcher.Matcher_MatcherTree{
		Input: input,
		TreeType: &matcher.Matcher_MatcherTree_ExactMatchMap{
			ExactMatchMap: &matcher.Matcher_MatcherTree_MatchMap{Map: to},
		},
	}}}
}

// anyOf is one predicate as it is, and several as an OR, which takes two at least.
func anyOf(predicates []*matcher.Matcher_MatcherList_Predicate) *matcher.Matcher_MatcherList_Predicate {
	if len(predicates) == 1 {
		return predicates[0]
	}
	return &matcher.Matcher_MatcherList_Predicate{MatchType: &matcher.Matcher_MatcherList_Predicate_OrMatcher{
		OrMatcher: &matcher.Matcher_MatcherList_Predicate_PredicateList{Predicate: predicates},
	}}
}

func exactly(value string) *matcher.StringMatcher {
	return &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Exact{Exact: value}}
}

func toMatcher(m *matcher.Matcher) *matcher.Matcher_OnMatch {
	return &matcher.Matcher_OnMatch{OnMatch: &matcher.Matcher_OnMatch_Matcher{Matcher: m}}
}

// chainAction selects a filter chain by name.
func chainAction(name string) (*matcher.Matcher_OnMatch, error) {
	config, err := anypb.New(wrapperspb.String(name))
	if err != nil {
		return nil, fmt.Errorf("filter chain action %s: %w", name, err)
	}
	return &matcher.Matcher_OnMatch{OnMatch: &matcher.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: "filter-chain", TypedConfig: config},
	}}, nil
}
