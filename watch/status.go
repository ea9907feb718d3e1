package watch

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// Serving says which components of an Infra really serve, and why the others that are asked for do not.
type Serving struct {
	v1alpha1.ComponentStatus
	// Waiting says for each component that is asked for and does not serve what it waits for.
	Waiting []string
	// Observed are conditions of the Infra that only a running system can tell, besides those of the plan.
	Observed []metav1.Condition
}

// InfraReport is the status of one Infra and of its attachments, with the times of its conditions.
type InfraReport struct {
	// Infra as "namespace/name".
	Infra  string               `json:"infra"`
	Status v1alpha1.InfraStatus `json:"status"`
	// Attachments that name the Infra.
	Attachments []AttachmentReport `json:"attachments"`
}

// AttachmentReport is the status of one attachment.
type AttachmentReport struct {
	// Attachment as "namespace/name".
	Attachment string                                `json:"attachment"`
	Status     v1alpha1.InfraClusterAttachmentStatus `json:"status"`
}

// Statuses knows since when each condition is as it is, logs each change once, and is a prometheus.Collector of what
// was reported last. It is safe for any number of goroutines.
type Statuses struct {
	log   *slog.Logger
	clock func() time.Time

	mu         sync.Mutex
	conditions map[string][]metav1.Condition // by "Kind namespace/name"
	reported   []InfraReport                 // last
	sources    map[source]time.Time          // since when each is known
}

// NewStatuses starts with no history.
func NewStatuses(log *slog.Logger, clock func() time.Time) *Statuses {
	return &Statuses{log: log, clock: clock, conditions: map[string][]metav1.Condition{}}
}

// Report gives the statuses of a plan as they are now. An Infra is Ready when its configuration can be served and all
// that it asks for is serving.
func (s *Statuses) Report(result *plan.Result, serving map[string]Serving) ([]InfraReport, []AttachmentReport) {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	var infras []InfraReport
	for _, infra := range result.Infras {
		r := InfraReport{Infra: infra.Key().String(), Status: infra.Status, Attachments: []AttachmentReport{}}
		now := serving[r.Infra]
		r.Status.ComponentStatus = now.ComponentStatus
		r.Status.Conditions = s.stamp("Infra "+r.Infra, now.Conditions(infra.Status.Conditions), seen)
		for _, a := range infra.Attachments {
			r.Attachments = append(r.Attachments, s.attachment(a, seen))
		}
		infras = append(infras, r)
	}
	var orphans []AttachmentReport
	for _, a := range slices.Concat(result.Orphans, result.Deleting) {
		orphans = append(orphans, s.attachment(a, seen))
	}
	for object := range s.conditions {
		if !seen[object] {
			delete(s.conditions, object)
			s.log.Info("object is gone", "object", object)
		}
	}
	s.reported = infras
	s.noteSources()
	return infras, orphans
}

func (s *Statuses) attachment(a *plan.Attachment, seen map[string]bool) AttachmentReport {
	r := AttachmentReport{Attachment: a.Key().String(), Status: a.Status}
	r.Status.Conditions = s.stamp("InfraClusterAttachment "+r.Attachment, a.Status.Conditions, seen)
	return r
}

// Conditions adds what was observed, and makes Ready False when something that is asked for does not serve, both on a copy.
func (now Serving) Conditions(conditions []metav1.Condition) []metav1.Condition {
	if len(now.Observed) > 0 {
		conditions = append(slices.Clone(conditions), now.Observed...)
	}
	if len(now.Waiting) == 0 || !meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReady) {
		return conditions
	}
	changed := append([]metav1.Condition(nil), conditions...)
	ready := meta.FindStatusCondition(changed, v1alpha1.ConditionReady)
	ready.Status, ready.Reason, ready.Message = metav1.ConditionFalse, v1alpha1.ReasonNotServing, strings.Join(now.Waiting, "; ")
	return changed
}

// stamp gives conditions their times and logs those that changed.
func (s *Statuses) stamp(object string, conditions []metav1.Condition, seen map[string]bool) []metav1.Condition {
	seen[object] = true
	last := s.conditions[object]
	stamped := make([]metav1.Condition, len(conditions))
	for i, c := range conditions {
		c.LastTransitionTime = metav1.NewTime(s.clock())
		before := meta.FindStatusCondition(last, c.Type)
		if before != nil && before.Status == c.Status {
			c.LastTransitionTime = before.LastTransitionTime
		}
		if before == nil && c.Status != metav1.ConditionTrue ||
			before != nil && (before.Status != c.Status || before.Reason != c.Reason || before.Message != c.Message) {
			s.logChange(object, c)
		}
		stamped[i] = c
	}
	s.conditions[object] = stamped
	return stamped
}

func (s *Statuses) logChange(object string, c metav1.Condition) {
	level := slog.LevelInfo
	if c.Status == metav1.ConditionFalse {
		level = slog.LevelWarn
	}
	s.log.Log(context.Background(), level, "condition", "object", object, "type", c.Type, "status", string(c.Status), "reason", c.Reason, "message", c.Message)
}
