package hub

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
)

// TestAFlappingConditionSilencesNothingElse: the Events of one reason are limited, and those of another still come.
func TestAFlappingConditionSilencesNothingElse(t *testing.T) {
	t.Parallel()
	correlator := record.NewEventCorrelatorWithOptions(eventLimits)
	skipped := func(reason, message string) bool {
		result, err := correlator.EventCorrelate(&corev1.Event{
			InvolvedObject: corev1.ObjectReference{Kind: "InfraClusterAttachment", Namespace: "clusters", Name: "a", UID: "1"},
			Type:           corev1.EventTypeWarning, Reason: reason, Message: message,
		})
		if err != nil {
			t.Fatal(err)
		}
		return result.Skip
	}
	flapped := 0
	for i := range 100 {
		if !skipped("HostedClusterAccessFailed", fmt.Sprint(i)) {
			flapped++
		}
	}
	if flapped == 100 {
		t.Error("a condition that comes and goes writes Events without end")
	}
	if skipped(eventLeft, "left in the hosted cluster") {
		t.Error("what is said once is not said")
	}
}
