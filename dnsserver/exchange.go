package dnsserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/miekg/dns"
)

// exchange asks one upstream, first with EDNS, then without when the upstream does not know that
// (RFC 6891 7), and over TCP when the answer does not fit.
func (f *forwarder) exchange(ctx context.Context, upstream netip.AddrPort, q question) (*dns.Msg, error) {
	answer, err := f.exchangeUDP(ctx, upstream, newAsk(q, true))
	if err != nil || answer.Rcode != dns.RcodeFormatError && answer.Rcode != dns.RcodeNotImplemented {
		return answer, err
	}
	return f.exchangeUDP(ctx, upstream, newAsk(q, false))
}

func (f *forwarder) exchangeUDP(ctx context.Context, upstream netip.AddrPort, a ask) (*dns.Msg, error) {
	conn, done, err := f.dial(ctx, "udp", upstream)
	if err != nil {
		return nil, err
	}
	defer done()
	if _, err := conn.Write(a); err != nil {
		return nil, err
	}
	// We said 1232; room for those who do not care. What is longer still does not unpack.
	buf := make([]byte, packetSize)
	for {
		n, err := conn.Read(buf)
		if err != nil {
			return nil, err
		}
		// What does not match is somebody else's guess, or late: the answer may still come
		// (RFC 5452 9.1). The kernel has seen to addresses and ports.
		answer, truncated := a.match(buf[:n])
		if truncated {
			return f.exchangeTCP(ctx, upstream, a)
		}
		if answer != nil {
			return answer, nil
		}
	}
}

func (f *forwarder) exchangeTCP(ctx context.Context, upstream netip.AddrPort, a ask) (*dns.Msg, error) {
	conn, done, err := f.dial(ctx, "tcp", upstream)
	if err != nil {
		return nil, err
	}
	defer done()
	frame := binary.BigEndian.AppendUint16(nil, uint16(len(a)))
	if _, err := conn.Write(append(frame, a...)); err != nil {
		return nil, err
	}
	for {
		var prefix [2]byte
		if _, err := io.ReadFull(conn, prefix[:]); err != nil {
			return nil, err
		}
		msg := make([]byte, binary.BigEndian.Uint16(prefix[:]))
		if _, err := io.ReadFull(conn, msg); err != nil {
			return nil, err
		}
		answer, truncated := a.match(msg)
		if truncated {
			return nil, fmt.Errorf("%s truncates its answer over TCP", upstream)
		}
		if answer != nil {
			return answer, nil
		}
	}
}

// dial opens a socket of its own for one exchange: connected, so that only the upstream's packets
// arrive, with a port that the kernel picks at random. done closes it. The end of ctx ends reads.
func (f *forwarder) dial(ctx context.Context, network string, upstream netip.AddrPort) (conn net.Conn, done func(), err error) {
	conn, err = new(net.Dialer).DialContext(ctx, network, upstream.String())
	if err != nil {
		return nil, nil, err
	}
	local := netip.MustParseAddrPort(conn.LocalAddr().String())
	closed := f.opened(netip.AddrPortFrom(local.Addr().Unmap(), local.Port()))
	past := time.Unix(1, 0)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(past) }) // a closed one needs none
	return conn, func() {
		stop()
		_ = conn.Close() // nothing is left to be sent
		closed()
	}, nil
}

// ask is a packed query to an upstream.
type ask []byte

// newAsk packs a question with a random ID. It has no options: nothing of the client goes further
// than its question, DO and CD.
func newAsk(q question, edns bool) ask {
	a := make(ask, headerLen, headerLen+len(q.name)+4+optLen)
	_, _ = rand.Read(a[:2]) // never fails
	a[2] = 0x01             // RD
	if q.cd {
		a[3] = 0x10
	}
	a[5] = 1
	a = append(a, q.name...)
	a = binary.BigEndian.AppendUint16(a, q.qtype)
	a = binary.BigEndian.AppendUint16(a, dns.ClassINET)
	if edns {
		a[11] = 1
		a = a[:len(a)+optLen]
		putOPT(a[len(a)-optLen:], 0, q.do)
	}
	return a
}

// match unpacks msg if it is the answer to a: the same ID, name, type and class. truncated tells
// that it is the answer but did not fit.
func (a ask) match(msg []byte) (answer *dns.Msg, truncated bool) {
	if len(msg) < headerLen || !bytes.Equal(msg[:2], a[:2]) || msg[2]&0xf8 != 0x80 {
		return nil, false
	}
	rcode := int(msg[3] & 0x0f)
	questions := binary.BigEndian.Uint16(msg[4:])
	if questions == 0 && (rcode == dns.RcodeFormatError || rcode == dns.RcodeNotImplemented) {
		// Servers that stumble over EDNS cannot repeat the question.
		return &dns.Msg{MsgHdr: dns.MsgHdr{Response: true, Rcode: rcode}}, false
	}
	end, ok := questionName(a)
	if !ok || questions != 1 || len(msg) < end+4 {
		return nil, false
	}
	var name [maxName]byte
	lower(name[:end-headerLen], msg[headerLen:end])
	if !bytes.Equal(name[:end-headerLen], a[headerLen:end]) || !bytes.Equal(msg[end:end+4], a[end:end+4]) {
		return nil, false
	}
	if msg[2]&0x02 != 0 {
		return nil, true
	}
	answer = new(dns.Msg)
	if answer.Unpack(msg) != nil {
		return nil, false
	}
	return answer, false
}
