package leases

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

const (
	// fieldOwner is the one name under which leases are written.
	fieldOwner = "oooi"
	// stopGrace is how long the last writes may take when the process ends.
	stopGrace = 2 * time.Second
	// leaseTimeout bounds writing one lease: its client asks again after 3 to 5 s (RFC 2131 section 4.1).
	leaseTimeout = 3 * time.Second
	// leaseWriters is how many leases are written at once.
	leaseWriters = 32
	// lookTimeout bounds asking for all leases while nobody waits for them.
	lookTimeout = 10 * time.Second
)

// Config is what a Store needs.
type Config struct {
	REST *rest.Config
	Log  *slog.Logger
	// Registerer of the metrics, which have no label of their own.
	Registerer prometheus.Registerer
	// Infra whose leases these are.
	Infra types.NamespacedName
	// Child gives the DHCPServer of the Infra as it is now; nil: there is none, or it is not known yet. New leases get its
	// owner, and holds last for its lease time.
	Child func() *v1alpha1.DHCPServer
	// StateDir keeps what is known of the leases for a start without the API, and what the API does not have yet.
	StateDir string
	Clock    func() time.Time
	// Boottime is CLOCK_BOOTTIME unless a test says otherwise: how much time has really passed (dhcpserver.WallClock).
	Boottime func() time.Duration
}

// Store keeps the leases of one Infra as DHCPLeases. It is a dhcpserver.SharedStore.
//
// The API has the last word: a lease is created before its first ACK, and every later write names the version that it
// replaces, so that of two pods which give one address only one can. What the API has is followed by a watch and kept
// in the state folder, so that a standby knows everything at once when it becomes the holder, whether the API
// can be asked then or not.
//
// # The API away
//
// The API is away when a request gets no answer, or one of 5xx. Then a renewal of a lease that this process knows as its
// client's own is made durable in the state folder, and written to the API when that is back, unless somebody else has
// the address by then or the client has renewed elsewhere. Nothing else is written: no address gets a new client. One
// client at most waits for a request that gets no answer; until another request finds the API back, none is made
// for clients. A single request that the API is too busy for (429) is treated alike, and says nothing about the next one. So is
// one that it refuses (401, 403): a right that was taken from the pods must not take the addresses from the workers.
//
// While there are renewals that the API does not have, the Lease of the VLAN tells the next holder to hold what they may be of.
//
// # Holds
//
// No address changes hands until one lease time after the API came back: what was active when it was last seen is held
// (see dhcpserver.Server.Hold). The same is done by a pod that becomes the holder, for what was active when the holder before it was
// last seen with the API, since that one may have renewed what it knew after it was cut off (TakeOver). Put
// refuses what is held, and the server is told, so that it does not offer it. Holds outlive a restart in the state folder, and
// the pod in the Lease of the VLAN (Annotate, Learn).
//
// What was active before the clock was set forward is held, too. That it was set between two processes is noticed where they have
// the state folder in common and the host was not started anew between. Otherwise it is not, and the hold of TakeOver is
// what there is.
type Store struct {
	cfg     Config
	client  client.WithWatch
	http    *http.Client
	api     *contact
	kept    *keptLeases
	metrics *leaseMetrics
	watch   toolscache.Controller
	wall    *dhcpserver.WallClock
	boot    string     // the run of the host
	looking sync.Mutex // is held while wall is looked at
	// writing is held while leases are loaded or written.
	writing sync.Mutex

	mu sync.Mutex
	// base is what the server knows of each address: it was loaded, put, or named in a conflict.
	base map[netip.Addr]*baseLease
	// seen are the objects as the watch has them.
	seen map[netip.Addr]*v1alpha1.DHCPLease
	// complete tells that all leases of the API were known once.
	complete bool
	// unsent are renewals that the API does not have yet.
	unsent map[netip.Addr]dhcpserver.Lease
	// away is when the API was last seen; zero: it is there. missed tells that this very process has found it away.
	away   time.Time
	missed bool
	// behind is since when the API has not had every renewal that is unsent; zero: not known. told is what the next holder was told
	// of it last.
	behind, told time.Time
	// refused tells that it was logged that the API refuses leases, and unsendable that some cannot be sent.
	refused, unsendable bool
	holds               []leaseHold
	onHold              func(since, until time.Time)
}

// baseLease is what the server knows of one address.
type baseLease struct {
	// lease as the server has it.
	lease dhcpserver.Lease
	// stored is the lease that the API has, as far as is known; zero: none.
	stored dhcpserver.Lease
	// object is the object with that lease; nil: there is none, or it was not read.
	object *v1alpha1.DHCPLease
}

// New opens the state folder. It talks to nobody before Load or Run.
func New(cfg Config) (*Store, error) {
	l := &Store{
		cfg:  cfg,
		base: map[netip.Addr]*baseLease{}, seen: map[netip.Addr]*v1alpha1.DHCPLease{},
	}
	l.wall = dhcpserver.NewWallClock(cfg.Clock, cfg.Boottime)
	if err := l.connect(); err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	l.watch = l.newWatch()
	var err error
	if l.kept, err = openKept(cfg.Log, cfg.StateDir, cfg.Infra); err != nil {
		return nil, err
	}
	if l.metrics, err = newLeaseMetrics(cfg.Registerer, l.counts); err != nil {
		return nil, errors.Join(err, l.kept.close())
	}
	state, unsent, lost, err := l.kept.load()
	if err != nil {
		return nil, errors.Join(err, l.kept.close())
	}
	l.unsent, l.complete, l.away, l.holds, l.behind = unsent, state.Complete, state.Away, state.Holds, state.Behind
	l.caughtUp()
	if l.boot = bootID(); l.boot != "" && l.boot == state.Boot {
		l.wall.Resume(state.Zero)
		l.look()
	}
	if lost {
		// What was renewed without the API is not known any more: whatever was active may be in use.
		l.hold(time.Time{})
	}
	return l, nil
}

// connect makes the clients. They share their connections, and every answer tells whether the API is there.
func (l *Store) connect() error {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	l.api = &contact{clock: l.cfg.Clock, last: l.cfg.Clock(), lost: l.lost}
	config := rest.CopyConfig(l.cfg.REST)
	config.Wrap(l.api.wrap)
	config.WarningHandler = rest.NoWarnings{} // they are for people with kubectl
	config.QPS = -1                           // the API server knows better how much it can take
	var err error
	if l.http, err = rest.HTTPClientFor(config); err != nil {
		return err
	}
	// Nothing is asked of the API that is known anyway.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	mapper.Add(v1alpha1.GroupVersion.WithKind("DHCPLease"), meta.RESTScopeNamespace)
	l.client, err = client.NewWithWatch(config, client.Options{HTTPClient: l.http, Scheme: scheme, Mapper: mapper})
	return err
}

// Close closes the state folder. Run and the server must have ended.
func (l *Store) Close() error {
	utilnet.CloseIdleConnectionsFor(l.http.Transport)
	return l.kept.close()
}

// Away tells since when the API has been away.
func (l *Store) Away() (since time.Time, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away, !l.away.IsZero()
}

// OnHold implements dhcpserver.SharedStore.
func (l *Store) OnHold(hold func(since, until time.Time)) {
	l.mu.Lock()
	l.onHold = hold
	holds := l.holds
	l.mu.Unlock()
	for _, h := range holds {
		hold(h.Since, h.Until)
	}
}
