package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	// leaseTimeout bounds writing one lease: its client asks again after 3 to 5 s (RFC 2131 section 4.1).
	leaseTimeout = 3 * time.Second
	// leaseWriters is how many leases are written at once.
	leaseWriters = 32
	// lookTimeout bounds asking for all leases while nobody waits for them.
	lookTimeout = 10 * time.Second
)

// LeasesConfig is what Leases need.
type LeasesConfig struct {
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

// Leases keep the leases of one Infra as DHCPLeases. They are a dhcpserver.SharedStore.
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
type Leases struct {
	cfg     LeasesConfig
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

// NewLeases opens the state folder. It talks to nobody before Load or Run.
func NewLeases(cfg LeasesConfig) (*Leases, error) {
	l := &Leases{
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
func (l *Leases) connect() error {
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	l.api = &contact{clock: l.cfg.Clock, last: l.cfg.Clock(), lost: l.lost}
	config := rest.CopyConfig(l.cfg.REST)
	config.Wrap(l.api.wrap)
	config.WarningHandler = rest.NoWarnings{} // they are for people with kubectl
	config.QPS = -1                           // the API server knows better how much it can take
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
func (l *Leases) Close() error {
	utilnet.CloseIdleConnectionsFor(l.http.Transport)
	return l.kept.close()
}

// Away tells since when the API has been away.
func (l *Leases) Away() (since time.Time, away bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away, !l.away.IsZero()
}

// OnHold implements dhcpserver.SharedStore.
func (l *Leases) OnHold(hold func(since, until time.Time)) {
	l.mu.Lock()
	l.onHold = hold
	holds := l.holds
	l.mu.Unlock()
	for _, h := range holds {
		hold(h.Since, h.Until)
	}
}

// Load implements dhcpserver.Store. While the API is away it gives what the watch has seen, or what the state
// folder has; if that is nothing, it fails.
func (l *Leases) Load(ctx context.Context) ([]dhcpserver.Lease, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.look()
	objects, err := l.listSoon(ctx)
	switch {
	case err == nil:
		l.back()
		l.setBase(objects)
		l.kept.replace(l.baseLeases())
		l.keepState(true)
	case isRefused(err):
		l.noteRefused(err)
		return l.loadKnown(err)
	case isAway(err):
		return l.loadKnown(err)
	default:
		return nil, fmt.Errorf("DHCPLeases of Infra %s: %w", l.cfg.Infra, err)
	}
	return l.baseLeases(), nil
}

// loadKnown loads what is known without the API, which has failed.
func (l *Leases) loadKnown(failed error) ([]dhcpserver.Lease, error) {
	switch {
	case l.watch.HasSynced():
		l.setBase(l.seenObjects())
	case l.complete:
		l.setBase(nil)
	default:
		return nil, fmt.Errorf("DHCPLeases of Infra %s: %w, and the state folder has none from before", l.cfg.Infra, failed)
	}
	return l.baseLeases(), nil
}

func (l *Leases) baseLeases() []dhcpserver.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	leases := make([]dhcpserver.Lease, 0, len(l.base))
	for _, b := range l.base {
		leases = append(leases, b.lease)
	}
	return leases
}

// listSoon asks for all leases, and fails at once when this process has found the API away already: a pod that takes over
// must not wait for it.
func (l *Leases) listSoon(ctx context.Context) ([]*v1alpha1.DHCPLease, error) {
	l.mu.Lock()
	missed := l.missed
	l.mu.Unlock()
	if missed {
		return nil, dhcpserver.ErrUnreachable
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	return l.list(ctx)
}

// setBase starts from the leases that the API has (or, without objects, those that the state folder has), and adds what
// only this pod knows: renewals that the API does not have yet, and live leases whose objects somebody has deleted.
func (l *Leases) setBase(objects []*v1alpha1.DHCPLease) {
	now := l.cfg.Clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = make(map[netip.Addr]*baseLease, len(objects))
	for _, o := range objects {
		if lease, ok := l.mine(o); ok {
			l.base[lease.Address] = &baseLease{lease: lease, stored: lease, object: o}
		}
	}
	for addr, lease := range l.kept.leases() {
		if l.base[addr] == nil && (objects == nil || l.live(&lease, now)) {
			l.base[addr] = &baseLease{lease: lease}
			if objects == nil {
				l.base[addr].stored = lease
			}
		}
	}
	for addr, renewed := range l.unsent {
		b := l.base[addr]
		switch {
		case b == nil && l.live(&renewed, now):
			l.base[addr] = &baseLease{lease: renewed}
		case b != nil && renews(&b.lease, &renewed):
			b.lease = renewed
		}
	}
}

// renews tells whether a lease is the same client's, and newer.
func renews(old, renewed *dhcpserver.Lease) bool {
	return old.State == dhcpserver.StateActive && old.MAC == renewed.MAC && old.Expires.Before(renewed.Expires)
}

// mine reads an object; false: it is none of this Infra's leases.
func (l *Leases) mine(o *v1alpha1.DHCPLease) (dhcpserver.Lease, bool) {
	lease := readLease(o)
	if !lease.Address.IsValid() || o.Name != l.name(lease.Address) {
		return dhcpserver.Lease{}, false
	}
	return lease, true
}

func (l *Leases) name(addr netip.Addr) string {
	return v1alpha1.DHCPLeaseName(l.cfg.Infra.Name, addr.String())
}

func (l *Leases) labels() map[string]string {
	return map[string]string{v1alpha1.LabelInfra: v1alpha1.LabelValue(l.cfg.Infra.Name)}
}

// all selects the leases of the Infra.
func (l *Leases) all(options ...client.ListOption) []client.ListOption {
	return append(options, client.InNamespace(l.cfg.Infra.Namespace), client.MatchingLabels(l.labels()))
}

// list asks the API for all leases of the Infra as they are now.
func (l *Leases) list(ctx context.Context) ([]*v1alpha1.DHCPLease, error) {
	var all v1alpha1.DHCPLeaseList
	if err := l.client.List(ctx, &all, l.all()...); err != nil {
		return nil, err
	}
	objects := make([]*v1alpha1.DHCPLease, len(all.Items))
	for i := range all.Items {
		objects[i] = &all.Items[i]
		objects[i].ManagedFields = nil
	}
	return objects, nil
}

// fetch asks the API for one lease, whatever its labels; nil: there is none.
func (l *Leases) fetch(ctx context.Context, addr netip.Addr) (*v1alpha1.DHCPLease, error) {
	var all v1alpha1.DHCPLeaseList
	if err := l.client.List(ctx, &all, client.InNamespace(l.cfg.Infra.Namespace), client.MatchingFields{"metadata.name": l.name(addr)}); err != nil {
		return nil, err
	}
	if len(all.Items) == 0 {
		return nil, nil
	}
	return &all.Items[0], nil
}

// Put implements dhcpserver.Store.
func (l *Leases) Put(ctx context.Context, leases []dhcpserver.Lease) []error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.look()
	errs := make([]error, len(leases))
	l.each(ctx, len(leases), func(ctx context.Context, i int) { errs[i] = l.put(ctx, &leases[i]) })

	var sent, renewed []dhcpserver.Lease
	var places []int // of renewed
	failed := false
	for i := range leases {
		switch {
		case errs[i] == nil:
			sent = append(sent, leases[i])
		case (errors.Is(errs[i], dhcpserver.ErrUnreachable) || isRefused(errs[i])) && l.knows(&leases[i]):
			if isRefused(errs[i]) {
				l.noteRefused(errs[i])
			}
			renewed, places = append(renewed, leases[i]), append(places, i)
		default:
			failed = true
		}
	}
	if len(renewed) > 0 {
		l.fallBehind()
		err := l.kept.putUnsent(renewed)
		for n, i := range places {
			if errs[i] = err; err == nil {
				l.renewedHere(&renewed[n])
			}
		}
		failed = failed || err != nil
	}
	l.noteSent(sent)
	if !failed {
		return nil
	}
	return errs
}

// each calls f for every number below n, several at a time, each with the time that one lease may take. Being told to stop does
// not end what has begun: it would not be known what became of it.
func (l *Leases) each(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	var group errgroup.Group
	group.SetLimit(leaseWriters)
	for i := range n {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTimeout)
			defer cancel()
			f(ctx, i)
			return nil
		})
	}
	_ = group.Wait() // none fails
}

// Sure implements dhcpserver.SharedStore: the API has the lease that the server knows, and the watch says so.
func (l *Leases) Sure(addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, seen := l.base[addr], l.seen[addr]
	return l.away.IsZero() && b != nil && b.object != nil && seen != nil && !older(b.object.ResourceVersion, seen.ResourceVersion) &&
		leaseSpec(&b.lease) == leaseSpec(&b.stored)
}

// put writes one lease to the API.
func (l *Leases) put(ctx context.Context, lease *dhcpserver.Lease) error {
	if held := l.heldFromOthers(lease); held != nil {
		return &dhcpserver.ConflictError{Current: *held}
	}
	if _, away := l.Away(); away {
		return fmt.Errorf("DHCPLease %s: %w: no answer of the API", l.name(lease.Address), dhcpserver.ErrUnreachable)
	}
	err := l.write(ctx, lease, true, func(there *dhcpserver.Lease) bool {
		// The client itself may have renewed with another pod. What it does now is newer.
		return there.MAC == lease.MAC && (there.State == dhcpserver.StateActive || there.State == dhcpserver.StateReleased)
	})
	if isAway(err) {
		return fmt.Errorf("DHCPLease %s: %w: %w", l.name(lease.Address), dhcpserver.ErrUnreachable, err)
	}
	return err
}

// write creates or replaces the object of a lease, if that is as it was when it was last looked at or mayReplace says so
// of what it is now. Else it is a conflict; adopt says that the server hears of it.
func (l *Leases) write(ctx context.Context, lease *dhcpserver.Lease, adopt bool, mayReplace func(there *dhcpserver.Lease) bool) error {
	for range 3 {
		object, err := l.object(lease)
		if err != nil {
			return err
		}
		if object.ResourceVersion == "" {
			err = l.client.Create(ctx, object, client.FieldOwner(fieldOwner))
		} else {
			err = l.client.Update(ctx, object, client.FieldOwner(fieldOwner))
		}
		switch {
		case err == nil:
			object.ManagedFields = nil
			l.setStored(lease, object)
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return fmt.Errorf("DHCPLease %s: %w", object.Name, err)
		}
		if err := l.lookAgain(ctx, lease.Address, adopt, mayReplace); err != nil {
			return err
		}
	}
	return fmt.Errorf("DHCPLease %s: changes while it is written", l.name(lease.Address))
}

// object is what is written for a lease. Labels and annotations of others stay.
func (l *Leases) object(lease *dhcpserver.Lease) (*v1alpha1.DHCPLease, error) {
	l.mu.Lock()
	b := l.base[lease.Address]
	l.mu.Unlock()
	object := &v1alpha1.DHCPLease{}
	if b != nil && b.object != nil {
		object = b.object.DeepCopy()
	}
	object.Namespace, object.Name = l.cfg.Infra.Namespace, l.name(lease.Address)
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	for key, value := range l.labels() {
		object.Labels[key] = value
	}
	object.Spec = leaseSpec(lease)
	if owner := l.owner(); owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if len(object.OwnerReferences) == 0 {
		return nil, fmt.Errorf("DHCPLease %s: it is not known yet whose it is: the Infra has no DHCPServer", object.Name)
	}
	return object, nil
}

// owner is the Infra, known by the child that it controls; nil: not known.
func (l *Leases) owner() *metav1.OwnerReference {
	if child := l.cfg.Child(); child != nil {
		return ownerOf(child)
	}
	return nil
}

// lookAgain finds out what the API has instead of what was expected. It is a conflict if that is somebody else's. What the
// server does not hear of stays unexpected.
func (l *Leases) lookAgain(ctx context.Context, addr netip.Addr, adopt bool, mayReplace func(there *dhcpserver.Lease) bool) error {
	object, err := l.fetch(ctx, addr)
	if err != nil {
		return fmt.Errorf("DHCPLease %s: %w", l.name(addr), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	found := &baseLease{}
	if before := l.base[addr]; before != nil {
		*found = *before
	}
	if object == nil {
		found.object, found.stored = nil, dhcpserver.Lease{}
		l.base[addr] = found
		return nil // deleted by hand: put back
	}
	object.ManagedFields = nil
	there, ok := l.mine(object)
	if !ok {
		there = dhcpserver.Lease{Address: addr, State: dhcpserver.StateDamaged}
	}
	asExpected := found.stored.Address.IsValid() && leaseSpec(&there) == leaseSpec(&found.stored)
	found.object, found.stored = object, there
	if asExpected || mayReplace(&there) {
		l.base[addr] = found
		return nil
	}
	if adopt {
		found.lease = there
		l.base[addr] = found
		l.metrics.conflicts.Inc()
	}
	return &dhcpserver.ConflictError{Current: there}
}

// setStored notes what the API has.
func (l *Leases) setStored(lease *dhcpserver.Lease, object *v1alpha1.DHCPLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base[lease.Address] = &baseLease{lease: *lease, stored: *lease, object: object}
}

// noteSent keeps what the API has for a start without it. That this fails takes nothing from the client.
func (l *Leases) noteSent(leases []dhcpserver.Lease) {
	if len(leases) == 0 {
		return
	}
	l.mu.Lock()
	var late []dhcpserver.Lease
	for _, lease := range leases {
		if _, unsent := l.unsent[lease.Address]; unsent {
			delete(l.unsent, lease.Address)
			late = append(late, lease)
		}
	}
	l.caughtUp()
	taken := l.refused && len(l.unsent) == 0
	if taken {
		l.refused = false
	}
	l.mu.Unlock()
	if taken {
		l.cfg.Log.Info("the API takes DHCP leases again, and has all renewals")
	}
	l.kept.see(leases...)
	l.kept.save()
	l.kept.removeUnsent(late)
}

// knows tells whether a lease renews what this process knows as the client's own.
func (l *Leases) knows(lease *dhcpserver.Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.base[lease.Address]
	return b != nil && lease.State == dhcpserver.StateActive && b.lease.MAC == lease.MAC && l.live(&b.lease, l.cfg.Clock())
}

// renewedHere notes a renewal that the API does not have yet.
func (l *Leases) renewedHere(lease *dhcpserver.Lease) {
	l.mu.Lock()
	l.base[lease.Address].lease = *lease
	l.unsent[lease.Address] = *lease
	l.mu.Unlock()
	l.metrics.renewedHere.Inc()
}

// Delete implements dhcpserver.Store.
func (l *Leases) Delete(ctx context.Context, leases []dhcpserver.Lease) []error {
	l.writing.Lock()
	defer l.writing.Unlock()
	errs := make([]error, len(leases))
	l.each(ctx, len(leases), func(ctx context.Context, i int) {
		if errs[i] = l.delete(ctx, leases[i].Address); isAway(errs[i]) {
			errs[i] = fmt.Errorf("%w: %w", dhcpserver.ErrUnreachable, errs[i])
		}
	})
	var gone []dhcpserver.Lease
	for i := range leases {
		if errs[i] == nil {
			gone = append(gone, leases[i])
		}
	}
	l.mu.Lock()
	for _, lease := range gone {
		delete(l.base, lease.Address)
	}
	l.mu.Unlock()
	for _, lease := range gone {
		l.kept.drop(lease.Address)
	}
	l.kept.save()
	l.forgetUnsent(gone)
	if len(gone) == len(leases) {
		return nil
	}
	return errs
}

// delete takes the object of one lease away, if it is what it was when it was last looked at.
func (l *Leases) delete(ctx context.Context, addr netip.Addr) error {
	for range 3 {
		l.mu.Lock()
		b := l.base[addr]
		l.mu.Unlock()
		if b == nil || b.object == nil {
			if b == nil || !b.stored.Address.IsValid() {
				return nil
			}
		} else {
			err := l.client.Delete(ctx, b.object, client.Preconditions{UID: &b.object.UID, ResourceVersion: &b.object.ResourceVersion})
			switch {
			case err == nil || apierrors.IsNotFound(err):
				return nil
			case !apierrors.IsConflict(err):
				return fmt.Errorf("DHCPLease %s: %w", l.name(addr), err)
			}
		}
		if err := l.lookAgain(ctx, addr, true, func(*dhcpserver.Lease) bool { return false }); err != nil {
			return err
		}
	}
	return fmt.Errorf("DHCPLease %s: changes while it is deleted", l.name(addr))
}
