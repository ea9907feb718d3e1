package dhcpserver

import (
	"time"

	"golang.org/x/time/rate"
)

const (
	// A client changes its lease a few times when it boots: firmware, initrd and system have each a name and a client identifier. One
	// may do so changeBurst times at once, and once more every changeEvery.
	changeBurst, changeEvery = 10, 20 * time.Second
	// Clients that nothing is known of get so many leases at once: leastNew, or newTimes the addresses of the pool, and newRate more
	// each second. So all workers of a VLAN may boot at once, and who makes up clients is bounded.
	leastNew, newTimes, newRate = 1000, 4, 10
	// sweepFrom is how many clients are remembered before it is looked which of them need not be.
	sweepFrom = 1024
)

// limits bound how often leases change: each change is written, and any host of the VLAN can ask for one. A renewal that
// comes early is no change (granted).
type limits struct {
	byMAC map[MAC]*rate.Limiter
	sweep int // how many in byMAC make it worth to look for those that are full
	fresh *rate.Limiter
}

// reset forgets what was used.
func (l *limits) reset() {
	l.byMAC, l.sweep = map[MAC]*rate.Limiter{}, sweepFrom
	l.fresh = rate.NewLimiter(newRate, max(leastNew, l.burst()))
}

func (l *limits) burst() int {
	if l.fresh == nil {
		return 0
	}
	return l.fresh.Burst()
}

// size fits the limits to a pool of so many addresses.
func (l *limits) size(addresses int) {
	if burst := max(leastNew, newTimes*addresses); burst != l.burst() {
		l.fresh = rate.NewLimiter(newRate, burst)
	}
}

// change takes one change of a client, if it has one.
func (l *limits) change(mac MAC, now time.Time) bool {
	limiter := l.byMAC[mac]
	if limiter == nil {
		if len(l.byMAC) >= l.sweep {
			for mac, limiter := range l.byMAC {
				if limiter.TokensAt(now) >= changeBurst {
					delete(l.byMAC, mac)
				}
			}
			l.sweep = max(sweepFrom, 2*len(l.byMAC))
		}
		limiter = rate.NewLimiter(rate.Every(changeEvery), changeBurst)
		l.byMAC[mac] = limiter
	}
	return limiter.AllowN(now, 1)
}

// mayChange takes one change of a client; else it says why not. A client that is known, because it has or had an address that
// nobody else got since, or a reservation, does not suffer from how many others come.
func (t *table) mayChange(mac MAC, now time.Time) string {
	_, reserved := t.model.reservations[mac]
	if t.byMAC[mac] == nil && !reserved && !t.limits.fresh.AllowN(now, 1) {
		return dropManyNew
	}
	if !t.limits.change(mac, now) {
		return dropTooOften
	}
	return ""
}
