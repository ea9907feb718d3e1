package plan

import (
	"fmt"

	"github.com/densityops/oooi/api/v1alpha1"
)

// clusterBytes is how large the spec of a child may be in a cluster: what etcd takes in one request (1.5 MiB), less what
// metadata, managed fields and the status need.
const clusterBytes = 1536<<10 - 24<<10

// What a backend has as JSON beside its texts and the entries of its lists.
const (
	backendBytes  = len(`{"name":"","attachment":"","hostname":"","ports":[],"targetService":"","targetNamespace":"","targetPort":65535,"addresses":[],"timeoutSeconds":30},`)
	listenerBytes = len(`"listener":"",`)
	headlessBytes = len(`"headless":true,`)
	aliasBytes    = len(`"alternateHostnames":[],`)
	sourcesBytes  = len(`"sourcePrefixRanges":[],`)
)

// proxyBytes is the size of a ProxyServer as JSON, a little more than less. Names and addresses need no escapes.
func proxyBytes(p *v1alpha1.ProxyServer) int {
	n := 1 << 10
	texts := func(list []string) {
		for _, text := range list {
			n += len(text) + len(`"",`)
		}
	}
	for i := range p.Spec.Backends {
		b := &p.Spec.Backends[i]
		n += backendBytes + len(b.Name) + len(b.Attachment) + len(b.Hostname) + len(b.TargetService) + len(b.TargetNamespace) + len(b.Ports)*len("65535,")
		if b.Listener != "" {
			n += listenerBytes + len(b.Listener)
		}
		if b.Headless {
			n += headlessBytes
		}
		if len(b.SourcePrefixRanges) > 0 {
			n += aliasBytes + sourcesBytes
		}
		texts(b.AlternateHostnames)
		texts(b.Addresses)
		texts(b.SourcePrefixRanges)
	}
	return n
}

// refuseTooLarge refuses an Infra whose routes would not fit into one object of a cluster: long names, many public
// names. What is served stays as it is.
func refuseTooLarge(infra *Infra, limit int) {
	if limit == 0 || infra.Proxy == nil {
		return
	}
	n, routes := proxyBytes(infra.Proxy), len(infra.Proxy.Spec.Backends)
	if n <= limit {
		return
	}
	infra.DHCP, infra.DNS, infra.Proxy = nil, nil, nil
	infra.problems = append(infra.problems, v1alpha1.Problem{
		Reason: v1alpha1.ReasonTooLarge,
		Field:  "metadata.name",
		Message: fmt.Sprintf("%d routes of about %d KiB, an object of a cluster takes %d KiB: nothing is written; use a second Infra, shorter names or fewer public names",
			routes, n>>10, limit>>10),
	})
	refuseOwnMistakes(infra)
}
