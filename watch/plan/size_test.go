package plan_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// withEverything gives each attachment apps ingress with a VIP of a range of its own, and a public Service with the names given.
func withEverything(objects plan.Objects, public ...v1alpha1.PublicName) plan.Objects {
	objects.Infras[0].Spec.NetworkConfig.CIDR = "10.0.0.0/15"
	for n, a := range objects.Attachments {
		vip := fmt.Sprintf("10.1.%d.%d", n/64, n%64*4)
		a.Spec.AppsIngress = &v1alpha1.AppsIngress{Enabled: true, MetalLB: v1alpha1.AppsMetalLB{AddressPoolName: a.Name + "-apps", IPAddressPoolRange: vip + "/30"}}
		a.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhaseReady, Reason: v1alpha1.ReasonReconciliationSucceeded, ExternalIP: vip}
		a.Spec.ExternalService = &v1alpha1.ExternalService{Enabled: true, Services: public}
		a.Status.ExternalService = &v1alpha1.ExternalServiceStatus{Port: int32(v1alpha1.ExternalPortFirst + n)}
	}
	for _, c := range objects.HostedClusters {
		c.Status.KubeConfig = &hypershift.LocalObjectReference{Name: c.Name + "-admin-kubeconfig"}
	}
	return objects
}

// TestSize: what the limits allow fits into an object of a cluster, and what does not fit is refused before anything is
// written.
func TestSize(t *testing.T) {
	five := []v1alpha1.PublicName{"api", "api-int", "oauth", "ignition", "konnectivity"}
	for _, test := range []struct {
		name    string
		objects plan.Objects
		fits    bool
	}{
		{"the five names and aliases", manyClusters(300, 33), true},
		{"apps and public OAuth besides", withEverything(manyClusters(300, 33), "oauth"), true},
		{"apps and five public names besides", withEverything(manyClusters(300, 33), five...), true},
		{"the same with long names", longer(withEverything(manyClusters(300, 33), five...), 24), false},
		{"apps, public OAuth and names of a usual length", longer(withEverything(manyClusters(300, 33), "oauth"), 12), true},
	} {
		r := plan.Plan(plan.Input{Objects: test.objects, Limits: plan.ClusterLimits})
		infra := r.Infras[0]
		if fits := infra.Proxy != nil; fits != test.fits {
			t.Errorf("%s: fits: %v, want %v: %s", test.name, fits, test.fits, infra.Status.Conditions[0].Message)
		}
		if !test.fits {
			if ready := infra.Status.Conditions[0]; ready.Reason != v1alpha1.ReasonTooLarge || infra.DNS != nil || len(infra.Refused) != 3 {
				t.Errorf("%s: %s: %s", test.name, ready.Reason, ready.Message)
			}
		}
		// The estimate is good: as if it were the limit, and one byte less.
		whole := plan.Plan(plan.Input{Objects: test.objects}).Infras[0].Proxy
		raw, err := json.Marshal(whole)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d backends, %d bytes", test.name, len(whole.Spec.Backends), len(raw))
		for limit, want := range map[int]bool{len(raw) - 1: false, len(raw) + len(raw)/20: true} {
			fits := plan.Plan(plan.Input{Objects: test.objects, Limits: plan.Limits{Bytes: limit}}).Infras[0].Proxy != nil
			if fits != want {
				t.Errorf("%s: %d bytes fit into %d: %v", test.name, len(raw), limit, fits)
			}
		}
	}
}

// longer makes each name and namespace longer.
func longer(objects plan.Objects, by int) plan.Objects {
	tail := "-" + strings.Repeat("x", by-1)
	for _, a := range objects.Attachments {
		a.Spec.ControlPlaneNamespace = a.ControlPlaneNamespace() + tail
		a.Spec.DNS.ClusterName += tail
		a.Name += tail
	}
	for _, m := range objects.Machines {
		m.Namespace += tail
	}
	for _, s := range objects.Services {
		s.Namespace += tail
	}
	for i := range objects.Namespaces {
		objects.Namespaces[i] += tail
	}
	return objects
}
