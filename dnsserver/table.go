package dnsserver

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

const (
	// answerTTL, in seconds, of what exists. It equals the drain time of Envoy: who still has a
	// withdrawn name cached loses it no later than the last connections made through it.
	answerTTL = 30
	// pendingTTL is the negative TTL, in seconds, of a name that is about to appear.
	pendingTTL = 5
)

// state says how a node answers in its view.
type state uint8

const (
	stateAddress    state = iota // has an A record
	stateEmpty                   // exists, has nothing (empty non-terminal, RFC 4592 2.2.2)
	stateUnresolved              // the address is not known yet: SERVFAIL
	statePending                 // does not exist yet: NXDOMAIN for a short time
	stateHidden                  // does not exist in this view: NXDOMAIN
)

// node is one name of one view with its packed answers.
type node struct {
	wire  string // lower case
	state state
	addr  netip.Addr // of stateAddress
	zone  string     // wire name of the zone's apex, a suffix of wire
	// closed nodes lie in the zone of a wildcard: what is not there does not exist, rather than
	// being somebody else's.
	closed bool
	// implied nodes have no entry: they exist because of the names below them.
	implied bool
	wild    *node  // the wildcard right below this node
	a       []byte // packed A record, owner = the question
	soa     []byte // packed SOA record of the zone, owner and MNAME to be patched
}

// match says how a question name met the table.
type match uint8

const (
	matchNone    match = iota // not ours
	matchExact                // the node itself
	matchWild                 // synthesised from the wildcard of the closest encloser
	matchBlocked              // the closest encloser is in a zone of ours and has no wildcard
)

// table is one view: all nodes by their wire name in lower case.
type table struct {
	nodes map[string]*node
	// wild is false when no node is closed: then only exact names match.
	wild bool
}

// find looks a wire name in lower case up by RFC 4592 3.3.1: the name, else its closest encloser.
func (t *table) find(name []byte) (*node, match) {
	if n := t.nodes[string(name)]; n != nil {
		return n, matchExact
	}
	if !t.wild {
		return nil, matchNone
	}
	for rest := name; len(rest) > 1; {
		rest = rest[1+int(rest[0]):]
		n := t.nodes[string(rest)]
		switch {
		case n == nil:
		case !n.closed:
			return nil, matchNone
		case n.wild != nil:
			return n.wild, matchWild
		default:
			return n, matchBlocked
		}
	}
	return nil, matchNone
}

// entry is one owned name with its answer in one view.
type entry struct {
	wire  string
	state state
	addr  netip.Addr
}

// newTable makes the nodes of one view: the entries, the parents of the wildcards and the empty
// non-terminals below those.
func newTable(entries []entry) *table {
	t := &table{nodes: make(map[string]*node, len(entries))}
	apexes := map[string]bool{}
	for _, e := range entries {
		t.nodes[e.wire] = &node{wire: e.wire, state: e.state, addr: e.addr, zone: e.wire}
		if isWild(e.wire) {
			apexes[parent(e.wire)] = true
		}
	}
	t.wild = len(apexes) > 0
	for _, e := range entries {
		// The topmost apex is the zone: a wildcard within another's zone is a part of it.
		zone := ""
		for wire := e.wire; wire != root; wire = parent(wire) {
			if apexes[wire] {
				zone = wire
			}
		}
		if zone != "" {
			t.fill(zone, e)
		}
	}
	for apex := range apexes {
		t.nodes[apex].wild = t.nodes["\x01*"+apex]
	}
	steady, soon := packSOA(answerTTL), packSOA(pendingTTL)
	for _, n := range t.nodes {
		n.soa = steady
		if n.state == statePending {
			n.soa = soon
		}
		if n.state == stateAddress {
			n.a = packA(n.addr)
		}
	}
	return t
}

// fill puts entry e, which is at or below the apex, into that zone, together with the nodes between.
func (t *table) fill(apex string, e entry) {
	for wire := e.wire; ; wire = parent(wire) {
		n := t.nodes[wire]
		if n == nil {
			n = &node{wire: wire, state: stateHidden, implied: true}
			t.nodes[wire] = n
		}
		if n.implied {
			n.state = min(n.state, emptyOver(e.state))
		}
		n.closed, n.zone = true, apex
		if wire == apex {
			return
		}
	}
}

// emptyOver is the state of an empty non-terminal with a name of the given state below it: it
// exists as soon as something below it does.
func emptyOver(s state) state {
	if s == stateAddress || s == stateUnresolved {
		return stateEmpty
	}
	return s
}

// packA is an A record whose owner is the question, a pointer to offset 12.
func packA(addr netip.Addr) []byte {
	b := []byte{0xc0, 12, 0, byte(dns.TypeA), 0, byte(dns.ClassINET)}
	b = binary.BigEndian.AppendUint32(b, answerTTL)
	b = append(b, 0, 4)
	return append(b, addr.AsSlice()...)
}

const (
	soaOwner = 0  // offset of the owner in a packed SOA
	soaMname = 12 // offset of MNAME
)

// packSOA is the SOA of a zone that is served in one place only, in the shape of RFC 6303 3. Owner
// and MNAME are the zone itself: two pointers that depend on the question (patchSOA). The TTL and
// MINIMUM are the same, so the negative TTL (RFC 2308 5) is ttl seconds.
func packSOA(ttl uint32) []byte {
	b := []byte{0xc0, 0, 0, byte(dns.TypeSOA), 0, byte(dns.ClassINET)}
	b = binary.BigEndian.AppendUint32(b, ttl)
	b = append(b, 0, 0, 0xc0, 0)
	b = append(b, "\x06nobody\x07invalid\x00"...)
	for _, v := range []uint32{1, 3600, 1200, 604800, ttl} { // serial, refresh, retry, expire, minimum
		b = binary.BigEndian.AppendUint32(b, v)
	}
	binary.BigEndian.PutUint16(b[10:], uint16(len(b)-soaMname))
	return b
}

// patchSOA points owner and MNAME at the zone, the last zoneLen bytes of the question's name.
func patchSOA(soa []byte, nameLen, zoneLen int) {
	pointer := 0xc000 | uint16(12+nameLen-zoneLen)
	binary.BigEndian.PutUint16(soa[soaOwner:], pointer)
	binary.BigEndian.PutUint16(soa[soaMname:], pointer)
}

func isWild(wire string) bool { return len(wire) > 2 && wire[0] == 1 && wire[1] == '*' }

// ttl, in seconds, of the answers of the node.
func (n *node) ttl() int {
	if n.state == statePending {
		return pendingTTL
	}
	return answerTTL
}
