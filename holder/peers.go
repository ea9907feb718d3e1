package holder

import (
	"crypto/ed25519"
	"slices"
	"time"

	"golang.org/x/time/rate"
)

const (
	// Verifying costs 50 to 100 µs: what tenants can make us spend is bounded. What has the MAC of the peer has room of
	// its own, so that it takes a forged MAC to keep the peer's own frames out.
	peerFramesPerSecond     = 100
	strangeFramesPerSecond  = 50
	maxRetired              = 64
	maxCandidates           = 2
	echoFor                 = 10 * time.Second
	unlistedFor             = 30 * time.Second
	resultAccepted          = "accepted"
	resultMalformed         = "malformed"
	resultOwnName           = "own_name"
	resultUnknown           = "unknown_sender"
	resultWrongMAC          = "wrong_mac"
	resultOld               = "old"
	resultLimited           = "limited"
	resultForged            = "bad_signature"
	resultNotEchoed         = "not_echoed"
	resultNotEchoedAndNonce = resultNotEchoed + "_new"
)

// peers is what the other pods said, as far as it can be believed.
type peers struct {
	self  string
	nonce uint64
	known map[string]*peer
	// strange limits frames whose MAC is not that of the peer that they name.
	strange *rate.Limiter
}

type peer struct {
	name string
	key  ed25519.PublicKey
	// nonce is that of the frames that count, and counter of the last of them.
	nonce, counter uint64
	// retired nonces were this peer's, or were replaced: they never count again.
	retired []uint64
	// candidates are new nonces of frames without our echo, which may be old ones of somebody who recorded them: echoed, not believed.
	candidates []uint64
	limit      *rate.Limiter

	// What it said last, in a frame that counts, and when (Boottime; 0: never).
	said              frame
	heard, held, left time.Duration
	// well is since when it says that it is healthy; 0: it does not.
	well time.Duration
}

func newPeers(self string, nonce uint64) *peers {
	return &peers{self: self, nonce: nonce, known: map[string]*peer{}, strange: rate.NewLimiter(strangeFramesPerSecond, strangeFramesPerSecond)}
}

// set replaces who is known. One that is not listed any more is known on for as long as it is heard: it may be a holder that the
// cluster has given up because it is cut off from there.
func (ps *peers) set(list []Peer, now time.Duration) {
	keep := map[string]bool{}
	for _, p := range list {
		if p.Name == ps.self || len(p.Key) != ed25519.PublicKeySize {
			continue
		}
		keep[p.Name] = true
		if old := ps.known[p.Name]; old == nil || !old.key.Equal(p.Key) {
			ps.known[p.Name] = &peer{name: p.Name, key: p.Key, limit: rate.NewLimiter(peerFramesPerSecond, peerFramesPerSecond)}
		}
	}
	for name, p := range ps.known {
		if !keep[name] && (p.heard == 0 || now-p.heard > unlistedFor) {
			delete(ps.known, name)
		}
	}
}

// hear takes in a frame and returns what became of it.
func (ps *peers) hear(b []byte, from [6]byte, now time.Duration) string {
	f, err := parseFrame(b)
	if err != nil {
		return resultMalformed
	}
	if f.name == ps.self {
		return resultOwnName
	}
	p := ps.known[f.name]
	switch {
	case p == nil:
		return resultUnknown
	case f.mac != from:
		return resultWrongMAC
	case f.nonce == p.nonce && f.counter <= p.counter || slices.Contains(p.retired, f.nonce):
		return resultOld
	}
	limit := p.limit
	if p.heard == 0 || from != p.said.mac {
		limit = ps.strange
	}
	if !limit.Allow() {
		return resultLimited
	}
	if !verify(b, p.key) {
		return resultForged
	}
	if !slices.Contains(f.echoes, ps.nonce) {
		if f.nonce == p.nonce || slices.Contains(p.candidates, f.nonce) {
			return resultNotEchoed
		}
		p.candidates = append(p.candidates, f.nonce)
		if len(p.candidates) > maxCandidates {
			p.candidates = p.candidates[1:]
		}
		return resultNotEchoedAndNonce
	}
	p.believe(f, now)
	return resultAccepted
}

func (p *peer) believe(f frame, now time.Duration) {
	if f.nonce != p.nonce {
		if p.nonce != 0 {
			if p.retired = append(p.retired, p.nonce); len(p.retired) > maxRetired {
				p.retired = p.retired[1:]
			}
		}
		p.nonce = f.nonce
		p.candidates = slices.DeleteFunc(p.candidates, func(n uint64) bool { return n == f.nonce })
	}
	p.counter = f.counter
	p.said, p.heard = f, now
	switch {
	case !f.healthy():
		p.well = 0
	case p.well == 0:
		p.well = now
	}
	if f.holding() {
		p.held = now
	}
	if f.leaving() && (p.left == 0 || p.left < p.held) {
		p.left = now
	}
}

// echoes are the nonces that the others shall find in our frames.
func (ps *peers) echoes(now time.Duration) []uint64 {
	var live, fresh []uint64
	for _, p := range ps.known {
		if p.nonce != 0 && now-p.heard < echoFor {
			live = append(live, p.nonce)
		}
		fresh = append(fresh, p.candidates...)
	}
	all := append(live, fresh...)
	return all[:min(len(all), maxEchoes)]
}

// has tells whether the MAC is that of a peer.
func (ps *peers) has(mac [6]byte) bool {
	for _, p := range ps.known {
		if p.heard != 0 && p.said.mac == mac {
			return true
		}
	}
	return false
}

// heard tells whether a peer with the MAC is heard now: what it does, decide looks at.
func (ps *peers) heard(mac [6]byte, now time.Duration) bool {
	for _, p := range ps.known {
		if p.heard != 0 && p.said.mac == mac && now-p.heard <= silence {
			return true
		}
	}
	return false
}

// facts lists who has been heard, by name.
func (ps *peers) facts() []peerFacts {
	var list []peerFacts
	for _, p := range ps.known {
		if p.heard != 0 {
			list = append(list, peerFacts{
				name: p.name, heard: p.heard, held: p.held, left: p.left, well: p.well,
				holding: p.said.holding(), healthy: p.said.healthy(), recorded: p.said.recorded(), leaving: p.said.leaving(), epoch: p.said.epoch,
			})
		}
	}
	slices.SortFunc(list, func(a, b peerFacts) int { return compareNames(a.name, b.name) })
	return list
}
