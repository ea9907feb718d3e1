package v1alpha1

import (
	"maps"
	"testing"
)

func TestServiceAnnotations(t *testing.T) {
	users := map[string]string{
		"example.com/a": "b", "metallb.universe.tf/loadBalancerIPs": "192.0.2.9",
		"hostedcluster.densityops.com/applied-hash":  "forged",
		"metallb.universe.tf/address-pool":           "another",
		"metallb.io/address-pool":                    "another",
		"metallb.universe.tf/ip-allocated-from-pool": "MetalLB writes it",
		"metallb.io/ip-allocated-from-pool":          "MetalLB writes it",
	}
	want := map[string]string{"example.com/a": "b", "metallb.universe.tf/loadBalancerIPs": "192.0.2.9", "metallb.universe.tf/address-pool": "ours"}
	if got := ServiceAnnotations(users, "ours"); !maps.Equal(got, want) {
		t.Errorf("with a pool: %v", got)
	}
	want["metallb.universe.tf/address-pool"], want["metallb.io/address-pool"] = "another", "another"
	if got := ServiceAnnotations(users, ""); !maps.Equal(got, want) {
		t.Errorf("without a pool: %v", got)
	}
}
