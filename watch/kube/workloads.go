package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/plan"
)

const (
	// readPatience is how long the objects of VLAN pods may take to be read before it is said that they are not.
	readPatience = 10 * time.Second
	// cachePatience is how long a watch may take to show what was written.
	cachePatience = 10 * time.Second
	// calm is the least time between two writes of one Infra's objects that somebody else changes again and again.
	calm = time.Second
)

// WorkloadsConfig says with which settings the hub writes VLAN pods.
type WorkloadsConfig struct {
	// Settings of the installation, as far as they were given.
	Settings workload.Settings
	// Pod is the hub's own: its image, pull policy and pull secrets are taken where Settings name no image and no secrets.
	// Zero: it has none, and Settings is all there is.
	Pod types.NamespacedName
}

// workloads brings the objects of VLAN pods to what package workload builds of each Infra: Deployments, and all that
// belongs to them. It has a queue of its own, so that whatever is wrong with a Deployment holds up no child and no status.
type workloads struct {
	cfg     WorkloadsConfig
	log     *slog.Logger
	clock   func() time.Time
	only    types.NamespacedName // the one Infra of this hub; zero: all
	cache   cache.Cache
	client  client.Client
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	metrics *hubMetrics
	// leads is until when this process may write.
	leads func() (time.Time, bool)
	// changed has everything planned again: what is said of VLAN pods may be something else now.
	changed func()
	// namespaceThere tells whether a namespace exists.
	namespaceThere func(string) bool
	started        time.Time

	mu            sync.Mutex
	registrations []toolscache.ResourceEventHandlerRegistration // one for each kind, once all are watched
	settings      *workload.Settings                            // nil: not known yet
	settingsErr   error                                         // why not
	infras        map[types.NamespacedName]*wantedInfra         // nil: nothing is planned yet
	there         map[workloadKey]client.Object                 // as the watches have it
	// belonging are those of there, by the Infras that they say they belong to, as belongsTo names them.
	belonging map[types.NamespacedName]map[workloadKey]client.Object
	events    map[workloadKey]int64         // of the watches, counted
	applied   map[workloadKey]appliedObject // by this process
	failures  map[types.NamespacedName]error
	// unwritten are the public Services that cannot be written, and why.
	unwritten map[workloadKey]error
	wrote     map[types.NamespacedName]time.Time
	waiting   map[types.NamespacedName]bool // for their turn to be upgraded
	turn      *turn                         // whose it is; nil: something has changed
	// missed: something was not written because this process did not lead, or had not read everything.
	missed bool
}

// workloadKey names an object of any kind.
type workloadKey struct {
	kind string
	types.NamespacedName
}

func (k workloadKey) String() string { return k.kind + " " + k.NamespacedName.String() }

// wantedInfra is what an Infra wants to be there.
type wantedInfra struct {
	infra       *v1alpha1.Infra
	attachments workload.Attachments
	settings    *workload.Settings

	objects []*wantedObject // in the order in which they are written
	byKey   map[workloadKey]*wantedObject
	err     error // why nothing is known to be wanted
}

func (i *wantedInfra) deleting() bool { return !i.infra.DeletionTimestamp.IsZero() }

// workloadKinds are the kinds that package workload builds.
func workloadKinds() []client.Object {
	return []client.Object{
		&corev1.ServiceAccount{}, &rbacv1.RoleBinding{}, &corev1.ConfigMap{}, &corev1.Service{}, &networkingv1.NetworkPolicy{},
		&policyv1.PodDisruptionBudget{}, &appsv1.Deployment{},
	}
}

func newWorkloadScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		v1alpha1.AddToScheme(s), corev1.AddToScheme(s), rbacv1.AddToScheme(s), networkingv1.AddToScheme(s),
		policyv1.AddToScheme(s), appsv1.AddToScheme(s),
	)
}

// newWorkloads makes the part of a Hub that writes VLAN pods.
func newWorkloads(h *Hub) (*workloads, error) {
	scheme, err := newWorkloadScheme()
	if err != nil {
		return nil, err
	}
	c, err := cache.New(h.cfg.REST, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{workload.LabelManagedBy: workload.ManagedBy}),
	})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", h.cfg.REST.Host, err)
	}
	writer, err := client.New(h.cfg.REST, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", h.cfg.REST.Host, err)
	}
	w := &workloads{
		cfg: *h.cfg.Workloads, log: h.cfg.Log, clock: h.cfg.Clock, only: h.cfg.Infra, cache: c, client: writer,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)),
		metrics: h.metrics, leads: h.leadsUntil, changed: h.world.notify, started: h.cfg.Clock(),
		namespaceThere: func(name string) bool { return known(h.world, h.world.namespaces, types.NamespacedName{Name: name}) },
		there:          map[workloadKey]client.Object{}, belonging: map[types.NamespacedName]map[workloadKey]client.Object{}, events: map[workloadKey]int64{}, applied: map[workloadKey]appliedObject{},
		failures: map[types.NamespacedName]error{}, unwritten: map[workloadKey]error{}, wrote: map[types.NamespacedName]time.Time{},
		waiting: map[types.NamespacedName]bool{}, missed: true,
	}
	h.metrics.watchUpgrades(h.cfg.Registerer, w.upgradesPending)
	return w, nil
}

// known tells whether the world has an object.
func known[T any](w *world, in map[types.NamespacedName]T, key types.NamespacedName) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, has := in[key]
	return has
}

// run watches and, while this process leads, writes, until ctx ends.
func (w *workloads) run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return startCache(ctx, w.cache) })
	group.Go(func() error {
		w.watch(ctx)
		return nil
	})
	group.Go(func() error {
		w.findSettings(ctx)
		return nil
	})
	for range writers {
		group.Go(func() error {
			for w.writeNext(ctx) {
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		w.queue.ShutDown()
		return nil
	})
	return group.Wait()
}

// watch starts an informer for each kind, and has everything planned again when all have been read, or when they should have
// been.
func (w *workloads) watch(ctx context.Context) {
	var registrations []toolscache.ResourceEventHandlerRegistration
	for _, object := range workloadKinds() {
		for {
			registration, err := w.watchKind(ctx, object)
			if err == nil {
				registrations = append(registrations, registration)
				break
			}
			w.log.Warn("a kind of the VLAN pods' objects cannot be watched yet, trying again", "kind", fmt.Sprintf("%T", object), "error", err)
			if !sleep(ctx, missingRetry) {
				return
			}
		}
	}
	w.mu.Lock()
	w.registrations = registrations
	w.mu.Unlock()
	late := time.NewTimer(readPatience)
	defer late.Stop()
	for _, r := range registrations {
		for synced := false; !synced; {
			select {
			case <-ctx.Done():
				return
			case <-late.C:
				w.log.Warn("the objects of VLAN pods cannot be read yet: nothing is written to them")
				w.changed()
			case <-r.HasSyncedChecker().Done():
				synced = true
			}
		}
	}
	w.changed()
}

func (w *workloads) watchKind(ctx context.Context, object client.Object) (toolscache.ResourceEventHandlerRegistration, error) {
	informer, err := w.cache.GetInformer(ctx, object, cache.BlockUntilSynced(false))
	if err != nil {
		return nil, err
	}
	return informer.AddEventHandler(handler(func(object client.Object) { w.note(object, true) }, func(object client.Object) { w.note(object, false) }))
}

// note takes in that an object is as it is now, or is there no longer.
func (w *workloads) note(object client.Object, there bool) {
	key := w.keyOf(object)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events[key]++
	concerned := w.concerned(key, object)
	before, was := w.there[key]
	if was {
		concerned = append(concerned, w.concerned(key, before)...)
	}
	w.keep(key, object, there)
	if _, ok := object.(*appsv1.Deployment); ok {
		w.turn = nil
		concerned = append(concerned, slices.Collect(maps.Keys(w.waiting))...)
		if !was || !there || !sameDeployment(before, object) {
			w.changed()
		}
	}
	w.enqueue(concerned...)
}

// keep has there and belonging hold an object, or no longer hold it. The lock is held.
func (w *workloads) keep(key workloadKey, object client.Object, there bool) {
	if before, was := w.there[key]; was {
		for _, infra := range belongsTo(before) {
			delete(w.belonging[infra], key)
			if len(w.belonging[infra]) == 0 {
				delete(w.belonging, infra)
			}
		}
		delete(w.there, key)
	}
	if !there {
		return
	}
	w.there[key] = object
	for _, infra := range belongsTo(object) {
		if w.belonging[infra] == nil {
			w.belonging[infra] = map[workloadKey]client.Object{}
		}
		w.belonging[infra][key] = object
	}
}

// belongsTo names the Infras that an object says it belongs to, by its owners and labels, with names as labels have them.
func belongsTo(object client.Object) []types.NamespacedName {
	var infras []types.NamespacedName
	for _, owner := range object.GetOwnerReferences() {
		if owner.Kind == "Infra" {
			infras = append(infras, types.NamespacedName{Namespace: object.GetNamespace(), Name: v1alpha1.LabelValue(owner.Name)})
		}
	}
	if label := object.GetLabels()[v1alpha1.LabelInfra]; label != "" {
		infras = append(infras, types.NamespacedName{Namespace: cmp.Or(object.GetLabels()[v1alpha1.LabelInfraNamespace], object.GetNamespace()), Name: label})
	}
	return infras
}

// enqueue hands Infras to the writers. The lock is held.
func (w *workloads) enqueue(infras ...types.NamespacedName) {
	for _, infra := range infras {
		if since := w.clock().Sub(w.wrote[infra]); since < calm {
			w.queue.AddAfter(infra, calm-since)
			continue
		}
		w.queue.Add(infra)
	}
}

// concerned are the Infras that an object belongs to, or that want an object of its name; for one that does not exist, its name
// as a label. The lock is held.
func (w *workloads) concerned(key workloadKey, object client.Object) []types.NamespacedName {
	belongs := belongsTo(object)
	var infras []types.NamespacedName
	for infra, want := range w.infras {
		label := types.NamespacedName{Namespace: infra.Namespace, Name: v1alpha1.LabelValue(infra.Name)}
		if i := slices.Index(belongs, label); i >= 0 {
			belongs[i] = infra
		} else if want.byKey[key] != nil {
			infras = append(infras, infra)
		}
	}
	infras = append(infras, belongs...)
	slices.SortFunc(infras, compareNames)
	return slices.Compact(infras)
}

func compareNames(a, b types.NamespacedName) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}

// planned takes in what a plan wants.
func (w *workloads) planned(result *plan.Result) {
	if w == nil {
		return
	}
	_, leads := w.leads()
	w.mu.Lock()
	defer w.mu.Unlock()
	var dirty []types.NamespacedName
	infras := map[types.NamespacedName]*wantedInfra{}
	for _, infra := range result.Infras {
		key := infra.Key()
		if w.only.Name != "" && key != w.only {
			continue
		}
		infras[key] = w.want(infra, w.infras[key])
		if infras[key] != w.infras[key] {
			dirty = append(dirty, key)
			w.queue.Forget(key)
		}
	}
	for key := range w.infras {
		if infras[key] == nil {
			dirty = append(dirty, key)
			w.queue.Forget(key)
			delete(w.failures, key)
			delete(w.waiting, key)
			delete(w.wrote, key)
		}
	}
	w.infras, w.turn = infras, nil
	maps.DeleteFunc(w.unwritten, func(key workloadKey, _ error) bool {
		for _, want := range infras {
			if want.byKey[key] != nil {
				return false
			}
		}
		return true
	})
	if !leads || !w.complete() {
		w.missed = true
		return
	}
	if w.missed { // what another leader has met meanwhile is not known
		w.missed = false
		dirty = slices.Collect(maps.Keys(infras))
		for key, object := range w.there {
			dirty = append(dirty, w.concerned(key, object)...)
		}
		for key := range w.failures {
			w.queue.Forget(key)
		}
	}
	if len(dirty) > 0 {
		dirty = slices.AppendSeq(dirty, maps.Keys(w.waiting))
	}
	slices.SortFunc(dirty, compareNames)
	for _, key := range slices.Compact(dirty) {
		w.queue.Add(key)
	}
}

// want is what an Infra of a plan wants; the one before, when nothing has changed that it depends on. The lock is held.
func (w *workloads) want(infra *plan.Infra, before *wantedInfra) *wantedInfra {
	now := &wantedInfra{infra: infra.Object, settings: w.settings, attachments: w.attachmentsOf(infra), byKey: map[workloadKey]*wantedObject{}}
	if before != nil && before.settings == now.settings && before.infra.UID == now.infra.UID && before.infra.Generation == now.infra.Generation &&
		before.deleting() == now.deleting() && equality.Semantic.DeepEqual(before.attachments, now.attachments) {
		return before
	}
	if w.settings != nil && !now.deleting() {
		now.err = w.build(now)
	}
	return now
}

// attachmentsOf are what an Infra's objects depend on besides the Infra itself.
func (w *workloads) attachmentsOf(infra *plan.Infra) workload.Attachments {
	var of workload.Attachments
	for _, a := range infra.Attachments {
		if namespace := a.Object.ControlPlaneNamespace(); a.LeftOut == nil && w.namespaceThere(namespace) {
			of.ControlPlanes = append(of.ControlPlanes, namespace)
		}
		if public := a.Object.Spec.ExternalService; a.External != nil {
			of.External = append(of.External, workload.External{
				Attachment: a.Object.Name, Port: a.External.Port, AddressPool: public.AddressPoolName,
				Labels: public.Labels, Annotations: public.Annotations,
			})
		}
	}
	slices.Sort(of.ControlPlanes)
	of.ControlPlanes = slices.Compact(of.ControlPlanes)
	return of
}

func (w *workloads) build(want *wantedInfra) error {
	objects, err := workload.Build(want.infra, want.attachments, *want.settings)
	if err != nil {
		return err
	}
	for _, object := range objects {
		o, err := newWantedObject(w.keyOf(object), want.infra, object)
		if err != nil {
			return err
		}
		want.objects = append(want.objects, o)
		want.byKey[o.key] = o
	}
	return nil
}

// complete tells whether everything is known that must be before something is written: the objects that are there, the
// settings, and a plan. The lock is held.
func (w *workloads) complete() bool { return w.infras != nil && w.settings != nil && w.synced() }

// synced tells whether all objects have been read. The lock is held.
func (w *workloads) synced() bool {
	return w.registrations != nil && !slices.ContainsFunc(w.registrations, func(r toolscache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() })
}

// keyOf names an object.
func (w *workloads) keyOf(object client.Object) workloadKey {
	kind := object.GetObjectKind().GroupVersionKind().Kind
	if kind == "" { // as informers give it
		if gvks, _, err := w.client.Scheme().ObjectKinds(object); err == nil {
			kind = gvks[0].Kind
		}
	}
	return workloadKey{kind, client.ObjectKeyFromObject(object)}
}

// writeNext writes the next Infra of the queue; false: the queue has been shut down.
func (w *workloads) writeNext(ctx context.Context) bool {
	key, quit := w.queue.Get()
	if quit {
		return false
	}
	defer w.queue.Done(key)
	until, leads := w.leads()
	if !leads || !w.mayWrite() {
		w.miss(key)
		return true
	}
	writing, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	started := w.clock()
	err, public := w.write(writing, key)
	own := err
	err = errors.Join(own, public)
	_, leads = w.leads()
	switch {
	case ctx.Err() != nil:
	case err != nil && !leads:
		w.miss(key)
	case errors.Is(err, context.DeadlineExceeded) && w.wroteSince(key, started):
		w.queue.Add(key) // there was more to write than fits into one term of the lead
	case isBehind(err):
		w.queue.Forget(key)
		w.queue.AddAfter(key, firstRetry)
	case err != nil:
		w.log.Warn("what belongs to an Infra's VLAN pods cannot be written, trying again", "infra", key.String(), "tries", w.queue.NumRequeues(key)+1, "error", err)
		w.metrics.writeFailures.Inc()
		w.noteFailure(key, own)
		w.queue.AddRateLimited(key)
	default:
		w.noteFailure(key, nil)
		w.queue.Forget(key)
	}
	return true
}

func (w *workloads) mayWrite() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete()
}

func (w *workloads) wroteSince(key types.NamespacedName, start time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.wrote[key].Before(start)
}

// miss has everything written once this process leads and knows everything: planned sees to it.
func (w *workloads) miss(key types.NamespacedName) {
	w.queue.Forget(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = true
}

func (w *workloads) noteFailure(key types.NamespacedName, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.failures[key]
	if err == nil {
		delete(w.failures, key)
	} else {
		w.failures[key] = err
	}
	if (before == nil) != (err == nil) || err != nil && before.Error() != err.Error() {
		w.changed()
	}
}
