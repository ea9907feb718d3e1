package workloads

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/informer"
)

// Installation says with which settings VLAN pods are written.
type Installation struct {
	// Settings of the installation, as far as they were given.
	Settings workload.Settings
	// Pod is the hub's own: its image, pull policy and pull secrets are taken where Settings name no image and no secrets.
	// Zero: it has none, and Settings is all there is.
	Pod types.NamespacedName
}

// Config is what a Writer needs.
type Config struct {
	Installation
	REST *rest.Config
	Log  *slog.Logger
	// Registerer of the metrics that are about VLAN pods alone.
	Registerer prometheus.Registerer
	// Writes and WriteFailures are the hub's: what is written here counts there.
	Writes, WriteFailures prometheus.Counter
	// Infra is the only one to write for; zero: all.
	Infra types.NamespacedName
	// Lead tells until when this process may write; false: it may not now.
	Lead func() (time.Time, bool)
	// Changed has everything planned again: what is said of VLAN pods may be something else now. It must not block.
	Changed func()
	// HasNamespace tells whether a namespace exists.
	HasNamespace func(string) bool
	Clock        func() time.Time
}

// Writer brings the objects of VLAN pods to what package workload builds of each Infra: Deployments, and all that
// belongs to them. A nil Writer writes none, and has nothing to say of any.
type Writer struct {
	cfg     Config
	cache   cache.Cache
	client  client.Client
	queue   workqueue.TypedRateLimitingInterface[types.NamespacedName]
	started time.Time

	mu            sync.Mutex
	registrations []toolscache.ResourceEventHandlerRegistration // one for each kind, once all are watched
	settings      *workload.Settings                            // nil: not known yet
	settingsErr   error                                         // why not
	infras        map[types.NamespacedName]*wantedInfra         // nil: nothing is planned yet
	there         map[objectKey]client.Object                   // as the watches have it
	// belonging are those of there, by the Infras that they say they belong to, as belongsTo names them.
	belonging map[types.NamespacedName]map[objectKey]client.Object
	events    map[objectKey]int64         // of the watches, counted
	applied   map[objectKey]appliedObject // by this process
	failures  map[types.NamespacedName]error
	// unwritten are the public Services that cannot be written, and why.
	unwritten map[objectKey]error
	wrote     map[types.NamespacedName]time.Time
	waiting   map[types.NamespacedName]bool // for their turn to be upgraded
	turn      *turn                         // whose it is; nil: something has changed
	// missed: something was not written because this process did not lead, or had not read everything.
	missed bool
}

// kinds are the kinds that package workload builds.
func kinds() []client.Object {
	return []client.Object{
		&corev1.ServiceAccount{}, &rbacv1.RoleBinding{}, &corev1.ConfigMap{}, &corev1.Service{}, &networkingv1.NetworkPolicy{},
		&policyv1.PodDisruptionBudget{}, &appsv1.Deployment{},
	}
}

func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(
		v1alpha1.AddToScheme(s), corev1.AddToScheme(s), rbacv1.AddToScheme(s), networkingv1.AddToScheme(s),
		policyv1.AddToScheme(s), appsv1.AddToScheme(s),
	)
}

// New makes a Writer. It talks to nobody before Run.
func New(cfg Config) (*Writer, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := cache.New(cfg.REST, cache.Options{
		Scheme: scheme, DefaultTransform: cache.TransformStripManagedFields(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{workload.LabelManagedBy: workload.ManagedBy}),
	})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	writer, err := client.New(cfg.REST, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	w := &Writer{
		cfg: cfg, cache: c, client: writer, started: cfg.Clock(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[types.NamespacedName](firstRetry, lastRetry)),
		there:     map[objectKey]client.Object{},
		belonging: map[types.NamespacedName]map[objectKey]client.Object{},
		events:    map[objectKey]int64{},
		applied:   map[objectKey]appliedObject{},
		failures:  map[types.NamespacedName]error{},
		unwritten: map[objectKey]error{},
		wrote:     map[types.NamespacedName]time.Time{},
		waiting:   map[types.NamespacedName]bool{},
		missed:    true,
	}
	cfg.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_vlan_upgrade_pending", Help: "Infras whose VLAN pods still have to be upgraded. One goes at a time; the first that does not get ready stops the rest.",
	}, w.upgradesPending))
	return w, nil
}

// Run watches and, while this process leads, writes, until ctx ends.
func (w *Writer) Run(ctx context.Context) error {
	if w == nil {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return informer.Run(ctx, w.cache) })
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
