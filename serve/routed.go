package serve

import "github.com/densityops/oooi/api/v1alpha1"

// routed gives the DNS child without the names that the proxy child has no backend for. In a cluster the
// two children arrive one after the other, and a name must never lead to a proxy that is not to have its
// route; whether the backend has addresses yet does not matter (product rule 4).
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
		case e.PodView == v1alpha1.PodViewForwarded: // an alias: owned on the VLAN, even without an answer
			e.IP = ""
			kept = append(kept, e)
		}
	}
	filtered := *dns
	filtered.Spec.StaticEntries = kept
	return &filtered
}
