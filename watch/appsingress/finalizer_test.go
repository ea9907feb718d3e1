package appsingress

import (
	"slices"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// TestNothingIsMadeBeforeItIsHeld: whatever is made must be taken away again, so it is said first that something is to be made, and is
// made when somebody sees to its end. Where nothing can be made, nobody need.
func TestNothingIsMadeBeforeItIsHeld(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	a := c.attachment(h, "a")
	a.Unfinalized = true
	h.put(a)
	if o := h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, ""); o.Made {
		t.Error("without nodes there is something to be made")
	}
	mark := c.mark()
	c.ready()
	if o := h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "about to be made"); !o.Made {
		t.Error("nothing is said to be made")
	}
	writes := []string{"create", "update", "patch", "delete"}
	if made := c.requests(mark, func(r controlplane.Request) bool { return slices.Contains(writes, r.Verb) }); len(made) > 0 {
		t.Errorf("written: %v", made)
	}
	a.Unfinalized = false
	h.put(a)
	c.until(services, "openshift-ingress", "oooi-ingress", "made", isThere)

	// Somebody took the finalizer off while it was all there: that it is needed is seen without a write.
	h = newHub(t)
	a = c.attachment(h, "a")
	a.Unfinalized = true
	h.put(a)
	if o := h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForExternalIP, "", "has no address yet"); !o.Made {
		t.Error("nothing is said to be there")
	}
}
