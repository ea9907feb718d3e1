package dhcpserver

import (
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// verdict is what the server does about one message. The zero verdict is silence.
type verdict struct {
	// kind of the answer, none for silence.
	kind dhcpv4.MessageType
	// yiaddr is the address that the client gets, not valid in a NAK and in the answer to INFORM.
	yiaddr netip.Addr
	// lasts is how long it may use it, in whole seconds; zero in an offer: the lease time.
	lasts time.Duration
	// reason of a NAK, for the client's log; of silence, for the metric.
	reason string
	// change must be durable before the answer leaves.
	change *Lease
}

func ignore(reason string) verdict { return verdict{reason: reason} }

func nak(reason string) verdict { return verdict{kind: dhcpv4.MessageTypeNak, reason: reason} }

// Why the server is silent: values of a metric label.
const (
	dropMalformed   = "malformed"
	dropNoPool      = "no pool"
	dropWrongRelay  = "relay of another network"
	dropUnexpected  = "unexpected message"
	dropOtherServer = "other server"
	dropNotHolder   = "not the holder"
	dropNotOurs     = "lease not ours"
	dropExhausted   = "pool exhausted"
	dropBusy        = "too many uncommitted"
	dropTooOften    = "too many changes"
	dropManyNew     = "too many new clients"
	dropNotWritten  = "lease not written"
	dropConflict    = "lease of somebody else"
	dropPanic       = "panic"
)

// decide is the state machine of RFC 2131 section 4.3 over the table. unicast tells that the message
// was sent to the server's own address.
func (t *table) decide(r *request, unicast bool, now time.Time) verdict {
	if t.model == nil {
		return ignore(dropNoPool)
	}
	if !r.giaddr.IsUnspecified() && (!t.model.cidr.Contains(r.giaddr) || r.giaddr == t.model.serverIP) {
		return ignore(dropWrongRelay)
	}
	t.expireOffers(now)
	switch r.kind {
	case dhcpv4.MessageTypeDiscover:
		return t.discover(r, now)
	case dhcpv4.MessageTypeRequest:
		switch {
		case r.serverID.IsValid():
			return t.selecting(r, now)
		case r.requested.IsValid() && r.ciaddr.IsUnspecified():
			return t.initReboot(r, now)
		case r.ciaddr.IsUnspecified():
			return ignore(dropUnexpected)
		case unicast && r.giaddr.IsUnspecified():
			return t.renewing(r, now)
		default:
			return t.rebinding(r, now)
		}
	case dhcpv4.MessageTypeRelease:
		return t.releasing(r, now)
	case dhcpv4.MessageTypeDecline:
		return t.declining(r, now)
	case dhcpv4.MessageTypeInform:
		if !t.model.cidr.Contains(r.ciaddr) {
			return ignore(dropUnexpected)
		}
		return verdict{kind: dhcpv4.MessageTypeAck}
	default:
		return ignore(dropUnexpected)
	}
}

// discover answers DHCPDISCOVER (section 4.3.1).
func (t *table) discover(r *request, now time.Time) verdict {
	addr, ok := t.choose(r.mac, r.requested, now)
	if !ok {
		return ignore(dropExhausted)
	}
	t.offer(r.mac, addr, now)
	return verdict{kind: dhcpv4.MessageTypeOffer, yiaddr: addr}
}

// selecting answers the DHCPREQUEST that takes an offer (section 4.3.2).
func (t *table) selecting(r *request, now time.Time) verdict {
	if r.serverID != t.model.serverIP {
		if o := t.offers[r.mac]; o != nil {
			t.withdraw(o)
		}
		return ignore(dropOtherServer)
	}
	addr := r.requested
	if !addr.IsValid() {
		// The client must name it here (table 5); some name it in ciaddr.
		if addr = r.ciaddr; addr.IsUnspecified() {
			return ignore(dropUnexpected)
		}
	}
	// The offer may be gone, with a restart or for a client that was quicker: what counts is that
	// the address is free.
	if !t.free(addr, r.mac, now) {
		return nak("address not available")
	}
	return t.granted(r, addr, now)
}

// initReboot answers the DHCPREQUEST of a client that remembers an address (section 4.3.2).
func (t *table) initReboot(r *request, now time.Time) verdict {
	if !t.model.cidr.Contains(r.requested) {
		return nak("wrong network")
	}
	// A reservation that came later takes effect now, when nobody is cut off by it.
	if addr := t.model.reservations[r.mac].addr; addr.IsValid() && addr != r.requested && t.free(addr, r.mac, now) {
		return nak("another address is reserved")
	}
	if b := t.byMAC[r.mac]; b == nil || b.addr != r.requested {
		return nak("no such lease")
	}
	if !t.free(r.requested, r.mac, now) {
		return nak("address not available")
	}
	return t.granted(r, r.requested, now)
}

// renewing answers the DHCPREQUEST that extends a lease, sent to this server (section 4.3.2).
func (t *table) renewing(r *request, now time.Time) verdict {
	if !t.keeps(r.ciaddr, r.mac, now) {
		return nak("address not available")
	}
	return t.granted(r, r.ciaddr, now)
}

// rebinding answers the DHCPREQUEST that extends a lease, sent to any server (section 4.3.2).
func (t *table) rebinding(r *request, now time.Time) verdict {
	b := t.byAddr[r.ciaddr]
	if b == nil || b.lease == nil {
		return ignore(dropNotOurs)
	}
	if !t.keeps(r.ciaddr, r.mac, now) {
		return nak("address not available")
	}
	if b.lease.MAC != r.mac && !b.damaged() {
		return ignore(dropNotOurs)
	}
	return t.granted(r, r.ciaddr, now)
}

// releasing takes a lease back (section 4.3.4).
func (t *table) releasing(r *request, now time.Time) verdict {
	if r.serverID.IsValid() && r.serverID != t.model.serverIP {
		return ignore(dropOtherServer)
	}
	b := t.byAddr[r.ciaddr]
	if b == nil || b.lease == nil || b.lease.MAC != r.mac || b.lease.State != StateActive {
		return ignore(dropNotHolder)
	}
	if reason := t.mayChange(r.mac, now); reason != "" {
		return ignore(reason)
	}
	return verdict{change: t.release(b, now)}
}

// declining takes an address out of use (section 4.3.3), on the word of the client that has it.
func (t *table) declining(r *request, now time.Time) verdict {
	if r.serverID.IsValid() && r.serverID != t.model.serverIP {
		return ignore(dropOtherServer)
	}
	b := t.byAddr[r.requested]
	if b == nil {
		return ignore(dropNotHolder)
	}
	// Only the holder can know: an offer costs nothing, and a stranger could empty the pool with them.
	if !b.live(now) || b.lease.MAC != r.mac {
		return ignore(dropNotHolder)
	}
	if reason := t.mayChange(r.mac, now); reason != "" {
		return ignore(reason)
	}
	return verdict{change: t.decline(r, b, now)}
}

// target says where an answer goes (RFC 2131 section 4.1).
func target(p *Packet, r *request, v *verdict) Target {
	relayed, wellKnown := !r.giaddr.IsUnspecified(), p.Destination.Port() == ServerPort
	switch {
	case relayed && wellKnown:
		return Target{Addr: netip.AddrPortFrom(r.giaddr, ServerPort)}
	case relayed: // nobody has the well-known ports here: see ListenUDP
		return Target{Addr: netip.AddrPortFrom(r.giaddr, p.Source.Port())}
	case !wellKnown:
		return Target{Addr: p.Source}
	case v.kind == dhcpv4.MessageTypeNak:
		return Target{Addr: netip.AddrPortFrom(broadcast, ClientPort)}
	case !r.ciaddr.IsUnspecified():
		return Target{Addr: netip.AddrPortFrom(r.ciaddr, ClientPort)}
	case r.flags&broadcastFlag != 0:
		return Target{Addr: netip.AddrPortFrom(broadcast, ClientPort)}
	default:
		return Target{Addr: netip.AddrPortFrom(v.yiaddr, ClientPort), MAC: r.mac}
	}
}
