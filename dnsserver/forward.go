package dnsserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/miekg/dns"
)

// failingTime is how long an upstream that did not answer is asked after all the others.
const failingTime = 10 * time.Second

// rounds is how often all upstreams are asked when none of them answers anything.
const rounds = 2

var (
	errLoop      = errors.New("the question came back from an upstream")
	errNoAnswer  = errors.New("no upstream answered")
	errNobody    = errors.New("resolv.conf names no other resolver")
	errShareDied = errors.New("the query that was shared ended without an answer")
)

// question is what is asked of upstreams, and what two queries must have in common to share an
// answer. A cache goes in front of forwarder.resolve, by the same key.
type question struct {
	view   int8
	name   string // wire format, lower case
	qtype  uint16
	do, cd bool
}

// flight is one question on its way to the upstreams, and those who wait for its answer.
type flight struct {
	done   chan struct{}
	answer *dns.Msg
	err    error

	mu     sync.Mutex
	asking netip.Addr
}

func (f *flight) ask(upstream netip.Addr) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asking = upstream
}

func (f *flight) isAsking(client netip.Addr) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asking == client
}

// forwarder asks the upstreams.
type forwarder struct {
	log     *slog.Logger
	metrics *metrics
	limits  Limits
	limit   *limiter
	resolv  *resolvFile
	// resolvFailed tells whether the last reading did.
	resolvFailed atomic.Bool

	mu      sync.Mutex
	flights map[question]*flight
	failing map[netip.AddrPort]time.Time // until when
	sockets map[netip.AddrPort]bool      // local addresses of the exchanges under way
}

func newForwarder(config Config, m *metrics) *forwarder {
	return &forwarder{
		log:     config.Log,
		metrics: m,
		limits:  config.Limits,
		limit:   newLimiter(config.Limits.Forwards, config.Limits.ClientForwards),
		resolv:  &resolvFile{path: config.ResolvConf},
		flights: map[question]*flight{},
		failing: map[netip.AddrPort]time.Time{},
		sockets: map[netip.AddrPort]bool{},
	}
}

// answer returns the reply to a client's query in packet, or the outcome to refuse it with.
func (f *forwarder) answer(ctx context.Context, m *Model, r result, packet []byte, client netip.Addr, size int) ([]byte, outcome) {
	wire := packet[headerLen : r.query.end-4]
	name := make([]byte, len(wire))
	lower(name, wire)
	q := question{
		view:  r.view,
		name:  string(name),
		qtype: r.query.qtype,
		do:    r.query.do,
		cd:    packet[3]&0x10 != 0,
	}
	answer, err := f.resolve(ctx, m, q, client)
	if errors.Is(err, errLoop) {
		return nil, outLoop
	}
	if err != nil {
		f.log.Debug("forwarding failed", "err", err)
		return nil, outFailed
	}
	reply, err := forwardedReply(packet, r.query, answer, size)
	if err != nil {
		f.log.Debug("answer of an upstream cannot be passed on", "err", err)
		return nil, outFailed
	}
	return reply, outForwarded
}

// resolve asks the upstreams, or waits for the answer to the same question that somebody else asked.
func (f *forwarder) resolve(ctx context.Context, m *Model, q question, client netip.Addr) (*dns.Msg, error) {
	f.mu.Lock()
	if other := f.flights[q]; other != nil {
		f.mu.Unlock()
		// An upstream that asks us what we are asking it sends the question in circles. On one
		// machine the address alone does not prove it.
		if !client.IsLoopback() && other.isAsking(client) {
			return nil, errLoop
		}
		f.metrics.shared.Inc()
		select {
		case <-other.done:
			return other.answer, other.err
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	own := &flight{done: make(chan struct{}), err: errShareDied}
	f.flights[q] = own
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.flights, q)
		f.mu.Unlock()
		close(own.done)
	}()
	own.answer, own.err = f.askAll(ctx, m, q, own)
	return own.answer, own.err
}

// askAll asks one upstream after the other until one has an answer, be it NXDOMAIN. When none has,
// it returns the last failure that one of them reported.
func (f *forwarder) askAll(ctx context.Context, m *Model, q question, own *flight) (*dns.Msg, error) {
	ctx, cancel := context.WithTimeout(ctx, f.limits.Forward)
	defer cancel()
	upstreams, err := f.expand(m)
	if err != nil {
		return nil, err
	}
	var failure *dns.Msg
	for range rounds {
		for _, upstream := range f.healthyFirst(upstreams) {
			if ctx.Err() != nil {
				break
			}
			own.ask(upstream.Addr())
			answer, err := f.ask(ctx, upstream, q)
			if err != nil {
				continue
			}
			switch answer.Rcode {
			case dns.RcodeSuccess, dns.RcodeNameError:
				return answer, nil
			}
			failure = answer
		}
		if failure != nil {
			return failure, nil
		}
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%w: %w", errNoAnswer, err)
	}
	return nil, errNoAnswer
}

// ask asks one upstream and keeps the books on it.
func (f *forwarder) ask(ctx context.Context, upstream netip.AddrPort, q question) (*dns.Msg, error) {
	attempt, cancel := context.WithTimeout(ctx, f.limits.Attempt)
	defer cancel()
	start := time.Now()
	answer, err := f.exchange(attempt, upstream, q)
	switch {
	case err == nil:
		f.metrics.latency.WithLabelValues(upstream.String()).Observe(time.Since(start).Seconds())
		f.count(upstream, dns.RcodeToString[answer.Rcode])
		f.works(upstream)
	case errors.Is(ctx.Err(), context.Canceled): // the server ends
	case attempt.Err() != nil:
		f.count(upstream, "timeout")
		f.fails(upstream, err)
	default:
		f.count(upstream, "error")
		f.fails(upstream, err)
	}
	return answer, err
}

func (f *forwarder) count(upstream netip.AddrPort, result string) {
	if result == "" {
		result = "unknown"
	}
	f.metrics.upstream.WithLabelValues(upstream.String(), result).Inc()
}

func (f *forwarder) fails(upstream netip.AddrPort, err error) {
	f.mu.Lock()
	_, known := f.failing[upstream]
	f.failing[upstream] = time.Now().Add(failingTime)
	f.mu.Unlock()
	if !known {
		f.log.Warn("upstream resolver does not answer", "upstream", upstream, "err", err)
	}
}

func (f *forwarder) works(upstream netip.AddrPort) {
	f.mu.Lock()
	_, known := f.failing[upstream]
	delete(f.failing, upstream)
	f.mu.Unlock()
	if known {
		f.log.Info("upstream resolver answers again", "upstream", upstream)
	}
}

// healthyFirst keeps the order of the upstreams, but for those that failed a moment ago.
func (f *forwarder) healthyFirst(upstreams []netip.AddrPort) []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	ordered := make([]netip.AddrPort, 0, len(upstreams))
	var last []netip.AddrPort
	now := time.Now()
	for _, u := range upstreams {
		if now.Before(f.failing[u]) {
			last = append(last, u)
		} else {
			ordered = append(ordered, u)
		}
	}
	return append(ordered, last...)
}

// expand lists the upstreams, resolv.conf read, without this server itself.
func (f *forwarder) expand(m *Model) ([]netip.AddrPort, error) {
	var out []netip.AddrPort
	for _, u := range m.upstreams {
		if !u.resolvConf {
			out = append(out, u.addr)
			continue
		}
		addrs, err := f.resolv.read()
		f.logResolv(err)
		for _, addr := range addrs {
			if addr.Addr() != m.server.Addr() {
				out = append(out, addr)
			}
		}
	}
	if len(out) == 0 {
		return nil, errNobody
	}
	return out, nil
}

// logResolv says once that resolv.conf cannot be read, and once that it can again.
func (f *forwarder) logResolv(err error) {
	switch failed := err != nil; {
	case f.resolvFailed.Swap(failed) == failed:
	case failed:
		f.log.Warn("resolv.conf cannot be read; going on with what it said before", "err", err)
	default:
		f.log.Info("resolv.conf can be read again")
	}
}

// sent tells whether a query from this address and port is one of ours: an upstream is this server.
func (f *forwarder) sent(from netip.AddrPort) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sockets[from]
}

func (f *forwarder) opened(socket netip.AddrPort) (closed func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sockets[socket] = true
	return func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.sockets, socket)
	}
}

// forwardedReply is an upstream's answer as the reply to the query in packet, with that query's ID,
// question, RD, CD and EDNS. AD is not passed on: this server validates nothing, so it claims nothing
// (RFC 4035 3.2.3). What does not fit into size is left out, with TC set.
func forwardedReply(packet []byte, q query, answer *dns.Msg, size int) ([]byte, error) {
	name, _, err := dns.UnpackDomainName(packet, headerLen)
	if err != nil {
		return nil, err
	}
	reply := dns.Msg{
		MsgHdr: dns.MsgHdr{
			Id:                 uint16(packet[0])<<8 | uint16(packet[1]),
			Response:           true,
			RecursionDesired:   true,
			RecursionAvailable: true,
			CheckingDisabled:   packet[3]&0x10 != 0,
			Rcode:              answer.Rcode,
		},
		Compress: true,
		Question: []dns.Question{{Name: name, Qtype: q.qtype, Qclass: q.qclass}},
		Answer:   answer.Answer,
		Ns:       answer.Ns,
	}
	for _, rr := range answer.Extra {
		switch rr.Header().Rrtype {
		case dns.TypeOPT, dns.TypeTSIG, dns.TypeSIG: // between us and the upstream only
		default:
			reply.Extra = append(reply.Extra, rr)
		}
	}
	if q.edns {
		reply.SetEdns0(maxUDP, q.do)
	}
	reply.Truncate(size)
	return reply.Pack()
}
