package workloads

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// Condition says how the VLAN pods of an Infra are; nil: there are to be none.
func (w *Writer) Condition(infra *plan.Infra) *metav1.Condition {
	if w == nil {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	want := w.infras[infra.Key()]
	said := meta.FindStatusCondition(infra.Object.Status.Conditions, v1alpha1.ConditionVLANPodsReady)
	c := &metav1.Condition{Type: v1alpha1.ConditionVLANPodsReady, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonWorkloadNotWritten}
	switch {
	case want == nil:
		return said // of another Infra of this name, or not planned yet
	case w.settingsErr != nil:
		c.Message = w.settingsErr.Error()
		return c
	case !w.complete() && w.cfg.Clock().Sub(w.started) < readPatience:
		return said
	case !w.complete():
		c.Message = "what is there cannot be read from the API server: see the log of the hub"
		return c
	}
	if err := w.failures[infra.Key()]; err != nil {
		if _, is := errors.AsType[*notOursError](err); is {
			c.Reason = v1alpha1.ReasonNotOurs
		}
		c.Message = oneLine(err)
		return c
	}
	d := want.deployment()
	if d == nil {
		if want.deleting() {
			return said
		}
		return nil
	}
	there := w.deployment(infra.Key())
	if there == nil {
		c.Message = "the Deployment is not written yet"
		return c
	}
	w.judge(c, infra.Key(), d, there)
	return c
}

// judge fills in a condition about a Deployment that is there. The lock is held.
func (w *Writer) judge(c *metav1.Condition, infra types.NamespacedName, wanted *wantedObject, there *appsv1.Deployment) {
	first, pending := w.first()
	waits := upgrades(wanted, there) && first != infra
	c.Message = counts(there)
	switch progressing := deploymentCondition(there, appsv1.DeploymentProgressing); {
	case rolledOut(there):
		c.Status, c.Reason = metav1.ConditionTrue, v1alpha1.ReasonReady
		if waits {
			c.Reason = v1alpha1.ReasonUpgradeWaiting
		}
	case progressing != nil && progressing.Status == corev1.ConditionFalse && progressing.Reason == "ProgressDeadlineExceeded":
		c.Reason = v1alpha1.ReasonProgressDeadlineExceeded
		c.Message += ": " + progressing.Message
	default:
		c.Reason = v1alpha1.ReasonPodsNotReady
	}
	if failure := deploymentCondition(there, appsv1.DeploymentReplicaFailure); failure != nil && failure.Status == corev1.ConditionTrue {
		c.Message += ": " + failure.Message
	}
	switch {
	case waits:
		c.Message += "; the upgrade waits for Infra " + first.String()
		if ahead := w.deployment(first); ahead != nil && !rolledOut(ahead) {
			c.Message += ", where " + counts(ahead)
		}
	case first == infra && wasUpgraded(there) && pending > 0:
		c.Message += fmt.Sprintf("; the upgrade of other Infras waits for it: %d", pending)
	}
	if c.Status == metav1.ConditionFalse {
		// A missing NetworkAttachmentDefinition, an image, a node: only the pods know.
		c.Message += fmt.Sprintf("; why says kubectl -n %s describe pod -l %s=%s", infra.Namespace, v1alpha1.LabelInfra, v1alpha1.LabelValue(infra.Name))
	}
}

// counts says how many pods there are, and how many there should be.
func counts(d *appsv1.Deployment) string {
	if rolledOut(d) {
		return fmt.Sprintf("%d of %d VLAN pods are ready", d.Status.AvailableReplicas, replicas(d))
	}
	updated := d.Status.UpdatedReplicas
	if d.Status.ObservedGeneration < d.Generation {
		updated = 0
	}
	return fmt.Sprintf("%d of %d VLAN pods are ready, %d of %d are up to date", d.Status.AvailableReplicas, replicas(d), updated, replicas(d))
}

func deploymentCondition(d *appsv1.Deployment, kind appsv1.DeploymentConditionType) *appsv1.DeploymentCondition {
	if i := slices.IndexFunc(d.Status.Conditions, func(c appsv1.DeploymentCondition) bool { return c.Type == kind }); i >= 0 {
		return &d.Status.Conditions[i]
	}
	return nil
}

// oneLine is an error that may be several, for a condition.
func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
