package holder

import (
	"bytes"
	"errors"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// Times of RFC 5227 section 1.1, and ours.
const (
	probeNum         = 3
	probeMin         = time.Second
	probeMax         = 2 * time.Second
	probeWait        = time.Second
	announceWait     = 2 * time.Second
	announceInterval = 2 * time.Second
	defendInterval   = 10 * time.Second

	// refreshEvery is how often the lifetime of a held address is started anew.
	refreshEvery = 250 * time.Millisecond
	// togetherWithin is how far apart lifetimes may be started; it is done again at once when it took longer.
	togetherWithin = 15 * time.Millisecond
	// refusedFor is how long an address that somebody else has is left alone before it is probed again.
	refusedFor = 5 * time.Second
	failedFor  = time.Second
	// reaskEvery is how often a contested address is asked for, to see whether the other host is still there, and
	// uncontestedAfter how long that must have been in vain.
	reaskEvery       = 5 * time.Second
	uncontestedAfter = 12 * time.Second
)

type phase int

const (
	probing phase = iota
	held
	// refused: another host has it.
	refused
	// failed: it could not be put on.
	failed
)

// address is one wanted address during a tenure.
type address struct {
	addr  netip.Addr
	phase phase
	// next is when something is due: a probe, an announcement, another attempt.
	next time.Duration
	// sent counts probes, and then announcements.
	sent int
	// kept is when the lifetime was last started, and until is the end of it.
	kept, until time.Duration
	err         error

	// stranger is the MAC of another host that has, or claims, the address; 0: none. named is when that MAC was last seen, seen is
	// when any such was.
	stranger                       [6]byte
	named, seen, defended, reasked time.Duration
}

// name notes the MAC of a stranger. One that was named is not replaced while it is still seen: anybody can send from as many MACs as he
// likes, and each new word is written to the API.
func (a *address) name(mac [6]byte, now time.Duration) {
	if a.stranger == [6]byte{} || a.stranger == mac || now-a.named >= uncontestedAfter {
		a.stranger, a.named = mac, now
	}
}

// sighting is a stranger's claim of an address, from before this pod held it.
type sighting struct {
	mac [6]byte
	at  time.Duration
	// ours: it was, or pretended to be, another pod of this Infra.
	ours bool
}

// announcements are due this long after the claim. The second is for neighbours that lost the first.
var announcements = []time.Duration{0, 500 * time.Millisecond, announceInterval}

// claimAll begins to hold what is wanted, before the moment notAfter.
func (e *engine) claimAll(now, notAfter time.Duration) {
	first := now + rand.N(probeWait)
	for _, addr := range e.claim.Addresses {
		if e.addrs[addr] != nil {
			continue
		}
		a := &address{addr: addr}
		e.addrs[addr] = a
		if s, ok := e.strangers[addr]; ok && now-s.at < uncontestedAfter && (!s.ours || e.lock.despite) {
			a.stranger, a.named, a.seen = s.mac, s.at, s.at
		}
		if e.ever[addr] && !e.tenure.careful {
			e.put(a, notAfter)
		} else {
			a.stranger = [6]byte{}
			a.probe(first)
		}
	}
}

// probe begins to find out whether anybody has the address, at a moment. Who had it at the last attempt is still told of.
func (a *address) probe(first time.Duration) {
	a.phase, a.sent, a.seen, a.next = probing, 0, 0, first
}

// put puts an address on the interface and announces it.
func (e *engine) put(a *address, notAfter time.Duration) {
	began := vlan.Boottime()
	until, err := e.link.Keep(a.addr, notAfter)
	if err != nil {
		if a.err == nil || a.err.Error() != err.Error() {
			e.log.Warn("address cannot be put on", "address", a.addr, "error", err)
		}
		a.phase, a.err, a.next = failed, err, began+failedFor
		return
	}
	if a.phase == probing {
		a.stranger = [6]byte{} // nobody has it any more
	}
	a.phase, a.err, a.kept, a.until, a.sent = held, nil, began, until, 0
	e.tenure.holds = true
	if !e.ever[a.addr] {
		e.ever[a.addr] = true
		e.tenure.unwritten = true
	}
	e.log.Info("claimed address", "address", a.addr)
	a.next = began
	e.announce(a)
}

// announce sends what is due of the announcements.
func (e *engine) announce(a *address) {
	now := vlan.Boottime()
	if now >= a.until || a.sent >= len(announcements) || now < a.next {
		return
	}
	e.sent(e.wire.Announce(a.addr))
	if a.sent++; a.sent < len(announcements) {
		a.next += announcements[a.sent] - announcements[a.sent-1]
	}
}

// hold does what is due for the addresses of the tenure. It returns false when they are lost because this process was
// stopped for too long.
func (e *engine) hold(now time.Duration) bool {
	for addr, a := range e.addrs {
		if !slices.Contains(e.claim.Addresses, addr) {
			if a.phase == held {
				e.drop(addr)
			}
			delete(e.addrs, addr)
		}
	}
	if now < e.tenure.from {
		return true
	}
	e.claimAll(now, now+claimSlack)
	// All lifetimes are started anew together: the kernel looks for addresses to take off once in a second at most, so that one
	// that ends more than 20 ms after another can be there for a second longer.
	due, began, refreshed := e.apart, vlan.Boottime(), false
	for _, a := range e.addrs {
		due = due || a.phase == held && now-a.kept >= refreshEvery
	}
	for _, a := range e.addrs {
		switch a.phase {
		case probing:
			if now < a.next {
				break
			}
			if a.sent == probeNum {
				e.put(a, now+claimSlack)
				break
			}
			e.sent(e.wire.Ask(a.addr))
			if a.sent++; a.sent == probeNum {
				a.next = now + announceWait
			} else {
				a.next = now + probeMin + e.tenure.jitter // the same for all, so that they are claimed together
			}
		case held:
			if due && !e.refresh(a, now) {
				return false
			}
			refreshed = refreshed || due
			e.announce(a)
			e.reask(a, now)
		case refused:
			if now >= a.next {
				a.probe(now + rand.N(probeWait))
			}
		case failed:
			if now >= a.next {
				e.put(a, now+claimSlack)
			}
		}
	}
	e.apart = refreshed && vlan.Boottime()-began > togetherWithin
	return true
}

// claimSlack is how long after it was decided an address may be put on at the latest.
const claimSlack = 300 * time.Millisecond

// refresh starts the lifetime of an address anew. It returns false when it came too late.
func (e *engine) refresh(a *address, now time.Duration) bool {
	began := vlan.Boottime()
	until, err := e.link.Keep(a.addr, a.until)
	if late := new(vlan.LateError); errors.As(err, &late) {
		return false
	}
	if err != nil {
		if a.err == nil {
			e.log.Warn("address cannot be kept", "address", a.addr, "error", err)
		}
		if a.err = err; now > a.until {
			a.phase, a.next = failed, now+failedFor
		}
		return true
	}
	a.kept, a.until, a.err = began, until, nil
	return true
}

// reask finds out whether a contested address still is.
func (e *engine) reask(a *address, now time.Duration) {
	switch {
	case a.seen == 0:
	case now-a.seen >= uncontestedAfter:
		e.log.Info("address is contested no more", "address", a.addr)
		a.stranger, a.seen = [6]byte{}, 0
	case now-a.reasked >= reaskEvery:
		a.reasked = now
		e.sent(e.wire.Ask(a.addr))
	}
}

// sighted takes in that another host showed itself to have, or to want, an address.
func (e *engine) sighted(s vlan.Sighting, now time.Duration) {
	ours := e.ours(s.MAC)
	if e.tenure == nil {
		if s.Probe {
			return
		}
		if ours {
			e.asked = 0
		}
		e.strangers[s.Address] = sighting{mac: s.MAC, at: now, ours: ours}
		return
	}
	a := e.addrs[s.Address]
	switch {
	case a == nil:
	case a.phase == probing && s.Probe && ours:
		// Another pod asks whether we live.
	case a.phase == probing && s.Probe && e.tenure.careful:
		// Somebody starts at the same time, perhaps another pod of ours that we cannot know. One of the two has to go on.
		if bytes.Compare(s.MAC[:], e.link.MAC) < 0 {
			e.letGo("another host probes for " + s.Address.String() + " at the same time")
			e.listening = now + probeWait + probeNum*probeMax + announceWait
		}
	case a.phase == probing || a.phase == refused && !s.Probe:
		if a.stranger == [6]byte{} {
			e.log.Warn("address is in use by another host", "address", a.addr, "mac", macString(s.MAC))
		}
		a.name(s.MAC, now)
		a.phase, a.next = refused, now+refusedFor
	case a.phase == held && !s.Probe && !e.peers.heard(s.MAC, now):
		e.contest(a, s.MAC, now)
	}
}

// contest defends an address, once in defendInterval (RFC 5227 section 2.4 c, whose hosts keep their addresses whatever happens).
func (e *engine) contest(a *address, mac [6]byte, now time.Duration) {
	e.metrics.conflict.Inc()
	if a.seen == 0 {
		e.log.Warn("address is contested by another host", "address", a.addr, "mac", macString(mac))
	}
	a.name(mac, now)
	a.seen = now
	if a.defended != 0 && now-a.defended < defendInterval || vlan.Boottime() >= a.until {
		return
	}
	a.defended = now
	e.sent(e.wire.Announce(a.addr))
}

func (e *engine) drop(addr netip.Addr) {
	if err := e.link.Drop(addr); err != nil {
		e.log.Error("address cannot be taken off", "address", addr, "error", err)
		return
	}
	e.log.Info("released address", "address", addr)
}

// heldAddresses lists what is on the interface, in order.
func (e *engine) heldAddresses() []netip.Addr {
	var list []netip.Addr
	for addr, a := range e.addrs {
		if a.phase == held {
			list = append(list, addr)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// nothingToHold: all that was wanted is somebody else's.
func (e *engine) nothingToHold() bool {
	for _, a := range e.addrs {
		if a.phase != refused {
			return false
		}
	}
	return len(e.addrs) > 0
}

// everHeld lists the addresses for the record, those that are wanted first.
func (e *engine) everHeld() []netip.Addr {
	const most = 64
	all := slices.Collect(maps.Keys(e.ever))
	slices.SortFunc(all, func(a, b netip.Addr) int {
		wantedA, wantedB := slices.Contains(e.claim.Addresses, a), slices.Contains(e.claim.Addresses, b)
		if wantedA != wantedB {
			if wantedA {
				return -1
			}
			return 1
		}
		return a.Compare(b)
	})
	return all[:min(len(all), most)]
}
