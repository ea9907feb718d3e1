package holder

import (
	"fmt"
	"testing"
	"time"
)

// at is the moment of the decisions: the pod has listened for a long time.
const at = time.Hour

// standby is a pod "b" that stands by while "a" holds, and hears it.
func standby(change func(*facts)) *facts {
	f := &facts{
		now: at, self: "b", wants: true, up: true, healthy: true, listening: time.Minute,
		known: true, record: Record{Holder: "a", Epoch: 5, Version: "5"}, taken: 2 * time.Minute, renewed: at - 3*time.Second,
		peers: []peerFacts{{name: "a", heard: at - 50*time.Millisecond, held: at - 50*time.Millisecond, holding: true, healthy: true, recorded: true, epoch: 5}},
	}
	change(f)
	return f
}

// holding is a pod "b" that holds, and hears "a" stand by.
func holding(change func(*facts)) *facts {
	f := &facts{
		now: at, self: "b", wants: true, up: true, healthy: true, listening: time.Minute,
		known: true, record: Record{Holder: "b", Epoch: 5, Version: "5"}, taken: 2 * time.Minute, renewed: at - 3*time.Second,
		tenure: &tenure{epoch: 5, recorded: true, holds: true, began: 2 * time.Minute, reached: 2 * time.Minute},
		peers:  []peerFacts{{name: "a", heard: at - 50*time.Millisecond, healthy: true}},
	}
	change(f)
	return f
}

// silentFor makes "a" silent, and asks for it by ARP in vain for as long as that would have been.
func silentFor(f *facts, d time.Duration) {
	f.peers[0].heard, f.peers[0].held = at-d, at-d
	if d > askAfter {
		f.asked = at - d + askAfter
	}
}

func TestDecide(t *testing.T) {
	for _, test := range []struct {
		name  string
		facts *facts
		want  string
	}{
		// Standing by.
		{"the holder is heard", standby(func(*facts) {}), "stay"},
		{"the holder is heard, its record is old", standby(func(f *facts) { f.renewed = at - time.Hour }), "stay"},
		{"the holder was silent for a moment", standby(func(f *facts) { silentFor(f, 500*time.Millisecond) }), "stay, ask"},
		{"the holder is silent", standby(func(f *facts) { silentFor(f, 800*time.Millisecond) }), "take, ask, pause"},
		{"the holder is silent, and answers", standby(func(f *facts) { silentFor(f, 5*time.Second); f.asked = at - askEvery }), "stay, ask"},
		{"the holder is silent, and was not asked yet", standby(func(f *facts) { silentFor(f, 5*time.Second); f.asked = 0 }), "stay, ask"},
		{"somebody answers as a holder whose record is not renewed", standby(func(f *facts) { silentFor(f, 16*time.Second); f.asked = 0; f.renewed = at - 16*time.Second }), "take, ask, pause, despite"},
		{"somebody answers as a holder, and the record cannot be had", standby(func(f *facts) { silentFor(f, 16*time.Second); f.asked, f.renewed, f.away = 0, at-16*time.Second, true }), "stay, ask"},
		{"the holder is silent in a flood", standby(func(f *facts) { silentFor(f, 5*time.Second); f.deaf = true }), "stay, ask"},
		{"the holder is silent in a flood, the lock as well", standby(func(f *facts) { silentFor(f, 16*time.Second); f.deaf, f.away = true, true }), "stay, ask"},
		{"the holder is silent in a flood, and did not renew the record", standby(func(f *facts) { silentFor(f, 16*time.Second); f.deaf, f.renewed = true, at-16*time.Second }), "take, ask, pause, despite"},
		{"a flood, and nothing is known", standby(func(f *facts) { f.deaf, f.away, f.known, f.peers = true, true, false, nil }), "stay"},
		{"the holder is silent, the lock as well", standby(func(f *facts) { silentFor(f, 800*time.Millisecond); f.away = true }), "take unrecorded, ask, pause"},
		{"the holder is silent, the lock is slow", standby(func(f *facts) { silentFor(f, 900*time.Millisecond); f.taking = at - 200*time.Millisecond }), "take unrecorded, ask, pause"},
		{"the holder is silent, the link of the standby is down", standby(func(f *facts) { silentFor(f, time.Minute); f.up = false }), "stay"},
		{"the holder is silent, the standby is not healthy", standby(func(f *facts) { silentFor(f, time.Minute); f.healthy = false }), "stay"},
		{"the holder is silent, nothing is wanted", standby(func(f *facts) { silentFor(f, time.Minute); f.wants = false }), "stay"},
		{"the holder is silent for one that listens since just now", standby(func(f *facts) { silentFor(f, time.Minute); f.listening = at - 400*time.Millisecond }), "stay"},
		{"the holder is silent for one that listens since shortly", standby(func(f *facts) { silentFor(f, time.Minute); f.listening = at - 600*time.Millisecond }), "stay, ask"},
		{"the holder took the record and was not heard yet", standby(func(f *facts) { silentFor(f, time.Minute); f.taken = at - time.Second }), "stay, ask"},
		{"the holder took the record and was not heard for long", standby(func(f *facts) { silentFor(f, time.Minute); f.taken = at - 3*time.Second }), "take, ask, pause"},
		{"the holder took the record from us, unheard", standby(func(f *facts) { silentFor(f, time.Minute); f.contest = at + time.Second }), "stay, ask"},
		{"the holder took the record from us, unheard, and renews it no more", standby(func(f *facts) {
			silentFor(f, time.Minute)
			f.contest, f.renewed = at+time.Second, at-16*time.Second
		}), "take, ask, pause"},
		{"the holder left", standby(func(f *facts) { f.peers[0].holding, f.peers[0].left, f.peers[0].leaving = false, at, true }), "take"},
		{"nobody has the record", standby(func(f *facts) { f.record.Holder, f.peers = "", nil }), "take"},
		{"nobody has the record, which is away", standby(func(f *facts) { f.record.Holder, f.peers, f.away = "", nil, true }), "stay, ask"},
		{"nobody has the record, which is away, and nobody answers", standby(func(f *facts) { f.record.Holder, f.peers, f.away, f.asked = "", nil, true, at-quietFor }), "take unrecorded, ask"},
		{"nobody has the record, and who held without it is silent", standby(func(f *facts) { silentFor(f, 5*time.Second); f.record.Holder, f.asked = "", 0 }), "stay, ask"},
		{"nobody has the record, and who held without it does not answer", standby(func(f *facts) { silentFor(f, 5*time.Second); f.record.Holder = "" }), "take, ask"},
		{"the holder left, another one held without the record since", standby(func(f *facts) {
			f.peers[0].holding, f.peers[0].left, f.peers[0].leaving = false, at, true
			f.peers = append(f.peers, peerFacts{name: "c", heard: at - time.Second, held: at - time.Second, holding: true, epoch: 6})
		}), "stay, ask"},
		{"the holder left, the lock is away, and what arrived was not taken in", standby(func(f *facts) {
			f.peers[0].holding, f.peers[0].left, f.peers[0].leaving, f.away, f.deaf = false, at, true, true, true
		}), "stay, ask"},
		{"the holder left, the lock is away", standby(func(f *facts) {
			f.peers[0].holding, f.peers[0].left, f.peers[0].leaving, f.away = false, at, true, true
		}), "take unrecorded"},
		{"the holder left, the lock is slow", standby(func(f *facts) {
			f.peers[0].holding, f.peers[0].left, f.peers[0].leaving, f.taking = false, at, true, at-200*time.Millisecond
		}), "take unrecorded"},
		{"the holder left before it took the record again", standby(func(f *facts) {
			f.peers[0].holding, f.peers[0].held, f.peers[0].left, f.taken = false, at-time.Minute, at-50*time.Second, at-time.Second
		}), "stay, ask"},
		{"the record was given back", standby(func(f *facts) { f.record.Holder, f.peers[0].holding = "", false }), "take"},
		{"the record was given back, and somebody holds", standby(func(f *facts) { f.record.Holder = "" }), "stay"},
		{"the record was given back by one that was heard to hold before", standby(func(f *facts) { f.record.Holder, f.taken = "", at }), "take"},
		{"there is no record", standby(func(f *facts) { f.record, f.peers = Record{}, nil }), "take"},
		{"the record is ours, from before", standby(func(f *facts) { f.record.Holder, f.peers = "b", nil }), "stay, ask"},
		{"the record is ours, from before, and nobody answers", standby(func(f *facts) { f.record.Holder, f.peers, f.asked = "b", nil, at-time.Second }), "take"},
		{"the record is ours, from before, and so are the addresses", standby(func(f *facts) { f.record.Holder, f.peers, f.leftover = "b", nil, true }), "take"},
		{"the record is ours, from before, and somebody holds", standby(func(f *facts) { f.record.Holder, f.leftover = "b", true }), "stay"},
		{"nothing is known yet", standby(func(f *facts) { f.known, f.record, f.peers = false, Record{}, nil }), "stay"},
		{"nothing can be known", standby(func(f *facts) { f.known, f.record, f.peers, f.away = false, Record{}, nil, true }), "take unrecorded, careful"},
		{"nothing can be known, and one that comes first is there", standby(func(f *facts) {
			f.known, f.record, f.away, f.listening, f.peers[0].holding = false, Record{}, true, at-2200*time.Millisecond, false
		}), "stay"},
		{"without the lock, one that comes first is there", standby(func(f *facts) {
			silentFor(f, 800*time.Millisecond)
			f.record.Holder, f.away = "c", true
			f.peers[0] = peerFacts{name: "a", heard: at, healthy: true}
			f.peers = append(f.peers, peerFacts{name: "c", heard: at - 800*time.Millisecond, held: at - 800*time.Millisecond})
		}), "stay, ask"},

		// Holding.
		{"all is well", holding(func(*facts) {}), "stay"},
		{"nobody is heard, and the lock is away", holding(func(f *facts) { f.peers, f.away, f.renewed = nil, true, 0 }), "stay"},
		{"the link is down", holding(func(f *facts) { f.up = false }), "hand over"},
		{"nothing is wanted any more", holding(func(f *facts) { f.wants = false }), "hand over"},
		{"not healthy", holding(func(f *facts) { f.healthy = false }), "hand over"},
		{"not healthy, and the standby only just is", holding(func(f *facts) { f.healthy, f.peers[0].well = false, at-steady/2 }), "stay"},
		{"not healthy, and nobody is", holding(func(f *facts) { f.healthy, f.peers[0].healthy = false, false }), "stay"},
		{"not healthy, and nobody is heard", holding(func(f *facts) { f.healthy, f.peers[0].heard = false, at-time.Second }), "stay"},
		{"the record was taken by one that is heard", holding(func(f *facts) { f.record.Holder, f.record.Epoch = "a", 6 }), "let go"},
		{"the record was taken by one that is not heard", holding(func(f *facts) { f.record.Holder, f.record.Epoch, f.peers = "a", 6, nil }), "let go, robbed"},
		{"a watch is late", holding(func(f *facts) { f.record.Holder, f.record.Epoch = "a", 4 }), "stay"},
		{"the record is gone", holding(func(f *facts) { f.record = Record{} }), "stay"},
		{"another one holds, of an earlier epoch", holding(func(f *facts) { f.peers[0].holding, f.peers[0].recorded, f.peers[0].epoch = true, true, 4 }), "stay"},
		{"another one holds, of a later epoch", holding(func(f *facts) { f.peers[0].holding, f.peers[0].recorded, f.peers[0].epoch = true, true, 6 }), "let go"},
		{"another one holds without the record", holding(func(f *facts) { f.peers[0].holding, f.peers[0].epoch = true, 6 }), "stay"},
		{"another one holds with the record", holding(func(f *facts) {
			f.tenure.recorded, f.tenure.epoch = false, 6
			f.peers[0].holding, f.peers[0].recorded, f.peers[0].epoch = true, true, 5
		}), "let go"},
		{"another one holds, both without the record", holding(func(f *facts) {
			f.tenure.recorded = false
			f.peers[0].holding, f.peers[0].epoch = true, 5
		}), "let go"},
		{"another one held, and is not heard any more", holding(func(f *facts) {
			f.peers[0].holding, f.peers[0].recorded, f.peers[0].epoch, f.peers[0].heard = true, true, 6, at-time.Second
		}), "stay"},
		{"without the record, which is another's", holding(func(f *facts) {
			f.tenure.recorded, f.tenure.epoch, f.record.Holder, f.tenure.renewals = false, 6, "a", 1
		}), "stay"},
		{"without the record, which another renews", holding(func(f *facts) {
			f.tenure.recorded, f.tenure.epoch, f.record.Holder, f.tenure.renewals = false, 6, "a", 2
		}), "let go"},
		{"careful, and the record can be had", holding(func(f *facts) { f.tenure.careful, f.tenure.recorded, f.tenure.holds = true, false, false }), "let go"},
		{"careful, with addresses", holding(func(f *facts) { f.tenure.careful, f.tenure.recorded = true, false }), "stay"},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := decide(test.facts).String(); got != test.want {
				t.Errorf("decided: %s, want %s", got, test.want)
			}
		})
	}
}

func (v verdict) String() string {
	s := [...]string{stay: "stay", take: "take", takeUnrecorded: "take unrecorded", letGo: "let go", handOver: "hand over"}[v.act]
	for _, flag := range []struct {
		is   bool
		name string
	}{{v.ask, "ask"}, {v.careful, "careful"}, {v.pause, "pause"}, {v.despite, "despite"}, {v.robbed, "robbed"}} {
		if flag.is {
			s += fmt.Sprintf(", %s", flag.name)
		}
	}
	return s
}

// Of two holders that hear each other, exactly one lets go, whatever they are.
func TestOfTwoHoldersOneStays(t *testing.T) {
	kinds := []tenure{{epoch: 5}, {epoch: 6}, {epoch: 5, recorded: true}, {epoch: 6, recorded: true}}
	for _, a := range kinds {
		for _, b := range kinds {
			asPeer := func(name string, t tenure) *peerFacts {
				return &peerFacts{name: name, heard: at, held: at, holding: true, recorded: t.recorded, epoch: t.epoch}
			}
			aGoes, bGoes := asPeer("b", b).precedes("a", &a), asPeer("a", a).precedes("b", &b)
			if aGoes == bGoes {
				t.Errorf("a %+v and b %+v: a lets go: %v, b lets go: %v", a, b, aGoes, bGoes)
			}
		}
	}
}
