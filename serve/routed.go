package serve

import (
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dnsserver"
)

// routed gives the DNS child without the names that the proxy child has no backend for. In a cluster the
// two children arrive one after the other, and a name must never lead to a proxy that is not to have its
// route; whether the backend has addresses yet does not matter (product rule 4). A name that leads to the proxy in view pods
// only (apps) is hidden there.
func routed(dns *v1alpha1.DNSServer, proxy *v1alpha1.ProxyServer) *v1alpha1.DNSServer {
	if dns == nil {
		return nil
	}
	routes := map[string]bool{}
	if proxy != nil {
		for _, b := range proxy.Spec.Backends {
			routes[b.Hostname] = true
			for _, name := range b.AlternateHostnames {
				routes[name] = true
			}
		}
	}
	kept := make([]v1alpha1.StaticEntry, 0, len(dns.Spec.StaticEntries))
	for _, e := range dns.Spec.StaticEntries {
		switch {
		case e.IP == "" || routes[e.Hostname]:
			kept = append(kept, e)
		case besideProxy(&dns.Spec, &e):
			if e.PodView == v1alpha1.PodViewInternalProxy {
				e.PodView = v1alpha1.PodViewHidden
			}
			kept = append(kept, e)
		case e.PodView == v1alpha1.PodViewForwarded: // an alias: owned on the VLAN, even without an answer
			e.IP = ""
			kept = append(kept, e)
		}
	}
	filtered := *dns
	filtered.Spec.StaticEntries = kept
	return &filtered
}

// besideProxy tells whether the answer on the VLAN is an address that is not the proxy's, so that it needs no route there.
func besideProxy(spec *v1alpha1.DNSServerSpec, e *v1alpha1.StaticEntry) bool {
	return e.IP != "" && e.IP != spec.NetworkConfig.ProxyIP
}

// withoutUnrouted is what may be published before Envoy has the routes of next: names that go are withdrawn, new ones wait (more
// tells that some do), but for answers that do not lead to the proxy. Of a name that leads to the proxy in view pods only, that
// view waits.
func withoutUnrouted(current, next *v1alpha1.DNSServerSpec) (first *v1alpha1.DNSServerSpec, more bool) {
	first, more = dnsserver.WithoutNew(current, next)
	toProxy := map[string]bool{} // in view pods, already
	for _, e := range current.StaticEntries {
		toProxy[e.Hostname] = e.PodView == v1alpha1.PodViewInternalProxy
	}
	known := map[string]v1alpha1.StaticEntry{}
	for _, e := range first.StaticEntries {
		known[e.Hostname] = e
	}
	first.StaticEntries = nil
	for _, e := range next.StaticEntries {
		old, ok := known[e.Hostname]
		switch {
		case besideProxy(next, &e):
			if e.PodView == v1alpha1.PodViewInternalProxy && !toProxy[e.Hostname] {
				e.PodView, more = v1alpha1.PodViewHidden, true
			}
			first.StaticEntries = append(first.StaticEntries, e)
		case ok:
			first.StaticEntries = append(first.StaticEntries, old)
		}
	}
	return first, more
}
