package dhcpserver

import (
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// stepSlack is by how much the wall clock may have been set without that being a step: leap seconds are none.
	stepSlack = 2 * time.Second
	// readSlack is how long reading both clocks may take: a process that was stopped in between would see a step.
	readSlack = 100 * time.Millisecond
	// aheadSlack is how far the clock of another server may be ahead without a word about it.
	aheadSlack = 10 * time.Second
	// A lease that this server did not give itself may be longer than the lease time of now, which may have been another one
	// then: up to longLease or longTimes lease times. A lease whose time somebody has made up must not count for ever.
	longLease, longTimes = 24 * time.Hour, 10
)

// Step is by how much the wall clock was set.
type Step struct {
	// Before is what the clock would show now.
	Before time.Time
	// By is what it shows more; negative: less; zero: it was not set.
	By time.Duration
}

// WallClock is the wall clock, and notices when that is set: for chrony, for an administrator, for a virtual machine that goes on
// after a pause. It compares it with CLOCK_BOOTTIME, which nobody can set and which goes on while the host is
// suspended. Both run at the same rate, corrections by NTP included (clock_gettime(2)), so that they come apart by steps only.
//
// It cannot know what happened to the clock before it was made, unless it is told (Resume).
type WallClock struct {
	clock    func() time.Time
	boottime func() time.Duration

	mu   sync.Mutex
	zero time.Time // the wall clock's time when boottime was 0, since the last step
}

// NewWallClock starts to watch a clock. Without arguments it is time.Now against CLOCK_BOOTTIME.
func NewWallClock(clock func() time.Time, boottime func() time.Duration) *WallClock {
	if clock == nil {
		clock = time.Now
	}
	if boottime == nil {
		boottime = Boottime
	}
	c := &WallClock{clock: clock, boottime: boottime}
	for ok := false; !ok; {
		var now time.Time
		var since time.Duration
		if now, since, ok = c.read(); ok {
			c.zero = now.Add(-since)
		}
	}
	return c
}

// Zero is the time that the wall clock would have shown when CLOCK_BOOTTIME was 0. It changes when the clock is set only.
func (c *WallClock) Zero() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.zero
}

// Resume goes on from what Zero was to another process, before this host started again: the next Look tells whether the clock was
// set between the two.
func (c *WallClock) Resume(zero time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.zero = zero
}

// Boottime returns the time since this host started, the time that it was suspended included (CLOCK_BOOTTIME).
func Boottime() time.Duration {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		panic("CLOCK_BOOTTIME: " + err.Error()) // every Linux since 2.6.39 has it
	}
	return time.Duration(now.Nano())
}

// read reads both clocks; false: not together.
func (c *WallClock) read() (time.Time, time.Duration, bool) {
	before := c.boottime()
	now := c.clock().Round(0) // no monotonic part: what is compared with it was read in another life
	after := c.boottime()
	return now, after, after-before <= readSlack
}

// Look returns the time, and by how much the clock was set since it was last told. Small steps add up. A step is told once.
func (c *WallClock) Look() (time.Time, Step) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, since, ok := c.read()
	if !ok {
		return now, Step{} // the next look tells
	}
	before := c.zero.Add(since)
	by := now.Sub(before)
	if by.Abs() < stepSlack {
		return now, Step{}
	}
	c.zero = now.Add(-since)
	return now, Step{Before: before, By: by}
}

// longest is how long a lease lasts at most, whoever gave it.
func (t *table) longest() time.Duration { return max(longLease, longTimes*t.leaseTime()) }

// leaseTime is that of the model, 0 without one.
func (t *table) leaseTime() time.Duration {
	if t.model == nil {
		return 0
	}
	return t.model.leaseTime
}

// stepped puts right what a step of the clock has made wrong: no lease ends because of it, and none lasts for ever. With
// translate it returns leases that have to be written: those that were active before a step forward, with the times that they
// have by the clock of now.
func (t *table) stepped(step Step, now time.Time, translate bool) []*Lease {
	t.limits.reset()
	for _, o := range t.offers {
		o.expires = o.expires.Add(step.By)
	}
	for _, b := range t.byAddr {
		if b.damaged() {
			lease := *b.lease
			lease.guess(now)
			b.lease, b.durable = &lease, &lease
		}
	}
	if step.By < 0 {
		t.steppedBack(step, now)
		return nil
	}
	t.holdAll(step, now)
	var changed []*Lease
	for _, b := range t.byAddr {
		if translate && b.active(step.Before) {
			ends := b.says()
			lease := *b.lease
			lease.Start = earlier(lease.Start.Add(step.By), now)
			lease.Expires = wholeSecond(later(ends, earlier(ends.Add(step.By), now.Add(t.longest()))))
			changed = append(changed, t.set(b, lease))
			continue
		}
		if !b.bounded.IsZero() {
			if b.bounded = b.bounded.Add(step.By); !b.bounded.Before(b.lease.Expires) {
				b.bounded = time.Time{}
			}
			t.rank(b)
		}
	}
	return changed
}

// active tells whether the lease is active by a clock, and can have been given by that one.
func (b *binding) active(clock time.Time) bool {
	return b.lease != nil && b.lease.State == StateActive && b.says().After(clock) && !b.lease.Start.After(clock)
}

// holdAll holds what was active before the clock was set forward. What was held then is held on.
func (t *table) holdAll(step Step, now time.Time) {
	since, lasts := step.Before, t.leaseTime()
	for _, h := range t.holds {
		if h.until.After(step.Before) {
			since, lasts = earlier(since, h.since), max(lasts, min(h.until.Sub(step.Before), t.longest()))
		}
	}
	for _, b := range t.byAddr {
		if b.active(step.Before) {
			lasts = max(lasts, min(b.says().Sub(step.Before), t.longest()))
		}
	}
	t.hold(since, now.Add(lasts), now)
}

// steppedBack sees to it that nothing lasts longer by what the clock was set back.
func (t *table) steppedBack(step Step, now time.Time) {
	for i := range t.holds {
		t.holds[i].until = t.holds[i].until.Add(step.By)
	}
	for _, b := range t.byAddr {
		t.bound(b, step.By, now)
		t.keep(b)
		t.rank(b)
	}
}

// bound ends a lease or a quarantine for this server earlier than it says, after the clock was set back by so much: it
// may have been given before that. One that others gave, by a clock that was right, is not ended early.
func (t *table) bound(b *binding, by time.Duration, now time.Time) {
	if b.lease == nil || b.damaged() || b.lease.State == StateReleased {
		return
	}
	most := t.longest()
	if b.lease.State == StateDeclined {
		most = quarantine
	}
	ends := b.says()
	if bound := later(ends.Add(by), now.Add(most)); bound.Before(ends) {
		b.bounded = bound
	}
}

// boundLoaded bounds the leases that begin later than now, and counts them: they were given by a clock that was ahead.
func (t *table) boundLoaded(now time.Time) (ahead int) {
	for _, b := range t.byAddr {
		if b.lease == nil || b.damaged() || !b.lease.Start.After(now.Add(aheadSlack)) {
			continue
		}
		ahead++
		t.bound(b, now.Sub(b.lease.Start), now)
		t.rank(b)
	}
	return ahead
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
