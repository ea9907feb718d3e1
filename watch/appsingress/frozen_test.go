package appsingress

import (
	"slices"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestAFrozenClusterCostsTheOthersNothing: one API server accepts and never answers. The other attachment's VIP changes are seen as ever,
// nobody waits for the frozen one, and it is itself again when it answers.
func TestAFrozenClusterCostsTheOthersNothing(t *testing.T) {
	t.Parallel()
	frozen, well, h := newCluster(t), newCluster(t), newHub(t)
	a, b := frozen.attachment(h, "a"), well.attachment(h, "b")
	a.Spec.MetalLB.IPAddressPoolRange = "192.0.2.210-192.0.2.219"
	for c, attachment := range map[*cluster]Attachment{frozen: a, well: b} {
		c.ready()
		h.put(attachment)
		c.until(services, "openshift-ingress", "oooi-ingress", "there", isThere)
	}
	frozen.announce("openshift-ingress", "oooi-ingress", `{"ip":"192.0.2.210"}`)
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.210")

	if err := frozen.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := func() {
		if err := frozen.APIServer.Thaw(); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(thaw)
	// What is no longer wanted of it is not waited for.
	a.Spec.Service.Labels = map[string]string{"example.com/vip": "none"}
	h.put(a)
	well.announce("openshift-ingress", "oooi-ingress", `{"ip":"192.0.2.204"}`)
	h.waitFor(b, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.204")
	h.forget()
	waiting := a
	waiting.Waiting = "the HostedCluster is paused"
	h.put(waiting)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, "192.0.2.210", waiting.Waiting)
	if seen := h.seen(a); slices.ContainsFunc(seen, func(s v1alpha1.AppsIngressStatus) bool { return s.Phase == degradedPhase }) {
		t.Errorf("what is no longer wanted was waited for: %+v", seen)
	}
	h.put(a)
	for _, vip := range []string{"192.0.2.200", "192.0.2.201", "192.0.2.202"} {
		well.announce("openshift-ingress", "oooi-ingress", `{"ip":"`+vip+`"}`)
		h.waitFor(b, readyPhase, v1alpha1.ReasonReconciliationSucceeded, vip)
		a.Spec.Service.Labels = map[string]string{"example.com/vip": vip}
		h.put(a)
	}
	h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "192.0.2.210", "no answer within 10s")
	h.waitFor(b, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.202")

	// To be removed while it does not answer: tried on, with what may be left.
	gone := a
	gone.Remove = true
	h.put(gone)
	o := h.wait(a, "what is left", func(o Observation) bool {
		return len(o.Left) > 0 && o.Status.Phase == degradedPhase && o.Status.ExternalIP == "192.0.2.210" &&
			strings.Contains(o.Status.Message, "no answer within 10s; may be left there: Service openshift-ingress/oooi-ingress, L2")
	})
	if want := []string{"Service openshift-ingress/oooi-ingress", "L2Advertisement metallb-system/advertise-a-apps", "IPAddressPool metallb-system/a-apps"}; o.Removed || !slices.Equal(o.Left, want) {
		t.Errorf("removed %v, left: %q", o.Removed, o.Left)
	}
	h.put(a)
	thaw()
	h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.210")

	// The Runner itself ends while a request hangs: the clean-up of the test waits for it, and goleak looks.
	if err := frozen.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	a.Spec.Service.Labels = nil
	h.put(a)
	h.drop(a)
	if _, known := h.Observed()[a.Key]; known {
		t.Error("forgotten, and yet observed")
	}
	well.announce("openshift-ingress", "oooi-ingress", `{"ip":"192.0.2.203"}`)
	h.waitFor(b, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.203")
}

// TestRemovingWhatWasNeverAsked: the names of the spec are all that is known.
func TestRemovingWhatWasNeverAsked(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	a := Attachment{Addresses: []string{"127.0.0.1"}, Port: 1, Remove: true}
	a.Key.Name, a.Key.Namespace = "a", "clusters"
	a.Spec.MetalLB.AddressPoolName, a.Spec.MetalLB.IPAddressPoolRange = "pool", "192.0.2.0/28"
	want := []string{"Service openshift-ingress/oooi-ingress", "L2Advertisement advertise-pool", "IPAddressPool pool"}
	for _, waiting := range []string{"the HostedCluster is gone", ""} {
		a.Waiting = waiting
		h.put(a)
		phase, reason := degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed
		if waiting != "" {
			phase, reason = pendingPhase, v1alpha1.ReasonRemoving
		}
		if o := h.waitFor(a, phase, reason, "", waiting, "; may be left there: "+strings.Join(want, ", ")); o.Removed || !slices.Equal(o.Left, want) {
			t.Errorf("removed %v, left: %q", o.Removed, o.Left)
		}
	}
}
