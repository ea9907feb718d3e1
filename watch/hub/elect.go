package hub

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/densityops/oooi/api/v1alpha1"
)

// leaseName is the Lease whose holder writes: all Infras, or the only one that it is told to.
func leaseName(infra types.NamespacedName) string {
	if infra.Name == "" {
		return "oooi"
	}
	return v1alpha1.LabelValue("oooi-" + infra.Namespace + "-" + infra.Name)
}

// A leader that is gone is followed by another after leaseDuration at the latest; one that stops, at once.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// timedLock notes when the Lease was last renewed. The time is that before the call: the Lease cannot have run out for
// anybody else earlier than leaseDuration after it.
type timedLock struct {
	resourcelock.Interface
	renewed atomic.Pointer[time.Time] // has a monotonic part
	// lost is called when the Lease is renewed after so long that nothing could be written meanwhile, and another process may have had it,
	// before anything may be written again; regained, after that.
	lost, regained func()
}

func (l *timedLock) note(at time.Time, err error) error {
	if err != nil {
		return err
	}
	if last := l.renewed.Load(); last == nil || time.Since(*last) < renewDeadline {
		l.renewed.Store(&at)
		return nil
	}
	l.lost()
	l.renewed.Store(&at)
	l.regained()
	return nil
}

// Create implements resourcelock.Interface.
func (l *timedLock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	return l.note(at, l.Interface.Create(ctx, record))
}

// Update implements resourcelock.Interface.
func (l *timedLock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	at := time.Now()
	return l.note(at, l.Interface.Update(ctx, record))
}

// leadsUntil is when this process may write no more unless it renews its Lease; false: it may not now. In a new lead it may not before
// there is a plan: what was planned and ordered before is of a world that another process may have changed.
func (h *Hub) leadsUntil() (time.Time, bool) {
	if h.term.Load() != h.plannedTerm.Load() {
		return time.Time{}, false
	}
	return h.electedUntil()
}

// isElected tells whether this process leads, or will when it has planned.
func (h *Hub) isElected() bool {
	_, elected := h.electedUntil()
	return elected
}

// electedUntil is when the lead ends unless the Lease is renewed; false: this process has no lead. The election itself may notice
// later, for example after the process was frozen.
func (h *Hub) electedUntil() (time.Time, bool) {
	renewed := h.lock.renewed.Load()
	if !h.elected.Load() || renewed == nil || time.Since(*renewed) >= renewDeadline {
		return time.Time{}, false
	}
	return renewed.Add(renewDeadline), true
}

// elect makes this process leader when no other one is, for as long as ctx lasts. Losing the lead ends no
// more than the writing: what is served stays, and the lead can be won again.
func (h *Hub) elect(ctx context.Context) error {
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: h.lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Name: leaseName(h.cfg.Infra),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				h.cfg.Log.Info("this process leads", "identity", h.cfg.Identity)
				h.forgetFailures()
				h.dropStock()
				h.elected.Store(true)
				h.world.notify() // plan from the statuses as they are, then write
			},
			OnStoppedLeading: func() {
				if h.elected.Swap(false) {
					h.cfg.Log.Info("this process leads no longer", "identity", h.cfg.Identity)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	h.giveLeadBack()
	return nil
}

// giveLeadBack lets another process lead at once, if this one does; it takes no longer than stopGrace.
func (h *Hub) giveLeadBack() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	record, _, err := h.lock.Get(ctx)
	if err != nil || record.HolderIdentity != h.cfg.Identity {
		return // another one leads, or finds out when the Lease runs out
	}
	released := *record
	released.HolderIdentity, released.LeaseDurationSeconds = "", 1
	if err := h.lock.Update(ctx, released); err != nil {
		h.cfg.Log.Debug("the lead is left to run out", "error", err)
	}
}
