package leases

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/watch/informer"
)

const (
	// leasesLook is how often it is tried whether the API is back, and what there is to keep and to send is kept and sent.
	leasesLook = time.Second
	// sendAtOnce is how many renewals are sent before those of clients that wait get their turn.
	sendAtOnce = 2 * leaseWriters
	// clockSlack is how far apart the clocks of two nodes may be.
	clockSlack = 5 * time.Second
	// defaultLeaseTime is that of a DHCPServer which does not say, or is not known.
	defaultLeaseTime = time.Hour
	// tellEvery is how often other pods hear anew until when to hold what this one renews without the API.
	tellEvery = time.Minute
	// mostHolds bounds the holds: more become one that covers them.
	mostHolds = 8
)

// contact notes of every request whether the API answered it.
type contact struct {
	next  http.RoundTripper
	clock func() time.Time
	// lost is called when it did not, with the time of the last one that it did.
	lost func(last time.Time)

	mu   sync.Mutex
	last time.Time
}

func (c *contact) wrap(next http.RoundTripper) http.RoundTripper {
	c.next = next
	return c
}

// WrappedRoundTripper lets idle connections be closed.
func (c *contact) WrappedRoundTripper() http.RoundTripper { return c.next }

// RoundTrip implements http.RoundTripper.
func (c *contact) RoundTrip(request *http.Request) (*http.Response, error) {
	started := c.clock()
	response, err := c.next.RoundTrip(request)
	switch {
	case err != nil && errors.Is(request.Context().Err(), context.Canceled):
		// Nobody waits for the answer any more.
	case err == nil && response.StatusCode == http.StatusTooManyRequests:
		// It is there, and will be asked again: what this request was for may still work out.
	case err != nil || overloaded(response.StatusCode):
		c.mu.Lock()
		last := c.last
		c.mu.Unlock()
		c.lost(last)
	default:
		c.mu.Lock()
		if started.Round(0).After(c.last.Round(0)) { // by the clock that leases have
			c.last = started
		}
		c.mu.Unlock()
	}
	return response, err
}

// setBack notes that the clock was set back by so much: what was before is not later than what comes.
func (c *contact) setBack(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = c.last.Round(0).Add(-by)
}

func overloaded(status int) bool {
	return status >= http.StatusInternalServerError || status == http.StatusTooManyRequests
}

// isAway tells of the error of a request that the API did not get it, or could do nothing about it.
func isAway(err error) bool {
	if errors.Is(err, dhcpserver.ErrUnreachable) {
		return true
	}
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return overloaded(int(status.Status().Code))
	}
	var network net.Error
	var request *url.Error
	return errors.As(err, &network) || errors.As(err, &request) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// isRefused tells of the error of a request that the API does not let this account make it.
func isRefused(err error) bool {
	return apierrors.IsUnauthorized(err) || apierrors.IsForbidden(err)
}

// noteRefused says once what to do, until the API takes everything again.
func (l *Store) noteRefused(err error) {
	l.mu.Lock()
	news := !l.refused
	l.refused = true
	l.mu.Unlock()
	if news {
		l.cfg.Log.Error("the API refuses DHCP leases: known ones are renewed and kept in the state folder, no new one is given; "+
			"see to it that the account of the VLAN pods has its RoleBinding "+v1alpha1.VLANAccount+" in the namespace of the Infra, and that no quota or admission policy is in the way", "error", err)
	}
}

// fallBehind notes that from now on the API does not have every renewal, and keeps that before the first of them is made.
func (l *Store) fallBehind() {
	l.mu.Lock()
	news := len(l.unsent) == 0
	if news {
		l.behind = l.cfg.Clock().Add(-clockSlack).Round(0).UTC()
	}
	l.mu.Unlock()
	if news {
		l.keepState(false)
	}
}

// caughtUp notes that the API has every renewal, if so. The lock is held.
func (l *Store) caughtUp() {
	if len(l.unsent) == 0 {
		l.behind = time.Time{}
	}
}

// lost notes that the API is away.
func (l *Store) lost(last time.Time) {
	l.mu.Lock()
	news := l.away.IsZero()
	if news {
		l.away = last
	}
	l.missed = true
	l.mu.Unlock()
	if news {
		l.cfg.Log.Warn("the API cannot be reached: known DHCP leases are renewed, no new one is given", "lastSeen", last)
	}
}

// back notes that the API is there, and holds what was active when it was last seen. writing is held: nothing is put between.
func (l *Store) back() {
	since, away := l.Away()
	if !away {
		return
	}
	l.hold(since)
	l.mu.Lock()
	l.away, l.missed = time.Time{}, false
	unsent := len(l.unsent)
	l.mu.Unlock()
	l.keepState(false)
	l.cfg.Log.Info("the API is back: no address of a lease that was active when it went changes hands for one lease time", "away", since, "renewals", unsent)
}

// TakeOver is called by the pod that becomes the holder, before its DHCP server starts. renewed is when the holder before it
// was last seen with the API: its last renewal of the Lease that says who the holder is. Not needed when there was none, or when
// it stopped properly.
func (l *Store) TakeOver(renewed time.Time) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.look()
	l.hold(renewed.Add(-clockSlack))
}

// look finds out whether the clock was set. When it was set forward, what was active is held, and what was held then is held on; when it was
// set back, what is waited for does not last longer for it. Nobody decides by the new time before.
func (l *Store) look() {
	l.looking.Lock()
	defer l.looking.Unlock()
	now, step := l.wall.Look()
	switch {
	case step.By > 0:
		h := leaseHold{Since: step.Before, Until: now.Add(l.leaseTime(step.Before))}
		l.mu.Lock()
		for _, other := range l.holds {
			if other.Until.After(step.Before) {
				h.cover(leaseHold{Since: other.Since, Until: other.Until.Add(step.By)})
			}
		}
		l.mu.Unlock()
		l.addHold(leaseHold{Since: h.Since.UTC(), Until: h.Until.UTC()}, now)
		l.cfg.Log.Warn("the clock was set forward: no address of a DHCP lease that was active changes hands for one lease time; "+
			"see to it that the clock of this node is right now, and stays so", "by", step.By, "was", step.Before, "is", now)
	case step.By < 0:
		l.mu.Lock()
		l.holds = slices.Clone(l.holds)
		for i := range l.holds {
			l.holds[i].Until = l.holds[i].Until.Add(step.By)
		}
		for _, since := range []*time.Time{&l.away, &l.behind} {
			if !since.IsZero() {
				*since = since.Round(0).Add(step.By)
			}
		}
		l.mu.Unlock()
		l.api.setBack(-step.By)
		l.keepState(false)
		l.cfg.Log.Warn("the clock was set back: DHCP leases end when they would have, or after a day or ten lease times; "+
			"see to it that the clock of this node is right now, and stays so", "by", -step.By, "was", step.Before, "is", now)
	}
}

// cover makes a hold hold what another one does, too.
func (h *leaseHold) cover(other leaseHold) {
	if other.Since.Before(h.Since) {
		h.Since = other.Since
	}
	if other.Until.After(h.Until) {
		h.Until = other.Until
	}
}

// hold holds every lease that was active at a time, the zero time: every one, for one lease time from now.
func (l *Store) hold(since time.Time) {
	now := l.cfg.Clock().Round(0)
	l.addHold(leaseHold{Since: since.Round(0).UTC(), Until: now.Add(l.leaseTime(since)).UTC()}, now)
}

// addHold keeps a hold, and tells the server. Those that are over are forgotten.
func (l *Store) addHold(h leaseHold, now time.Time) {
	l.mu.Lock()
	holds := slices.DeleteFunc(slices.Clone(l.holds), func(h leaseHold) bool { return !now.Before(h.Until) })
	if i := slices.IndexFunc(holds, func(other leaseHold) bool { return other.Since.Equal(h.Since) }); i < 0 {
		holds = append(holds, h)
	} else if holds[i].Until.Before(h.Until) {
		holds[i].Until = h.Until
	} else {
		l.mu.Unlock()
		return
	}
	if len(holds) > mostHolds {
		for _, other := range holds {
			h.cover(other)
		}
		holds = []leaseHold{h}
	}
	l.holds = holds
	tell := l.onHold
	l.mu.Unlock()
	l.keepState(false)
	if tell != nil {
		tell(h.Since, h.Until)
	}
}

// holdsAnnotation of the Lease of a VLAN is what its holder holds, for the next one: a third pod must hold what the
// second one did after the first.
const holdsAnnotation = "hostedcluster.densityops.com/dhcp-holds"

// Annotate adds to the annotations of the Lease of the VLAN what the next holder must know.
func (l *Store) Annotate(annotations map[string]string) {
	l.look()
	now := l.cfg.Clock()
	l.mu.Lock()
	holds := slices.DeleteFunc(slices.Clone(l.holds), func(h leaseHold) bool { return !now.Before(h.Until) })
	behind, unsent := l.behind, len(l.unsent)
	if unsent > 0 {
		l.told = behind
	}
	l.mu.Unlock()
	if unsent > 0 {
		// Renewals go on meanwhile. Whole minutes, so that the other pods do not keep another one each time.
		until := now.Round(0).Add(l.leaseTime(behind)).Truncate(tellEvery).Add(tellEvery)
		holds = append(holds, leaseHold{Since: behind, Until: until.UTC()})
	}
	if len(holds) == 0 {
		return
	}
	text, err := json.Marshal(holds)
	if err != nil {
		l.cfg.Log.Error("holds of DHCP leases are not told to the next holder", "error", err)
		return
	}
	annotations[holdsAnnotation] = string(text)
}

// Learn reads what Annotate wrote. What cannot be is ignored: somebody may have edited the Lease.
func (l *Store) Learn(annotations map[string]string) {
	var holds []leaseHold
	if text := annotations[holdsAnnotation]; text == "" || json.Unmarshal([]byte(text), &holds) != nil {
		return
	}
	l.look()
	now := l.cfg.Clock()
	l.mu.Lock()
	told := l.told
	l.mu.Unlock()
	for _, h := range holds {
		if h.Since.Equal(told) && !told.IsZero() {
			continue // what this very process is behind by
		}
		if now.Before(h.Until) && h.Until.Before(now.Add(l.leaseTime(h.Since)+tellEvery+clockSlack)) {
			l.addHold(h, now)
		}
	}
}

// leaseTime is the longest time for which a lease that was active then can have been given: the lease time, which may have
// been longer once, up to a day or ten times what it is. A lease whose time somebody has made up must not hold all others.
func (l *Store) leaseTime(since time.Time) time.Duration {
	now, longest := defaultLeaseTime, time.Duration(0)
	if child := l.cfg.Child(); child != nil {
		if d, err := time.ParseDuration(child.Spec.LeaseConfig.LeaseTime); err == nil && d > 0 {
			now = d
		}
	}
	if since.IsZero() {
		since = l.cfg.Clock()
	}
	for _, lease := range l.kept.leases() {
		if lease.State == dhcpserver.StateActive {
			longest = max(longest, lease.Expires.Sub(since))
		}
	}
	return max(now, min(longest, max(24*time.Hour, 10*now)))
}

// ends is when the address of a lease is free for others. The lock is held.
func (l *Store) ends(lease *dhcpserver.Lease) time.Time {
	ends := lease.Expires
	if lease.State == dhcpserver.StateActive {
		for _, h := range l.holds {
			if lease.Expires.After(h.Since) && h.Until.After(ends) {
				ends = h.Until
			}
		}
	}
	return ends
}

// live tells whether a client has the lease, or may have it. The lock is held.
func (l *Store) live(lease *dhcpserver.Lease, now time.Time) bool {
	return lease.State == dhcpserver.StateActive && now.Before(l.ends(lease))
}

// heldFromOthers returns the lease that is over and held, and that another one would replace: the other one was decided
// before the server heard that it is held.
func (l *Store) heldFromOthers(lease *dhcpserver.Lease) *dhcpserver.Lease {
	now := l.cfg.Clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.base[lease.Address]
	if b == nil || b.lease.MAC == lease.MAC || lease.State != dhcpserver.StateActive || now.Before(b.lease.Expires) || !l.live(&b.lease, now) {
		return nil
	}
	held := b.lease
	return &held
}

// keepState keeps what a restart must know. complete says that all leases of the API are kept.
func (l *Store) keepState(complete bool) {
	l.mu.Lock()
	l.complete = l.complete || complete
	state := leaseState{Complete: l.complete, Away: l.away.Round(0), Holds: l.holds, Behind: l.behind.Round(0), Boot: l.boot, Zero: l.wall.Zero().UTC()}
	l.mu.Unlock()
	if err := l.kept.saveState(state); err != nil {
		l.cfg.Log.Error("what DHCP leases are held is not kept for a restart, trying again", "error", err)
	}
}

// Run follows the leases of the API, sends what it does not have, and notes when it comes back, until ctx ends.
func (l *Store) Run(ctx context.Context) error {
	var parts sync.WaitGroup
	parts.Go(func() { l.watch.RunWithContext(ctx) })
	parts.Go(func() { l.keepUp(ctx) })
	parts.Wait()
	return nil
}

// newWatch makes the watch. What it sees is kept for a start without the API.
func (l *Store) newWatch() toolscache.Controller {
	raw := func(options metav1.ListOptions) []client.ListOption { return l.all(&client.ListOptions{Raw: &options}) }
	_, watch := toolscache.NewInformerWithOptions(toolscache.InformerOptions{
		ListerWatcher: &toolscache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
				leases := &v1alpha1.DHCPLeaseList{}
				return leases, l.client.List(ctx, leases, raw(options)...)
			},
			WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
				return l.client.Watch(ctx, &v1alpha1.DHCPLeaseList{}, raw(options)...)
			},
		},
		ObjectType: &v1alpha1.DHCPLease{},
		Transform:  cache.TransformStripManagedFields(),
		Handler:    informer.Handler(l.see, l.miss),
	})
	return watch
}

func (l *Store) see(o *v1alpha1.DHCPLease) {
	lease, ok := l.mine(o)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.seen[lease.Address] = o
	if b := l.base[lease.Address]; b == nil || b.object == nil || !older(o, b.object) {
		l.kept.see(lease)
	}
}

// miss notes that a lease has been deleted. One that is live is kept: somebody's hand has slipped, and the client is still there.
func (l *Store) miss(o *v1alpha1.DHCPLease) {
	lease, ok := l.mine(o)
	if !ok {
		return
	}
	l.look()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.seen, lease.Address)
	if !l.live(&lease, l.cfg.Clock()) {
		l.kept.drop(lease.Address)
	}
}

func (l *Store) seenObjects() []*v1alpha1.DHCPLease {
	l.mu.Lock()
	defer l.mu.Unlock()
	objects := make([]*v1alpha1.DHCPLease, 0, len(l.seen))
	for _, o := range l.seen {
		objects = append(objects, o)
	}
	return objects
}

// keepUp does from time to time what nobody waits for, and all of it once more when ctx has ended.
func (l *Store) keepUp(ctx context.Context) {
	ticker := time.NewTicker(leasesLook)
	defer ticker.Stop()
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-ticker.C:
			l.tidy(ctx)
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	l.tidy(last)
}

func (l *Store) tidy(ctx context.Context) {
	complete := l.watch.HasSynced()
	l.look()
	l.kept.save()
	l.keepState(complete)
	if _, away := l.Away(); away {
		l.lookForAPI(ctx)
	}
	for l.sendSome(ctx) {
	}
}

// lookForAPI finds out whether the API is back. All leases are asked for: an API that can do that can do the rest.
func (l *Store) lookForAPI(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	if _, err := l.list(ctx); isAway(err) {
		return
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.back()
}

// sendSome sends some of the renewals that the API does not have; false: there are no more, or it makes no sense now.
func (l *Store) sendSome(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if _, away := l.Away(); away {
		return false
	}
	var batch []dhcpserver.Lease
	l.mu.Lock()
	for _, lease := range l.unsent {
		// While they come back, one is enough to see whether that is over.
		if batch = append(batch, lease); len(batch) == sendAtOnce || l.unsendable {
			break
		}
	}
	l.mu.Unlock()
	errs := make([]error, len(batch))
	l.each(ctx, len(batch), func(ctx context.Context, i int) {
		lease := &batch[i]
		errs[i] = l.write(ctx, lease, false, func(there *dhcpserver.Lease) bool { return renews(there, lease) })
	})
	var sent, void []dhcpserver.Lease
	var failed error
	for i, err := range errs {
		switch conflict := (*dhcpserver.ConflictError)(nil); {
		case err == nil:
			sent = append(sent, batch[i])
		case errors.As(err, &conflict):
			// Somebody else has the address, or the client has renewed with another pod: that counts.
			void = append(void, batch[i])
		default:
			failed = err
		}
	}
	l.noteSent(sent)
	l.forgetUnsent(void)
	l.noteSending(failed)
	return len(batch) > 0 && failed == nil
}

// noteSending says once that renewals cannot be sent, and why.
func (l *Store) noteSending(failed error) {
	l.mu.Lock()
	unsent, news := len(l.unsent), failed != nil && !l.unsendable
	l.unsendable = failed != nil
	l.mu.Unlock()
	switch {
	case isRefused(failed):
		l.noteRefused(failed)
	case news:
		l.cfg.Log.Warn("DHCP renewals that were made without the API cannot be written, trying again", "error", failed, "renewals", unsent)
	}
}

func (l *Store) forgetUnsent(leases []dhcpserver.Lease) {
	l.mu.Lock()
	for _, lease := range leases {
		delete(l.unsent, lease.Address)
	}
	l.caughtUp()
	l.mu.Unlock()
	l.kept.removeUnsent(leases)
}

// counts are what the metrics show.
func (l *Store) counts() (away bool, unsent, kept int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.away.IsZero(), len(l.unsent), l.kept.saved()
}

var _ dhcpserver.SharedStore = (*Store)(nil)
