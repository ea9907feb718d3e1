package appsingress

import (
	"context"
	"log/slog"
	"maps"
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
	// Hold: nothing is written and nothing is taken away, and what was observed stays.
	Hold bool
	// Remove what was made.
	Remove bool
}

// Observation is what was seen in a hosted cluster.
type Observation struct {
	// Status for the attachment. Whether its VIP may be published is somebody else's to say.
	Status v1alpha1.AppsIngressStatus
	// Removed, with Attachment.Remove: nothing of ours is left there.
	Removed bool
	// Left, with Attachment.Remove: what may still be there, each as "Service openshift-ingress/oooi-ingress". As far as is known:
	// the names of the spec, when it cannot be asked.
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
	// Clock is time.Now unless given.
	Clock func() time.Time
}

// Runner looks into hosted clusters.
type Runner struct {
	config Config

	mu       sync.Mutex
	observed map[types.NamespacedName]Observation
}

// New makes a Runner, which does nothing before Run.
func New(config Config) *Runner {
	if config.Clock == nil {
		config.Clock = time.Now
	}
	return &Runner{config: config, observed: map[types.NamespacedName]Observation{}}
}

// Run works until the context ends, and waits for all that it started. It is for one call.
func (r *Runner) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Set says what is to be done, for all attachments: those that are missing are stopped and forgotten, and those that did not change go
// on undisturbed. It never blocks on a hosted cluster, and may be called before Run.
func (r *Runner) Set(_ []Attachment) {}

// Observed is what was seen last of each attachment that there was time to look at.
func (r *Runner) Observed() map[types.NamespacedName]Observation {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.observed)
}
