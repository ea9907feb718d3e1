package dnsserver

import "github.com/densityops/oooi/api/v1alpha1"

// WithoutNew is the first of the two steps in which a change of names is published: everything of
// next but the names that current does not answer yet. What next withdraws is gone in it already.
// A name that current has without an address stays without one. more tells whether next has names
// that wait for the second step, which is next itself.
//
// Apply the first step before the routes are changed and the second after they are acknowledged:
// then no name ever leads to a route that is not there. Before the very first model there is
// nothing to withdraw from: wait for the routes and apply next at once.
func WithoutNew(current, next *v1alpha1.DNSServerSpec) (first *v1alpha1.DNSServerSpec, more bool) {
	was := make(map[string]v1alpha1.StaticEntry, len(current.StaticEntries))
	for _, e := range current.StaticEntries {
		was[e.Hostname] = e
	}
	first = next.DeepCopy()
	first.StaticEntries = nil
	for _, e := range next.StaticEntries {
		old, known := was[e.Hostname]
		if !known {
			more = true
			continue
		}
		if old.IP == "" && e.IP != "" {
			e.IP = ""
			more = true
		}
		first.StaticEntries = append(first.StaticEntries, e)
	}
	return first, more
}
