package xds

import (
	"maps"
	"slices"
	"strings"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
)

// publisher decides what one Envoy is sent next, make before break: clusters, endpoints, listeners, routes; when Envoy has all
// of the routes, internal listeners are removed; when it has all of the listeners, too, clusters are. It has one step in flight, but
// for endpoints and routes: Envoy does not acknowledge a cluster before it has warmed it with its endpoints, and may do the same
// with a listener and its routes. The order spares connections; that none reaches another tenant in between is seen to by the
// resources themselves. It knows nothing of the wire; it is not safe for concurrent use.
type publisher struct {
	target   *Snapshot
	types    map[string]*subscription // by type URL, once Envoy asked for the type
	inFlight map[string]*step         // by type URL
}

// step is one response: resources to add or update, and names to remove.
type step struct {
	typeURL string
	add     []*discovery.Resource
	remove  []string
}

// subscription is one type of resources as one Envoy sees it.
type subscription struct {
	wildcard bool
	names    map[string]bool
	// held is what Envoy acknowledged, or said it had when it connected (then without a body).
	held map[string]*discovery.Resource
	// refused is what Envoy refused of the target, by resource name; "" when no single resource is to blame.
	refused map[string]refusal
	// owed are names that must be answered even when there is no such resource.
	owed map[string]bool
	// owesFirst is set until a new Envoy has got its first response, be it empty.
	owesFirst bool
	// batch bounds the resources of a step while a refused one is being looked for; 0 is no bound.
	batch int
	// nonce of the last response.
	nonce string
}

// refusal is one NACK that was traced to one resource.
type refusal struct {
	version string
	message string
	again   bool // to be sent once more as it is
}

// passingCauses are words of Envoy about the machine it runs on. A resource that it refused with one of them may be taken
// later as it is; any other refusal is about the resource itself.
var passingCauses = []string{
	"cannot bind", "Address already in use", "Cannot assign requested address", "Too many open files", "Cannot allocate memory",
}

// mayPass tells whether Envoy may take the resource later as it is.
func (r refusal) mayPass() bool {
	return r.version != "" && slices.ContainsFunc(passingCauses, func(cause string) bool { return strings.Contains(r.message, cause) })
}

func newPublisher(target *Snapshot) *publisher {
	return &publisher{target: target, types: map[string]*subscription{}, inFlight: map[string]*step{}}
}

// retarget sets what is to be published next, and gives what was refused another try.
func (p *publisher) retarget(target *Snapshot) {
	p.target = target
	for _, sub := range p.types {
		clear(sub.refused)
		sub.batch = 0
	}
}

// hasPassing tells whether Envoy refused something that it may take later as it is.
func (p *publisher) hasPassing() bool {
	for _, sub := range p.types {
		for _, r := range sub.refused {
			if r.mayPass() {
				return true
			}
		}
	}
	return false
}

// retryPassing has what Envoy may take now sent again. Envoy's words stand until it answers; what it no longer asks for is forgotten.
func (p *publisher) retryPassing() {
	for _, sub := range p.types {
		for name, r := range sub.refused {
			switch {
			case !r.mayPass():
			case sub.wants(name):
				r.again = true
				sub.refused[name] = r
			default:
				delete(sub.refused, name)
			}
		}
	}
}

// subscribe adds a type; known are the versions that Envoy says it has.
func (p *publisher) subscribe(typeURL string, wildcard bool, known map[string]string) *subscription {
	sub := &subscription{
		wildcard:  wildcard,
		names:     map[string]bool{},
		held:      make(map[string]*discovery.Resource, len(known)),
		refused:   map[string]refusal{},
		owed:      map[string]bool{},
		owesFirst: len(known) == 0,
	}
	for name, version := range known {
		sub.held[name] = &discovery.Resource{Name: name, Version: version}
		if r := p.target.sets[typeURL].byName[name]; r != nil && r.Version == version {
			sub.held[name] = r
		}
	}
	p.types[typeURL] = sub
	return sub
}

// wants tells whether Envoy asked for a resource of that name.
func (sub *subscription) wants(name string) bool { return sub.wildcard || sub.names[name] }

// next is the step to send now, or nil when Envoy must answer first or has all it is to have.
func (p *publisher) next() *step {
	st := p.choose()
	if st == nil {
		return nil
	}
	p.inFlight[st.typeURL] = st
	if endpoints := p.types[endpointType]; st.typeURL == clusterType && endpoints != nil {
		for _, r := range st.add { // Envoy warms a changed cluster with endpoints that come after it
			delete(endpoints.held, r.Name)
		}
	}
	return st
}

func (p *publisher) choose() *step {
	idle := len(p.inFlight) == 0
	if idle {
		if st := p.additions(clusterType); st != nil {
			return st
		}
	}
	if p.inFlight[endpointType] == nil {
		if st := p.additions(endpointType); st != nil {
			return st
		}
	}
	if p.inFlight[clusterType] != nil || p.inFlight[endpointType] != nil {
		return nil
	}
	if idle {
		if st := p.listeners(); st != nil {
			return st
		}
	}
	if p.inFlight[routeType] == nil {
		if st := p.additions(routeType); st != nil {
			return st
		}
	}
	if !idle || p.awaitsRoutes() || p.types[routeType] != nil && !p.inSync(routeType) {
		return nil
	}
	if st := p.removals(listenerType, isInternal); st != nil {
		return st
	}
	if !p.inSync(listenerType) {
		return nil
	}
	return p.removals(clusterType, func(string) bool { return true })
}

// awaitsRoutes tells whether Envoy has a listener whose routes it has not asked for, which it does as soon as it has the listener.
func (p *publisher) awaitsRoutes() bool {
	routes, listeners := p.types[routeType], p.types[listenerType]
	return listeners != nil && listeners.held[httpListener] != nil && (routes == nil || !routes.wants(httpListener))
}

// additions are the resources of a type that Envoy lacks or has in another version.
func (p *publisher) additions(typeURL string) *step {
	sub := p.types[typeURL]
	if sub == nil {
		return nil
	}
	st := &step{typeURL: typeURL}
	set := p.target.sets[typeURL]
	for _, r := range set.sorted {
		refused := sub.refused[r.Name]
		if !sub.wants(r.Name) || sub.has(r) || refused.version == r.Version && !refused.again {
			continue
		}
		if sub.batch > 0 && len(st.add) == sub.batch {
			break
		}
		st.add = append(st.add, r)
	}
	for _, name := range slices.Sorted(maps.Keys(sub.owed)) {
		if set.byName[name] == nil {
			st.remove = append(st.remove, name)
		}
	}
	if len(st.add) == 0 {
		sub.batch = 0
		if len(st.remove) == 0 && !sub.owesFirst {
			return nil
		}
	}
	clear(sub.owed)
	sub.owesFirst = false
	return st
}

// has tells whether Envoy has this version of a resource.
func (sub *subscription) has(r *discovery.Resource) bool {
	held := sub.held[r.Name]
	return held == r || held != nil && held.Version == r.Version
}

// removals are the resources that Envoy has and the target has not, as far as they are of a kind.
func (p *publisher) removals(typeURL string, ofKind func(name string) bool) *step {
	sub := p.types[typeURL]
	if sub == nil {
		return nil
	}
	var gone []string
	for name := range sub.held {
		if p.target.sets[typeURL].byName[name] == nil && ofKind(name) {
			gone = append(gone, name)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	slices.Sort(gone)
	return &step{typeURL: typeURL, remove: gone}
}

// listeners are added and removed in one step: a listener may take over the port of another. Internal listeners are removed when
// no route leads to them any more.
func (p *publisher) listeners() *step {
	add, gone := p.additions(listenerType), p.removals(listenerType, func(name string) bool { return !isInternal(name) })
	if add == nil {
		return gone
	}
	if gone != nil {
		add.remove = append(add.remove, gone.remove...)
	}
	return add
}

// inSync tells whether Envoy asked for a type and has just what the target has of it, as far as it asked.
func (p *publisher) inSync(typeURL string) bool {
	sub := p.types[typeURL]
	if sub == nil || len(sub.refused) > 0 || sub.owesFirst {
		return false
	}
	wanted := 0
	for _, r := range p.target.sets[typeURL].sorted {
		if !sub.wants(r.Name) {
			continue
		}
		wanted++
		if !sub.has(r) {
			return false
		}
	}
	return !sub.wildcard || wanted == len(sub.held)
}

// acknowledged books the step of a type that is in flight as held by Envoy.
func (p *publisher) acknowledged(typeURL string) {
	st, sub := p.inFlight[typeURL], p.types[typeURL]
	delete(p.inFlight, typeURL)
	for _, r := range st.add {
		sub.held[r.Name] = r
		delete(sub.refused, r.Name)
	}
	for _, name := range st.remove {
		delete(sub.held, name)
	}
	sub.batch *= 2
}

// abandonRoutes ends the step of routes that is in flight when Envoy asks for them no more, as its listener has gone: then it may
// never answer.
func (p *publisher) abandonRoutes() {
	st := p.inFlight[routeType]
	if st != nil && !slices.ContainsFunc(st.add, func(r *discovery.Resource) bool { return p.types[routeType].wants(r.Name) }) {
		delete(p.inFlight, routeType)
	}
}

// refusedStep books a NACK of the step of a type that is in flight. One resource alone is to blame, and is parked until
// the next retarget or retryPassing; of several it is not known which, so that they are sent again in halves.
func (p *publisher) refusedStep(typeURL, message string) {
	st, sub := p.inFlight[typeURL], p.types[typeURL]
	delete(p.inFlight, typeURL)
	switch len(st.add) {
	case 0:
		// Only removals, or an empty first response: sending them again would get the same answer.
		sub.refused[""] = refusal{message: message}
		for _, name := range st.remove {
			delete(sub.held, name)
		}
	case 1:
		sub.refused[st.add[0].Name] = refusal{version: st.add[0].Version, message: message}
		for _, name := range st.remove {
			delete(sub.held, name)
		}
		if typeURL == endpointType && p.inFlight[clusterType] != nil {
			// The cluster will never be warm, so that Envoy will never answer it. It has it, and the rest must go on.
			p.acknowledged(clusterType)
		}
	default:
		sub.batch = (len(st.add) + 1) / 2
	}
}

// troubled tells whether Envoy refused something of the target.
func (p *publisher) troubled() bool {
	for _, sub := range p.types {
		if len(sub.refused) > 0 || sub.batch > 0 {
			return true
		}
	}
	return false
}

// refusals are Envoy's words on all that it refused of the target; empty when it refused nothing.
func (p *publisher) refusals() string {
	var all []string
	for _, typeURL := range servedTypes {
		sub := p.types[typeURL]
		if sub == nil {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(sub.refused)) {
			all = append(all, strings.TrimSpace(shortType(typeURL)+" "+name)+": "+sub.refused[name].message)
		}
	}
	return strings.Join(all, "; ")
}

// after is the whole state of a type once a step is applied, as state-of-the-world responses carry it.
func (p *publisher) after(st *step) []*discovery.Resource {
	state := maps.Clone(p.types[st.typeURL].held)
	for _, r := range st.add {
		state[r.Name] = r
	}
	for _, name := range st.remove {
		delete(state, name)
	}
	return slices.SortedFunc(maps.Values(state), byName)
}

// wanted are the resources of the target that Envoy asked for, sorted.
func (p *publisher) wanted(typeURL string) []*discovery.Resource {
	var list []*discovery.Resource
	for _, r := range p.target.sets[typeURL].sorted {
		if p.types[typeURL].wants(r.Name) {
			list = append(list, r)
		}
	}
	return list
}
