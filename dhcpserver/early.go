package dhcpserver

import (
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// earlyPart is the part of the lease time, one of so many, for which a lease is as good as new: who asks for it again is told how
// long it still lasts, and nothing is written. RFC 2131 section 4.3.1 leaves the time to the server. A client that renews when it is told to, at
// half the time, is always written.
const earlyPart = 10

// granted answers a client that may have the address.
func (t *table) granted(r *request, addr netip.Addr, now time.Time) verdict {
	v := verdict{kind: dhcpv4.MessageTypeAck, yiaddr: addr}
	own := t.own(r.mac, addr, now)
	if own != nil && t.early(own, r, now) {
		v.lasts = t.left(own, now)
		switch {
		case own.lease != own.durable:
			v.change = own.lease // it is being written: the answer waits for that
			return t.took(r, v)
		case t.certain(own):
			return t.took(r, v)
		}
	}
	if reason := t.mayChange(r.mac, now); reason != "" {
		// Its lease is as good as ever. Only what it calls itself is not noted, and the end stays.
		if own != nil && own.lease == own.durable && t.certain(own) && t.left(own, now) >= t.model.leaseTime/earlyPart {
			v.lasts = t.left(own, now)
			return t.took(r, v)
		}
		return ignore(reason)
	}
	v.lasts, v.change = t.model.leaseTime, t.grant(r, addr, now)
	return v
}

// took takes back what the client was offered: it has its answer.
func (t *table) took(r *request, v verdict) verdict {
	if o := t.offers[r.mac]; o != nil {
		t.withdraw(o)
	}
	return v
}

// own is the binding of an address that is in a lease of that client, which has no other; nil: it is not.
func (t *table) own(mac MAC, addr netip.Addr, now time.Time) *binding {
	b := t.byMAC[mac]
	if b == nil || b.addr != addr || !b.live(now) || !now.Before(b.lease.Expires) {
		return nil
	}
	return b
}

// early tells whether the client asks for what it got just now.
func (t *table) early(b *binding, r *request, now time.Time) bool {
	left := b.lease.Expires.Sub(now)
	return left > t.model.leaseTime-t.model.leaseTime/earlyPart && left <= t.model.leaseTime+time.Second && // whole seconds: see wholeSecond
		b.lease.ClientID == ClientID(r.clientID) && b.lease.Hostname == t.hostname(r)
}

// left is how long a client may still use its address, in whole seconds.
func (t *table) left(b *binding, now time.Time) time.Duration {
	return min(b.lease.Expires.Sub(now), t.model.leaseTime).Truncate(time.Second)
}

// certain tells that the store has the lease, that nobody else can have changed it, and that its times are those of the clock.
func (t *table) certain(b *binding) bool {
	return !b.doubt && b.bounded.IsZero() && (t.sure == nil || t.sure(b.addr))
}

// hostname is what the lease of a client says that it is called.
func (t *table) hostname(r *request) string {
	if name := t.model.reservations[r.mac].hostname; name != "" {
		return name
	}
	return r.hostname
}
