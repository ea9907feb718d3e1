package holder

import (
	"crypto/ed25519"
	"encoding/binary"
	"reflect"
	"strings"
	"testing"
	"time"

	"golang.org/x/time/rate"
)

func keyOf(seed byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))
}

var testFrame = frame{
	flags: flagHolding | flagHealthy, epoch: 7, nonce: 11, counter: 12, mac: [6]byte{2, 0, 0, 0, 0, 0xa}, name: "a", echoes: []uint64{21, 22},
}

// written writes a frame whose signature is right, with a change of its text before.
func written(f frame, key ed25519.PrivateKey, change func([]byte) []byte) []byte {
	b := f.sign(key)
	b = change(b[:len(b)-ed25519.SignatureSize])
	return append(b, ed25519.Sign(key, append([]byte(signedAs), b...))...)
}

func TestFrame(t *testing.T) {
	key := keyOf('a')
	b := testFrame.sign(key)
	got, err := parseFrame(b)
	if err != nil || !reflect.DeepEqual(got, testFrame) {
		t.Errorf("read %+v, %v; want %+v", got, err, testFrame)
	}
	if !verify(b, key.Public().(ed25519.PublicKey)) {
		t.Error("the signature does not verify")
	}
	for i := range b {
		broken := append([]byte(nil), b...)
		broken[i] ^= 1
		if verify(broken, key.Public().(ed25519.PublicKey)) {
			t.Errorf("verified with another byte %d", i)
		}
	}
	later := written(testFrame, key, func(b []byte) []byte { b[4] = 2; return append(b, "something new"...) })
	if got, err := parseFrame(later); err != nil || !reflect.DeepEqual(got, testFrame) {
		t.Errorf("of a later version read %+v, %v; want %+v", got, err, testFrame)
	}
}

func FuzzParseFrame(f *testing.F) {
	f.Add(testFrame.sign(keyOf('a')))
	long := testFrame
	long.name, long.echoes = strings.Repeat("n", maxName), make([]uint64, maxEchoes)
	f.Add(long.sign(keyOf('a')))
	f.Add([]byte("oooi"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, err := parseFrame(b)
		if err != nil {
			return
		}
		again, err := parseFrame(got.sign(keyOf('a')))
		if err != nil || !reflect.DeepEqual(again, got) {
			t.Errorf("written and read again: %+v, %v; was %+v", again, err, got)
		}
	})
}

// Who is believed: b (nonce 21) knows a.
func TestPeers(t *testing.T) {
	key, mac := keyOf('a'), testFrame.mac
	ps := newPeers("b", 21)
	ps.set([]Peer{{"a", key.Public().(ed25519.PublicKey)}, {"b", keyOf('b').Public().(ed25519.PublicKey)}}, 0)
	say := func(change func(*frame)) []byte {
		f := testFrame
		change(&f)
		return f.sign(key)
	}
	now := time.Minute
	hears := func(b []byte, want string) {
		t.Helper()
		now += time.Second
		if got := ps.hear(b, mac, now); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	echoes := func(want ...uint64) {
		t.Helper()
		if got := ps.echoes(now); !reflect.DeepEqual(got, want) {
			t.Errorf("echoes %v, want %v", got, want)
		}
	}

	hears([]byte("oooi and nothing else"), resultMalformed)
	hears(say(func(f *frame) { f.name = "c" }), resultUnknown)
	hears(say(func(f *frame) { f.name = "b" }), resultOwnName)
	hears(say(func(f *frame) { f.mac[5]++ }), resultWrongMAC)
	forged := testFrame
	hears(forged.sign(keyOf('x')), resultForged)
	// Recorded before b started: not for its nonce.
	hears(say(func(f *frame) { f.echoes = []uint64{20} }), resultNotEchoedAndNonce)
	hears(say(func(f *frame) { f.echoes = nil }), resultNotEchoed)
	if list := ps.facts(); len(list) != 0 {
		t.Errorf("believed %+v", list)
	}
	echoes(11)

	hears(say(func(*frame) {}), resultAccepted)
	hears(say(func(*frame) {}), resultOld)
	hears(say(func(f *frame) { f.counter = 5 }), resultOld)
	hears(say(func(f *frame) { f.counter, f.flags = 20, flagLeaving }), resultAccepted)
	hears(say(func(f *frame) { f.counter, f.flags = 21, flagLeaving }), resultAccepted)
	want := []peerFacts{{name: "a", heard: now, held: now - 4*time.Second, left: now - time.Second, leaving: true, epoch: 7}}
	if got := ps.facts(); !reflect.DeepEqual(got, want) {
		t.Errorf("facts %+v, want %+v", got, want)
	}
	if !ps.has(mac) || !ps.heard(mac, now) || ps.heard(mac, now+time.Minute) {
		t.Error("the MAC of the peer is not known, or for too long")
	}

	// a is started anew: what it said before never counts again.
	hears(say(func(f *frame) { f.nonce, f.counter, f.echoes = 31, 1, nil }), resultNotEchoedAndNonce)
	echoes(11, 31)
	hears(say(func(f *frame) { f.nonce, f.counter = 31, 2 }), resultAccepted)
	echoes(31)
	hears(say(func(f *frame) { f.counter = 1000 }), resultOld)

	// It is not listed any more: believed while it is heard.
	ps.set(nil, now)
	hears(say(func(f *frame) { f.nonce, f.counter = 31, 3 }), resultAccepted)
	ps.set(nil, now+time.Hour)
	hears(say(func(f *frame) { f.nonce, f.counter = 31, 4 }), resultUnknown)
}

// A flood of forged frames in the name of a peer does not keep the peer's own out, and costs a bounded number of verifications.
func TestFloodOfFrames(t *testing.T) {
	key, mac := keyOf('a'), testFrame.mac
	ps := newPeers("b", 21)
	ps.set([]Peer{{"a", key.Public().(ed25519.PublicKey)}}, 0)
	// Time stands still.
	ps.strange = rate.NewLimiter(0, 10)
	ps.known["a"].limit = rate.NewLimiter(0, 10)
	if got := ps.hear(testFrame.sign(key), mac, time.Second); got != resultAccepted {
		t.Fatal(got)
	}
	counts := map[string]int{}
	forged := testFrame
	forged.mac[0] = 0x52
	for i := range 1000 {
		forged.counter = uint64(100 + i)
		b := forged.sign(key)
		binary.BigEndian.PutUint64(b[len(b)-8:], 0)
		counts[ps.hear(b, forged.mac, time.Second)]++
	}
	if want := map[string]int{resultForged: 9, resultLimited: 991}; !reflect.DeepEqual(counts, want) {
		t.Errorf("results %v, want %v", counts, want)
	}
	own := testFrame
	own.counter = 50
	if got := ps.hear(own.sign(key), mac, time.Second); got != resultAccepted {
		t.Errorf("the peer's own frame: %s", got)
	}
}
