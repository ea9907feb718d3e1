package appsingress

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// TestStepsToAVIP goes through the life of one attachment, against a real API server: every phase in its order, what others
// change, what the spec changes, and the end.
func TestStepsToAVIP(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	a := c.attachment(h, "a")
	const service, metalLB, ingress = "oooi-ingress", "metallb-system", "openshift-ingress"
	h.put(a)

	// From nothing.
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, "", "no nodes yet")
	c.node("worker", "False")
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, "", "none of the 1 nodes")
	c.node("worker", "True")
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "does not serve IPAddressPool", "metallb.install")
	c.define("metallb.yaml")
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForMetalLBCRDs, "", "metallb-system, openshift-operators")
	c.namespace(metalLB)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonIngressServiceFailed, "", "no such namespace", ingress)
	c.namespace(ingress)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "Service openshift-ingress/oooi-ingress has no address yet")

	// Why there is no address.
	uid := string(c.there(services, ingress, service).GetUID())
	c.apply(`
apiVersion: v1
kind: Event
metadata: {name: full, namespace: openshift-ingress}
involvedObject: {kind: Service, namespace: openshift-ingress, name: oooi-ingress, apiVersion: v1, uid: ` + uid + `}
reason: AllocationFailed
message: 'Failed to allocate IP for "openshift-ingress/oooi-ingress": no available IPs in pool "a-apps"'
type: Warning
source: {component: metallb-controller}
lastTimestamp: "2026-01-01T00:00:00Z"
`)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "AllocationFailed", "no available IPs in pool")
	c.apply(deployment("controller", metalLB, "--lb-class=example.com/lb", 0))
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "controller does not run", "Deployment metallb-system/controller")
	c.apply(deployment("controller", metalLB, "--lb-class=example.com/lb", 1))
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "--lb-class=example.com/lb", "set metallb.loadBalancerClass")

	// The VIP, and what is no VIP.
	c.announce(ingress, service, `{"ip":"192.0.2.200"}`)
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.200", "VIP 192.0.2.200")
	c.announce(ingress, service, `{"ip":"192.0.2.201"}`)
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.201")
	for _, bad := range []struct{ entries, message string }{
		{`{"ip":"192.0.2.201"},{"ip":"192.0.2.202"}`, "2 addresses"},
		{`{"hostname":"lb.example.com"}`, "the name lb.example.com and no address"},
		{`{"ip":"2001:db8::1"}`, "IPv6 address 2001:db8::1"},
	} {
		c.announce(ingress, service, bad.entries)
		h.waitFor(a, degradedPhase, v1alpha1.ReasonExternalIPDiscoveryFailed, "", bad.message)
	}
	c.announce(ingress, service, ``)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "")
	c.announce(ingress, service, `{"ip":"192.0.2.201"}`)
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.201")

	t.Run("a steady state makes no write", func(t *testing.T) {
		mark := c.mark()
		for _, who := range []string{"anybody", "somebody"} { // when the second look begins, the first is over
			look := c.mark()
			c.patch(services, ingress, service, `{"metadata":{"annotations":{"example.com/of":"`+who+`"}}}`)
			c.until(services, ingress, service, "looked at again", func(*unstructured.Unstructured) bool {
				return len(c.requests(look, func(r controlplane.Request) bool { return r.Verb == "list" && r.Resource == "l2advertisements" })) > 0
			})
		}
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.201")
		if writes := c.requests(mark, controlplane.Request.Write); len(writes) > 0 {
			t.Errorf("written without need: %v", writes)
		}
	})
	t.Run("what others change comes back, what they add stays", func(t *testing.T) {
		before := c.there(services, ingress, service)
		c.patch(services, ingress, service, `{"spec":{"selector":{"app":"stolen"}},"metadata":{"annotations":{"metallb.universe.tf/address-pool":"other"}}}`)
		after := c.until(services, ingress, service, "as it was", func(u *unstructured.Unstructured) bool {
			selector, _, _ := unstructured.NestedStringMap(u.Object, "spec", "selector")
			return len(selector) == 1 && selector[routerLabel] == "default" && u.GetAnnotations()["metallb.universe.tf/address-pool"] == "a-apps"
		})
		if after.GetAnnotations()["example.com/of"] != "somebody" {
			t.Errorf("the annotation of somebody else is gone: %v", after.GetAnnotations())
		}
		if was, is := nodePorts(before), nodePorts(after); was != is {
			t.Errorf("node ports were %s and are %s", was, is)
		}
		if v := vipOf(after); v.ip != "192.0.2.201" {
			t.Errorf("the VIP is %+v", v)
		}
		c.patch(pools, metalLB, "a-apps", `{"spec":{"addresses":["198.51.100.0/24"],"avoidBuggyIPs":true}}`)
		pool := c.until(pools, metalLB, "a-apps", "as it was", func(u *unstructured.Unstructured) bool {
			addresses, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "addresses")
			return len(addresses) == 1 && addresses[0] == "192.0.2.200-192.0.2.209"
		})
		if avoid, _, _ := unstructured.NestedBool(pool.Object, "spec", "avoidBuggyIPs"); !avoid {
			t.Error("a field that is not ours was changed")
		}
		for k, name := range map[kind]string{pools: "a-apps", l2Advertisements: "advertise-a-apps"} {
			old := c.there(k, metalLB, name).GetUID()
			c.delete(k, metalLB, name)
			c.until(k, metalLB, name, "made anew", func(u *unstructured.Unstructured) bool { return u != nil && u.GetUID() != old })
		}
		c.delete(services, ingress, service)
		h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "")
		c.until(services, ingress, service, "made anew", isThere)
		c.announce(ingress, service, `{"ip":"192.0.2.201"}`)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.201")
	})
	t.Run("without Ready nodes the VIP stays known", func(t *testing.T) {
		c.node("worker", "False")
		c.patch(services, ingress, service, `{"metadata":{"annotations":{"example.com/of":"me"}}}`) // a look, at once
		h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, "192.0.2.201")
		c.node("worker", "True")
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.201")
	})
	t.Run("labels, annotations and ports of the spec come and go", func(t *testing.T) {
		a.Spec.Service.Labels = map[string]string{"example.com/team": "red", labelManagedBy: "me"}
		a.Spec.Service.Annotations = map[string]string{"example.com/a": "b", "metallb.universe.tf/address-pool": "other", "metallb.io/address-pool": "other"}
		a.Spec.Ports.HTTPS = 8443
		h.put(a)
		s := c.until(services, ingress, service, "with a label", func(u *unstructured.Unstructured) bool { return u.GetLabels()["example.com/team"] == "red" })
		if s.GetLabels()[labelManagedBy] != managedBy || s.GetAnnotations()["metallb.universe.tf/address-pool"] != "a-apps" || s.GetAnnotations()["example.com/a"] != "b" || s.GetAnnotations()["metallb.io/address-pool"] != "" {
			t.Errorf("ours do not win: %v %v", s.GetLabels(), s.GetAnnotations())
		}
		a.Spec.Service.Labels, a.Spec.Service.Annotations, a.Spec.Ports.HTTPS = nil, nil, 0
		h.put(a)
		s = c.until(services, ingress, service, "without it", func(u *unstructured.Unstructured) bool { return u.GetLabels()["example.com/team"] == "" })
		if ports, _, _ := unstructured.NestedSlice(s.Object, "spec", "ports"); len(ports) != 2 {
			t.Errorf("ports: %v", ports)
		}
	})
	t.Run("another class makes the Service anew", func(t *testing.T) {
		old := c.there(services, ingress, service).GetUID()
		a.Spec.MetalLB.LoadBalancerClass = "example.com/lb"
		h.put(a)
		c.until(services, ingress, service, "with the class", func(u *unstructured.Unstructured) bool {
			if u == nil || u.GetUID() == old {
				return false
			}
			class, _, _ := unstructured.NestedString(u.Object, "spec", "loadBalancerClass")
			return class == "example.com/lb"
		})
		h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "has no address yet")
		c.announce(ingress, service, `{"ip":"192.0.2.200"}`)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.200")
	})
	t.Run("a range that does not hold the VIP makes the Service anew, before the pool", func(t *testing.T) {
		old := c.there(services, ingress, service).GetUID()
		c.patch(services, ingress, service, `{"metadata":{"annotations":{"metallb.universe.tf/ip-allocated-from-pool":"a-apps"}}}`)
		a.Spec.MetalLB.IPAddressPoolRange = "192.0.2.220 - 192.0.2.221"
		h.put(a)
		c.until(pools, metalLB, "a-apps", "with the new range", func(u *unstructured.Unstructured) bool {
			addresses, _, _ := unstructured.NestedStringSlice(u.Object, "spec", "addresses")
			return len(addresses) == 1 && addresses[0] == "192.0.2.220-192.0.2.221"
		})
		c.until(services, ingress, service, "made anew", func(u *unstructured.Unstructured) bool { return u != nil && u.GetUID() != old })
		c.announce(ingress, service, `{"ip":"192.0.2.220"}`)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.220")
	})
	t.Run("new names take the old ones away", func(t *testing.T) {
		c.namespace("other-ingress")
		a.Spec.MetalLB.AddressPoolName, a.Spec.Service.Name, a.Spec.Service.Namespace = "b-apps", "router", "other-ingress"
		h.put(a)
		c.until(pools, metalLB, "b-apps", "there", isThere)
		c.until(l2Advertisements, metalLB, "advertise-b-apps", "there", isThere)
		c.until(services, "other-ingress", "router", "there", isThere)
		c.until(services, ingress, service, "gone", isGone)
		c.until(l2Advertisements, metalLB, "advertise-a-apps", "gone", isGone)
		c.until(pools, metalLB, "a-apps", "gone", isGone)
		c.announce("other-ingress", "router", `{"ip":"192.0.2.221"}`)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.221", "other-ingress/router")
	})
	t.Run("held, nothing is done", func(t *testing.T) {
		held := a
		held.Hold = true
		h.put(held)
		mark := c.mark()
		c.delete(l2Advertisements, metalLB, "advertise-b-apps")
		c.patch(services, "other-ingress", "router", `{"metadata":{"annotations":{"a":"b"}}}`)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.221")
		h.put(a)
		c.until(l2Advertisements, metalLB, "advertise-b-apps", "back", isThere)
		if writes := c.requests(mark, controlplane.Request.Write); len(writes) != 1 {
			t.Errorf("writes: %v", writes)
		}
	})
	t.Run("a pool of somebody else is used as it is", func(t *testing.T) {
		a.Spec.MetalLB.AddressPoolName, a.Spec.MetalLB.IPAddressPoolRange = "theirs", ""
		h.put(a)
		h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "192.0.2.221", "no IPAddressPool metallb-system/theirs")
		c.apply(foreignPool("theirs", "192.0.2.240/29"))
		before := c.there(pools, metalLB, "theirs").GetResourceVersion()
		s := c.until(services, "other-ingress", "router", "for the other pool", func(u *unstructured.Unstructured) bool {
			return u.GetAnnotations()["metallb.universe.tf/address-pool"] == "theirs"
		})
		c.until(pools, metalLB, "b-apps", "gone", isGone)
		c.until(l2Advertisements, metalLB, "advertise-b-apps", "gone", isGone)
		h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, vipOf(s).ip)
		if after := c.there(pools, metalLB, "theirs").GetResourceVersion(); after != before {
			t.Error("the pool of somebody else was written")
		}
	})
	t.Run("removed", func(t *testing.T) {
		a.Remove = true
		h.put(a)
		o := h.wait(a, "removed", func(o Observation) bool { return o.Removed })
		if len(o.Left) > 0 || o.Status.ExternalIP != "" || o.Status.Reason != v1alpha1.ReasonRemoving {
			t.Errorf("%+v", o)
		}
		c.until(services, "other-ingress", "router", "gone", isGone)
		c.until(pools, metalLB, "theirs", "there", isThere)
	})
}

// nodePorts are those of a Service.
func nodePorts(service *unstructured.Unstructured) string {
	text := ""
	ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
	for _, p := range ports {
		port, _, _ := unstructured.NestedInt64(p.(map[string]any), "nodePort")
		text += fmt.Sprintf(" %d", port)
	}
	return text
}

func foreignPool(name, addresses string) string {
	return `
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: ` + name + `, namespace: metallb-system}
spec: {addresses: ["` + addresses + `"]}
`
}

// deployment is one of MetalLB's controller.
func deployment(name, namespace, arg string, available int) string {
	text := `
apiVersion: apps/v1
kind: Deployment
metadata: {name: ` + name + `, namespace: ` + namespace + `, labels: {app: metallb, component: controller}}
spec:
  selector: {matchLabels: {app: metallb}}
  template:
    metadata: {labels: {app: metallb}}
    spec:
      containers: [{name: controller, image: controller, args: ["` + arg + `"]}]
status: {replicas: 1, updatedReplicas: 1`
	if available > 0 {
		text += ", readyReplicas: 1, availableReplicas: 1"
	}
	return text + "}\n"
}
