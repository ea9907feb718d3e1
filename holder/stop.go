package holder

import (
	"errors"
	"slices"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// errStopping keeps a pod that ends from being taken for a successor.
var errStopping = errors.New("this pod is being stopped")

// stop lets go for good: the addresses first, then the word to the others, then the record. None of it may hold up the end.
func (e *engine) stop() {
	e.healthy = errStopping
	held := e.tenure != nil
	e.letGo("this pod is being stopped")
	if !held {
		e.sayHello()
	}
	e.publish()
	if began := vlan.Boottime(); e.successor(began) {
		e.awaitSuccessor(began)
	}
	e.lock.cancel()
	e.await(settleWithin, func() bool { return !e.lock.busy })
	e.giveBack = 1
	e.await(backWithin, func() bool {
		if !e.lock.busy && e.giveBack != 0 {
			e.askLock(vlan.Boottime(), false)
		}
		return !e.lock.busy
	})
}

// await handles events until something is done, or until a time has passed.
func (e *engine) await(within time.Duration, done func() bool) {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for !done() {
		select {
		case event := <-e.events:
			e.handle(event)
		case <-timeout.C:
			return
		}
	}
}

func (e *engine) awaitSuccessor(began time.Duration) {
	timeout, again := time.NewTimer(successorWithin), time.NewTicker(successorWithin/4)
	defer timeout.Stop()
	defer again.Stop()
	for {
		now := vlan.Boottime()
		_, _, changed := e.config.Lock.Seen()
		e.see(now)
		f := facts{now: now}
		holds := func(p peerFacts) bool { return f.fresh(&p) && p.holding && p.held > began }
		if e.lock.record.Holder != e.config.Identity || slices.ContainsFunc(e.peers.facts(), holds) {
			return
		}
		select {
		case event := <-e.events:
			e.handle(event)
		case <-changed:
		case <-again.C:
			e.sayHello() // a frame can be lost
		case <-timeout.C:
			return
		}
	}
}
