package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
)

// write brings the children and statuses of one Infra, and of the attachments that name it, to the plan. Routes are
// written before names.
func (h *Hub) write(ctx context.Context, key types.NamespacedName) error {
	result := h.result.Load()
	if result == nil || h.cfg.Infra.Name != "" && key != h.cfg.Infra {
		return nil
	}
	var errs []error
	for _, infra := range result.Infras {
		if infra.Key() == key {
			errs = append(errs, h.writeInfra(ctx, infra))
		}
	}
	for _, a := range slices.Concat(result.Orphans, result.Deleting) {
		if infraOf(a.Object) == key {
			errs = append(errs, h.writeAttachment(ctx, a))
		}
	}
	return errors.Join(errs...)
}

func (h *Hub) writeInfra(ctx context.Context, infra *plan.Infra) error {
	var errs []error
	if infra.Object.DeletionTimestamp == nil {
		err := h.writeChildren(ctx, infra)
		h.noteWrite(infra, err)
		errs = append(errs, err)
	}
	for _, a := range infra.Attachments {
		errs = append(errs, h.writeAttachment(ctx, a))
	}
	errs = append(errs, h.writeProxyStatus(ctx, infra), h.writeInfraStatus(ctx, infra))
	return errors.Join(errs...)
}

func (h *Hub) writeChildren(ctx context.Context, infra *plan.Infra) error {
	there := h.attempt(infra)
	return errors.Join(
		writeChild(ctx, h, infra, v1alpha1.ComponentProxy, infra.Proxy, there.proxy, func(p *v1alpha1.ProxyServer) *v1alpha1.ProxyServerSpec { return &p.Spec }),
		writeChild(ctx, h, infra, v1alpha1.ComponentDNS, infra.DNS, there.dns, func(d *v1alpha1.DNSServer) *v1alpha1.DNSServerSpec { return &d.Spec }),
		writeChild(ctx, h, infra, v1alpha1.ComponentDHCP, infra.DHCP, there.dhcp, func(d *v1alpha1.DHCPServer) *v1alpha1.DHCPServerSpec { return &d.Spec }),
	)
}

// attempt is what a write of an Infra's children starts from: what is wanted, and the objects of those names.
type attempt struct {
	wanted *plan.Infra
	dhcp   *v1alpha1.DHCPServer
	dns    *v1alpha1.DNSServer
	proxy  *v1alpha1.ProxyServer
}

func (h *Hub) attempt(infra *plan.Infra) attempt {
	namespace, name := infra.Object.Namespace, infra.Object.Name
	at := func(child string) types.NamespacedName {
		return types.NamespacedName{Namespace: namespace, Name: child}
	}
	return attempt{
		wanted: infra,
		dhcp:   lookup(h.world, h.world.dhcp, at(v1alpha1.DHCPServerName(name))),
		dns:    lookup(h.world, h.world.dns, at(v1alpha1.DNSServerName(name))),
		proxy:  lookup(h.world, h.world.proxies, at(v1alpha1.ProxyServerName(name))),
	}
}

func (a attempt) same(b attempt) bool {
	return equality.Semantic.DeepEqual(a.wanted.DHCP, b.wanted.DHCP) && equality.Semantic.DeepEqual(a.wanted.DNS, b.wanted.DNS) &&
		equality.Semantic.DeepEqual(a.wanted.Proxy, b.wanted.Proxy) && equality.Semantic.DeepEqual(a.wanted.Refused, b.wanted.Refused) &&
		sameObject(a.dhcp, b.dhcp) && sameObject(a.dns, b.dns) && sameObject(a.proxy, b.proxy)
}

func sameObject[T childObject](a, b T) bool {
	var none T
	if a == none || b == none {
		return a == b
	}
	return informer.SameIdentity(a, b)
}

// controlled gives a child that this Infra controls, and nothing in place of somebody else's object of its name.
func controlled[T childObject](infra *plan.Infra, there T) T {
	var none T
	if there == none || !metav1.IsControlledBy(there, infra.Object) {
		return none
	}
	return there
}

// childObject is a pointer to one of the children.
type childObject interface {
	comparable
	client.Object
}

// writeChild applies, replaces or deletes one child, or leaves it as it is.
func writeChild[T childObject, S any](ctx context.Context, h *Hub, infra *plan.Infra, component v1alpha1.Component, wanted, there T, spec func(T) *S) error {
	var none T
	switch {
	case infra.Refused[component]:
		return nil
	case wanted == none && there == none:
		return nil
	case wanted == none:
		if !metav1.IsControlledBy(there, infra.Object) {
			return nil
		}
		uid := there.GetUID()
		err := h.client.Delete(ctx, there, client.Preconditions{UID: &uid})
		if err = client.IgnoreNotFound(err); err != nil {
			return fmt.Errorf("delete %T %s: %w", there, client.ObjectKeyFromObject(there), err)
		}
		h.metrics.writes.Inc()
		return nil
	case there != none && metav1.GetControllerOf(there) != nil && !metav1.IsControlledBy(there, infra.Object):
		owner := metav1.GetControllerOf(there)
		return fmt.Errorf("%s %s belongs to %s %s: delete it, or give the Infra another name",
			reflect.TypeOf(there).Elem().Name(), client.ObjectKeyFromObject(there), owner.Kind, owner.Name)
	case there != none && metav1.IsControlledBy(there, infra.Object) && equality.Semantic.DeepEqual(spec(wanted), spec(there)):
		return nil
	}
	applied, err := h.apply(ctx, wanted)
	if err != nil {
		return fmt.Errorf("apply %T %s: %w", wanted, client.ObjectKeyFromObject(wanted), err)
	}
	now := wanted.DeepCopyObject().(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(applied.Object, now); err != nil {
		return fmt.Errorf("read back %T %s: %w", wanted, client.ObjectKeyFromObject(wanted), err)
	}
	if equality.Semantic.DeepEqual(spec(wanted), spec(now)) {
		return nil
	}
	// Somebody added a field that applying does not take away.
	if err := h.putBack(ctx, now, spec(wanted)); err != nil {
		return fmt.Errorf("put %T %s back: %w", wanted, client.ObjectKeyFromObject(wanted), err)
	}
	return nil
}

// putBack replaces the whole spec of a child, whatever else of it changes meanwhile: those who serve write its status all
// the time, so that an update of the object would now and then be one of an old version, and refused.
func (h *Hub) putBack(ctx context.Context, child client.Object, spec any) error {
	patch, err := json.Marshal([]map[string]any{
		{"op": "test", "path": "/metadata/uid", "value": child.GetUID()}, // an object that was made anew is another one
		{"op": "replace", "path": "/spec", "value": spec},
	})
	if err != nil {
		return err
	}
	if err := h.client.Patch(ctx, child, client.RawPatch(types.JSONPatchType, patch), client.FieldOwner(process.FieldOwner)); err != nil {
		return err
	}
	h.metrics.writes.Inc()
	return nil
}

// apply applies an object without its status, as the one owner of its fields.
func (h *Hub) apply(ctx context.Context, object client.Object) (*unstructured.Unstructured, error) {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, err
	}
	delete(content, "status")
	u := &unstructured.Unstructured{Object: content}
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	err = h.client.Apply(ctx, client.ApplyConfigurationFromUnstructured(u), client.FieldOwner(process.FieldOwner), client.ForceOwnership)
	h.metrics.writes.Inc()
	return u, err
}

func (h *Hub) writeAttachment(ctx context.Context, a *plan.Attachment) error {
	object := lookup(h.world, h.world.attachments, a.Key())
	if object == nil || object.UID != a.Object.UID {
		return nil // gone, or another one, which the next plan is about
	}
	wanted := a.Status
	wanted.Conditions = h.dated(a.Status.Conditions, object.Status.Conditions, a.Object.Generation)
	var err error
	if !equality.Semantic.DeepEqual(wanted, object.Status) {
		err = h.writeStatus(ctx, object, &wanted, object.Status.Conditions, wanted.Conditions)
	}
	return errors.Join(err, h.writeFinalizer(ctx, a, object))
}

func (h *Hub) writeInfraStatus(ctx context.Context, infra *plan.Infra) error {
	object := lookup(h.world, h.world.infras, infra.Key())
	if object == nil || object.UID != infra.Object.UID {
		return nil // gone, or another one, which the next plan is about
	}
	wanted := infra.Status
	serving := h.servingOf(infra)
	wanted.ComponentStatus = serving.ComponentStatus
	wanted.Conditions = h.dated(serving.Conditions(infra.Status.Conditions), object.Status.Conditions, infra.Object.Generation)
	if equality.Semantic.DeepEqual(wanted, object.Status) {
		return nil
	}
	return h.writeStatus(ctx, object, &wanted, object.Status.Conditions, wanted.Conditions)
}

// writeStatus applies a status and says in Events which conditions changed.
func (h *Hub) writeStatus(ctx context.Context, object client.Object, status any, before, after []metav1.Condition) error {
	err := process.ApplyStatus(ctx, h.client, object, status, process.FieldOwner)
	h.metrics.writes.Inc()
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil // gone, or made anew: the next plan is about what is there then
	}
	if err != nil {
		return fmt.Errorf("status of %T %s: %w", object, client.ObjectKeyFromObject(object), err)
	}
	for _, c := range after {
		old := meta.FindStatusCondition(before, c.Type)
		if old != nil && old.Status == c.Status && old.Reason == c.Reason || old == nil && c.Status == metav1.ConditionTrue {
			continue
		}
		kind := corev1.EventTypeNormal
		if c.Status == metav1.ConditionFalse {
			kind = corev1.EventTypeWarning
		}
		h.events.Eventf(object, kind, c.Reason, "%s is %s: %s", c.Type, c.Status, c.Message)
	}
	return nil
}

// dated gives conditions their generation, where they have none, and their times: a condition keeps its time until its status changes.
func (h *Hub) dated(wanted, before []metav1.Condition, generation int64) []metav1.Condition {
	dated := make([]metav1.Condition, len(wanted))
	for i, c := range wanted {
		if c.ObservedGeneration == 0 {
			c.ObservedGeneration = generation
		}
		c.LastTransitionTime = h.conditionTime()
		if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
		dated[i] = c
	}
	return dated
}
