package holder

import (
	"cmp"
	"strings"
	"time"
)

// Times of the protocol. What was measured with them stands in the package's tests.
const (
	// helloEvery is how often a pod says what it does; silence is how long a holder may say nothing before it is doubted.
	helloEvery = 200 * time.Millisecond
	silence    = 700 * time.Millisecond
	// grace is the same for one that has taken the record and was not heard to hold yet. It is longer than claimWithin, in which
	// it must have put the addresses on, or never.
	grace       = 2 * time.Second
	claimWithin = 1500 * time.Millisecond
	// askAfter: a holder that is silent for this long is asked for by ARP, and is taken for gone when that was in vain for
	// quietFor, in which it was asked at least twice.
	askAfter = 300 * time.Millisecond
	askEvery = 100 * time.Millisecond
	quietFor = 200 * time.Millisecond
	// listenFirst is how long to listen before anything is taken: two hellos and their answers.
	listenFirst = 500 * time.Millisecond
	// yieldFor is how long to leave the addresses to a pod that comes first, when no record decides.
	yieldFor = 2 * time.Second
	// renewEvery and validFor are about the record, for those who do not hear each other.
	renewEvery = 5 * time.Second
	validFor   = 15 * time.Second
	// reachAgain is longer than renewEvery: who is holder by the record, and lives, has renewed it in that time.
	reachAgain = 6 * time.Second
	// takePatience is how long a successor waits for an answer to its attempt to take the record.
	takePatience = 150 * time.Millisecond
	// steady is how long a pod must have been healthy before an unhealthy holder hands over to it: what ails one may pass, and ail the other next.
	steady = time.Second
	// pause is how long after the record was taken from a silent holder the addresses are put on.
	pause = 50 * time.Millisecond
)

// facts are all that a decision is made from. Times are of Boottime.
type facts struct {
	now  time.Duration
	self string

	// wants: there are addresses to be held. up: the interface is, and its wire is open. healthy: so are the servers behind.
	wants, up, healthy bool
	// listening is since when nothing that was said on the VLAN can have been missed.
	listening time.Duration
	// leftover: addresses of a former run of this pod are on the interface.
	leftover bool

	// known: the record is known, from the lock or, while that is away, from the state folder.
	known  bool
	record Record
	// taken is since when it names this holder and epoch; renewed is when it last changed at all.
	taken, renewed time.Duration
	// away: the lock did not answer when it was last asked.
	away bool
	// taking is since when an attempt to take the record has had no answer; 0: there is none.
	taking time.Duration

	// deaf: what other pods say may have been lost, or has arrived and was not taken in yet, so that silence means nothing.
	deaf bool
	// asked is since when ARP requests for the addresses have had no answer of a MAC of ours; 0: none was sent.
	asked time.Duration
	// contest is the moment before which the record is not taken from a holder that renews it.
	contest time.Duration

	tenure *tenure
	peers  []peerFacts
}

// tenure is the time during which this pod is the holder.
type tenure struct {
	epoch int64
	// recorded: the record says so.
	recorded bool
	// careful: it began without a record and without knowing any other pod, so addresses are claimed as if they had never been held.
	careful bool
	// holds: it has put on an address. One that is careful says and writes nothing before.
	holds bool
	// jitter is that of its probes.
	jitter time.Duration
	began  time.Duration
	// from is when addresses may be put on: the holder of before, should it live unheard, has lost the record by then and knows it.
	from     time.Duration
	previous time.Time
	// unwritten: the record does not name all addresses that were held.
	unwritten bool
	// reached is when the lock was first reached since; renewals is how often the record was seen to change since.
	reached  time.Duration
	renewals int
}

func (t *tenure) said() bool { return t.holds || !t.careful }

// peerFacts is what another pod said. The times are when it last said so (0: never).
type peerFacts struct {
	name                                string
	heard, held, left, well             time.Duration // well: since when it says that it is healthy
	holding, healthy, recorded, leaving bool
	epoch                               int64
}

func compareNames(a, b string) int { return strings.Compare(a, b) }

// act is what to do.
type act int

const (
	stay act = iota
	// take the record, and then the addresses.
	take
	// takeUnrecorded takes the addresses without the record, which cannot be had.
	takeUnrecorded
	// letGo takes the addresses off and says so.
	letGo
	// handOver lets go and gives the record back.
	handOver
)

// verdict is a decision.
type verdict struct {
	act act
	// ask: find out by ARP whether a pod of ours has the addresses.
	ask bool
	// careful: see tenure.
	careful bool
	// pause: leave the holder of before the time to hear of it.
	pause bool
	// despite: somebody answers with the MAC of the holder of before.
	despite bool
	// robbed: the record went to one that is not heard.
	robbed bool
	// why is for people.
	why string
}

// decide says what to do. It is a pure function.
func decide(f *facts) verdict {
	if f.tenure != nil {
		return f.asHolder()
	}
	return f.asStandby()
}

func (f *facts) fresh(p *peerFacts) bool { return p.heard != 0 && f.now-p.heard <= silence }

func (f *facts) peer(name string) *peerFacts {
	for i := range f.peers {
		if f.peers[i].name == name {
			return &f.peers[i]
		}
	}
	return &peerFacts{name: name}
}

// other is the pod that the record names, if that is not this one.
func (f *facts) other() (string, bool) {
	return f.record.Holder, f.known && f.record.Holder != "" && f.record.Holder != f.self
}

func (f *facts) asHolder() verdict {
	t := f.tenure
	if !f.up {
		return verdict{act: handOver, why: "the VLAN interface is down"}
	}
	if !f.wants {
		return verdict{act: handOver, why: "no address is wanted any more"}
	}
	if t.careful && !t.holds && f.known && !f.away {
		return verdict{act: letGo, why: "the record can be had"}
	}
	if other, is := f.other(); is {
		lost := f.record.Epoch >= t.epoch
		if !t.recorded && t.renewals >= 2 {
			// It renewed the record since this pod went on without: it lives, behind a part of the VLAN that is not heard. (The first
			// change can be an old one that was seen late.)
			lost = true
		}
		if lost {
			return verdict{act: letGo, robbed: !f.fresh(f.peer(other)), why: other + " took the record"}
		}
	}
	for i := range f.peers {
		if p := &f.peers[i]; f.fresh(p) && p.holding && p.precedes(f.self, t) {
			return verdict{act: letGo, why: p.name + " holds the addresses, and has the better right to"}
		}
	}
	if !f.healthy {
		for i := range f.peers {
			if p := &f.peers[i]; f.fresh(p) && p.healthy && !p.holding && f.now-p.well >= steady {
				return verdict{act: handOver, why: "not healthy, and " + p.name + " is"}
			}
		}
	}
	return verdict{}
}

// precedes tells who of two holders stays: the one of the record, the later one, the first by name.
func (p *peerFacts) precedes(self string, t *tenure) bool {
	if p.recorded != t.recorded {
		return p.recorded
	}
	return cmp.Or(-cmp.Compare(p.epoch, t.epoch), compareNames(p.name, self)) < 0
}

func (f *facts) asStandby() verdict {
	switch {
	case !f.wants || !f.up || !f.healthy:
		return verdict{}
	case f.now-f.listening < listenFirst:
		return verdict{}
	}
	for i := range f.peers {
		if p := &f.peers[i]; f.fresh(p) && p.holding && !f.gaveBack(p) {
			return verdict{ask: f.now-p.heard >= askAfter}
		}
	}
	if !f.known {
		if !f.away || f.deaf || f.now-f.listening < grace || f.yields(f.listening) {
			return verdict{}
		}
		return verdict{act: takeUnrecorded, careful: true, why: "there is no record, and nobody is heard"}
	}
	v, since := f.vacant()
	slow := f.taking != 0 && f.now-f.taking >= takePatience
	if v.act == take && (f.away || slow && f.record.Holder != "") {
		if f.yields(since) {
			return verdict{ask: v.ask}
		}
		v.act = takeUnrecorded
	}
	return v
}

// gaveBack tells whether a holder gave the record back after it was heard the last time, which it does when its addresses are off: its
// interface is down, so that it cannot say so.
func (f *facts) gaveBack(p *peerFacts) bool {
	return f.known && f.record.Version != "" && f.record.Holder == "" && p.recorded && p.epoch == f.record.Epoch && p.heard < f.taken
}

// vacant tells whether the addresses are to be had, and since when they seem to be.
func (f *facts) vacant() (verdict, time.Duration) {
	other, is := f.other()
	if !is {
		if f.record.Holder == "" {
			v := verdict{act: take, why: "nobody has the record"}
			if v.ask = f.away || f.heldWithout(); v.ask && !f.quiet() {
				v = verdict{ask: true} // somebody may have gone on without it
			}
			return v, max(f.listening, f.taken)
		}
		// The record is this pod's, from before it was started anew or stopped for a while.
		if f.leftover || f.quiet() {
			return verdict{act: take, why: "the record is ours"}, f.listening
		}
		return verdict{ask: true}, 0
	}
	p := f.peer(other)
	if p.left > p.held && p.left >= f.taken {
		if (f.heldWithout() || f.away && f.deaf) && !f.quiet() {
			return verdict{ask: true}, p.left
		}
		return verdict{act: take, why: other + " left"}, p.left
	}
	last, limit := max(p.held, f.listening), silence
	if p.held < f.taken {
		last, limit = max(last, f.taken), grace
	}
	silent := f.now - last
	v := verdict{ask: silent >= askAfter}
	renews := f.now-f.renewed < validFor
	switch {
	case silent < limit:
		return v, 0
	case renews && f.now < f.contest:
		return v, 0
	case f.quiet():
		v.act, v.pause, v.why = take, true, other+" is silent on the VLAN"
	case !renews && !f.away && silent >= validFor:
		// It neither renews the record nor says anything: whoever answers with its MAC is somebody else.
		v.act, v.pause, v.despite, v.why = take, true, true, other+" is silent, and did not renew the record"
	}
	return v, last
}

// heldWithout: a pod was heard to hold the addresses after the record became what it is, and says so no longer, without having left.
func (f *facts) heldWithout() bool {
	for i := range f.peers {
		if p := &f.peers[i]; p.name != f.record.Holder && p.held > f.taken && p.held > p.left && (p.holding || !f.fresh(p)) {
			return true
		}
	}
	return false
}

// quiet: no MAC of ours answers for the addresses.
func (f *facts) quiet() bool { return !f.deaf && f.asked != 0 && f.now-f.asked >= quietFor }

// yields tells whether to leave the addresses, which have been vacant since a moment, to another pod.
func (f *facts) yields(since time.Duration) bool {
	if f.now-since >= silence+yieldFor {
		return false
	}
	for i := range f.peers {
		if p := &f.peers[i]; f.fresh(p) && p.healthy && !p.leaving && compareNames(p.name, f.self) < 0 {
			return true
		}
	}
	return false
}
