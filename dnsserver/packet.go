package dnsserver

import (
	"encoding/binary"
	"net/netip"

	"github.com/miekg/dns"
)

const (
	headerLen = 12
	optLen    = 11
	// maxUDP is the largest answer sent over UDP, and what we tell others to send us: it fits the
	// smallest MTU of IPv6 and so never needs fragments (DNS Flag Day 2020).
	maxUDP = 1232
	// replyRoom is the room that respond needs in a buffer: header, the longest question, the SOA
	// record and an OPT, rounded up.
	replyRoom = 512
)

// outcome says what became of a query. It is a metric label, and the rule that Explain words.
type outcome uint8

const (
	outDropped     outcome = iota // no DNS query, or a malformed one of a stranger
	outAnswered                   // the address of an owned name
	outWildcard                   // the address of the wildcard above it
	outSOA                        // the SOA of an owned name
	outNoData                     // an owned name, another type
	outEmpty                      // exists because of a name below it
	outBlocked                    // a closer name blocks the wildcard
	outPending                    // an owned name that does not exist yet
	outHidden                     // an owned name that does not exist in this view
	outUnresolved                 // an owned name whose address is not known yet
	outForwarded                  // somebody else's name
	outNoUpstreams                // somebody else's name, and nobody to ask
	outNoRecursion                // somebody else's name, without RD
	outStranger                   // a client outside the views
	outClass                      // class other than IN
	outMetaType                   // zone transfers and other types that are no data
	outFormErr                    // malformed
	outNotImp                     // another opcode than QUERY
	outBadVersion                 // EDNS version above 0
	outLoop                       // our own question came back
	outOverloaded                 // too many queries are being forwarded
	outFailed                     // no upstream had an answer
	outcomes                      // how many there are
)

var outcomeNames = [outcomes]string{
	"dropped", "answered", "wildcard", "soa", "nodata", "empty", "blocked", "pending", "hidden",
	"unresolved", "forwarded", "no-upstreams", "no-recursion", "stranger", "class", "meta-type",
	"formerr", "notimp", "badvers", "loop", "overloaded", "failed",
}

func (o outcome) String() string { return outcomeNames[o] }

// query is what parse learns of a packet.
type query struct {
	end           int // end of the question; headerLen when there is none
	qtype, qclass uint16
	edns          bool
	do            bool
	version       uint8
	size          int // what the client takes over UDP, 512 to maxUDP
}

// parse reads a query as far as this server needs it. ok is false when nothing but what outcome
// says can be done: outDropped, outNotImp or outFormErr.
func parse(msg []byte) (q query, o outcome, ok bool) {
	q.size = dns.MinMsgSize
	if len(msg) < headerLen || msg[2]&0x80 != 0 {
		return q, outDropped, false
	}
	q.end = headerLen
	if msg[2]&0x78 != 0 {
		return q, outNotImp, false
	}
	if binary.BigEndian.Uint16(msg[4:]) != 1 {
		return q, outFormErr, false
	}
	end, ok := questionName(msg)
	if !ok || end+4 > len(msg) {
		return q, outFormErr, false
	}
	q.qtype = binary.BigEndian.Uint16(msg[end:])
	q.qclass = binary.BigEndian.Uint16(msg[end+2:])
	q.end = end + 4
	additional := int(binary.BigEndian.Uint16(msg[10:]))
	others := int(binary.BigEndian.Uint16(msg[6:])) + int(binary.BigEndian.Uint16(msg[8:]))
	off := q.end
	for i := range others + additional {
		rr := skipName(msg, off)
		if rr < 0 || rr+10 > len(msg) {
			return q, outFormErr, false
		}
		next := rr + 10 + int(binary.BigEndian.Uint16(msg[rr+8:]))
		if next > len(msg) {
			return q, outFormErr, false
		}
		if binary.BigEndian.Uint16(msg[rr:]) == dns.TypeOPT {
			// RFC 6891 6.1.1: one OPT, in the additional section, owned by the root.
			if q.edns || i < others || rr != off+1 || !wellFormedOptions(msg[rr+10:next]) {
				return q, outFormErr, false
			}
			q.edns = true
			q.size = min(max(int(binary.BigEndian.Uint16(msg[rr+2:])), dns.MinMsgSize), maxUDP)
			q.version = msg[rr+5]
			q.do = msg[rr+6]&0x80 != 0
		}
		off = next
	}
	return q, outAnswered, true
}

// questionName finds the end of the name at the start of the question. It cannot be compressed:
// there is nothing before it to point to.
func questionName(msg []byte) (end int, ok bool) {
	off := headerLen
	for off < len(msg) && off-headerLen < maxName {
		c := int(msg[off])
		if c == 0 {
			return off + 1, true
		}
		if c > 63 {
			return 0, false
		}
		off += 1 + c
	}
	return 0, false
}

// skipName returns the offset after the name at off, or -1. It does not follow pointers.
func skipName(msg []byte, off int) int {
	for start := off; off < len(msg) && off-start < maxName; {
		switch c := int(msg[off]); {
		case c == 0:
			return off + 1
		case c >= 0xc0:
			return off + 2
		case c > 63:
			return -1
		default:
			off += 1 + c
		}
	}
	return -1
}

// wellFormedOptions tells whether the data of an OPT is a row of options (RFC 6891 6.1.2).
func wellFormedOptions(data []byte) bool {
	for len(data) >= 4 {
		n := 4 + int(binary.BigEndian.Uint16(data[2:]))
		if n > len(data) {
			return false
		}
		data = data[n:]
	}
	return len(data) == 0
}

// result is what respond made of a packet.
type result struct {
	outcome outcome
	view    int8
	n       int // length of the reply in the buffer; 0: none (yet)
	query   query
	node    *node // the owned name that decided, if any
}

// respond answers the query in buf[:n] in place; buf must have at least replyRoom bytes. With
// outForwarded and outDropped the buffer is as it was and there is no reply. It does not allocate.
func (m *Model) respond(buf []byte, n int, client netip.Addr) (r result) {
	q, o, ok := parse(buf[:n])
	r.query = q
	r.view = m.viewOf(client)
	switch {
	case ok:
		o, r.node = m.decide(r.view, q, buf)
	case r.view == viewNone:
		o = outDropped // strangers get no more than a refusal
	}
	r.outcome = o
	if o != outDropped && o != outForwarded {
		r.n = writeReply(buf, q, o, r.node)
	}
	return r
}

// decide applies the rules to a well-formed question.
func (m *Model) decide(view int8, q query, buf []byte) (outcome, *node) {
	if view == viewNone {
		return outStranger, nil
	}
	if q.version > 0 {
		return outBadVersion, nil
	}
	if q.qclass != dns.ClassINET {
		return outClass, nil
	}
	// RFC 6895 3.1: 128-255 ask for no type of data. ANY has an answer (RFC 8482).
	if q.qtype == dns.TypeOPT || q.qtype >= 128 && q.qtype < dns.TypeANY {
		return outMetaType, nil
	}
	var name [maxName]byte
	length := q.end - 4 - headerLen
	lower(name[:length], buf[headerLen:q.end-4])
	node, how := m.tables[view].find(name[:length])
	switch how {
	case matchExact, matchWild:
		return node.outcome(q.qtype, how), node
	case matchBlocked:
		return outBlocked, node
	}
	switch {
	case len(m.upstreams) == 0:
		return outNoUpstreams, nil
	case buf[2]&0x01 == 0:
		return outNoRecursion, nil
	}
	return outForwarded, nil
}

// outcome of a question of type qtype that the node answers.
func (n *node) outcome(qtype uint16, how match) outcome {
	switch n.state {
	case stateUnresolved:
		return outUnresolved
	case statePending:
		return outPending
	case stateHidden:
		return outHidden
	}
	apex := n.wire == n.zone
	switch {
	case n.state == stateAddress && (qtype == dns.TypeA || qtype == dns.TypeANY):
		// RFC 8482 4.1: one RRset answers ANY.
		if how == matchWild {
			return outWildcard
		}
		return outAnswered
	case apex && (qtype == dns.TypeSOA || qtype == dns.TypeANY):
		return outSOA
	case n.state == stateEmpty:
		return outEmpty
	}
	return outNoData
}

// reply is what an outcome looks like on the wire.
type reply struct {
	rcode     uint8
	aa        bool
	a         bool // the A record in the answer section
	soa       bool // the SOA in the answer section
	authority bool // the SOA in the authority section
}

var replies = [outcomes]reply{
	outAnswered:    {aa: true, a: true},
	outWildcard:    {aa: true, a: true},
	outSOA:         {aa: true, soa: true},
	outNoData:      {aa: true, authority: true},
	outEmpty:       {aa: true, authority: true},
	outBlocked:     {rcode: dns.RcodeNameError, aa: true, authority: true},
	outPending:     {rcode: dns.RcodeNameError, aa: true, authority: true},
	outHidden:      {rcode: dns.RcodeNameError, aa: true, authority: true},
	outUnresolved:  {rcode: dns.RcodeServerFailure},
	outNoUpstreams: {rcode: dns.RcodeRefused},
	outNoRecursion: {rcode: dns.RcodeRefused},
	outStranger:    {rcode: dns.RcodeRefused},
	outClass:       {rcode: dns.RcodeRefused},
	outMetaType:    {rcode: dns.RcodeRefused},
	outFormErr:     {rcode: dns.RcodeFormatError},
	outNotImp:      {rcode: dns.RcodeNotImplemented},
	outBadVersion:  {},
	outLoop:        {rcode: dns.RcodeRefused},
	outOverloaded:  {rcode: dns.RcodeServerFailure},
	outFailed:      {rcode: dns.RcodeServerFailure},
}

// writeReply turns the query in buf into its reply and returns the length. The question's bytes
// stay as they came (0x20). RD and CD are copied (RFC 1035 4.1.1, RFC 4035 3.1.6).
func writeReply(buf []byte, q query, o outcome, n *node) int {
	how := &replies[o]
	buf[2] = 0x80 | buf[2]&0x79
	if how.aa {
		buf[2] |= 0x04
	}
	buf[3] = 0x80 | buf[3]&0x10 | how.rcode
	clear(buf[4:headerLen])
	if q.end > headerLen {
		buf[5] = 1
	}
	off := q.end
	nameLen := q.end - 4 - headerLen
	switch {
	case how.a:
		buf[7] = 1
		off += copy(buf[off:], n.a)
	case how.soa, how.authority:
		buf[7], buf[9] = 0, 1
		if how.soa {
			buf[7], buf[9] = 1, 0
		}
		soa := buf[off : off+copy(buf[off:], n.soa)]
		patchSOA(soa, nameLen, len(n.zone))
		off += len(soa)
	}
	if q.edns {
		buf[11] = 1
		extended := byte(0)
		if o == outBadVersion {
			extended = dns.RcodeBadVers >> 4
		}
		off += putOPT(buf[off:], extended, q.do)
	}
	return off
}

// putOPT writes our OPT record: no options, version 0, DO as in the query (RFC 3225 3).
func putOPT(buf []byte, extendedRcode byte, do bool) int {
	clear(buf[:optLen])
	buf[2] = byte(dns.TypeOPT)
	binary.BigEndian.PutUint16(buf[3:], maxUDP)
	buf[5] = extendedRcode
	if do {
		buf[7] = 0x80
	}
	return optLen
}
