package holder

import (
	"context"
	"crypto/ed25519"
	"errors"
	"maps"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// lockState is what the engine knows of the lock, and what it has asked of it.
type lockState struct {
	known  bool
	record Record
	// taken is since when the record is known to name this holder and epoch, and renewed when it was last seen to change.
	taken, renewed time.Duration
	// previous is when the holder before this one, or the same in its last epoch, had renewed it.
	previous time.Time
	// seen is the version that the watch saw last.
	seen string
	// epoch is the highest one that was heard of.
	epoch int64
	away  bool
	// err is why it is away.
	err error
	// asked and reached are when the lock was last asked, and when it last answered.
	asked, reached time.Duration
	written        time.Duration // when this pod last wrote the record
	// busy: a question is under way. One at a time is.
	busy bool
	stop context.CancelFunc
	// taking is since when the record is being asked for.
	taking time.Duration
	// pause is that of the tenure that is being asked for.
	pause time.Duration
	// despite: it is asked for although the MAC of the holder of before answers.
	despite bool
	peers   map[string]ed25519.PublicKey
}

// problem says why the record cannot be had.
func (l *lockState) problem() string {
	switch {
	case !l.away:
		return "it has not been asked for yet"
	case errors.Is(l.err, context.DeadlineExceeded):
		return "the API does not answer"
	}
	return l.err.Error()
}

func (l *lockState) cancel() {
	if l.stop != nil {
		l.stop()
	}
}

type question int

const (
	get question = iota
	putToTake
	putToRenew
	putBack
)

// answer is what came of a question.
type answer struct {
	question question
	began    time.Duration
	record   Record
	// conflict: it was not written; the record is the one that somebody else wrote.
	conflict bool
	err      error
}

// question asks the lock something. The answer arrives as an event.
func (e *engine) question(q question, record Record, within time.Duration) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	began := vlan.Boottime()
	e.lock.busy, e.lock.stop, e.lock.asked = true, cancel, began
	e.workers.Go(func() {
		defer cancel()
		a := answer{question: q, began: began}
		if q != get {
			a.record, a.err = e.config.Lock.Put(ctx, record)
			a.conflict = errors.Is(a.err, ErrConflict)
		}
		if q == get || a.conflict {
			a.record, a.err = e.config.Lock.Get(ctx)
		}
		e.bring(a)
	})
}

// own is the record as this pod writes it.
func (e *engine) own(epoch int64) Record {
	r := e.lock.record
	renewed := time.Now()
	if !renewed.After(r.Renewed) && r.Holder == e.config.Identity {
		renewed = r.Renewed.Add(time.Millisecond) // the clock was set back: it is read as an order
	}
	return Record{Holder: e.config.Identity, Epoch: epoch, MAC: e.link.MAC, Addresses: e.everHeld(), Renewed: renewed, Version: r.Version}
}

// take begins to take the record.
func (e *engine) take(v verdict) {
	if e.lock.busy {
		return
	}
	e.log.Info("taking the record", "because", v.why)
	e.lock.pause, e.lock.despite = 0, v.despite
	if v.pause {
		e.lock.pause = pause
	}
	e.lock.taking = vlan.Boottime()
	e.question(putToTake, e.own(max(e.lock.record.Epoch, e.lock.epoch)+1), takeWithin)
}

// startGivingBack begins to give the record back: whoever reads it need not wait for our silence.
func (e *engine) startGivingBack() {
	r := e.lock.record
	r.Holder, r.Addresses, r.Renewed = "", e.everHeld(), time.Now()
	if !r.Renewed.After(e.lock.record.Renewed) {
		r.Renewed = e.lock.record.Renewed.Add(time.Millisecond)
	}
	e.giveBack = 0
	e.question(putBack, r, backWithin)
}

// askLock asks what is due, if nothing is under way.
func (e *engine) askLock(now time.Duration, doubts bool) {
	l := &e.lock
	if l.busy {
		return
	}
	ours := l.known && l.record.Holder == e.config.Identity
	switch t := e.tenure; {
	case t == nil && e.giveBack != 0 && !ours:
		e.giveBack = 0
	case t == nil && e.giveBack != 0:
		if now >= e.giveBack {
			e.startGivingBack()
		}
	case l.asked == 0, l.away && now-l.asked >= retryEvery, t == nil && doubts && now-l.reached >= askAfter+askEvery:
		e.question(get, Record{}, getWithin)
	case t == nil || l.away || !t.said():
	case t.recorded && ours:
		if now-l.written >= renewEvery || t.unwritten {
			t.unwritten = false
			e.question(putToRenew, e.own(t.epoch), renewWithin)
		}
	case t.recorded: // decide says what a record of another holder means
		if l.record.Holder == "" {
			e.question(putToRenew, e.own(t.epoch), renewWithin)
		}
	case t.reached != 0 && (l.record.Holder == "" || ours || now-t.reached >= reachAgain):
		e.question(putToRenew, e.own(max(l.record.Epoch+1, t.epoch)), renewWithin)
	}
}

// answered takes in an answer of the lock.
func (e *engine) answered(a answer, now time.Duration) {
	l := &e.lock
	l.busy, l.taking = false, 0
	if a.question == putBack && e.tenure == nil && (a.conflict || a.err != nil) {
		e.giveBack = now // it was our own last write that was in the way, or it is somebody else's by now
	}
	if errors.Is(a.err, context.Canceled) {
		return
	}
	if a.err != nil {
		if !l.away {
			e.log.Warn("the record cannot be reached", "error", a.err)
		}
		l.away, l.err = true, a.err
		if !l.known && e.memory.Known {
			l.known, l.record, l.taken, l.renewed = true, e.memory.record(), now, now
			l.epoch = max(l.epoch, l.record.Epoch)
		}
		return
	}
	if l.away {
		e.log.Info("the record can be reached again")
	}
	l.away, l.reached = false, now
	e.accept(a.record, now)
	if t := e.tenure; t != nil && t.reached == 0 {
		t.reached = now
	}
	if a.conflict || a.question == get {
		return
	}
	l.written = now
	switch t := e.tenure; {
	case a.question == putToRenew && t != nil:
		t.recorded, t.epoch = true, a.record.Epoch
		l.epoch = max(l.epoch, t.epoch)
	case a.question == putToTake && t != nil && !t.recorded: // it went on without waiting for this
		t.recorded, t.epoch = true, a.record.Epoch
	case a.question == putToTake && t == nil:
		e.took(a, now)
	}
}

// took begins the tenure of a record that was just written, unless that took so long that others may have given this pod up.
func (e *engine) took(a answer, now time.Duration) {
	for _, p := range e.peers.facts() {
		if p.holding && p.heard >= a.began { // what was heard before was weighed
			return // it lets go when it hears of the record
		}
	}
	if now-a.began >= claimWithin-claimSlack || e.wire == nil || len(e.claim.Addresses) == 0 {
		return
	}
	e.begin(tenure{
		epoch: a.record.Epoch, recorded: true, began: a.began, from: now + e.lock.pause, previous: e.lock.previous, reached: now,
	}, "the record is ours")
}

// see takes in what the watch has seen.
func (e *engine) see(now time.Duration) {
	record, list, _ := e.config.Lock.Seen()
	if record.Version != "" && record.Version != e.lock.seen {
		e.lock.seen = record.Version
		if e.newer(&record) {
			e.accept(record, now)
		}
	}
	if len(list) > 0 || e.lock.peers != nil {
		seen := make(map[string]ed25519.PublicKey, len(list))
		for _, p := range list {
			if p.Name != e.config.Identity {
				seen[p.Name] = p.Key
			}
		}
		if e.lock.peers == nil || !maps.EqualFunc(seen, e.lock.peers, func(a, b ed25519.PublicKey) bool { return a.Equal(b) }) {
			e.lock.peers = seen
			e.peers.set(list, now)
		}
	}
}

// newer tells whether a record that the watch has seen is newer than the known one: a watch may be late.
func (e *engine) newer(r *Record) bool {
	known := &e.lock.record
	if !e.lock.known || known.Version == "" {
		return true
	}
	return r.Epoch > known.Epoch || r.Epoch == known.Epoch && r.Renewed.After(known.Renewed)
}

// accept replaces the known record.
func (e *engine) accept(r Record, now time.Duration) {
	l := &e.lock
	if !l.known || r.Holder != l.record.Holder || r.Epoch != l.record.Epoch {
		l.taken = now
		l.previous = l.record.Renewed
	}
	if !l.known || r.Version != l.record.Version {
		l.renewed = now
		if e.tenure != nil {
			e.tenure.renewals++
		}
	}
	l.known, l.record = true, r
	l.epoch = max(l.epoch, r.Epoch)
	for _, addr := range r.Addresses {
		e.ever[addr] = true
	}
}
