package files

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// store knows what each file claims, last good where the file is broken, and which file holds each object. It
// knows neither clock nor disk.
type store struct {
	files map[string]*claims // by path
	// held are the objects in force, and the file that each is from.
	held map[key]holding
	// duplicates are the problems of objects that another file holds.
	duplicates []Problem
	// dropped are files that are gone and have no object left.
	dropped []string
}

type holding struct {
	file   string
	object *object
}

// claims is what one file has in force, or would have if no other file had it.
type claims struct {
	objects  map[key]*object
	problems []Problem
	warnings []warning
	gone     bool
	// leaving are objects that the file has no more, as soon as it is believed.
	leaving map[key]bool
	// changed since the last save.
	changed bool
}

func newStore() *store {
	return &store{files: map[string]*claims{}, held: map[key]holding{}}
}

func (s *store) file(path string) *claims {
	f := s.files[path]
	if f == nil {
		f = &claims{objects: map[key]*object{}}
		s.files[path] = f
	}
	return f
}

// update takes in what a file says now. A file that changed a moment ago is not settled: it may be half-written,
// so nothing is taken away yet. It returns true when there is something to take away, or to believe, once
// the file has settled.
func (s *store) update(path string, c *content, settled bool) (pending bool) {
	f := s.file(path)
	f.gone = false
	f.problems, f.warnings = slices.Clone(c.problems), c.warnings
	if c.broken {
		f.stays()
		return false
	}
	next := map[key]*object{}
	for _, o := range c.objects {
		next[o.key] = f.choose(path, o, c)
	}
	for k := range c.failed {
		if _, again := next[k]; again {
			continue
		}
		if old := f.objects[k]; old != nil {
			next[k] = old
		}
	}
	vanished := false
	f.leaving = map[key]bool{}
	for k, old := range f.objects {
		if _, there := next[k]; there {
			continue
		}
		if c.nameless {
			next[k] = old
			continue
		}
		vanished = true
		if !settled {
			next[k] = old
			f.leaving[k] = true
		}
	}
	pending = vanished && !settled
	if !settled && len(c.objects) > 0 && f.doubtLast(c.objects[len(c.objects)-1], next, vanished) {
		pending = true
	}
	f.stay(next, c)
	if !maps.Equal(f.objects, next) {
		f.changed = true
	}
	f.objects = next
	return pending
}

// stays says on the problem of a whole file what becomes of its objects.
func (f *claims) stays() {
	switch n := len(f.objects); n {
	case 0:
	case 1:
		f.problems[0].Message += " (its object stays in force as it was last good)"
	default:
		f.problems[0].Message += " (its " + strconv.Itoa(n) + " objects stay in force as they were last good)"
	}
}

// stay says on the problems of objects that they stay in force as they were last good.
func (f *claims) stay(next map[key]*object, c *content) {
	kept := map[string]bool{}
	for k := range c.failed {
		kept[k.String()] = next[k] != nil
	}
	for _, o := range c.objects {
		kept[o.key.String()] = o.doubtful && next[o.key] != o
	}
	for i := range f.problems {
		if kept[f.problems[i].Object] {
			f.problems[i].Message += " (the object stays in force as it was last good)"
		}
	}
}

// choose is the object that counts for a key: what the file says, unless that is at fault and something
// better was in force, or unchanged.
func (f *claims) choose(path string, o *object, c *content) *object {
	old := f.objects[o.key]
	for _, again := range c.again {
		if again.key != o.key {
			continue
		}
		counts, other := o, again
		if old != nil && bytes.Equal(old.raw, again.raw) && !bytes.Equal(old.raw, o.raw) {
			counts, other = again, o
		}
		f.problems = append(f.problems, Problem{
			File: path, Line: other.line, Object: o.key.String(),
			Message: "is on line " + strconv.Itoa(counts.line) + " of this file as well, which counts: remove one of the two",
		})
		o = counts
	}
	switch {
	case old == nil:
		return o
	case bytes.Equal(old.raw, o.raw):
		if old.line == o.line && old.doubtful == o.doubtful {
			return old
		}
		o.value = old.value // whoever compares pointers sees no change
		return o
	case o.doubtful && !old.doubtful:
		return old
	}
	return o
}

// doubtLast holds back the last object of a file that may be half-written, where it looks as if its end were
// missing: the file lost objects, the object lost fields, or it is new and has no namespace yet. A cut at the end of a
// line between two additions to one object cannot be told from a finished edit; waiting for the rest in every
// case would make each edit take a second.
func (f *claims) doubtLast(last *object, next map[key]*object, vanished bool) bool {
	old := f.objects[last.key]
	switch {
	case old == nil && (vanished || !last.placed):
		delete(next, last.key)
		return true
	case old != nil && !bytes.Equal(old.raw, last.raw) && (vanished || lost(old.raw, last.raw)):
		next[last.key] = old
		return true
	}
	return false
}

// lost tells whether an object had fields or list entries that it has no more.
func lost(before, after []byte) bool {
	var a, b any
	if json.Unmarshal(before, &a) != nil || json.Unmarshal(after, &b) != nil {
		return true
	}
	return lostValue(a, b)
}

func lostValue(before, after any) bool {
	switch b := before.(type) {
	case map[string]any:
		a, same := after.(map[string]any)
		if !same {
			return true
		}
		for k, v := range b {
			if w, there := a[k]; !there || lostValue(v, w) {
				return true
			}
		}
	case []any:
		a, same := after.([]any)
		if !same || len(a) < len(b) {
			return true
		}
		for i := range b {
			if lostValue(b[i], a[i]) {
				return true
			}
		}
	}
	return false
}

// fail records that a file cannot be read at all; what it claims stays.
func (s *store) fail(path string, p Problem) {
	f := s.file(path)
	f.gone = false
	f.problems, f.warnings = []Problem{p}, nil
	f.stays()
}

// remove records that a file is gone; what it claims stays, until another file claims it.
func (s *store) remove(path string) {
	if f := s.files[path]; f != nil {
		f.gone, f.problems, f.warnings = true, nil, nil
	}
}

// seed gives a file that is not clean its last good objects of the process before.
func (s *store) seed(path string, objects []*object) {
	f := s.file(path)
	for _, o := range objects {
		f.objects[o.key] = o
	}
}

// settle decides who holds each object: the file that had it, else the first by name; files that are gone only
// when no other claims it. It returns true when anything in force changed.
func (s *store) settle() bool {
	claimed := make(map[key]holding, len(s.held))
	s.duplicates = nil
	paths := slices.Sorted(maps.Keys(s.files))
	for _, path := range paths {
		if s.files[path].gone {
			continue
		}
		for k, o := range s.files[path].objects {
			first, taken := claimed[k]
			switch {
			case !taken:
				claimed[k] = holding{path, o}
			case s.held[k].file == path:
				claimed[k] = holding{path, o}
				s.duplicate(path, o, first)
			default:
				s.duplicate(first.file, first.object, holding{path, o})
			}
		}
	}
	for _, path := range paths {
		f := s.files[path]
		if !f.gone {
			continue
		}
		for k, o := range f.objects {
			if _, taken := claimed[k]; taken {
				delete(f.objects, k)
				f.changed = true
			} else {
				claimed[k] = holding{path, o}
			}
		}
		if len(f.objects) == 0 {
			delete(s.files, path)
			s.dropped = append(s.dropped, path)
		}
	}
	changed := len(claimed) != len(s.held)
	for k, h := range claimed {
		if old, there := s.held[k]; !there || !sameObject(old.object, h.object) {
			changed = true
			break
		}
	}
	s.held = claimed
	return changed
}

func sameObject(a, b *object) bool { return a == b || bytes.Equal(a.raw, b.raw) }

// duplicate reports the object of one file that another file holds, unless that other is about to give it up.
func (s *store) duplicate(file string, inForce *object, ignored holding) {
	if s.files[file].leaving[inForce.key] || s.files[ignored.file].leaving[inForce.key] {
		return
	}
	s.duplicates = append(s.duplicates, Problem{
		File: ignored.file, Line: ignored.object.line, Object: ignored.object.key.String(),
		Message: "is in " + file + ":" + strconv.Itoa(inForce.line) + " as well, which stays in force: remove one of the two",
	})
}

// problems are those of all files, in the order of files and lines.
func (s *store) problems() []Problem {
	all := slices.Clone(s.duplicates)
	for path, f := range s.files {
		all = append(all, f.problems...)
		if f.gone {
			all = append(all, Problem{File: path, Message: goneMessage(len(f.objects))})
		}
	}
	sortProblems(all)
	return all
}

func goneMessage(objects int) string {
	stay := "its object stays"
	if objects != 1 {
		stay = "its " + strconv.Itoa(objects) + " objects stay"
	}
	return "the file is gone, " + stay + " in force: to remove on purpose, write a file with only a comment in its place, or restart"
}

// warnings are one for each kind, where it was first met.
func (s *store) warnings() []Problem {
	var all []Problem
	seen := map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(s.files)) {
		for _, w := range s.files[path].warnings {
			if !seen[w.kind] {
				seen[w.kind] = true
				all = append(all, Problem{File: path, Line: w.line, Message: w.message})
			}
		}
	}
	return all
}

// objects are those in force, in the order of namespaces and names, so that one state has one form.
func (s *store) objects() plan.Objects {
	keys := slices.SortedFunc(maps.Keys(s.held), key.compare)
	var out plan.Objects
	endpoints := map[string]*plan.Endpoints{}
	for _, k := range keys {
		switch v := s.held[k].object.value.(type) {
		case *v1alpha1.Infra:
			out.Infras = append(out.Infras, v)
		case *v1alpha1.InfraClusterAttachment:
			out.Attachments = append(out.Attachments, v)
		case *hypershift.HostedCluster:
			out.HostedClusters = append(out.HostedClusters, v)
		case *hypershift.NodePool:
			out.NodePools = append(out.NodePools, v)
		case *plan.Machine:
			out.Machines = append(out.Machines, v)
		case *plan.VirtualMachineInstance:
			out.VMIs = append(out.VMIs, v)
		case *corev1.Service:
			out.Services = append(out.Services, v)
		case *discoveryv1.EndpointSlice:
			out.Endpoints = addSlice(out.Endpoints, endpoints, v)
		}
		ns := k.namespace
		if k.group == "" && k.kind == "Namespace" {
			ns = k.name
		}
		if ns != "" {
			out.Namespaces = append(out.Namespaces, ns)
		}
	}
	slices.Sort(out.Namespaces)
	out.Namespaces = slices.Compact(out.Namespaces)
	return out
}

// addSlice adds the ready IPv4 addresses of an EndpointSlice to those of its Service. An endpoint that says nothing
// about its readiness is ready (discovery.k8s.io/v1, EndpointConditions).
func addSlice(list []*plan.Endpoints, index map[string]*plan.Endpoints, s *discoveryv1.EndpointSlice) []*plan.Endpoints {
	service := s.Labels[discoveryv1.LabelServiceName]
	if service == "" || s.AddressType != discoveryv1.AddressTypeIPv4 {
		return list
	}
	e := index[s.Namespace+"/"+service]
	if e == nil {
		e = &plan.Endpoints{Namespace: s.Namespace, Service: service}
		index[s.Namespace+"/"+service] = e
		list = append(list, e)
	}
	for _, endpoint := range s.Endpoints {
		if endpoint.Conditions.Ready == nil || *endpoint.Conditions.Ready {
			e.Addresses = append(e.Addresses, endpoint.Addresses...)
		}
	}
	slices.Sort(e.Addresses)
	e.Addresses = slices.Compact(e.Addresses)
	return list
}

// isManifest tells by its name whether a file is read at all. Names with a dot in front are those of editors and
// of Kubernetes, which mounts a ConfigMap through links named ..data.
func isManifest(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, ext := range []string{".yaml", ".yml", ".json"} {
		if strings.HasSuffix(name, ext) {
			return true
		}
	}
	return false
}
