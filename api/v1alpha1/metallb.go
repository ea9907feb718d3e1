package v1alpha1

import "strings"

const (
	// annotationAddressPool asks MetalLB for an address of one pool. It is the older spelling, which all releases read.
	annotationAddressPool = "metallb.universe.tf/address-pool"
	// annotationAddressPoolNewer says the same, and wins in the releases that know it.
	annotationAddressPoolNewer = "metallb.io/address-pool"
	// ownKeys is what all keys of labels and annotations begin with that are oooi's own.
	ownKeys = "hostedcluster.densityops.com/"
)

// AnnotationsAllocatedFromPool are those in which MetalLB says which pool it took a Service's address from, older spelling first. It
// rewrites them.
var AnnotationsAllocatedFromPool = []string{"metallb.universe.tf/ip-allocated-from-pool", "metallb.io/ip-allocated-from-pool"}

// ServiceLabels are the labels that a user may set on a Service that oooi makes.
func ServiceLabels(users map[string]string) map[string]string {
	kept := map[string]string{}
	for key, value := range users {
		if !strings.HasPrefix(key, ownKeys) {
			kept[key] = value
		}
	}
	return kept
}

// ServiceAnnotations are those of a LoadBalancer Service that oooi makes: the ones that a user may set, and the MetalLB pool that the address
// comes from. An empty pool asks for none.
func ServiceAnnotations(users map[string]string, pool string) map[string]string {
	kept := ServiceLabels(users)
	for _, key := range AnnotationsAllocatedFromPool {
		delete(kept, key)
	}
	if pool != "" {
		delete(kept, annotationAddressPoolNewer)
		kept[annotationAddressPool] = pool
	}
	return kept
}
