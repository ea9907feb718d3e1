package plan

import (
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// mostConditions is how many conditions an attachment has at most; an Infra may have some more.
const mostConditions = 8

// setCondition sets a condition without a time: whoever writes the status knows when it changed.
func setCondition(conditions *[]metav1.Condition, kind string, status metav1.ConditionStatus, reason, message string) {
	c := metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
	for i := range *conditions {
		if (*conditions)[i].Type == kind {
			(*conditions)[i] = c
			return
		}
	}
	if *conditions == nil {
		*conditions = make([]metav1.Condition, 0, mostConditions)
	}
	*conditions = append(*conditions, c)
}

// setReady makes Ready the first condition: False with the first of the given conditions that is False, in the
// order given, and the messages of all of them.
func setReady(conditions *[]metav1.Condition, good string, kinds ...string) {
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: good}
	var messages []string
	for _, kind := range kinds {
		for _, c := range *conditions {
			if c.Type != kind || c.Status != metav1.ConditionFalse {
				continue
			}
			if len(messages) == 0 {
				ready.Status, ready.Reason = metav1.ConditionFalse, c.Reason
			}
			messages = append(messages, c.Message)
		}
	}
	if len(messages) > 0 {
		ready.Message = strings.Join(messages, "; ")
	}
	*conditions = slices.Clip(slices.Insert(*conditions, 0, ready)) // an append makes a copy
}

func joinProblems(problems []v1alpha1.Problem) string {
	texts := make([]string, len(problems))
	for i, p := range problems {
		texts[i] = p.Field + ": " + p.Message
	}
	return strings.Join(texts, "; ")
}
