package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/appsingress"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
	"github.com/densityops/oooi/watch/workloads"
)

const (
	// A failed write of an Infra is tried again after firstRetry, then twice that, up to lastRetry.
	firstRetry, lastRetry = 500 * time.Millisecond, time.Minute
	// writers is how many Infras are written at once.
	writers = 4
	// look is how often it is looked at what changes by time alone: Leases of serving processes that run out, and
	// Envoys that do not answer.
	look = time.Second
	// callTimeout bounds one call of the API.
	callTimeout = 5 * time.Second
	// stopGrace is how long the last calls may take when the process ends.
	stopGrace = 2 * time.Second
)

// Config is what a Hub needs.
type Config struct {
	REST *rest.Config
	Log  *slog.Logger
	// Registerer of the metrics.
	Registerer prometheus.Registerer
	// Identity of this process among those that want to lead.
	Identity string
	// Namespace of the Lease that makes the leader.
	Namespace string
	// Infra is the only one to reconcile; zero: all.
	Infra types.NamespacedName
	// Planned is called after each plan; it must return soon.
	Planned func(*plan.Result)
	Clock   func() time.Time
	// Workloads says how VLAN pods are written; nil: none are.
	Workloads *workloads.Installation
}

// Hub watches the objects of a cluster and plans on every change; the leader writes what the plan
// decides.
type Hub struct {
	cfg     Config
	world   *world
	client  client.Client
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	events  record.EventRecorder
	stop    func() // of the events
	metrics *metrics
	// workloads writes VLAN pods; nil: none are written.
	workloads *workloads.Writer

	lock    *timedLock
	elected atomic.Bool // by the election; leadsUntil is what counts
	result  atomic.Pointer[plan.Result]
	// remembered are the statuses that were planned last, by attachment; the cache may lag behind. Owned by plan.
	remembered map[types.UID]v1alpha1.InfraClusterAttachmentStatus
	// hosted acts inside hosted clusters.
	hosted *appsingress.Runner
	// looking: hosted has something to do. Owned by plan.
	looking bool
	// wasAlive says of each Lease of a serving process whether it held when last looked at; guarded by world.mu.
	wasAlive map[types.NamespacedName]bool
	// renewals are the last of each of those Leases; guarded by world.mu.
	renewals map[types.NamespacedName]renewal
	// blind: the API could not be asked for Leases; guarded by world.mu.
	blind bool

	// pending are the ProxyServers that an Envoy has not answered for yet, and since when.
	pendingMu sync.Mutex
	pending   map[types.NamespacedName]time.Time

	failuresMu sync.Mutex
	failures   map[types.NamespacedName]*failure

	// deletingMu is held while orders for hosted are given, and while it is decided that a finalizer goes: never both at once. It
	// guards what follows.
	deletingMu sync.Mutex
	// deleting says since when this process knows that an attachment is being deleted.
	deleting map[types.UID]time.Time
	// released are the attachments whose finalizer is being taken off, or was: nothing is made for them any more.
	released map[types.UID]string
	// stock is what was there when this process got the lead; nil: it does not lead, or does not know yet.
	stock *stock
	// term changes whenever a lead begins, or may have been another's meanwhile; plannedTerm is that of the newest plan.
	term, plannedTerm atomic.Int64
	// behind: the last plan was not acted upon for an attachment that the stock has a newer version of.
	behind bool
	// stockWanted has the stock taken.
	stockWanted chan struct{}
}

// failure is the last write of an Infra's children, if it failed.
type failure struct {
	err error
	// attempt is what was wanted and found then. While nothing of it changes, the next try keeps its time.
	attempt attempt
}

// New makes a Hub. It talks to nobody before Run.
func New(cfg Config) (*Hub, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	headless, err := labels.NewRequirement(corev1.IsHeadlessService, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	serving, err := labels.NewRequirement(process.Label, selection.Exists, nil)
	if err != nil {
		return nil, err
	}
	c, err := cache.New(cfg.REST, cache.Options{
		Scheme:           scheme,
		DefaultTransform: strip,
		ByObject: map[client.Object]cache.ByObject{
			&discoveryv1.EndpointSlice{}: {Label: labels.NewSelector().Add(*headless)},
			&coordinationv1.Lease{}:      {Label: labels.NewSelector().Add(*serving)},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	asked, err := discovery.NewDiscoveryClientForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	writer, err := client.New(cfg.REST, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	h := &Hub{
		cfg: cfg, world: newWorld(c, asked, cfg.Log), client: writer,
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)),
		remembered: map[types.UID]v1alpha1.InfraClusterAttachmentStatus{},
		deleting:   map[types.UID]time.Time{},
		released:   map[types.UID]string{},
		wasAlive:   map[types.NamespacedName]bool{},
		renewals:   map[types.NamespacedName]renewal{},
		pending:    map[types.NamespacedName]time.Time{},
		failures:   map[types.NamespacedName]*failure{},

		stockWanted: make(chan struct{}, 1),
	}
	clientset, err := kubernetes.NewForConfig(cfg.REST)
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	h.lock = &timedLock{Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: leaseName(cfg.Infra)},
		Client:     clientset.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Identity},
	}, lost: h.dropStock, regained: h.world.notify}
	h.hosted = appsingress.New(appsingress.Config{
		Secret: h.secret, Changed: h.world.notify, Log: cfg.Log, Registerer: cfg.Registerer, Clock: cfg.Clock, Lead: h.Leading,
	})
	h.metrics = newMetrics(cfg.Registerer, h.queue.Len)
	if cfg.Workloads != nil {
		if h.workloads, err = workloads.New(workloads.Config{
			Installation: *cfg.Workloads, REST: cfg.REST, Log: cfg.Log, Registerer: cfg.Registerer,
			Writes: h.metrics.writes, WriteFailures: h.metrics.writeFailures, Infra: cfg.Infra,
			Lead: h.leadsUntil, Changed: h.world.notify, HasNamespace: h.world.hasNamespace, Clock: cfg.Clock,
		}); err != nil {
			return nil, err
		}
	}
	if err := h.openEvents(scheme); err != nil {
		return nil, err
	}
	return h, nil
}

// Run watches, plans and, while this process leads, writes, until ctx ends.
func (h *Hub) Run(ctx context.Context) error {
	defer h.stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return informer.Run(ctx, h.world.cache) })
	group.Go(func() error { return h.world.watch(ctx) })
	group.Go(func() error { return h.planOnChange(ctx) })
	group.Go(func() error { return h.elect(ctx) })
	group.Go(func() error {
		h.takeStocks(ctx)
		return nil
	})
	group.Go(func() error { return h.hosted.Run(ctx) })
	group.Go(func() error { return h.workloads.Run(ctx) })
	for range writers {
		group.Go(func() error {
			for h.writeNext(ctx) {
			}
			return nil
		})
	}
	group.Go(func() error {
		<-ctx.Done()
		h.queue.ShutDown()
		return nil
	})
	return group.Wait()
}

// Ready is nil once the first complete plan is made.
func (h *Hub) Ready() error {
	if h.result.Load() != nil {
		return nil
	}
	if err := h.world.complete(); err != nil {
		return err
	}
	return errors.New("waiting for the first plan")
}

// Result is the newest plan; nil: there is none yet.
func (h *Hub) Result() *plan.Result { return h.result.Load() }

// Leading tells whether this process writes.
func (h *Hub) Leading() bool {
	_, leads := h.leadsUntil()
	return leads
}

// planOnChange plans when something that is read has changed. The first change leaves at once; those that come
// while a plan is made fold into the next one, which waits for as long as the last one took, so that planning
// never takes more than half a processor.
func (h *Hub) planOnChange(ctx context.Context) error {
	ticker := time.NewTicker(look)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.world.changed:
		case <-ticker.C:
			if !h.Leading() {
				h.lookAway()
			}
			if !h.servingChanged(ctx) && !h.pendingChanged() && !h.isBehind() {
				continue
			}
		}
		if err := h.world.complete(); err != nil {
			sleep(ctx, 50*time.Millisecond)
			h.world.notify()
			continue
		}
		started := time.Now()
		h.plan()
		took := time.Since(started)
		h.metrics.planSeconds.Observe(took.Seconds())
		sleep(ctx, took)
	}
}

func (h *Hub) plan() {
	term := h.beginTerm()
	objects := h.world.objects()
	published := h.published(objects.Attachments)
	h.recall(&objects)
	result := plan.Plan(plan.Input{
		Objects: objects, Leases: h.world.liveLeases(objects.Infras, h.cfg.Clock()), Limits: plan.ClusterLimits,
		Published: published, ByHostUnknown: h.byHostUnknown(objects.Infras), Unwritten: h.workloads.Unwritten(),
	})
	h.remember(result)
	h.result.Store(result)
	h.lookInto(result)
	h.plannedTerm.Store(term) // from now on this process leads, if it does
	h.metrics.planned(result)
	h.workloads.Planned(result)
	h.forgetDeleted(result)
	h.enqueue(result)
	h.cfg.Planned(result)
}

// enqueue hands every Infra to the writers; those that need no write make none.
func (h *Hub) enqueue(result *plan.Result) {
	if !h.Leading() {
		return
	}
	for _, infra := range result.Infras {
		if h.mayWrite(infra) {
			h.queue.Add(infra.Key())
		}
	}
	for _, a := range slices.Concat(result.Orphans, result.Deleting) {
		h.queue.Add(infraOf(a.Object))
	}
}

// mayWrite is false while an Infra whose children could not be written waits for its next try, and nothing has changed
// that could make it succeed.
func (h *Hub) mayWrite(infra *plan.Infra) bool {
	h.failuresMu.Lock()
	defer h.failuresMu.Unlock()
	f := h.failures[infra.Key()]
	if f == nil {
		return true
	}
	if now := h.attempt(infra); !now.same(f.attempt) {
		h.queue.Forget(infra.Key())
		return true
	}
	return false
}

// noteWrite notes whether the children of an Infra could be written.
func (h *Hub) noteWrite(infra *plan.Infra, err error) {
	h.failuresMu.Lock()
	defer h.failuresMu.Unlock()
	if err == nil {
		delete(h.failures, infra.Key())
		return
	}
	h.failures[infra.Key()] = &failure{err: err, attempt: h.attempt(infra)}
}

// forgetFailures lets everything be tried: what another leader has met meanwhile is not known.
func (h *Hub) forgetFailures() {
	h.failuresMu.Lock()
	defer h.failuresMu.Unlock()
	clear(h.failures)
}

// writeProblem is why the children of an Infra could not be written; nil: they could.
func (h *Hub) writeProblem(infra types.NamespacedName) error {
	h.failuresMu.Lock()
	defer h.failuresMu.Unlock()
	if f := h.failures[infra]; f != nil {
		return f.err
	}
	return nil
}

// recall puts into the statuses what was planned last, which is ahead of the cache until what was written has come back,
// and what was seen in hosted clusters.
func (h *Hub) recall(objects *plan.Objects) {
	if !h.isElected() {
		return // another process writes the statuses, and it is them that count
	}
	seen := h.hosted.Observed()
	for i, a := range objects.Attachments {
		remembered, ok := h.remembered[a.UID]
		observed, looked := seen[client.ObjectKeyFromObject(a)]
		looked = looked && observed.UID == a.UID // one that was made anew may be of another hosted cluster
		if !ok && !looked {
			continue
		}
		remembering := *a
		if ok {
			remembering.Status.Sources, remembering.Status.ExternalService = remembered.Sources, remembered.ExternalService
		}
		if looked && observed.Status.Phase != "" {
			remembering.Status.AppsIngressStatus = &observed.Status
		}
		objects.Attachments[i] = &remembering
	}
}

func (h *Hub) remember(result *plan.Result) {
	clear(h.remembered)
	if !h.isElected() {
		return
	}
	for _, infra := range result.Infras {
		for _, a := range infra.Attachments {
			h.remembered[a.Object.UID] = a.Status
		}
	}
}

// writeNext writes the next Infra of the queue; false: the queue has been shut down.
func (h *Hub) writeNext(ctx context.Context) bool {
	key, quit := h.queue.Get()
	if quit {
		return false
	}
	defer h.queue.Done(key)
	until, leads := h.leadsUntil()
	if !leads {
		h.queue.Forget(key)
		return true
	}
	writing, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if err := h.write(writing, key); err != nil && ctx.Err() == nil {
		h.cfg.Log.Warn("an Infra cannot be written, trying again", "infra", key.String(), "tries", h.queue.NumRequeues(key)+1, "error", err)
		h.metrics.writeFailures.Inc()
		h.queue.AddRateLimited(key)
		return true
	}
	h.queue.Forget(key)
	return true
}

// conditionTime is the time that conditions get when they change: whole seconds, as an object stores them.
func (h *Hub) conditionTime() metav1.Time { return metav1.NewTime(h.cfg.Clock().Truncate(time.Second)) }

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
