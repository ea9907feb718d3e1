package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// missingRetry is how often a kind that the cluster does not serve is looked for again.
const missingRetry = 5 * time.Second

// world is the objects of a cluster, as its informers see them, reduced to what is read.
type world struct {
	log   *slog.Logger
	cache cache.Cache
	// changed has room for one: something that is read has changed.
	changed chan struct{}

	mu sync.Mutex
	// missing says of each kind that was looked up whether the cluster lacks it.
	missing map[string]bool
	synced  []toolscache.ResourceEventHandlerRegistration

	infras      map[types.NamespacedName]*v1alpha1.Infra
	attachments map[types.NamespacedName]*v1alpha1.InfraClusterAttachment
	dhcp        map[types.NamespacedName]*v1alpha1.DHCPServer
	dns         map[types.NamespacedName]*v1alpha1.DNSServer
	proxies     map[types.NamespacedName]*v1alpha1.ProxyServer
	serving     map[types.NamespacedName]*coordinationv1.Lease
	clusters    map[types.NamespacedName]*hypershift.HostedCluster
	nodePools   map[types.NamespacedName]*hypershift.NodePool
	machines    map[types.NamespacedName]*plan.Machine
	vmis        map[types.NamespacedName]*plan.VirtualMachineInstance
	services    map[types.NamespacedName]*corev1.Service
	slices      map[types.NamespacedName]*endpointSlice
	namespaces  map[types.NamespacedName]struct{}
}

// kind is one kind of objects that is watched.
type kind struct {
	// name as in messages, "Kind.group".
	name string
	// objects to try, one a version, until one is served.
	objects []client.Object
	handler toolscache.ResourceEventHandler
}

func newWorld(c cache.Cache, log *slog.Logger) *world {
	return &world{
		log: log, cache: c, changed: make(chan struct{}, 1), missing: map[string]bool{},
		infras:      map[types.NamespacedName]*v1alpha1.Infra{},
		attachments: map[types.NamespacedName]*v1alpha1.InfraClusterAttachment{},
		dhcp:        map[types.NamespacedName]*v1alpha1.DHCPServer{},
		dns:         map[types.NamespacedName]*v1alpha1.DNSServer{},
		proxies:     map[types.NamespacedName]*v1alpha1.ProxyServer{},
		serving:     map[types.NamespacedName]*coordinationv1.Lease{},
		clusters:    map[types.NamespacedName]*hypershift.HostedCluster{},
		nodePools:   map[types.NamespacedName]*hypershift.NodePool{},
		machines:    map[types.NamespacedName]*plan.Machine{},
		vmis:        map[types.NamespacedName]*plan.VirtualMachineInstance{},
		services:    map[types.NamespacedName]*corev1.Service{},
		slices:      map[types.NamespacedName]*endpointSlice{},
		namespaces:  map[types.NamespacedName]struct{}{},
	}
}

// kinds are what is watched: our own, the core ones, and the neighbours', which may not be installed yet.
func (w *world) kinds() []kind {
	unstructuredOf := func(group, version, name string) client.Object {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: group, Version: version, Kind: name})
		return u
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	own := v1alpha1.GroupVersion.Group
	return []kind{
		{"Infra." + own, []client.Object{&v1alpha1.Infra{}}, track(w, w.infras, asIs[*v1alpha1.Infra])},
		{"InfraClusterAttachment." + own, []client.Object{&v1alpha1.InfraClusterAttachment{}}, track(w, w.attachments, asIs[*v1alpha1.InfraClusterAttachment])},
		{"DHCPServer." + own, []client.Object{&v1alpha1.DHCPServer{}}, track(w, w.dhcp, asIs[*v1alpha1.DHCPServer])},
		{"DNSServer." + own, []client.Object{&v1alpha1.DNSServer{}}, track(w, w.dns, asIs[*v1alpha1.DNSServer])},
		{"ProxyServer." + own, []client.Object{&v1alpha1.ProxyServer{}}, track(w, w.proxies, asIs[*v1alpha1.ProxyServer])},
		{"Lease.coordination.k8s.io", []client.Object{&coordinationv1.Lease{}}, track(w, w.serving, asIs[*coordinationv1.Lease])},
		{"Namespace", []client.Object{namespace}, track(w, w.namespaces, func(client.Object) struct{} { return struct{}{} })},
		{"Service", []client.Object{&corev1.Service{}}, track(w, w.services, asIs[*corev1.Service])},
		{"EndpointSlice.discovery.k8s.io", []client.Object{&discoveryv1.EndpointSlice{}}, track(w, w.slices, readSlice)},
		{"HostedCluster.hypershift.openshift.io", []client.Object{&hypershift.HostedCluster{}}, track(w, w.clusters, asIs[*hypershift.HostedCluster])},
		{"NodePool.hypershift.openshift.io", []client.Object{&hypershift.NodePool{}}, track(w, w.nodePools, asIs[*hypershift.NodePool])},
		{"Machine.cluster.x-k8s.io", []client.Object{
			unstructuredOf("cluster.x-k8s.io", "v1beta2", "Machine"), unstructuredOf("cluster.x-k8s.io", "v1beta1", "Machine"),
		}, track(w, w.machines, readMachine)},
		{"VirtualMachineInstance.kubevirt.io", []client.Object{unstructuredOf("kubevirt.io", "v1", "VirtualMachineInstance")}, track(w, w.vmis, readInstance)},
	}
}

// asIs takes an object as the cache has it: strip has reduced it already.
func asIs[T client.Object](object client.Object) T { return object.(T) }

// track keeps a map of objects by namespace and name. A change that touches nothing that is read makes no noise.
func track[T any](w *world, into map[types.NamespacedName]T, read func(client.Object) T) toolscache.ResourceEventHandler {
	return handler(func(object client.Object) {
		key, value := client.ObjectKeyFromObject(object), read(object)
		w.mu.Lock()
		old, known := into[key]
		into[key] = value
		w.mu.Unlock()
		if !known || !unchanged(old, value) {
			w.notify()
		}
	}, func(object client.Object) {
		w.mu.Lock()
		delete(into, client.ObjectKeyFromObject(object))
		w.mu.Unlock()
		w.notify()
	})
}

// handler calls set for an object that is there, and gone for one that is not any more.
func handler(set, gone func(client.Object)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { set(object.(client.Object)) },
		UpdateFunc: func(_, object any) { set(object.(client.Object)) },
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			gone(object.(client.Object))
		},
	}
}

// unchanged compares what is read of two states of one object. A neighbour's generation moves with fields that are
// not read; ours moves with every one.
func unchanged(old, value any) bool {
	switch v := value.(type) {
	case *v1alpha1.Infra:
		return sameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.Infra).Status, v.Status)
	case *v1alpha1.InfraClusterAttachment:
		return sameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.InfraClusterAttachment).Status, v.Status)
	case *v1alpha1.DHCPServer:
		return sameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.DHCPServer).Status, v.Status)
	case *v1alpha1.DNSServer:
		return sameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.DNSServer).Status, v.Status)
	case *v1alpha1.ProxyServer:
		return sameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.ProxyServer).Status, v.Status)
	case *coordinationv1.Lease:
		return sameHolder(old.(*coordinationv1.Lease), v)
	case *corev1.Service:
		return reflect.DeepEqual(old.(*corev1.Service).Spec, v.Spec)
	case *hypershift.HostedCluster:
		o := old.(*hypershift.HostedCluster)
		return reflect.DeepEqual(o.Spec, v.Spec) && reflect.DeepEqual(o.Status, v.Status)
	case *hypershift.NodePool:
		return reflect.DeepEqual(old.(*hypershift.NodePool).Spec, v.Spec)
	}
	return reflect.DeepEqual(old, value)
}

func sameIdentity(old, value client.Object) bool {
	return old.GetUID() == value.GetUID() && old.GetGeneration() == value.GetGeneration() &&
		old.GetDeletionTimestamp().IsZero() == value.GetDeletionTimestamp().IsZero() &&
		reflect.DeepEqual(old.GetOwnerReferences(), value.GetOwnerReferences())
}

func (w *world) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// watch starts an informer for each kind, and for those that are not served as soon as they are.
func (w *world) watch(ctx context.Context) error {
	waiting := w.kinds()
	for {
		var still []kind
		for _, k := range waiting {
			registration, err := w.start(ctx, k)
			switch {
			case ctx.Err() != nil:
				return nil
			case err == nil:
				w.setMissing(k.name, false)
				w.mu.Lock()
				w.synced = append(w.synced, registration)
				w.mu.Unlock()
				w.notify()
			case meta.IsNoMatchError(err):
				w.setMissing(k.name, true)
				still = append(still, k)
			default:
				w.log.Warn("a kind cannot be watched yet, trying again", "kind", k.name, "error", err)
				still = append(still, k)
			}
		}
		waiting = still
		if len(waiting) == 0 {
			<-ctx.Done()
			return nil
		}
		timer := time.NewTimer(missingRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
	}
}

func (w *world) start(ctx context.Context, k kind) (toolscache.ResourceEventHandlerRegistration, error) {
	var errs []error
	for _, object := range k.objects {
		informer, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if err == nil {
			return informer.AddEventHandler(k.handler)
		}
		errs = append(errs, err)
	}
	for _, err := range errs {
		if !meta.IsNoMatchError(err) {
			return nil, err
		}
	}
	return nil, errs[0]
}

func (w *world) setMissing(name string, missing bool) {
	w.mu.Lock()
	was, known := w.missing[name]
	w.missing[name] = missing
	w.mu.Unlock()
	switch {
	case missing && (!known || !was):
		w.log.Warn("the cluster does not serve a kind that is read; it is watched as soon as it does", "kind", name)
		w.notify()
	case !missing && was:
		w.log.Info("the cluster serves the kind now", "kind", name)
	}
}

// complete tells whether every kind has either been read in full or is known to be missing.
func (w *world) complete() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if known, all := len(w.missing), len(w.kinds()); known < all {
		return fmt.Errorf("waiting for the cluster: %d of %d kinds looked up", known, all)
	}
	for _, registration := range w.synced {
		if !registration.HasSynced() {
			return errors.New("waiting for the cluster: objects are being read")
		}
	}
	for _, name := range []string{"Infra." + v1alpha1.GroupVersion.Group, "InfraClusterAttachment." + v1alpha1.GroupVersion.Group} {
		if w.missing[name] {
			return fmt.Errorf("the cluster does not serve %s: apply the definitions of oooi", name)
		}
	}
	return nil
}

// objects gives everything that the plan reads.
func (w *world) objects() plan.Objects {
	w.mu.Lock()
	defer w.mu.Unlock()
	o := plan.Objects{
		Infras: values(w.infras), Attachments: values(w.attachments),
		HostedClusters: values(w.clusters), NodePools: values(w.nodePools),
		Machines: values(w.machines), VMIs: values(w.vmis), Services: values(w.services),
		Endpoints: endpoints(w.slices),
	}
	for key := range w.namespaces {
		o.Namespaces = append(o.Namespaces, key.Name)
	}
	for name, missing := range w.missing {
		if missing {
			o.MissingKinds = append(o.MissingKinds, name)
		}
	}
	slices.Sort(o.MissingKinds)
	return o
}

func values[T any](m map[types.NamespacedName]T) []T {
	all := make([]T, 0, len(m))
	for _, v := range m {
		all = append(all, v)
	}
	return all
}

// lookup reads one object of the world.
func lookup[T any](w *world, from map[types.NamespacedName]T, key types.NamespacedName) T {
	w.mu.Lock()
	defer w.mu.Unlock()
	return from[key]
}

// newScheme holds every typed kind that is read or written.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		v1alpha1.AddToScheme(s), hypershift.AddToScheme(s), corev1.AddToScheme(s),
		discoveryv1.AddToScheme(s), coordinationv1.AddToScheme(s),
	)
}
