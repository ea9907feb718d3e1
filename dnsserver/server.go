package dnsserver

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
)

// Config is what a Server needs. Zero values mean the defaults.
type Config struct {
	// Log gets what an operator has to know; there is no line per query. Default: nothing.
	Log *slog.Logger
	// Registerer of the metrics; nil: not registered. Several servers of one process need one each,
	// told apart by a label (prometheus.WrapRegistererWith).
	Registerer prometheus.Registerer
	// ResolvConf is the file that the upstream "resolv.conf" means. Default: /etc/resolv.conf.
	ResolvConf string
	// Limits of what clients can make the server hold.
	Limits Limits
}

// Limits bound what clients can make the server hold, and how long. Zero means the default.
type Limits struct {
	// Forwards is how many queries wait for upstreams at once (1024), ClientForwards how many of one
	// client address (256; a node's resolver speaks for all its pods). More get SERVFAIL.
	Forwards, ClientForwards int
	// Conns is how many TCP connections are open at once (512), ClientConns how many of one client
	// address (32). More are closed at once.
	Conns, ClientConns int
	// ConnIdle is how long a TCP connection may take for its next whole query (10 s).
	ConnIdle time.Duration
	// Attempt is how long one upstream is waited for (2 s), Forward how long a query takes over all
	// upstreams (4.5 s, just below the 5 s after which resolvers ask again).
	Attempt, Forward time.Duration
}

func (l *Limits) setDefaults() {
	set(&l.Forwards, 1024)
	set(&l.ClientForwards, 256)
	set(&l.Conns, 512)
	set(&l.ClientConns, 32)
	set(&l.ConnIdle, 10*time.Second)
	set(&l.Attempt, 2*time.Second)
	set(&l.Forward, 4500*time.Millisecond)
}

func set[T int | time.Duration](v *T, to T) {
	if *v <= 0 {
		*v = to
	}
}

// Server answers DNS queries by the Model that was applied last.
type Server struct {
	log     *slog.Logger
	metrics *metrics
	limits  Limits
	forward *forwarder
	conns   *limiter

	model atomic.Pointer[Model]
	first sync.Once
	ready chan struct{} // closed by the first Apply
}

// NewServer makes a server. The error is that of a metric that the registerer refuses.
func NewServer(config Config) (*Server, error) {
	config.Limits.setDefaults()
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	if config.ResolvConf == "" {
		config.ResolvConf = "/etc/resolv.conf"
	}
	m, err := newMetrics(config.Registerer)
	if err != nil {
		return nil, err
	}
	return &Server{
		log:     config.Log,
		metrics: m,
		limits:  config.Limits,
		forward: newForwarder(config, m),
		conns:   newLimiter(config.Limits.Conns, config.Limits.ClientConns),
		ready:   make(chan struct{}),
	}, nil
}

// Apply answers by m from now on. It may be called at any time, by any goroutine.
func (s *Server) Apply(m *Model) {
	s.model.Store(m)
	s.first.Do(func() { close(s.ready) })
}

// Model is what is answered by at the moment; nil before the first Apply.
func (s *Server) Model() *Model { return s.model.Load() }

// Run answers what comes in by the sockets until ctx ends, and closes them. It reads nothing before
// the first Apply. When it returns, all its goroutines have ended; the error is nil when ctx ended.
func (s *Server) Run(ctx context.Context, sockets *Sockets) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		return sockets.Close()
	})
	g.Go(func() error {
		select {
		case <-s.ready:
		case <-ctx.Done():
			return nil
		}
		for _, conn := range sockets.udp {
			g.Go(func() error { return s.serveUDP(ctx, conn, sockets.any) })
		}
		return s.serveTCP(ctx, sockets.tcp)
	})
	return g.Wait()
}

// serveUDP answers the packets of one socket. Only what is not owned leaves its goroutine.
func (s *Server) serveUDP(ctx context.Context, conn *net.UDPConn, anyAddress bool) error {
	b, err := newBatch(conn, anyAddress)
	if err != nil {
		return err
	}
	var forwards sync.WaitGroup
	defer forwards.Wait()
	for {
		n, err := b.read()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		model, replies := s.model.Load(), 0
		for i := range n {
			buf, length := b.packet(i)
			client := b.client(i)
			r := model.respond(buf, length, client.Addr())
			if r.outcome == outForwarded && s.admit(&r, buf, client) {
				s.forwardUDP(ctx, &forwards, conn, model, r, buf[:length], client, b.source(i))
				continue
			}
			s.metrics.queries[r.view][r.outcome].Inc()
			if r.n > 0 {
				b.reply(replies, i, r.n)
				replies++
			}
		}
		failed, err := b.write(replies)
		s.metrics.unsent.Add(float64(failed))
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}

// admit takes a place among the forwarded queries. When there is none, or when the query is one of
// our own that came back, it writes the refusal and returns false.
func (s *Server) admit(r *result, buf []byte, client netip.AddrPort) bool {
	switch {
	case s.forward.sent(client):
		r.outcome = outLoop
	case !s.forward.limit.acquire(client.Addr()):
		r.outcome = outOverloaded
	default:
		return true
	}
	r.n = writeReply(buf, r.query, r.outcome, nil)
	return false
}

// forwardUDP answers an admitted query when an upstream has answered, in a goroutine of its own.
func (s *Server) forwardUDP(ctx context.Context, wg *sync.WaitGroup, conn *net.UDPConn, m *Model, r result, packet []byte, client netip.AddrPort, source []byte) {
	packet = append(make([]byte, 0, len(packet)+replyRoom), packet...)
	source = append([]byte(nil), source...)
	wg.Go(func() {
		answer := s.answerForwarded(ctx, m, r, packet, client, r.query.size)
		if _, _, err := conn.WriteMsgUDPAddrPort(answer, source, client); err != nil {
			s.metrics.unsent.Inc()
		}
	})
}

// answerForwarded waits for the upstreams and returns the reply to an admitted query, of at most
// size bytes. It gives the query's place back.
func (s *Server) answerForwarded(ctx context.Context, m *Model, r result, packet []byte, client netip.AddrPort, size int) (answer []byte) {
	o := outFailed
	defer func() {
		// A panic on bytes from outside must not end the DNS of a whole VLAN.
		if p := recover(); p != nil {
			s.metrics.panics.Inc()
			s.log.Error("forwarding a query panicked", "panic", p, "client", client)
			o, answer = outFailed, nil
		}
		if answer == nil {
			buf := packet[:cap(packet)]
			answer = buf[:writeReply(buf, r.query, o, nil)]
		}
		s.forward.limit.release(client.Addr())
		s.metrics.queries[r.view][o].Inc()
	}()
	s.metrics.inFlight.Inc()
	defer s.metrics.inFlight.Dec()
	answer, o = s.forward.answer(ctx, m, r, packet, client.Addr(), size)
	return answer
}
