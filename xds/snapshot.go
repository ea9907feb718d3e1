package xds

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// Type URLs of the resources that are served.
const (
	typePrefix   = "type.googleapis.com/"
	clusterType  = typePrefix + "envoy.config.cluster.v3.Cluster"
	endpointType = typePrefix + "envoy.config.endpoint.v3.ClusterLoadAssignment"
	listenerType = typePrefix + "envoy.config.listener.v3.Listener"
	routeType    = typePrefix + "envoy.config.route.v3.RouteConfiguration"
)

// servedTypes in the order in which Envoy must learn of them.
var servedTypes = []string{clusterType, endpointType, listenerType, routeType}

// shortType is a type URL as people say it, for logs and metrics.
func shortType(typeURL string) string {
	return strings.ToLower(typeURL[strings.LastIndexByte(typeURL, '.')+1:])
}

// Snapshot is everything that the Envoys of one Infra are to have: immutable, each resource
// marshalled once and versioned by the hash of its content, so that equal input gives equal versions
// in every process.
type Snapshot struct {
	version string
	sets    map[string]*resourceSet
}

// resourceSet is the resources of one type.
type resourceSet struct {
	sorted []*discovery.Resource
	byName map[string]*discovery.Resource
}

// newSnapshot marshals the resources of each type URL. Names must be unique within a type.
func newSnapshot(resources map[string][]namedMessage) (*Snapshot, error) {
	s := &Snapshot{sets: map[string]*resourceSet{}}
	whole := sha256.New()
	for _, typeURL := range servedTypes {
		set := &resourceSet{byName: make(map[string]*discovery.Resource, len(resources[typeURL]))}
		for _, r := range resources[typeURL] {
			body, err := proto.MarshalOptions{Deterministic: true}.Marshal(r.message)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", shortType(typeURL), r.name, err)
			}
			sum := sha256.Sum256(body)
			res := &discovery.Resource{
				Name:     r.name,
				Version:  hex.EncodeToString(sum[:8]),
				Resource: &anypb.Any{TypeUrl: typeURL, Value: body},
			}
			set.byName[r.name] = res
			set.sorted = append(set.sorted, res)
		}
		slices.SortFunc(set.sorted, byName)
		s.sets[typeURL] = set
		whole.Write([]byte(typeURL + setVersion(set.sorted)))
	}
	s.version = hex.EncodeToString(whole.Sum(nil)[:8])
	return s, nil
}

// namedMessage is a resource before it is marshalled.
type namedMessage struct {
	name    string
	message proto.Message
}

func byName(a, b *discovery.Resource) int { return strings.Compare(a.Name, b.Name) }

// setVersion is the version of a sorted list of resources as a whole.
func setVersion(sorted []*discovery.Resource) string {
	h := sha256.New()
	for _, r := range sorted {
		h.Write([]byte(r.Name + "\x00" + r.Version + "\x00"))
	}
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// emptySnapshot has no resources but routes without any host: an Envoy that holds it listens nowhere, and what it is
// still draining leads nowhere.
func emptySnapshot() *Snapshot {
	s, err := newSnapshot(map[string][]namedMessage{routeType: {{httpListener, (&builder{}).buildRoutes()}}})
	if err != nil {
		panic(err) // what is marshalled is constant
	}
	return s
}

// Version is the hash of all that the snapshot holds.
func (s *Snapshot) Version() string { return s.version }

// size is the number of bytes of all resources together.
func (s *Snapshot) size() int {
	n := 0
	for _, set := range s.sets {
		for _, r := range set.sorted {
			n += len(r.Resource.Value)
		}
	}
	return n
}

// MarshalJSON writes the exact Envoy resources in the JSON form of protobuf: listeners, routes, clusters and
// endpoints, each sorted by name, and the version. Equal snapshots give equal bytes.
func (s *Snapshot) MarshalJSON() ([]byte, error) {
	var doc struct {
		Version   string            `json:"version"`
		Listeners []json.RawMessage `json:"listeners"`
		Routes    []json.RawMessage `json:"routes"`
		Clusters  []json.RawMessage `json:"clusters"`
		Endpoints []json.RawMessage `json:"endpoints"`
	}
	doc.Version = s.version
	for typeURL, to := range map[string]*[]json.RawMessage{
		listenerType: &doc.Listeners, routeType: &doc.Routes, clusterType: &doc.Clusters, endpointType: &doc.Endpoints,
	} {
		*to = []json.RawMessage{}
		for _, r := range s.sets[typeURL].sorted {
			text, err := resourceJSON(r)
			if err != nil {
				return nil, fmt.Errorf("%s %q: %w", shortType(typeURL), r.Name, err)
			}
			*to = append(*to, text)
		}
	}
	return json.Marshal(doc)
}

// resourceJSON is one resource as JSON. protojson varies its white space on purpose, so it is compacted.
func resourceJSON(r *discovery.Resource) (json.RawMessage, error) {
	m, err := r.Resource.UnmarshalNew()
	if err != nil {
		return nil, err
	}
	text, err := protojson.Marshal(m)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	if err := json.Compact(&out, text); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}
