package appsingress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// pendingInterval and readyInterval are between looks that found nothing wrong; a watch shortens them.
	pendingInterval = 5 * time.Second
	readyInterval   = 30 * time.Second
	// soonInterval is between steps that follow each other, and the least between looks that a watch asks for: a tenant may
	// change its objects as often as it likes.
	soonInterval = 500 * time.Millisecond
	// bytesPerSecond is what looks that follow each other read on average: 8 MiB take 32 s.
	bytesPerSecond = 256 << 10
	// floodInterval is the least between watches that end because the server sends too much.
	floodInterval = 15 * time.Second
	// lookTime bounds one look.
	lookTime = time.Minute
	// backoffFirst doubles to backoffLast at each failure.
	backoffFirst = time.Second
	backoffLast  = time.Minute
	// secretAge is how old the copy of a Secret may be at a look. With readyInterval after it, it is read at least every 60 s.
	secretAge = 28 * time.Second
	// secretRetry is after what time a Secret is tried again that could not be read, while there is a client.
	secretRetry = 10 * time.Second
	// steadyWatch is how long a watch lasts at least whose end is a sign that something happened.
	steadyWatch = time.Second
)

// worker looks after one attachment.
type worker struct {
	runner *Runner
	key    types.NamespacedName

	// want, interrupt and stop are under the lock of the Runner.
	want      Attachment
	interrupt context.CancelFunc // of the pass that runs
	stop      context.CancelFunc
	// changed: there is another want. woken: a watch saw something.
	changed, woken chan struct{}

	// What follows is the goroutine's own.
	status   v1alpha1.AppsIngressStatus // last, whose VIP stays
	left     []string                   // of the last look, nil before
	made     bool                       // something of ours was seen there, or is to be made
	hosted   *hosted
	dialled  Attachment // that hosted was made for
	secret   []byte     // that hosted was made of
	secretAt time.Time
	watches  map[kind]*watching
	backoff  time.Duration
	spent    int64 // bytes that the last look read
	brake    brake
}

// watching is one watch that runs, or ran.
type watching struct {
	cancel context.CancelFunc
	ended  chan struct{}
}

func newWorker(r *Runner, a Attachment) *worker {
	return &worker{
		runner: r, key: a.Key, want: a, status: a.Last,
		interrupt: func() {}, stop: func() {},
		changed: make(chan struct{}, 1), woken: make(chan struct{}, 1),
		watches: map[kind]*watching{},
	}
}

// set changes what is wanted, if it is something else. The lock is held.
func (w *worker) set(a Attachment) (changed bool) {
	if a.Remove && a.Spec.MetalLB.AddressPoolName == "" {
		a.Spec = w.want.Spec // it was taken out of the attachment: what was made has the names of before
	}
	before := w.want
	before.Last, a.Last = v1alpha1.AppsIngressStatus{}, v1alpha1.AppsIngressStatus{}
	if reflect.DeepEqual(before, a) {
		return false
	}
	w.want = a
	w.interrupt()
	signal(w.changed)
	return true
}

// signal lets a goroutine know, once.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// run looks again and again, until the context ends.
func (w *worker) run(ctx context.Context) {
	defer w.disconnect()
	timer := time.NewTimer(0)
	defer timer.Stop()
	var last time.Time
	woken := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.changed:
			w.backoff, w.brake = 0, brake{}
		case <-w.woken:
			woken = true
			timer.Reset(max(0, w.soon()-time.Since(last)))
			continue
		case <-timer.C:
		}
		if woken {
			woken = false
			w.brake.wake(w.runner.config.Clock())
		}
		pass, cancel := context.WithCancel(ctx)
		w.runner.mu.Lock()
		a := w.want
		w.interrupt = cancel
		w.runner.mu.Unlock()
		wait := w.pass(pass, a)
		cancel()
		last = time.Now()
		if wait > 0 {
			timer.Reset(wait)
		} else {
			timer.Stop()
		}
	}
}

// pass does what is wanted once, and returns after what time to do it again; 0: when something else is wanted.
func (w *worker) pass(ctx context.Context, a Attachment) time.Duration {
	wanted := withDefaults(a.Key, a.Spec)
	switch {
	case a.Hold && !a.Remove:
		return 0
	case a.Waiting != "":
		w.disconnect()
		p := pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "%s", a.Waiting)
		if a.Remove {
			p.reason = v1alpha1.ReasonRemoving
		}
		w.report(ctx, a, wanted, p)
		return 0
	}
	started := w.runner.config.Clock()
	err := w.attempt(ctx, a, wanted)
	if isCredential(err) && ctx.Err() == nil && w.hosted != nil && w.secretAt.Before(started) {
		// The Secret may have been renewed since it was read.
		before := w.hosted
		w.secretAt = time.Time{}
		if connectErr := w.connect(ctx, a); connectErr != nil || w.hosted != before {
			err = w.attempt(ctx, a, wanted)
		}
	}
	switch {
	case ctx.Err() != nil:
		return 0 // stopped, or something else is wanted, which was signalled
	case errors.Is(err, errAgain):
		w.brake.step()
		return w.soon()
	}
	var p *problem
	switch {
	case err == nil:
	case errors.As(err, &p):
	case errors.Is(err, errUnfinalized):
		w.made = true
		p = pending(v1alpha1.ReasonWaitingForExternalIP, "what the VIP needs is about to be made in the hosted cluster")
	case w.hosted == nil:
		p = degraded(v1alpha1.ReasonHostedClusterAccessFailed, "%s", err)
	default:
		p = degraded(v1alpha1.ReasonHostedClusterAccessFailed, "%s", w.hosted.cause(err, w.runner.config.Clock()))
	}
	w.report(ctx, a, wanted, p)
	return w.wait(a, p)
}

// wait is the time to the next look.
func (w *worker) wait(a Attachment, p *problem) time.Duration {
	if p != nil && p.soon {
		w.brake.step()
		return w.soon()
	}
	w.brake.steps = 0
	if p != nil && p.phase == v1alpha1.PhaseDegraded {
		w.backoff = min(max(backoffFirst, 2*w.backoff), backoffLast)
		return max(jitter(w.backoff), w.soon())
	}
	w.backoff = 0
	switch {
	case p != nil:
		return max(jitter(pendingInterval), w.soon())
	case a.Remove:
		return 0 // all is gone
	}
	return max(jitter(readyInterval), w.soon())
}

// soon is the least time between two looks. It is longer after one that had much to read, which costs the hub, and while
// the hosted cluster keeps it busy.
func (w *worker) soon() time.Duration {
	return max(soonInterval+time.Duration(w.spent)*time.Second/bytesPerSecond, w.brake.interval(w.runner.config.Clock()))
}

// brake is for hosted clusters that do not come to rest: each Observation that changed has the hub plan anew and write, and each look
// costs requests.
type brake struct {
	// steps are the looks since the last that was not to be followed soon.
	steps int
	// changes are those of the Observation since it was calm.
	changes int
	changed time.Time // the last of them
	// wakes are the looks that a watch asked for since it was calm.
	wakes int
	woken time.Time // the last of them
}

const (
	// freeSteps, freeChanges and freeWakes may follow each other without a pause: more than it takes from nothing to a VIP, or to
	// its end, and than a person does.
	freeSteps, freeChanges, freeWakes = 10, 30, 60
	// calm is how long an Observation stands, or a watch is silent, that ends the count. It is longer than the pause becomes.
	calm = 2 * backoffLast
)

func (b *brake) step() { b.steps++ }

// change counts one of the Observation.
func (b *brake) change(now time.Time) {
	if now.Sub(b.changed) > calm {
		b.changes = 0
	}
	b.changes, b.changed = b.changes+1, now
}

// wake counts a look that a watch asked for.
func (b *brake) wake(now time.Time) {
	if now.Sub(b.woken) > calm {
		b.wakes = 0
	}
	b.wakes, b.woken = b.wakes+1, now
}

// interval is the pause, which doubles. Calm ends it.
func (b *brake) interval(now time.Time) time.Duration {
	n := b.steps - freeSteps
	if now.Sub(b.changed) <= calm {
		n = max(n, b.changes-freeChanges)
	}
	if now.Sub(b.woken) <= calm {
		n = max(n, b.wakes-freeWakes)
	}
	if n <= 0 {
		return 0
	}
	return min(soonInterval<<min(n, 10), backoffLast)
}

// jitter makes a time up to a fifth shorter, so that clusters that failed together are not asked together.
func jitter(d time.Duration) time.Duration { return d - rand.N(d/5) }

// attempt looks, or removes, with the client as it is, or a new one. It leaves status and left as they were seen.
func (w *worker) attempt(ctx context.Context, a Attachment, wanted wanted) error {
	if err := w.connect(ctx, a); err != nil {
		return err
	}
	// A server may answer each request in time and never come to an end.
	looking, cancel := context.WithTimeout(ctx, lookTime)
	defer cancel()
	hosted := w.hosted
	hosted.unfinalized = a.Unfinalized
	hosted.begin()
	defer func() { w.spent = hosted.budget.spent() }()
	l := newLook(hosted, wanted)
	var err error
	if a.Remove {
		before := w.left
		if before == nil {
			before = wanted.mayBeThere()
		}
		if w.left, err = l.remove(looking); err != nil {
			w.left = l.known(before)
		}
	} else {
		err = l.run(looking)
		if names := l.names(removable...); len(names) > 0 {
			w.left, w.made = names, true
		}
	}
	if looking.Err() != nil && ctx.Err() == nil {
		err = &requestError{what: "look", err: fmt.Errorf("no end of it within %s", lookTime)}
	}
	if l.serviceRead {
		given := vipOf(l.serving())
		w.status.ExternalIP, w.status.ExternalHostname = given.ip, cutTo(given.hostname, hostnameLength)
	}
	if ctx.Err() == nil {
		w.watch(ctx, l)
	}
	return err
}

// report makes the Observation of a pass; nil: nothing is wrong. It is where texts of a hosted cluster get into the management cluster,
// so all of them are bounded here.
func (w *worker) report(ctx context.Context, a Attachment, wanted wanted, p *problem) {
	o := Observation{UID: a.UID, Made: w.made, Removed: a.Remove && p == nil}
	if a.Remove {
		if o.Left = slices.Clone(w.left); w.left == nil && !o.Removed {
			o.Left = wanted.mayBeThere()
		}
	}
	switch {
	case p != nil:
		w.status.Phase, w.status.Reason, w.status.Message = p.phase, p.reason, cutTo(p.message, causeLength)
		if len(o.Left) > 0 {
			w.status.Message += "; may be left there: " + some(o.Left)
		}
	case a.Remove:
		w.status = v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhasePending, Reason: v1alpha1.ReasonRemoving, Message: "all that was made in the hosted cluster is gone from it"}
		if len(o.Left) > 0 {
			w.status.Message += ", but what others may need: " + some(o.Left)
		}
	default:
		w.status.Phase, w.status.Reason = v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded
		w.status.Message = fmt.Sprintf("%s has the VIP %s", services.String(wanted.Service.Namespace, wanted.Service.Name), w.status.ExternalIP)
	}
	o.Status = w.status
	if w.runner.observe(ctx, w, o) {
		w.brake.change(w.runner.config.Clock())
	}
}

// connect sees that there is a client, of the Secret as it is and for the addresses as they are.
func (w *worker) connect(ctx context.Context, a Attachment) error {
	now := w.runner.config.Clock()
	same := w.hosted != nil && w.dialled.Kubeconfig == a.Kubeconfig && w.dialled.Port == a.Port && slices.Equal(w.dialled.Addresses, a.Addresses)
	if same && w.backoff == 0 && now.Sub(w.secretAt) < secretAge {
		return nil
	}
	raw, err := w.readSecret(ctx, a.Kubeconfig)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err == nil:
	case same && isPassing(err):
		// The management cluster's API is away: the client is as good as before. Not each look is to wait for it.
		w.secretAt = now.Add(secretRetry - secretAge)
		return nil
	default:
		w.disconnect()
		return err
	}
	w.secretAt = now
	if same && bytes.Equal(raw, w.secret) {
		return nil
	}
	w.disconnect()
	name := "the kubeconfig in Secret " + a.Kubeconfig.String()
	access, err := parseKubeconfig(raw)
	if err != nil {
		return degraded(v1alpha1.ReasonHostedClusterAccessFailed, "%s %s", name, err)
	}
	hosted, err := connect(access, a.Addresses, a.Port, w.runner.decoding, func() { w.runner.requestFailed(w) })
	if err != nil {
		return degraded(v1alpha1.ReasonHostedClusterAccessFailed, "%s: %s", name, cut(err.Error()))
	}
	hosted.lead = w.runner.config.Lead
	w.hosted, w.dialled, w.secret = hosted, a, raw
	return nil
}

// readSecret reads the kubeconfig. Its errors are problems, unless they are passing.
func (w *worker) readSecret(ctx context.Context, key types.NamespacedName) ([]byte, error) {
	const reason = v1alpha1.ReasonHostedClusterAccessFailed
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()
	secret, err := w.runner.config.Secret(ctx, key)
	switch {
	case apierrors.IsForbidden(err):
		return nil, degraded(reason, "oooi may not read Secret %s, which has the kubeconfig of the hosted cluster: apply deploy/kubeconfigs, or give the hub's ServiceAccount get on this Secret", key)
	case apierrors.IsNotFound(err):
		return nil, degraded(reason, "Secret %s, which should have the kubeconfig of the hosted cluster, does not exist", key)
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %s: %w", key, cut(stable(err)), errPassing)
	}
	raw := secret.Data[kubeconfigKey]
	if len(raw) == 0 {
		return nil, degraded(reason, "Secret %s has no key %q with the kubeconfig of the hosted cluster", key, kubeconfigKey)
	}
	return raw, nil
}

// errPassing marks what says nothing about the Secret.
var errPassing = errors.New("it is tried again")

func isPassing(err error) bool { return errors.Is(err, errPassing) }

// disconnect ends the watches and closes the client.
func (w *worker) disconnect() {
	for k, running := range w.watches {
		running.cancel()
		delete(w.watches, k)
		defer func() { <-running.ended }()
	}
	if w.hosted != nil {
		w.hosted.close()
		w.hosted = nil
	}
}

// watch starts the watches that are missing, of what a look has listed, from what it has seen on.
func (w *worker) watch(ctx context.Context, l *look) {
	for k, version := range l.versions {
		if !slices.Contains(watched, k) {
			continue
		}
		if running := w.watches[k]; running != nil {
			select {
			case <-running.ended:
			default:
				continue
			}
		}
		// It outlives the pass.
		ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
		running := &watching{cancel: cancel, ended: make(chan struct{})}
		w.watches[k] = running
		hosted, selector := w.hosted, l.wanted.selector()
		go func() {
			defer close(running.ended)
			defer cancel()
			started := time.Now()
			if hosted.watch(ctx, k, selector, version, func() { signal(w.woken) }) {
				// It counts as running for a while yet, so that no look starts it again.
				select {
				case <-time.After(floodInterval - time.Since(started)):
				case <-ctx.Done():
				}
			}
			if ctx.Err() == nil && time.Since(started) >= steadyWatch {
				signal(w.woken)
			}
		}()
	}
}

// watched are the kinds that are watched.
var watched = []kind{services, l2Advertisements, pools}
