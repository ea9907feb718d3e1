package appsingress

import (
	"context"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Attachment is what is to be done in the hosted cluster of one attachment.
type Attachment struct {
	// Key of the attachment in the management cluster. Objects in the hosted cluster bear it in their labels.
	Key types.NamespacedName
	// UID of the attachment: one that is made anew under its name is another one, and may be of another hosted cluster.
	UID types.UID
	// Spec as it was given: what is left out has the defaults.
	Spec v1alpha1.AppsIngress
	// Last is what was known last, over a restart too: its VIP stays while the hosted cluster cannot be asked. It
	// counts only until there is an Observation.
	Last v1alpha1.AppsIngressStatus
	// Kubeconfig is the Secret with the kubeconfig (key "kubeconfig").
	Kubeconfig types.NamespacedName
	// Addresses are where the management cluster reaches the API server, at Port: IPs, or one DNS name.
	Addresses []string
	// Port at Addresses.
	Port int32
	// Waiting says why the hosted cluster cannot be asked yet. Nothing is dialled then; empty: it can.
	Waiting string
	// Hold: nothing is written and nothing is taken away, and what was observed stays. Remove wins over it.
	Hold bool
	// Unfinalized: nothing would have what is made taken away, so nothing is written yet. That there is something to be made is said by
	// Observation.Made.
	Unfinalized bool
	// Remove what was made.
	Remove bool
}

// Observation is what was seen in a hosted cluster.
type Observation struct {
	// UID of the attachment that it is about.
	UID types.UID
	// Status for the attachment. Whether its VIP may be published is somebody else's to say.
	Status v1alpha1.AppsIngressStatus
	// Made: something of ours is in the hosted cluster, or is to be made as soon as the attachment has its finalizer.
	Made bool
	// Removed, with Attachment.Remove: nothing of ours is left there, but what is Left on purpose, because others need it. It
	// is about what is wanted now: as soon as something else is, it is false until that was done.
	Removed bool
	// Left, with Attachment.Remove: what may still be there, each as "Service openshift-ingress/oooi-ingress". As far as is known:
	// the names of the spec, when it cannot be asked. It is not to be changed.
	Left []string
}

// Config of a Runner.
type Config struct {
	// Secret reads a Secret of the management cluster. Errors are those of the API server.
	Secret func(ctx context.Context, key types.NamespacedName) (*corev1.Secret, error)
	// Changed is called after an Observation changed. It must not block.
	Changed func()
	// Log gets what an operator of the hub should know.
	Log *slog.Logger
	// Registerer gets the metrics.
	Registerer prometheus.Registerer
	// Lead tells whether this process may write at the moment; nil: it may. It is asked before each write, for Set may come late.
	Lead func() bool
	// Clock is time.Now unless given.
	Clock func() time.Time
}

// Runner looks into hosted clusters.
type Runner struct {
	config  Config
	metrics *metrics
	// decoding has room for those who decode what a hosted cluster said.
	decoding chan struct{}

	mu       sync.Mutex
	ctx      context.Context // of Run; nil: it does not run
	workers  map[types.NamespacedName]*worker
	observed map[types.NamespacedName]Observation
	running  sync.WaitGroup
}

// New makes a Runner, which does nothing before Run.
func New(config Config) *Runner {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	if config.Lead == nil {
		config.Lead = func() bool { return true }
	}
	if config.Changed == nil {
		config.Changed = func() {}
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	return &Runner{
		config: config, metrics: newMetrics(config.Registerer), decoding: make(chan struct{}, decoders),
		workers: map[types.NamespacedName]*worker{}, observed: map[types.NamespacedName]Observation{},
	}
}

// Run works until the context ends, and waits for all that it started. It is for one call.
func (r *Runner) Run(ctx context.Context) error {
	r.mu.Lock()
	r.ctx = ctx
	for _, w := range r.workers {
		r.start(w)
	}
	r.mu.Unlock()
	<-ctx.Done()
	r.mu.Lock()
	r.ctx = nil
	r.mu.Unlock()
	r.running.Wait()
	return nil
}

// start starts a worker, when the Runner runs. The lock is held.
func (r *Runner) start(w *worker) {
	if r.ctx == nil {
		return
	}
	ctx, cancel := context.WithCancel(r.ctx)
	w.stop = cancel
	r.running.Go(func() {
		defer cancel()
		w.run(ctx)
	})
}

// Set says what is to be done, for all attachments: those that are missing are stopped and forgotten, and those that did not change go
// on undisturbed; another Last is no change. It never waits for a hosted cluster, and may be called before Run.
func (r *Runner) Set(all []Attachment) {
	r.mu.Lock()
	defer r.mu.Unlock()
	there := map[types.NamespacedName]bool{}
	for _, a := range all {
		a.Spec = *a.Spec.DeepCopy()
		a.Addresses = slices.Clone(a.Addresses)
		there[a.Key] = true
		if w := r.workers[a.Key]; w != nil && w.want.UID == a.UID {
			if w.set(a) {
				if o, known := r.observed[a.Key]; known {
					o.Removed, o.Left = false, nil
					r.observed[a.Key] = o
				}
			}
			continue
		}
		r.drop(a.Key)
		w := newWorker(r, a)
		r.workers[a.Key] = w
		r.start(w)
	}
	for key := range r.workers {
		if !there[key] {
			r.drop(key)
		}
	}
}

// drop stops and forgets a worker, if there is one. The lock is held.
func (r *Runner) drop(key types.NamespacedName) {
	if w := r.workers[key]; w != nil {
		w.stop()
		delete(r.workers, key)
		delete(r.observed, key)
		r.metrics.forget(key)
	}
}

// Observed is what was seen last of each attachment that there was time to look at.
func (r *Runner) Observed() map[types.NamespacedName]Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.observed)
}

// requestFailed counts a request, unless its attachment is forgotten.
func (r *Runner) requestFailed(w *worker) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.workers[w.key] == w {
		r.metrics.requestFailed(w.key)
	}
}

// observe keeps what a worker saw, unless it was stopped, or given something else to do, in the meantime; changed tells whether
// it is new.
func (r *Runner) observe(pass context.Context, w *worker, o Observation) (changed bool) {
	r.mu.Lock()
	last, known := r.observed[w.key]
	if r.workers[w.key] != w || pass.Err() != nil || known && reflect.DeepEqual(last, o) {
		r.mu.Unlock()
		return false
	}
	r.observed[w.key] = o
	r.metrics.observed(w.key, o.Status.Phase)
	r.mu.Unlock()
	if !known || last.Status.Phase != o.Status.Phase || last.Status.Reason != o.Status.Reason || last.Status.ExternalIP != o.Status.ExternalIP {
		level := slog.LevelInfo
		if o.Status.Phase == v1alpha1.PhaseDegraded {
			level = slog.LevelWarn
		}
		r.config.Log.Log(pass, level, "apps ingress", "attachment", w.key.String(), "phase", o.Status.Phase, "reason", o.Status.Reason,
			"vip", o.Status.ExternalIP, "message", o.Status.Message)
	}
	r.config.Changed()
	return true
}
