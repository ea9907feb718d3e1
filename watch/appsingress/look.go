package appsingress

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// metalLBNamespaces are where MetalLB is looked for, in this order.
var metalLBNamespaces = []string{"metallb-system", "openshift-operators"}

// maxNodes is how many nodes are looked at for one that is Ready, nodesPage at a time: it is nearly always among the first,
// and a node has up to 40 KiB.
const maxNodes, nodesPage = 100, 5

// controllerLabels find the Deployment of MetalLB's controller: those of its manifests and operator, and those of its chart.
var controllerLabels = []string{"app=metallb,component=controller", "app.kubernetes.io/name=metallb"}

// problem is a step that is not done.
type problem struct {
	phase, reason, message string
	// soon: the next look has more to do, and need not wait.
	soon bool
}

func (p *problem) Error() string { return p.message }

func pending(reason, format string, args ...any) *problem {
	return &problem{phase: v1alpha1.PhasePending, reason: reason, message: fmt.Sprintf(format, args...)}
}

func degraded(reason, format string, args ...any) *problem {
	return &problem{phase: v1alpha1.PhaseDegraded, reason: reason, message: fmt.Sprintf(format, args...)}
}

// errAgain: somebody changed an object in the midst of a look, which is to be made anew.
var errAgain = errors.New("changed in the meantime")

// look is one pass of the steps.
type look struct {
	hosted *hosted
	wanted wanted

	// service is ours as it is, once it was looked for; nil: there is none.
	service     *unstructured.Unstructured
	serviceRead bool
	// ours are all objects of ours that were found, by kind.
	ours map[kind][]*unstructured.Unstructured
	// versions of the lists, to watch from.
	versions map[kind]string
	// read are the kinds of which ours holds all there are.
	read map[kind]bool
	// foreign are the pools of others that matter: that have the wanted name, or addresses of the wanted range.
	foreign []otherPool
	// shared: somebody else uses MetalLB.
	shared bool
	// metalLB is its namespace, once it is known.
	metalLB string
}

func newLook(hosted *hosted, wanted wanted) *look {
	return &look{
		hosted: hosted, wanted: wanted,
		ours: map[kind][]*unstructured.Unstructured{}, versions: map[kind]string{}, read: map[kind]bool{},
	}
}

// readOurs lists what was made for the attachment in all namespaces; served is false when the cluster has no such kind.
func (l *look) readOurs(ctx context.Context, k kind) (served bool, err error) {
	objects, version, err := l.hosted.all(ctx, k, "", metav1.ListOptions{LabelSelector: l.wanted.selector()})
	if apierrors.IsNotFound(err) {
		l.read[k] = true
		return false, nil
	}
	if err == nil {
		l.ours[k], l.versions[k], l.read[k] = objects, version, true
	}
	return true, err
}

// otherPool is a pool that was not made for the attachment.
type otherPool struct {
	namespace, name string
	overlaps        bool // has addresses of the wanted range
}

// readPools lists the pools, of which those of others are not kept; served is false when the cluster has no such kind.
func (l *look) readPools(ctx context.Context) (served bool, err error) {
	version, err := l.hosted.list(ctx, pools, "", metav1.ListOptions{}, func(pool *unstructured.Unstructured, cost int) (bool, error) {
		if l.wanted.owns(pool) {
			l.ours[pools] = append(l.ours[pools], pool)
			return true, l.hosted.budget.keep(cost)
		}
		l.shared = true
		f := otherPool{pool.GetNamespace(), pool.GetName(), overlap(pool, l.wanted.MetalLB.IPAddressPoolRange)}
		if !f.overlaps && f.name != l.wanted.MetalLB.AddressPoolName {
			return true, nil
		}
		l.foreign = append(l.foreign, f)
		return true, l.hosted.budget.keep(costOf(nil))
	})
	if apierrors.IsNotFound(err) {
		l.read[pools] = true
		return false, nil
	}
	if err == nil {
		l.versions[pools], l.read[pools] = version, true
	}
	return true, err
}

// find is the object of ours of a name.
func (l *look) find(k kind, namespace, name string) *unstructured.Unstructured {
	for _, object := range l.ours[k] {
		if object.GetNamespace() == namespace && object.GetName() == name {
			return object
		}
	}
	return nil
}

// serving is the Service whose VIP counts: the wanted one, and while there is none the one of ours that another name was wanted of
// before. Nothing comes in its place until the wanted one can be made.
func (l *look) serving() *unstructured.Unstructured {
	if before := l.ours[services]; l.service == nil && len(before) > 0 {
		return before[0]
	}
	return l.service
}

// run makes the steps up to the first that is not done, which is the error: nil, the VIP is there.
func (l *look) run(ctx context.Context) error {
	ready, err := l.readyNode(ctx)
	if err != nil {
		return err
	}
	if _, err := l.readOurs(ctx, services); err != nil {
		return err
	}
	l.service, l.serviceRead = l.find(services, l.wanted.Service.Namespace, l.wanted.Service.Name), true
	if ready != nil {
		return ready
	}
	if err := l.readMetalLB(ctx); err != nil {
		return err
	}
	if err := l.ensurePool(ctx); err != nil {
		return err
	}
	if err := l.ensureService(ctx); err != nil {
		return err
	}
	if err := l.removeStale(ctx); err != nil {
		return err
	}
	return l.readVIP(ctx)
}

// readyNode looks for a node that is Ready; a problem when there is none.
func (l *look) readyNode(ctx context.Context) (*problem, error) {
	n, ready := 0, false
	if _, err := l.hosted.list(ctx, nodes, "", metav1.ListOptions{Limit: nodesPage}, func(node *unstructured.Unstructured, _ int) (bool, error) {
		n++
		ready = conditionOf(node, string(corev1.NodeReady))["status"] == string(corev1.ConditionTrue)
		return !ready && n < maxNodes, nil
	}); err != nil {
		return nil, err
	}
	switch {
	case ready:
		return nil, nil
	case n == 0:
		return pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "the hosted cluster has no nodes yet"), nil
	case n == maxNodes:
		return pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "none of the first %d nodes of the hosted cluster is Ready", n), nil
	}
	return pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "none of the %d nodes of the hosted cluster is Ready", n), nil
}

// conditionOf is one condition of an object; nil: it has none of that type.
func conditionOf(object *unstructured.Unstructured, conditionType string) map[string]any {
	conditions, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, c := range conditions {
		if condition, ok := c.(map[string]any); ok && condition["type"] == conditionType {
			return condition
		}
	}
	return nil
}

// readMetalLB sees that MetalLB's kinds are served, installs it when asked to, and finds its namespace.
func (l *look) readMetalLB(ctx context.Context) error {
	served, err := l.readPools(ctx)
	if served && err == nil {
		served, err = l.readOurs(ctx, l2Advertisements)
	}
	if err != nil {
		return err
	}
	if !served {
		if l.wanted.MetalLB.Install {
			return l.installOperator(ctx)
		}
		return pending(v1alpha1.ReasonWaitingForMetalLBCRDs,
			"the hosted cluster does not serve IPAddressPool and L2Advertisement of metallb.io/v1beta1: install MetalLB there, or set metallb.install")
	}
	instances, _, err := l.hosted.all(ctx, metalLBs, "", metav1.ListOptions{})
	byOperator := !apierrors.IsNotFound(err)
	if byOperator && err != nil {
		return err
	}
	if byOperator && len(instances) == 0 && l.wanted.MetalLB.Install {
		instance, err := l.ensureInstance(ctx)
		if err != nil {
			return err
		}
		instances = append(instances, instance)
	}
	return l.findMetalLB(ctx, instances)
}

// findMetalLB finds the namespace of MetalLB: the one that the spec names, or the one that has it.
func (l *look) findMetalLB(ctx context.Context, instances []*unstructured.Unstructured) error {
	if l.metalLB = l.wanted.MetalLB.Namespace; l.metalLB != "" {
		return nil
	}
	var in []string
	for _, instance := range instances {
		in = append(in, instance.GetNamespace())
	}
	controllers, err := l.controllers(ctx, "")
	if err != nil {
		return err
	}
	for _, controller := range controllers {
		in = append(in, controller.GetNamespace())
	}
	for _, namespace := range metalLBNamespaces {
		if slices.Contains(in, namespace) {
			l.metalLB = namespace
			return nil
		}
	}
	if len(in) > 0 {
		return pending(v1alpha1.ReasonWaitingForMetalLBCRDs, "MetalLB is in the namespace %s of the hosted cluster: say so in metallb.namespace", in[0])
	}
	for _, namespace := range metalLBNamespaces {
		there, err := l.hosted.get(ctx, namespaces, "", namespace)
		if err != nil {
			return err
		}
		if there != nil {
			l.metalLB = namespace
			return nil
		}
	}
	return pending(v1alpha1.ReasonWaitingForMetalLBCRDs,
		"MetalLB's kinds are served, but MetalLB is in none of the namespaces %s: install it, or say in metallb.namespace where it is", strings.Join(metalLBNamespaces, ", "))
}

// controllers are the Deployments of MetalLB's controller.
func (l *look) controllers(ctx context.Context, namespace string) ([]*unstructured.Unstructured, error) {
	for _, selector := range controllerLabels {
		found, _, err := l.hosted.all(ctx, deployments, namespace, metav1.ListOptions{LabelSelector: selector})
		if len(found) > 0 || err != nil {
			return found, err
		}
	}
	return nil, nil
}

// ensurePool brings the pool and its advertisement to what is wanted.
func (l *look) ensurePool(ctx context.Context) error {
	if !l.wanted.ownPool() {
		if !slices.ContainsFunc(l.foreign, func(p otherPool) bool {
			return p.namespace == l.metalLB && p.name == l.wanted.MetalLB.AddressPoolName
		}) {
			return pending(v1alpha1.ReasonWaitingForExternalIP, "the hosted cluster has no %s: make it, or give metallb.ipAddressPoolRange",
				pools.String(l.metalLB, l.wanted.MetalLB.AddressPoolName))
		}
		return nil
	}
	pool, err := l.wanted.pool(l.metalLB)
	if err != nil {
		return degraded(v1alpha1.ReasonMetalLBInstallFailed, "%s", err)
	}
	if err := l.makeRoom(ctx, pool); err != nil {
		return err
	}
	if _, err := l.ensure(ctx, pools, pool, v1alpha1.ReasonMetalLBInstallFailed, "metallb.addressPoolName"); err != nil {
		return err
	}
	_, err = l.ensure(ctx, l2Advertisements, l.wanted.advertisement(l.metalLB), v1alpha1.ReasonMetalLBInstallFailed, "metallb.l2AdvertisementName")
	return err
}

// makeRoom is before a pool is written that is not there as it is wanted. MetalLB takes no configuration whose pools overlap, and
// none in which an address that it gave has no pool any more: it goes on with the one before, for good.
func (l *look) makeRoom(ctx context.Context, pool *unstructured.Unstructured) error {
	there := l.find(pools, pool.GetNamespace(), pool.GetName())
	if there != nil && isAsWanted(there, pool) {
		return nil
	}
	addresses := l.wanted.MetalLB.IPAddressPoolRange
	for _, other := range l.foreign {
		if other.overlaps && other.namespace == pool.GetNamespace() && other.name != pool.GetName() {
			return degraded(v1alpha1.ReasonMetalLBInstallFailed, "%s belongs to somebody else and has addresses of %s: choose another range",
				pools.String(other.namespace, other.name), addresses)
		}
	}
	var old []*unstructured.Unstructured
	for _, other := range l.ours[pools] {
		if other.GetNamespace() == pool.GetNamespace() && other.GetName() != pool.GetName() && overlap(other, addresses) {
			old = append(old, other)
		}
	}
	if there == nil && len(old) == 0 {
		return nil
	}
	if l.isGivenElsewhere(addresses, there, old) {
		return l.remake(ctx, "its address is not in the new range "+addresses)
	}
	for _, other := range old {
		if err := l.hosted.remove(ctx, pools, other); err != nil {
			return l.refused(err, v1alpha1.ReasonMetalLBInstallFailed)
		}
	}
	return nil
}

// isGivenElsewhere tells whether MetalLB gave our Service an address of these pools which is not in a range.
func (l *look) isGivenElsewhere(addresses string, there *unstructured.Unstructured, old []*unstructured.Unstructured) bool {
	service := l.serving()
	given := vipOf(service)
	if given.ip == "" || isInRange(given.ip, addresses) {
		return false
	}
	return slices.ContainsFunc(v1alpha1.AnnotationsAllocatedFromPool, func(key string) bool {
		from := service.GetAnnotations()[key]
		return from != "" && (there != nil && from == there.GetName() ||
			slices.ContainsFunc(old, func(p *unstructured.Unstructured) bool { return p.GetName() == from }))
	})
}

// remake takes our Service away; the next look makes it anew.
func (l *look) remake(ctx context.Context, why string) error {
	service := l.serving()
	if err := l.hosted.remove(ctx, services, service); err != nil {
		return l.refused(err, v1alpha1.ReasonIngressServiceFailed)
	}
	p := pending(v1alpha1.ReasonWaitingForExternalIP, "%s is made anew: %s", services.of(service), why)
	p.soon = true
	return p
}

// ensureService brings the Service to what is wanted. Its class cannot be changed once it is there.
func (l *look) ensureService(ctx context.Context) error {
	service := l.wanted.service()
	if l.service != nil && l.service.GetDeletionTimestamp() == nil {
		class, _, _ := unstructured.NestedString(l.service.Object, "spec", "loadBalancerClass")
		if class != l.wanted.MetalLB.LoadBalancerClass {
			return l.remake(ctx, fmt.Sprintf("its loadBalancerClass changes from %q to %q", cut(class), l.wanted.MetalLB.LoadBalancerClass))
		}
	}
	applied, err := l.ensure(ctx, services, service, v1alpha1.ReasonIngressServiceFailed, "service.name")
	if err == nil {
		l.service = applied
	}
	return err
}

// ensure brings one object to what is wanted, and writes nothing when it is. An object of its name that was not made for
// this attachment stays as it is; field says what to change then.
func (l *look) ensure(ctx context.Context, k kind, object *unstructured.Unstructured, reason, field string) (*unstructured.Unstructured, error) {
	there := l.find(k, object.GetNamespace(), object.GetName())
	if there == nil {
		var err error
		if there, err = l.hosted.get(ctx, k, object.GetNamespace(), object.GetName()); err != nil {
			return nil, err
		}
	}
	var uid types.UID
	if there != nil {
		switch {
		case !l.wanted.owns(there):
			return nil, degraded(reason, "%s belongs to somebody else: choose another name in %s", k.of(there), field)
		case there.GetDeletionTimestamp() != nil:
			p := pending(v1alpha1.ReasonWaitingForExternalIP, "%s is being deleted, and is made anew when it is gone", k.of(there))
			p.soon = true
			return nil, p
		case isAsWanted(there, object):
			return there, nil
		}
		uid = there.GetUID()
	}
	applied, err := l.hosted.apply(ctx, k, object, uid)
	if err != nil {
		return nil, l.refused(err, reason)
	}
	return applied, nil
}

// refused is what a write that failed means: the API server refuses the object, unless it cannot be asked at all.
func (l *look) refused(err error, reason string) error {
	switch {
	case isAccess(err) || !isRequest(err):
		return err
	case apierrors.IsConflict(err):
		return errAgain
	case apierrors.IsNotFound(err):
		return degraded(reason, "the hosted cluster has no such namespace or kind yet: %s", cut(err.Error()))
	}
	return degraded(reason, "the hosted cluster refuses it: %s", cut(err.Error()))
}

// removeStale takes away what was made under names that are no longer wanted, now that the new ones are there.
func (l *look) removeStale(ctx context.Context) error {
	wanted := map[kind]string{services: services.String(l.wanted.Service.Namespace, l.wanted.Service.Name)}
	if l.wanted.ownPool() {
		wanted[pools] = pools.String(l.metalLB, l.wanted.MetalLB.AddressPoolName)
		wanted[l2Advertisements] = l2Advertisements.String(l.metalLB, l.wanted.MetalLB.L2AdvertisementName)
	}
	for _, step := range []struct {
		kind   kind
		reason string
	}{
		{services, v1alpha1.ReasonIngressServiceFailed},
		{l2Advertisements, v1alpha1.ReasonMetalLBInstallFailed},
		{pools, v1alpha1.ReasonMetalLBInstallFailed},
	} {
		for _, object := range l.ours[step.kind] {
			if step.kind.of(object) == wanted[step.kind] {
				continue
			}
			if err := l.hosted.remove(ctx, step.kind, object); err != nil {
				return l.refused(err, step.reason)
			}
		}
	}
	return nil
}

// readVIP tells whether MetalLB gave the Service an address that can be used, and if not, why.
func (l *look) readVIP(ctx context.Context) error {
	given := vipOf(l.service)
	name := services.of(l.service)
	switch {
	case given.wrong != "":
		return degraded(v1alpha1.ReasonExternalIPDiscoveryFailed, "%s %s", name, given.wrong)
	case given.ip != "":
		return nil
	}
	for _, why := range []func(context.Context) (string, error){l.controllerTrouble, l.lastWarning} {
		text, err := why(ctx)
		if err != nil {
			return err
		}
		if text != "" {
			return pending(v1alpha1.ReasonWaitingForExternalIP, "%s has no address yet: %s", name, text)
		}
	}
	return pending(v1alpha1.ReasonWaitingForExternalIP, "%s has no address yet: MetalLB in the namespace %s said nothing about it", name, l.metalLB)
}

// controllerTrouble tells what can be seen of MetalLB's controller that keeps it from giving addresses.
func (l *look) controllerTrouble(ctx context.Context) (string, error) {
	controllers, err := l.controllers(ctx, l.metalLB)
	if err != nil || len(controllers) == 0 {
		return "", err
	}
	controller := controllers[0]
	if available, _, _ := unstructured.NestedInt64(controller.Object, "status", "availableReplicas"); available == 0 {
		return fmt.Sprintf("MetalLB's controller does not run, %s has no available pod", deployments.of(controller)), nil
	}
	class, want := lbClass(controller), l.wanted.MetalLB.LoadBalancerClass
	switch {
	case class == want:
		return "", nil
	case want == "":
		return fmt.Sprintf("MetalLB runs with --lb-class=%s and takes no Service without that class: set metallb.loadBalancerClass", cut(class)), nil
	case class == "":
		return fmt.Sprintf("MetalLB runs without --lb-class and takes no Service with the class %s: clear metallb.loadBalancerClass, or run MetalLB with it", want), nil
	}
	return fmt.Sprintf("MetalLB runs with --lb-class=%s and takes no Service with the class %s", cut(class), want), nil
}

// lbClass is the class that MetalLB's controller runs with.
func lbClass(deployment *unstructured.Unstructured) string {
	containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	for _, c := range containers {
		container, _ := c.(map[string]any)
		args, _, _ := unstructured.NestedStringSlice(container, "args")
		for i, arg := range args {
			name, value, given := strings.Cut(strings.TrimLeft(arg, "-"), "=")
			if name != "lb-class" {
				continue
			}
			if !given && i+1 < len(args) {
				value = args[i+1]
			}
			return value
		}
	}
	return ""
}

// lastWarning is the newest that MetalLB warned of about our Service.
func (l *look) lastWarning(ctx context.Context) (string, error) {
	selector := fields.Set{
		"involvedObject.kind": "Service", "involvedObject.name": l.service.GetName(), "involvedObject.uid": string(l.service.GetUID()),
		"type": corev1.EventTypeWarning,
	}.String()
	var newest time.Time
	text := ""
	_, err := l.hosted.list(ctx, eventKind, l.service.GetNamespace(), metav1.ListOptions{FieldSelector: selector}, func(u *unstructured.Unstructured, _ int) (bool, error) {
		var event corev1.Event
		isEvent := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &event) == nil
		if !isEvent || !strings.Contains(event.Source.Component+event.ReportingController, "metallb") {
			return true, nil
		}
		at := event.LastTimestamp.Time
		if event.Series != nil && event.Series.LastObservedTime.After(at) {
			at = event.Series.LastObservedTime.Time
		}
		if event.EventTime.After(at) {
			at = event.EventTime.Time
		}
		if text == "" || at.After(newest) {
			newest, text = at, cut(event.Reason+": "+event.Message)
		}
		return true, nil
	})
	return text, err
}
