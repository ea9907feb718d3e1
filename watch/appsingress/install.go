package appsingress

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/v1alpha1"
)

// What MetalLB is called in the catalog of OpenShift, and where it goes.
const (
	operatorPackage   = "metallb-operator"
	operatorChannel   = "stable"
	operatorSource    = "redhat-operators"
	operatorSourceNS  = "openshift-marketplace"
	operatorNamespace = "openshift-operators"
	instanceName      = "metallb"
)

// failedInstalls are the conditions of a Subscription that say, when True, that it does not get on.
var failedInstalls = []string{"CatalogSourcesUnhealthy", "ResolutionFailed", "BundleUnpackFailed", "InstallPlanFailed", "InstallPlanMissing"}

// subscription is ours, for MetalLB's operator.
func (w wanted) subscription() *unstructured.Unstructured {
	return w.object(subscriptions, w.operatorNamespace(), operatorPackage, map[string]any{
		"channel": operatorChannel, "name": operatorPackage, "source": operatorSource, "sourceNamespace": operatorSourceNS,
	})
}

// operatorNamespace is where the operator is installed.
func (w wanted) operatorNamespace() string {
	if w.MetalLB.Namespace != "" {
		return w.MetalLB.Namespace
	}
	return operatorNamespace
}

// instance is the MetalLB object, which the operator makes the controller and the speakers of.
func (w wanted) instance(namespace string) *unstructured.Unstructured {
	spec := map[string]any{}
	if class := w.MetalLB.LoadBalancerClass; class != "" {
		spec["loadBalancerClass"] = class
	}
	return w.object(metalLBs, namespace, instanceName, spec)
}

// operatorSubscription is the Subscription for MetalLB's operator, ours before those of others; nil: there is none.
func (l *look) operatorSubscription(ctx context.Context) (found *unstructured.Unstructured, served bool, err error) {
	_, err = l.hosted.list(ctx, subscriptions, "", metav1.ListOptions{}, func(s *unstructured.Unstructured, _ int) (bool, error) {
		if name, _, _ := unstructured.NestedString(s.Object, "spec", "name"); name == operatorPackage && (found == nil || l.wanted.owns(s)) {
			found = s
		}
		return true, nil
	})
	if apierrors.IsNotFound(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, true, err
	}
	return found, true, nil
}

// installOperator has OLM install MetalLB's operator. It returns what is waited for, or why it fails.
func (l *look) installOperator(ctx context.Context) error {
	const reason = v1alpha1.ReasonMetalLBInstallFailed
	subscription, served, err := l.operatorSubscription(ctx)
	switch {
	case err != nil:
		return err
	case !served:
		return degraded(reason, "metallb.install is set, and the hosted cluster has no OLM (no Subscription of operators.coreos.com/v1alpha1): install MetalLB there")
	}
	if subscription == nil || l.wanted.owns(subscription) {
		if l.wanted.MetalLB.Namespace != "" {
			if err := l.ensureOperatorNamespace(ctx); err != nil {
				return err
			}
		}
		if subscription != nil {
			l.ours[subscriptions] = []*unstructured.Unstructured{subscription}
		}
		if subscription, err = l.ensure(ctx, subscriptions, l.wanted.subscription(), reason, "metallb.namespace, or delete it"); err != nil {
			return err
		}
	}
	for _, failed := range failedInstalls {
		if c := conditionOf(subscription, failed); c["status"] == "True" {
			return degraded(reason, "%s: %s", subscriptions.of(subscription), cut(fmt.Sprintf("%s %v: %v", failed, c["reason"], c["message"])))
		}
	}
	text := "OLM installs it"
	if state, _, _ := unstructured.NestedString(subscription.Object, "status", "state"); state != "" {
		text += ", state " + cut(state)
	}
	if approval, _, _ := unstructured.NestedString(subscription.Object, "spec", "installPlanApproval"); approval == "Manual" {
		text = "its InstallPlan has to be approved there"
	}
	return pending(v1alpha1.ReasonWaitingForMetalLBCRDs, "the hosted cluster does not serve MetalLB's kinds yet: %s, %s", subscriptions.of(subscription), text)
}

// ensureOperatorNamespace makes the namespace that the spec names, with an OperatorGroup for all namespaces, unless they are there.
func (l *look) ensureOperatorNamespace(ctx context.Context) error {
	const reason = v1alpha1.ReasonMetalLBInstallFailed
	namespace := l.wanted.MetalLB.Namespace
	there, err := l.hosted.get(ctx, namespaces, "", namespace)
	if err != nil {
		return err
	}
	if there == nil {
		if _, err := l.hosted.apply(ctx, namespaces, l.wanted.object(namespaces, "", namespace, nil), ""); err != nil {
			return l.refused(err, reason)
		}
	}
	groups, _, err := l.hosted.all(ctx, operatorGroups, namespace, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(groups) > 0 {
		return nil
	}
	if _, err := l.hosted.apply(ctx, operatorGroups, l.wanted.object(operatorGroups, namespace, operatorPackage, map[string]any{}), ""); err != nil {
		return l.refused(err, reason)
	}
	return nil
}

// ensureInstance makes the MetalLB object, where the operator is.
func (l *look) ensureInstance(ctx context.Context) (*unstructured.Unstructured, error) {
	namespace := l.wanted.operatorNamespace()
	if l.wanted.MetalLB.Namespace == "" {
		subscription, _, err := l.operatorSubscription(ctx)
		if err != nil {
			return nil, err
		}
		if subscription != nil {
			namespace = subscription.GetNamespace()
		}
	}
	return l.ensure(ctx, metalLBs, l.wanted.instance(namespace), v1alpha1.ReasonMetalLBInstallFailed, "metallb.namespace")
}
