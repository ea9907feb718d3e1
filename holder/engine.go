package holder

import (
	"bytes"
	"context"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

const (
	// tick is how often the engine looks at everything.
	tick      = 50 * time.Millisecond
	lookEvery = 100 * time.Millisecond
	leadEvery = time.Second
	// stopped is how long the engine may do nothing before it takes what it knows for old.
	stopped = 500 * time.Millisecond
	// getWithin, takeWithin and renewWithin bound what is asked of the lock.
	getWithin   = 800 * time.Millisecond
	takeWithin  = 800 * time.Millisecond
	renewWithin = 3 * time.Second
	// backWithin, and settleWithin for what was asked before it, bound the end of this process.
	backWithin   = 80 * time.Millisecond
	settleWithin = 20 * time.Millisecond
	retryEvery   = time.Second
	// successorWithin is how long a holder that leaves lets another pod take the record before it gives it back.
	successorWithin = 80 * time.Millisecond
	// leavingFor is how long a pod says that it left.
	leavingFor = 5 * time.Second
	// contestFirst and contestMost are for how long the record is left to a holder that took it without being heard.
	contestFirst = 10 * time.Second
	contestMost  = 10 * time.Minute
)

// engine is a running Holder. All of it belongs to one goroutine; the others only bring it what arrives.
type engine struct {
	*Holder
	claim   Claim
	events  chan any
	workers sync.WaitGroup
	quit    chan struct{}

	turned    time.Duration // when the engine last did something
	listening time.Duration
	noise     int // packets from the VLAN since noiseAt
	noiseAt   time.Duration
	deaf      time.Duration // when more came from the VLAN than can be heard; 0: never

	link   *vlan.Link
	err    error // why the interface, or the wire, cannot be had
	looked time.Duration
	led    time.Duration
	leads  error
	wire   *vlan.Wire
	broken bool // the wire failed

	peers   *peers
	counter uint64
	hello   time.Duration // when the last was sent
	leaving time.Duration // since when this pod says that it left

	lock       lockState
	healthy    error
	tenure     *tenure
	addrs      map[netip.Addr]*address
	ever       map[netip.Addr]bool
	strangers  map[netip.Addr]sighting
	apart      bool // the lifetimes of the held addresses do not end together
	asked      time.Duration
	lastAsk    time.Duration
	contestAt  time.Duration
	contestFor time.Duration
	firstRun   bool // no tenure yet
	since      time.Time
	giveBack   time.Duration // when to give the record back; 0: not

	memory   memory
	memories chan memory
}

// heardFrame is a frame as it came.
type heardFrame struct {
	wire    *vlan.Wire
	payload []byte
	from    [6]byte
}

type heardARP struct {
	wire     *vlan.Wire
	sighting vlan.Sighting
}

type wireFailed struct {
	wire *vlan.Wire
	err  error
}

func newEngine(h *Holder) (*engine, error) {
	e := &engine{
		Holder: h, events: make(chan any, 64), quit: make(chan struct{}),
		peers: newPeers(h.config.Identity, h.nonce),
		addrs: map[netip.Addr]*address{}, ever: map[netip.Addr]bool{}, strangers: map[netip.Addr]sighting{},
		firstRun: true, memories: make(chan memory, 1),
	}
	var err error
	if e.memory, err = recall(h.config.StateDir); err != nil {
		// It is written anew; without it addresses are probed as if they had never been held.
		e.log.Error("what was remembered cannot be read", "error", err)
	}
	for _, addr := range e.memory.Addresses {
		e.ever[addr] = true
	}
	var list []Peer
	for name, key := range e.memory.Peers {
		list = append(list, Peer{name, key})
	}
	e.peers.set(list, 0)
	return e, nil
}

func (e *engine) run(ctx context.Context) {
	e.workers.Go(e.writeMemories)
	defer func() {
		close(e.quit)
		if e.wire != nil {
			_ = e.wire.Close() // nothing was written that closing could lose
		}
		e.lock.cancel()
		e.workers.Wait()
	}()
	ticker := time.NewTicker(tick)
	defer ticker.Stop()
	e.turned = vlan.Boottime()
	for due := true; ; {
		_, _, changed := e.config.Lock.Seen()
		if due {
			e.turn()
		}
		due = true
		select {
		case <-ctx.Done():
			e.awake()
			e.stop()
			return
		case event := <-e.events:
			e.awake()
			due = e.handle(event)
			due = e.drain() || due
		case <-changed:
			e.awake()
		case <-e.wake:
			e.awake()
		case <-ticker.C:
			e.awake()
		}
	}
}

// drain handles what has arrived, up to a bound: what tenants send must not keep the engine from its addresses. It returns what handle
// does.
func (e *engine) drain() (due bool) {
	for range cap(e.events) {
		select {
		case event := <-e.events:
			due = e.handle(event) || due
		default:
			return due
		}
	}
	return due
}

// awake finds out whether this process was stopped for a while, before anything is done on old knowledge.
func (e *engine) awake() {
	now := vlan.Boottime()
	gap := now - e.turned
	e.turned = now
	if gap < stopped {
		return
	}
	e.log.Info("this process was stopped for a while", "for", gap.Round(time.Millisecond))
	e.listening, e.asked = max(e.listening, now), 0
	if e.tenure == nil {
		return
	}
	holds, first := false, now+rand.N(probeWait)
	for _, a := range e.addrs {
		switch {
		case a.phase == held && now > a.until:
			e.letGo("this process was stopped for too long")
			return
		case a.phase == held:
			holds = true
		case a.phase == probing:
			a.probe(first)
		}
	}
	if !holds {
		e.letGo("this process was stopped for too long")
	}
}

// turn brings everything to where it should be now.
func (e *engine) turn() {
	now := vlan.Boottime()
	e.mu.Lock()
	changed := !slices.Equal(e.claim.Addresses, e.Holder.claim.Addresses)
	e.claim = e.Holder.claim
	e.mu.Unlock()
	if changed && e.wire != nil {
		e.watch()
	}
	e.look(now)
	e.listen(now)
	e.see(now)
	e.healthy = e.config.Healthy()

	f := e.facts(now)
	if other, is := f.other(); is && e.contestFor != 0 && f.fresh(f.peer(other)) {
		e.contestFor, e.contestAt = 0, 0
	}
	v := decide(&f)
	if v.act != stay && vlan.Boottime()-now > tick {
		return // what it was decided from is old: this process had no processor, or was stopped
	}
	e.ask(v.ask, now)
	switch v.act {
	case take:
		e.take(v)
	case takeUnrecorded:
		e.lock.despite = false
		e.begin(tenure{
			epoch: max(e.lock.record.Epoch, e.lock.epoch) + 1, careful: v.careful, began: now, previous: e.lock.record.Renewed,
		}, v.why)
	case letGo, handOver:
		if v.robbed {
			e.contestFor = min(max(contestFirst, 2*e.contestFor), contestMost)
			e.contestAt = now + e.contestFor
		}
		e.letGo(v.why)
		if v.act == handOver {
			e.lock.cancel()
			e.giveBack = now
			if e.wire != nil && e.successor(now) {
				e.giveBack += successorWithin
			}
		}
	case stay:
	}
	if e.tenure != nil && !e.hold(now) {
		e.letGo("this process was stopped for too long")
	}
	if t := e.tenure; t != nil && t.careful && !t.holds && e.nothingToHold() {
		e.letGo("other hosts have all addresses")
		e.listening = now + 2*refusedFor
	}
	e.lead(now)
	e.askLock(now, v.ask)
	if now-e.hello >= helloEvery {
		e.sayHello()
	}
	e.remember()
	e.publish()
}

func (e *engine) facts(now time.Duration) facts {
	f := facts{
		now: now, self: e.config.Identity,
		wants: len(e.claim.Addresses) > 0, up: e.wire != nil, healthy: e.healthy == nil,
		listening: e.listening,
		known:     e.lock.known, record: e.lock.record, taken: e.lock.taken, renewed: e.lock.renewed, away: e.lock.away, taking: e.lock.taking,
		asked: e.asked, contest: e.contestAt, tenure: e.tenure, peers: e.peers.facts(),
		deaf: e.deaf != 0 && now-e.deaf < silence || e.wire != nil && e.wire.Pending() || len(e.events) > 0,
	}
	if e.firstRun && e.link != nil {
		f.leftover = slices.ContainsFunc(e.claim.Addresses, e.expiring)
	}
	return f
}

func (e *engine) bring(event any) {
	select {
	case e.events <- event:
	case <-e.quit:
	}
}

// handle handles an event. It tells whether there may be something to do at once: what anybody can send is looked at again with the
// next tick.
func (e *engine) handle(event any) bool {
	now := vlan.Boottime()
	switch event := event.(type) {
	case heardARP:
		e.noise++
		if event.wire == e.wire {
			e.sighted(event.sighting, now)
		}
	case heardFrame:
		e.noise++
		if event.wire != e.wire {
			return false
		}
		result := e.peers.hear(event.payload, event.from, now)
		if result == resultNotEchoedAndNonce && now-e.hello >= tick {
			e.sayHello() // it waits for our echo
		}
		e.metrics.heard.WithLabelValues(strings.TrimSuffix(result, "_new")).Inc()
		return result == resultAccepted
	case wireFailed:
		if event.wire == e.wire {
			e.log.Debug("the VLAN is not heard any more", "error", event.err)
			e.broken = true
		}
	case answer:
		e.answered(event, now)
		return true
	}
	return false
}

// ours tells whether a MAC is that of another pod of this Infra.
func (e *engine) ours(mac [6]byte) bool {
	return e.lock.record.Holder != e.config.Identity && bytes.Equal(e.lock.record.MAC, mac[:]) || e.peers.has(mac)
}

// begin begins a tenure.
func (e *engine) begin(t tenure, why string) {
	t.jitter = rand.N(probeMax - probeMin)
	e.tenure, e.firstRun, e.leaving, e.giveBack, e.since = &t, false, 0, 0, time.Now()
	e.lock.epoch = max(e.lock.epoch, t.epoch)
	e.log.Info("taking the addresses", "because", why, "epoch", t.epoch, "recorded", t.recorded)
	e.metrics.holding.Set(1)
	e.metrics.changes.WithLabelValues("taken").Inc()
	if now := vlan.Boottime(); now >= t.from {
		e.claimAll(now, t.began+claimWithin)
		e.lead(now)
	}
	e.sayHello()
}

// letGo ends the tenure: the addresses are off when it returns, and the others told so.
func (e *engine) letGo(why string) {
	if e.tenure == nil {
		return
	}
	for addr, a := range e.addrs {
		if a.phase == held {
			e.drop(addr)
		}
	}
	e.log.Info("let the addresses go", "because", why, "epoch", e.tenure.epoch)
	said := e.tenure.said()
	e.tenure, e.since = nil, time.Time{}
	clear(e.addrs)
	e.metrics.holding.Set(0)
	e.metrics.changes.WithLabelValues("let_go").Inc()
	if said {
		e.leaving = vlan.Boottime()
		e.sayHello()
	}
}

// successor tells whether another pod could take over now.
func (e *engine) successor(now time.Duration) bool {
	f := facts{now: now}
	return slices.ContainsFunc(e.peers.facts(), func(p peerFacts) bool { return f.fresh(&p) && p.healthy })
}

func (e *engine) sayHello() {
	if e.wire == nil {
		return
	}
	now := vlan.Boottime()
	e.hello = now
	e.counter++
	f := frame{nonce: e.nonce, counter: e.counter, mac: [6]byte(e.link.MAC), name: e.config.Identity, echoes: e.peers.echoes(now)}
	if e.healthy == nil && len(e.claim.Addresses) > 0 {
		f.flags |= flagHealthy
	}
	if t := e.tenure; t != nil && t.said() {
		f.flags |= flagHolding
		f.epoch = t.epoch
		if t.recorded {
			f.flags |= flagRecorded
		}
	} else if e.leaving != 0 && now-e.leaving < leavingFor {
		f.flags |= flagLeaving
	}
	e.sent(e.wire.SendFrame(f.sign(e.config.Key)))
}
