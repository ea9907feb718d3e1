package xds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	xdscore "github.com/cncf/xds/go/xds/core/v3"
	matcher "github.com/cncf/xds/go/xds/type/matcher/v3"
	inputs "github.com/envoyproxy/go-control-plane/envoy/extensions/matching/common_inputs/network/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// matchers builds the parts of a filter chain matcher. Envoy's own inputs are matched as strings;
// IPMatcher and ServerNameMatcher are left alone, being marked as work in progress.
type matchers struct {
	serverName, sourceIP, transport *xdscore.TypedExtensionConfig
	// sourceMaps of the listeners so far: the shared listeners have the same one, and it is by far the largest part.
	sourceMaps []sourceMap
}

// sourceMap is the matcher of some sources.
type sourceMap struct {
	routes  []sourceRoute
	matcher *matcher.Matcher
}

// route is one entry of an exact match map.
type route struct {
	key    string
	target *target
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
// other, what is decided by source and the wildcards. Without a match Envoy closes the connection. closer are the names that a
// wildcard does not cover.
func (m *matchers) tree(l *listener, closer func(suffix string) []string) (*matcher.Matcher, error) {
	list, err := m.bySource(l)
	if err != nil {
		return nil, err
	}
	list = append(list, m.wildcards(l, closer)...) // last: there is one for each attachment, and Envoy tries them in turn

	var rest *matcher.Matcher
	if len(list) > 0 {
		rest = &matcher.Matcher{MatcherType: &matcher.Matcher_MatcherList_{
			MatcherList: &matcher.Matcher_MatcherList{Matchers: list},
		}}
	}
	if len(l.names) == 0 {
		return rest, nil
	}
	names := make([]route, 0, len(l.names))
	for name, t := range l.names {
		names = append(names, route{name, t})
	}
	slices.SortFunc(names, byKey)
	root := exactMap(m.serverName, names)
	if rest != nil {
		root.OnNoMatch = toMatcher(rest)
	}
	return root, nil
}

func byKey(a, b route) int { return strings.Compare(a.key, b.key) }

// wildcards match by suffix, the longest first; names that are closer, and all below them, are left out.
func (m *matchers) wildcards(l *listener, closer func(suffix string) []string) []*matcher.Matcher_MatcherList_FieldMatcher {
	suffixes := slices.SortedFunc(maps.Keys(l.wildcards), func(a, b string) int {
		if len(a) != len(b) {
			return len(b) - len(a)
		}
		return strings.Compare(a, b)
	})
	var list []*matcher.Matcher_MatcherList_FieldMatcher
	for _, suffix := range suffixes {
		predicate := m.below(suffix)
		if names := closer(suffix); len(names) > 0 {
			var excluded []*matcher.Matcher_MatcherList_Predicate
			for _, name := range names {
				excluded = append(excluded, m.single(m.serverName, exactly(name)), m.below("."+name))
			}
			predicate = &matcher.Matcher_MatcherList_Predicate{MatchType: &matcher.Matcher_MatcherList_Predicate_AndMatcher{
				AndMatcher: &matcher.Matcher_MatcherList_Predicate_PredicateList{Predicate: []*matcher.Matcher_MatcherList_Predicate{
					predicate,
					{MatchType: &matcher.Matcher_MatcherList_Predicate_NotMatcher{NotMatcher: anyOf(excluded)}},
				}},
			}}
		}
		list = append(list, &matcher.Matcher_MatcherList_FieldMatcher{Predicate: predicate, OnMatch: l.wildcards[suffix].onMatch})
	}
	return list
}

// below holds for the server names that end with a suffix.
func (m *matchers) below(suffix string) *matcher.Matcher_MatcherList_Predicate {
	return m.single(m.serverName, &matcher.StringMatcher{MatchPattern: &matcher.StringMatcher_Suffix{Suffix: suffix}})
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
		tree, err := m.sourceMap(g.routes)
		if err != nil {
			return nil, err
		}
		var predicates []*matcher.Matcher_MatcherList_Predicate
		for _, name := range g.names {
			predicates = append(predicates, m.named(name))
		}
		list = append(list, &matcher.Matcher_MatcherList_FieldMatcher{Predicate: anyOf(predicates), OnMatch: toMatcher(tree)})
	}
	return list, nil
}

// sourceMap makes the matcher of some sources, or finds it when another listener has the same.
func (m *matchers) sourceMap(routes []sourceRoute) (*matcher.Matcher, error) {
	for _, known := range m.sourceMaps {
		if slices.EqualFunc(known.routes, routes, sameRoute) {
			return known.matcher, nil
		}
	}
	total := 0
	for _, r := range routes {
		total += len(r.sources)
	}
	addresses := make([]route, 0, total)
	for _, r := range routes {
		for _, address := range r.sources {
			addresses = append(addresses, route{address, r.target})
		}
	}
	slices.SortFunc(addresses, byKey)
	for i := 1; i < len(addresses); i++ {
		if before, at := addresses[i-1], addresses[i]; before.key == at.key && before.target != at.target {
			return nil, fmt.Errorf("source %s leads to both %s and %s", at.key, before.target.name, at.target.name)
		}
	}
	addresses = slices.CompactFunc(addresses, func(a, b route) bool { return a.key == b.key })
	made := exactMap(m.sourceIP, addresses)
	m.sourceMaps = append(m.sourceMaps, sourceMap{routes, made})
	return made, nil
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

// Field numbers of xds.type.matcher.v3.Matcher.MatcherTree.MatchMap, and of the entries of every map in protobuf.
const (
	matchMapField = 1
	mapKeyField   = 1
	mapValueField = 2
)

// exactMap is a matcher that looks an input up in a map; the routes are sorted by key. The entries are written in wire format
// right away, and travel as the "unknown fields" of the message: it has up to ten thousand of them, all but their
// keys equal for one target, and making, sorting and walking that many messages costs more than the rest of Build.
func exactMap(input *xdscore.TypedExtensionConfig, routes []route) *matcher.Matcher {
	size := func(r route) int {
		return protowire.SizeTag(mapKeyField) + protowire.SizeBytes(len(r.key)) +
			protowire.SizeTag(mapValueField) + protowire.SizeBytes(len(r.target.action))
	}
	total := 0
	for _, r := range routes {
		total += protowire.SizeTag(matchMapField) + protowire.SizeBytes(size(r))
	}
	wire := make([]byte, 0, total)
	for _, r := range routes {
		wire = protowire.AppendTag(wire, matchMapField, protowire.BytesType)
		wire = protowire.AppendVarint(wire, uint64(size(r)))
		wire = protowire.AppendTag(wire, mapKeyField, protowire.BytesType)
		wire = protowire.AppendString(wire, r.key)
		wire = protowire.AppendTag(wire, mapValueField, protowire.BytesType)
		wire = protowire.AppendBytes(wire, r.target.action)
	}
	entries := &matcher.Matcher_MatcherTree_MatchMap{}
	entries.ProtoReflect().SetUnknown(wire)
	return &matcher.Matcher{MatcherType: &matcher.Matcher_MatcherTree_{MatcherTree: &matcher.Matcher_MatcherTree{
		Input:    input,
		TreeType: &matcher.Matcher_MatcherTree_ExactMatchMap{ExactMatchMap: entries},
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
	config, err := marshalAny(wrapperspb.String(name))
	if err != nil {
		return nil, fmt.Errorf("filter chain action %s: %w", name, err)
	}
	return &matcher.Matcher_OnMatch{OnMatch: &matcher.Matcher_OnMatch_Action{
		Action: &xdscore.TypedExtensionConfig{Name: "filter-chain", TypedConfig: config},
	}}, nil
}
