package holder

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// expiring tells whether the interface has an address as the holder puts it there.
func (e *engine) expiring(addr netip.Addr) bool {
	return slices.ContainsFunc(e.link.Addresses, func(a vlan.Address) bool { return a.Addr() == addr && a.Bits() == 32 && a.Expires })
}

// look looks at the interface, opens its wire, and takes off what must not be there.
func (e *engine) look(now time.Duration) {
	if e.looked != 0 && now-e.looked < lookEvery && !e.broken {
		return
	}
	e.looked = now
	link, err := vlan.Look(e.config.Interface)
	if err != nil && !errors.Is(err, vlan.ErrMissing) {
		// The kernel could not say. What it said last may still be so.
		e.err = err
		return
	}
	if e.wire != nil && (err != nil || !link.Up || e.broken || link.Index != e.link.Index || !bytes.Equal(link.MAC, e.link.MAC)) {
		_ = e.wire.Close() // nothing was written that closing could lose
		e.wire = nil
	}
	if err == nil && e.link != nil && link.Index != e.link.Index && e.tenure != nil {
		e.letGo("the VLAN interface is another one")
	}
	if err != nil {
		if e.tenure == nil {
			e.link = nil
		}
		e.err = err
		return
	}
	e.link, e.err = link, nil
	if e.wire == nil && link.Up {
		e.open(now)
	}
	e.broken = false
	for _, a := range link.Addresses {
		if !a.Expires || a.Bits() != 32 || !e.ever[a.Addr()] && !slices.Contains(e.claim.Addresses, a.Addr()) {
			continue
		}
		kept := e.addrs[a.Addr()]
		mayBeOurs := e.firstRun && (!e.lock.known || e.lock.record.Holder == e.config.Identity)
		if e.tenure != nil && kept != nil && kept.phase == held || e.tenure == nil && mayBeOurs {
			continue
		}
		e.drop(a.Addr())
	}
}

// open opens the wire, when the networks behind this pod are closed to it.
func (e *engine) open(now time.Duration) {
	if e.err = vlan.Isolate(e.config.Interface); e.err != nil {
		return
	}
	if e.wire, e.err = vlan.OpenWire(e.link, frameMagic); e.err == nil {
		e.opened(now)
	}
}

func (e *engine) opened(now time.Duration) {
	wire := e.wire
	e.watch()
	e.listening, e.asked, e.hello = max(e.listening, now), 0, 0
	e.workers.Go(func() {
		for {
			s, err := wire.ReceiveARP()
			if err != nil {
				e.bring(wireFailed{wire, err})
				return
			}
			e.bring(heardARP{wire, s})
		}
	})
	e.workers.Go(func() {
		buf := make([]byte, maxFrame+1)
		for {
			n, from, err := wire.ReceiveFrame(buf)
			if err != nil {
				e.bring(wireFailed{wire, err})
				return
			}
			e.bring(heardFrame{wire, slices.Clone(buf[:n]), from})
		}
	})
}

// noisy is how many packets in a tick are a flood: a hundred times what pods and neighbours have to say.
const noisy = 100

// listen finds out whether silence means anything: in a flood, what other pods say is lost, here or before it gets here.
func (e *engine) listen(now time.Duration) {
	lost := false
	if e.wire != nil {
		var err error
		if lost, err = e.wire.Lost(); err != nil {
			e.sent(err)
		}
	}
	if elapsed := now - e.noiseAt; elapsed >= tick {
		lost = lost || time.Duration(e.noise)*tick > noisy*elapsed
		e.noise, e.noiseAt = 0, now
	}
	if !lost {
		return
	}
	if e.deaf == 0 || now-e.deaf >= silence {
		e.log.Warn("more comes from the VLAN than can be heard: nothing is concluded from silence")
		e.metrics.deaf.Inc()
	}
	e.deaf, e.asked = now, 0
}

func (e *engine) watch() {
	if err := e.wire.Watch(e.claim.Addresses[:min(len(e.claim.Addresses), vlan.MaxWatched)]); err != nil {
		e.sent(err)
	}
}

// sent takes note of what came of sending.
func (e *engine) sent(err error) {
	if err != nil && !e.broken {
		e.log.Debug("cannot send on the VLAN", "error", err)
		// A full queue passes, a lost interface does not: in both cases the wire is opened anew.
		e.broken = true
	}
}

// ask asks by ARP who has the addresses, while it is to be known.
func (e *engine) ask(wanted bool, now time.Duration) {
	if !wanted || e.wire == nil {
		e.asked = 0
		return
	}
	if now-e.lastAsk < askEvery {
		return
	}
	e.lastAsk = now
	if e.asked == 0 {
		e.asked = now
	}
	for _, addr := range e.claim.Addresses {
		if e.ever[addr] {
			e.sent(e.wire.Ask(addr))
		}
	}
}

func (e *engine) lead(now time.Duration) {
	if e.tenure == nil || !e.tenure.holds {
		e.leads, e.led = nil, 0
		return
	}
	if e.claim.CIDR.IsValid() && (e.led == 0 || now-e.led >= leadEvery) {
		e.led = now
		e.leads = e.link.Lead(e.claim.CIDR)
	}
}
