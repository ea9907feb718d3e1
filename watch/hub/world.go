package hub

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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
)

// missingRetry is how often a kind that the cluster does not serve is looked for again.
const missingRetry = 5 * time.Second

// world is the objects of a cluster, as its informers see them, reduced to what is read.
type world struct {
	log       *slog.Logger
	cache     cache.Cache
	discovery discovery.ServerResourcesInterface
	// changed has room for one: something that is read has changed.
	changed chan struct{}

	mu sync.Mutex
	// missing says of each kind that was looked up whether the cluster lacks it.
	missing map[string]bool
	synced  map[string]toolscache.ResourceEventHandlerRegistration // by kind

	infras      map[types.NamespacedName]*v1alpha1.Infra
	attachments map[types.NamespacedName]*v1alpha1.InfraClusterAttachment
	dhcp        map[types.NamespacedName]*v1alpha1.DHCPServer
	dns         map[types.NamespacedName]*v1alpha1.DNSServer
	proxies     map[types.NamespacedName]*v1alpha1.ProxyServer
	serving     map[types.NamespacedName]*coordinationv1.Lease
	leases      map[types.NamespacedName]*liveLease
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
	// clear forgets what was read. The lock of the world is held.
	clear func()
}

func newWorld(c cache.Cache, d discovery.ServerResourcesInterface, log *slog.Logger) *world {
	return &world{
		log: log, cache: c, discovery: d, changed: make(chan struct{}, 1), missing: map[string]bool{},
		synced:      map[string]toolscache.ResourceEventHandlerRegistration{},
		infras:      map[types.NamespacedName]*v1alpha1.Infra{},
		attachments: map[types.NamespacedName]*v1alpha1.InfraClusterAttachment{},
		dhcp:        map[types.NamespacedName]*v1alpha1.DHCPServer{},
		dns:         map[types.NamespacedName]*v1alpha1.DNSServer{},
		proxies:     map[types.NamespacedName]*v1alpha1.ProxyServer{},
		serving:     map[types.NamespacedName]*coordinationv1.Lease{},
		leases:      map[types.NamespacedName]*liveLease{},
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
		of("Infra."+own, []client.Object{&v1alpha1.Infra{}}, w, w.infras, asIs[*v1alpha1.Infra]),
		of("InfraClusterAttachment."+own, []client.Object{&v1alpha1.InfraClusterAttachment{}}, w, w.attachments, asIs[*v1alpha1.InfraClusterAttachment]),
		of("DHCPServer."+own, []client.Object{&v1alpha1.DHCPServer{}}, w, w.dhcp, asIs[*v1alpha1.DHCPServer]),
		of("DNSServer."+own, []client.Object{&v1alpha1.DNSServer{}}, w, w.dns, asIs[*v1alpha1.DNSServer]),
		of("ProxyServer."+own, []client.Object{&v1alpha1.ProxyServer{}}, w, w.proxies, asIs[*v1alpha1.ProxyServer]),
		of("DHCPLease."+own, []client.Object{&v1alpha1.DHCPLease{}}, w, w.leases, func(o client.Object) *liveLease { return readLive(o.(*v1alpha1.DHCPLease)) }),
		of("Lease.coordination.k8s.io", []client.Object{&coordinationv1.Lease{}}, w, w.serving, asIs[*coordinationv1.Lease]),
		of("Namespace", []client.Object{namespace}, w, w.namespaces, func(client.Object) struct{} { return struct{}{} }),
		of("Service", []client.Object{&corev1.Service{}}, w, w.services, asIs[*corev1.Service]),
		of("EndpointSlice.discovery.k8s.io", []client.Object{&discoveryv1.EndpointSlice{}}, w, w.slices, readSlice),
		of("HostedCluster.hypershift.openshift.io", []client.Object{&hypershift.HostedCluster{}}, w, w.clusters, asIs[*hypershift.HostedCluster]),
		of("NodePool.hypershift.openshift.io", []client.Object{&hypershift.NodePool{}}, w, w.nodePools, asIs[*hypershift.NodePool]),
		of("Machine.cluster.x-k8s.io", []client.Object{
			unstructuredOf("cluster.x-k8s.io", "v1beta2", "Machine"), unstructuredOf("cluster.x-k8s.io", "v1beta1", "Machine"),
		}, w, w.machines, readMachine),
		of("VirtualMachineInstance.kubevirt.io", []client.Object{unstructuredOf("kubevirt.io", "v1", "VirtualMachineInstance")}, w, w.vmis, readInstance),
	}
}

// of makes a kind whose objects are kept in a map of the world.
func of[T any](name string, objects []client.Object, w *world, into map[types.NamespacedName]T, read func(client.Object) T) kind {
	return kind{name: name, objects: objects, handler: track(w, into, read), clear: func() { clear(into) }}
}

// asIs takes an object as the cache has it: strip has reduced it already.
func asIs[T client.Object](object client.Object) T { return object.(T) }

// track keeps a map of objects by namespace and name. A change that touches nothing that is read makes no noise.
func track[T any](w *world, into map[types.NamespacedName]T, read func(client.Object) T) toolscache.ResourceEventHandler {
	return informer.Handler(func(object client.Object) {
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

// unchanged compares what is read of two states of one object. A neighbour's generation moves with fields that are
// not read; ours moves with every one.
func unchanged(old, value any) bool {
	switch v := value.(type) {
	case *v1alpha1.Infra:
		return informer.SameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.Infra).Status, v.Status)
	case *v1alpha1.InfraClusterAttachment:
		o := old.(*v1alpha1.InfraClusterAttachment)
		return informer.SameIdentity(o, v) && slices.Equal(o.Finalizers, v.Finalizers) && reflect.DeepEqual(o.Status, v.Status)
	case *v1alpha1.DHCPServer:
		return informer.SameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.DHCPServer).Status, v.Status)
	case *v1alpha1.DNSServer:
		return informer.SameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.DNSServer).Status, v.Status)
	case *v1alpha1.ProxyServer:
		return informer.SameIdentity(old.(client.Object), v) && reflect.DeepEqual(old.(*v1alpha1.ProxyServer).Status, v.Status)
	case *liveLease:
		return old.(*liveLease).sameHold(v)
	case *coordinationv1.Lease:
		return process.SaysTheSame(old.(*coordinationv1.Lease), v) // whether one has run out is looked at every few seconds
	case *corev1.Service:
		o := old.(*corev1.Service)
		return reflect.DeepEqual(o.Spec, v.Spec) && reflect.DeepEqual(o.Status, v.Status) && reflect.DeepEqual(o.OwnerReferences, v.OwnerReferences)
	case *hypershift.HostedCluster:
		o := old.(*hypershift.HostedCluster)
		return o.DeletionTimestamp.IsZero() == v.DeletionTimestamp.IsZero() && reflect.DeepEqual(o.Spec, v.Spec) && reflect.DeepEqual(o.Status, v.Status)
	case *hypershift.NodePool:
		return reflect.DeepEqual(old.(*hypershift.NodePool).Spec, v.Spec)
	}
	return reflect.DeepEqual(old, value)
}

func (w *world) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// watch starts an informer for each kind, for those that are not served as soon as they are, and anew in another version
// when the one that is watched is served no longer.
func (w *world) watch(ctx context.Context) error {
	kinds := w.kinds()
	watched := make([]client.Object, len(kinds)) // what each kind is watched as; nil: it is not
	for {
		for i, k := range kinds {
			if watched[i] != nil && len(k.objects) > 1 && !w.serves(watched[i]) {
				w.log.Warn("a version of a kind is served no longer, looking for another one", "kind", k.name)
				w.forget(ctx, k, watched[i])
				watched[i] = nil
			}
			if watched[i] != nil {
				continue
			}
			object, err := w.start(ctx, k)
			if ctx.Err() != nil {
				return nil //nolint:nilerr // whatever it is, it is over
			}
			switch {
			case err == nil:
				watched[i] = object
				w.setMissing(k.name, false)
				w.notify()
			case meta.IsNoMatchError(err):
				w.setMissing(k.name, true)
			default:
				w.log.Warn("a kind cannot be watched yet, trying again", "kind", k.name, "error", err)
			}
		}
		if !sleep(ctx, missingRetry) {
			return nil
		}
	}
}

// start watches a kind in the first of its versions that is served, and gives the object that it is watched as.
func (w *world) start(ctx context.Context, k kind) (client.Object, error) {
	var unserved error
	for _, object := range k.objects {
		if len(k.objects) > 1 && !w.serves(object) {
			unserved = &meta.NoKindMatchError{GroupKind: object.GetObjectKind().GroupVersionKind().GroupKind()}
			continue
		}
		watched, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
		if meta.IsNoMatchError(err) {
			unserved = err
			continue
		}
		if err != nil {
			return nil, err
		}
		registration, err := watched.AddEventHandler(k.handler)
		if err != nil {
			return nil, err
		}
		w.mu.Lock()
		w.synced[k.name] = registration
		w.mu.Unlock()
		return object, nil
	}
	return nil, unserved
}

// forget ends the watch of a kind, with what it has read: until another version has been read in full, nothing is
// planned.
func (w *world) forget(ctx context.Context, k kind, object client.Object) {
	w.mu.Lock()
	k.clear()
	delete(w.missing, k.name)
	delete(w.synced, k.name)
	w.mu.Unlock()
	if err := w.cache.RemoveInformer(ctx, object); err != nil {
		w.log.Warn("a watch cannot be ended", "kind", k.name, "error", err)
	}
}

// serves tells whether the cluster serves the version of an object; while it cannot be asked, nothing changes.
func (w *world) serves(object client.Object) bool {
	gvk := object.GetObjectKind().GroupVersionKind()
	resources, err := w.discovery.ServerResourcesForGroupVersion(gvk.GroupVersion().String())
	if err != nil {
		return !apierrors.IsNotFound(err)
	}
	return slices.ContainsFunc(resources.APIResources, func(r metav1.APIResource) bool { return r.Kind == gvk.Kind })
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

// hasNamespace tells whether a namespace exists.
func (w *world) hasNamespace(name string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := w.namespaces[types.NamespacedName{Name: name}]
	return has
}

// newScheme holds every typed kind that is read or written.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		v1alpha1.AddToScheme(s), hypershift.AddToScheme(s), corev1.AddToScheme(s),
		discoveryv1.AddToScheme(s), coordinationv1.AddToScheme(s),
	)
}
