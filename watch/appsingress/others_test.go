package appsingress

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// TestWhatBelongsToOthersStays: objects of the needed names that were not made for this attachment, one of another attachment of oooi among
// them, are not touched, and the status says what to do.
func TestWhatBelongsToOthersStays(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	c.ready()
	c.apply(foreignPool("a-apps", "198.51.100.0/28") + `
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: advertise-b-apps, namespace: metallb-system, labels: {app.kubernetes.io/managed-by: oooi, hostedcluster.densityops.com/attachment: other, hostedcluster.densityops.com/attachment-namespace: clusters}}
spec: {ipAddressPools: [x]}
---
apiVersion: v1
kind: Service
metadata: {name: oooi-ingress, namespace: openshift-ingress, labels: {app.kubernetes.io/managed-by: oooi}}
spec:
  type: LoadBalancer
  ports: [{name: http, port: 80}]
`)
	theirs := []struct {
		kind            kind
		namespace, name string
	}{{pools, "metallb-system", "a-apps"}, {l2Advertisements, "metallb-system", "advertise-b-apps"}, {services, "openshift-ingress", "oooi-ingress"}}
	versions := map[string]string{}
	for _, o := range theirs {
		versions[o.name] = c.there(o.kind, o.namespace, o.name).GetResourceVersion()
	}
	a := c.attachment(h, "a")
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonMetalLBInstallFailed, "", "IPAddressPool metallb-system/a-apps belongs to somebody else: choose another name in metallb.addressPoolName")
	a.Spec.MetalLB.AddressPoolName = "b-apps"
	a.Spec.MetalLB.IPAddressPoolRange = "198.51.100.15-198.51.100.20"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonMetalLBInstallFailed, "", "IPAddressPool metallb-system/a-apps belongs to somebody else and has addresses of 198.51.100.15-198.51.100.20: choose another range")
	a.Spec.MetalLB.IPAddressPoolRange = "192.0.2.200-192.0.2.209"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonMetalLBInstallFailed, "", "L2Advertisement metallb-system/advertise-b-apps belongs to somebody else: choose another name in metallb.l2AdvertisementName")
	a.Spec.MetalLB.L2AdvertisementName = "mine"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonIngressServiceFailed, "", "Service openshift-ingress/oooi-ingress belongs to somebody else: choose another name in service.name")
	a.Spec.MetalLB.IPAddressPoolRange = "nonsense"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonMetalLBInstallFailed, "", "ipAddressPoolRange", "nonsense")
	a.Spec.MetalLB.IPAddressPoolRange = "192.0.2.200-192.0.2.209"
	a.Remove = true
	h.put(a)
	h.wait(a, "removed", func(o Observation) bool { return o.Removed })
	c.until(pools, "metallb-system", "b-apps", "gone", isGone)
	c.until(l2Advertisements, "metallb-system", "mine", "gone", isGone)
	for _, o := range theirs {
		if there := c.there(o.kind, o.namespace, o.name); there == nil || there.GetResourceVersion() != versions[o.name] {
			t.Errorf("%s was touched: %v", o.kind.String(o.namespace, o.name), there)
		}
	}
}

// TestAnotherName: the Service of before counts until that of the new name can be made, and goes before its pool changes.
func TestAnotherName(t *testing.T) {
	t.Parallel()
	const ingress = "openshift-ingress"
	c, h := newCluster(t), newHub(t)
	c.ready()
	a := c.attachment(h, "a")
	h.put(a)
	c.until(services, ingress, "oooi-ingress", "there", isThere)
	c.announce(ingress, "oooi-ingress", `{"ip":"192.0.2.200"}`)
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.200")

	c.apply("apiVersion: v1\nkind: Service\nmetadata: {name: mine, namespace: openshift-ingress}\nspec: {ports: [{name: http, port: 80}]}\n")
	h.forget()
	a.Spec.Service.Name = "mine"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonIngressServiceFailed, "192.0.2.200", "Service openshift-ingress/mine belongs to somebody else")
	for _, s := range h.seen(a) {
		if s.ExternalIP != "192.0.2.200" {
			t.Errorf("in between the VIP is gone: %+v", s)
		}
	}

	c.patch(services, ingress, "oooi-ingress", `{"metadata":{"annotations":{"metallb.universe.tf/ip-allocated-from-pool":"a-apps"}}}`)
	mark := c.mark()
	a.Spec.Service.Name, a.Spec.MetalLB.IPAddressPoolRange = "other", "192.0.2.220-192.0.2.221"
	h.put(a)
	c.until(services, ingress, "oooi-ingress", "gone", isGone)
	c.until(services, ingress, "other", "there", isThere)
	var order []string
	for _, r := range c.requests(mark, func(r controlplane.Request) bool { return r.Agent == "oooi" && r.Write() }) {
		order = append(order, r.Verb+" "+r.Resource+" "+r.Name)
	}
	if want := []string{"delete services oooi-ingress", "patch ipaddresspools a-apps", "patch services other"}; !slices.Equal(order, want) {
		t.Errorf("writes %q, want %q", order, want)
	}
}

// TestWhereMetalLBIs: it is used in the namespace that has it.
func TestWhereMetalLBIs(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	c.ready()
	c.define("operator.yaml")
	c.namespace("openshift-operators", "lb")
	a := c.attachment(h, "a")
	c.apply(deployment("controller", "lb", "--port=7472", 1))
	h.put(a)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "MetalLB is in the namespace lb", "metallb.namespace")
	c.apply(deployment("metallb-controller", "openshift-operators", "--port=7472", 1))
	c.until(pools, "openshift-operators", "a-apps", "there", isThere)
	c.until(l2Advertisements, "openshift-operators", "advertise-a-apps", "there", isThere)
	// The operator's object counts, and metallb-system comes first; what was made elsewhere goes.
	c.apply("apiVersion: metallb.io/v1beta1\nkind: MetalLB\nmetadata: {name: metallb, namespace: metallb-system}\n")
	c.until(pools, "metallb-system", "a-apps", "there", isThere)
	c.until(pools, "openshift-operators", "a-apps", "gone", isGone)
	// The spec has the last word.
	a.Spec.MetalLB.Namespace = "lb"
	h.put(a)
	c.until(pools, "lb", "a-apps", "there", isThere)
	c.until(pools, "metallb-system", "a-apps", "gone", isGone)
	c.until(l2Advertisements, "metallb-system", "advertise-a-apps", "gone", isGone)
}

// TestInstall by OLM, and what keeps it from it.
func TestInstall(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	c.node("worker", "True")
	c.namespace("openshift-ingress")
	a := c.attachment(h, "a")
	a.Spec.MetalLB.Install = true
	a.Spec.MetalLB.LoadBalancerClass = "example.com/lb"
	const failed = v1alpha1.ReasonMetalLBInstallFailed
	h.put(a)
	h.waitFor(a, degradedPhase, failed, "", "no OLM")
	c.define("olm.yaml")
	h.waitFor(a, degradedPhase, failed, "", "no such namespace", "openshift-operators")
	c.namespace("openshift-operators")
	c.until(subscriptions, "openshift-operators", "metallb-operator", "there", isThere)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "Subscription openshift-operators/metallb-operator, OLM installs it")
	c.patch(subscriptions, "openshift-operators", "metallb-operator", `{"status":{"conditions":[{"type":"ResolutionFailed","status":"True","reason":"ConstraintsNotSatisfiable","message":"no operators found in package metallb-operator"}]}}`, "status")
	h.waitFor(a, degradedPhase, failed, "", "Subscription openshift-operators/metallb-operator: ResolutionFailed ConstraintsNotSatisfiable: no operators found")
	c.patch(subscriptions, "openshift-operators", "metallb-operator", `{"status":{"conditions":[{"type":"ResolutionFailed","status":"False"}],"state":"UpgradePending"}}`, "status")
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "state UpgradePending")
	// OLM did it.
	c.define("metallb.yaml", "operator.yaml")
	instance := c.until(metalLBs, "openshift-operators", "metallb", "there", isThere)
	if class, _, _ := unstructured.NestedString(instance.Object, "spec", "loadBalancerClass"); class != "example.com/lb" {
		t.Errorf("the class of the MetalLB object is %q", class)
	}
	c.until(pools, "openshift-operators", "a-apps", "there", isThere)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "")

	// Somebody else uses it by now: what installed it stays, and that is said.
	c.namespace("metallb-system")
	c.apply(foreignPool("theirs", "198.51.100.0/28"))
	a.Remove = true
	h.put(a)
	o := h.wait(a, "removed", func(o Observation) bool { return o.Removed })
	if len(o.Left) != 2 || o.Left[0] != "MetalLB openshift-operators/metallb" || o.Left[1] != "Subscription openshift-operators/metallb-operator" {
		t.Errorf("left: %q", o.Left)
	}
	c.until(pools, "openshift-operators", "a-apps", "gone", isGone)
	// Nobody else does: all goes.
	c.delete(pools, "metallb-system", "theirs")
	a.Port, a.Addresses = c.port, []string{"127.0.0.1", "127.0.0.1"} // another attempt, at once
	h.put(a)
	o = h.wait(a, "removed, and nothing left", func(o Observation) bool { return o.Removed && len(o.Left) == 0 })
	c.until(metalLBs, "openshift-operators", "metallb", "gone", isGone)
	c.until(subscriptions, "openshift-operators", "metallb-operator", "gone", isGone)
	if o.Status.Reason != v1alpha1.ReasonRemoving {
		t.Errorf("%+v", o)
	}
}

// TestInstallElsewhere: a Subscription that is there is used as it is, and the spec may name a namespace, which gets all that OLM needs.
func TestInstallElsewhere(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	c.node("worker", "True")
	c.define("olm.yaml")
	c.namespace("openshift-operators", "theirs")
	c.apply(`
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata: {name: lb, namespace: theirs}
spec: {name: metallb-operator, source: mirror, sourceNamespace: theirs, installPlanApproval: Manual}
`)
	a := c.attachment(h, "a")
	a.Spec.MetalLB.Install = true
	mark := c.mark()
	h.put(a)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "Subscription theirs/lb, its InstallPlan has to be approved")
	if writes := c.requests(mark, controlplane.Request.Write); len(writes) > 0 {
		t.Errorf("written: %v", writes)
	}
	c.delete(subscriptions, "theirs", "lb")
	a.Spec.MetalLB.Namespace = "metallb-system"
	h.put(a)
	c.until(subscriptions, "metallb-system", "metallb-operator", "there", isThere)
	c.until(operatorGroups, "metallb-system", "metallb-operator", "there", isThere)
	a.Remove = true
	h.put(a)
	o := h.wait(a, "removed", func(o Observation) bool { return o.Removed })
	if len(o.Left) != 1 || o.Left[0] != "Namespace metallb-system" {
		t.Errorf("left: %q", o.Left)
	}
	c.until(subscriptions, "metallb-system", "metallb-operator", "gone", isGone)
	c.until(operatorGroups, "metallb-system", "metallb-operator", "gone", isGone)
}
