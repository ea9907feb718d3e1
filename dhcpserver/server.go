package dhcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime/debug"
	"sync"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxPending bounds the answers that wait for the store. When a store hangs, requests beyond are
	// dropped, and their clients ask again.
	maxPending = 8192
	// maxBatch bounds the answers that one commit holds up.
	maxBatch = 1024
	// flushTime bounds the last commit after Run was told to end.
	flushTime = 2 * time.Second
	// exhaustedEvery is how often an exhausted pool is logged, and limitedEvery that clients change leases too often.
	exhaustedEvery, limitedEvery = time.Minute, time.Minute
	// Leases that have been over for longer than forgetAfter and forgetTimes lease times are forgotten, if that is wanted:
	// forgetMost of them every forgetEvery. Workers that were off for a night get the address that they had.
	forgetAfter, forgetTimes = 24 * time.Hour, 10
	forgetEvery, forgetMost  = time.Minute, 5
	// lookEvery is how often it is looked whether the clock was set, when nobody asks for anything.
	lookEvery = 10 * time.Second
	// Receive is tried again after minBackoff, then twice that, up to maxBackoff.
	minBackoff, maxBackoff = 50 * time.Millisecond, time.Second
)

// Config is what a Server needs. Everything but Clock, Boottime, Changed and Forget must be given.
type Config struct {
	Log        *slog.Logger
	Registerer prometheus.Registerer
	Store      Store
	// Clock is time.Now unless a test says otherwise.
	Clock func() time.Time
	// Boottime is CLOCK_BOOTTIME unless a test says otherwise: how much time has really passed (WallClock).
	Boottime func() time.Duration
	// Changed is called after leases have changed and are durable, once for many. It must return soon.
	Changed func()
	// Forget deletes leases from the store that have been over for a day and for ten lease times, but none in so much time
	// after the server was made or the clock was set: whether they are that old is not sure then. Otherwise an address keeps its
	// last lease for ever.
	Forget bool
}

// Server answers DHCP on one VLAN. All methods can be called at the same time.
type Server struct {
	log     *slog.Logger
	store   Store
	wall    *WallClock
	changed func()
	forget  bool
	metrics *metrics

	mu        sync.Mutex
	table     *table
	pending   []job
	exhausted time.Time // when it was last logged that the pool is
	limited   time.Time // when it was last logged that messages are dropped for how many there are
	problem   error     // of the last commit
	undeleted bool      // leases that are to be forgotten could not be deleted
	steady    time.Time // since when the clock has not been set, as far as is known

	wake chan struct{} // has a token while pending may have jobs
}

// job is an answer that waits for its lease to be durable. Without an answer, conn is nil.
type job struct {
	change *Lease
	kind   dhcpv4.MessageType
	reply  []byte
	to     Target
	conn   Conn
}

// NewServer loads the leases. The Server says nothing before Apply and Run.
func NewServer(config Config) (*Server, error) {
	s := &Server{log: config.Log, store: config.Store, wall: NewWallClock(config.Clock, config.Boottime), changed: config.Changed, forget: config.Forget, wake: make(chan struct{}, 1)}
	if s.changed == nil {
		s.changed = func() {}
	}
	leases, err := s.store.Load(context.Background())
	if err != nil {
		return nil, fmt.Errorf("load DHCP leases: %w", err)
	}
	for i := range leases {
		if leases[i].State == StateDamaged {
			s.log.Error("a stored DHCP lease is damaged: its address is kept for the client that renews it, and from all others", "address", leases[i].Address)
		}
	}
	now, step := s.wall.Look()
	s.steady, s.table = now, newTable(leases, now)
	if ahead := s.table.boundLoaded(now); ahead > 0 {
		s.log.Warn("DHCP leases begin in the future: the clock was ahead when they were given, or is behind now: they count for a day or ten lease times at most; "+
			"see to it that the clock is right", "leases", ahead, "clock", now)
	}
	if step.By != 0 { // while they were loaded
		s.stepped(step, now)
	}
	s.metrics, err = newMetrics(config.Registerer, func() counts {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.table.count(s.now())
	})
	if err != nil {
		return nil, err
	}
	if shared, ok := s.store.(SharedStore); ok {
		s.table.sure = shared.Sure
		shared.OnHold(s.Hold)
	}
	return s, nil
}

// now is the wall clock: a lease must mean the same after a restart, which no monotonic clock does. When it was set, what is known
// is put right first. The lock is held.
func (s *Server) now() time.Time {
	now, step := s.wall.Look()
	if step.By != 0 {
		s.stepped(step, now)
	}
	return now
}

// stepped takes into account that the clock was set.
func (s *Server) stepped(step Step, now time.Time) {
	s.steady, s.exhausted, s.limited = now, time.Time{}, time.Time{}
	_, shared := s.store.(SharedStore)
	changed := s.table.stepped(step, now, !shared)
	if shared {
		return // the store keeps what is held, and says so
	}
	if step.By < 0 {
		s.log.Warn("the clock was set back: DHCP leases end when they would have, or after a day or ten lease times; "+
			"see to it that the clock is right now, and stays so", "by", -step.By, "was", step.Before, "is", now)
		return
	}
	for _, lease := range changed {
		s.pending = append(s.pending, job{change: lease})
	}
	select {
	case s.wake <- struct{}{}:
	default:
	}
	s.log.Warn("the clock was set forward: DHCP leases that were active last as long as before; "+
		"see to it that the clock is right now, and stays so", "by", step.By, "was", step.Before, "is", now, "leases", len(changed))
}

// Apply makes the server serve a model from the next message on. Leases stay. With nil the server is
// silent.
func (s *Server) Apply(m *Model) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.apply(m)
}

// Hold keeps the address of every lease that was active at since for its client, until the other time, whatever the lease
// says. One that was given back is free.
//
// It is for a time in which leases may have been renewed that this server knows nothing of: another server of the VLAN
// was cut off from the store, and went on to renew the leases that it knew. since is a time at which everything that it had
// given was in the store; until is one lease time after the last renewal that it can have made. A lease that was
// over at since was not renewed: no server gives a lease that is over without the store. A lease that was active then can be
// in use until the other time, and not beyond, so nobody else gets its address before; its own client gets it
// whenever it asks. What is given from now on is in the store.
//
// Nothing of this is stored. Who calls it does so again after a restart, while the time has not come.
func (s *Server) Hold(since, until time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.table.hold(since.Round(0), until.Round(0), s.now())
}

// Leases returns what is known about every address that ever was leased, by address. A lease that is over and held
// (Hold) is active.
func (s *Server) Leases() []Lease {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.table.leases(s.now())
}

// Problem returns why leases cannot be made durable, and nil while the last commit worked. While there is a
// problem the clients whose leases cannot be written get no answer. The next client that asks is the next try:
// when that one's lease can be written the problem is over. Nothing is tried while nobody asks; but that a shared store could
// not be reached is no problem any more once the store says that it can.
func (s *Server) Problem() error {
	s.mu.Lock()
	problem := s.problem
	s.mu.Unlock()
	if shared, ok := s.store.(SharedStore); ok && errors.Is(problem, ErrUnreachable) {
		if _, away := shared.Away(); !away {
			return nil
		}
	}
	return problem
}

// Run answers what the Conns bring until ctx ends, then closes them, writes what is left to write,
// and returns nil. A Conn that fails is tried again for ever: a VLAN interface that goes away comes
// back. Run must be called once.
func (s *Server) Run(ctx context.Context, conns ...Conn) error {
	var readers sync.WaitGroup
	for _, conn := range conns {
		readers.Go(func() { s.read(ctx, conn) })
	}
	committed := make(chan struct{})
	stop := make(chan struct{})
	go func() {
		defer close(committed)
		s.commitLoop(ctx, stop)
	}()

	<-ctx.Done()
	var errs []error
	for _, conn := range conns {
		errs = append(errs, conn.Close())
	}
	readers.Wait()
	close(stop)
	<-committed
	if err := errors.Join(errs...); err != nil {
		s.log.Warn("close DHCP sockets", "error", err)
	}
	return nil
}

// read handles the messages of one Conn. It logs a failure once, and its end.
func (s *Server) read(ctx context.Context, conn Conn) {
	buf := make([]byte, MaxMessage)
	var failing time.Duration // how long to wait before the next try, 0 while all is well
	for {
		packet, err := conn.Receive(buf)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			if failing == 0 {
				s.log.Error("cannot receive DHCP messages, trying again", "conn", conn, "error", err)
			}
			failing = min(max(2*failing, minBackoff), maxBackoff)
			select {
			case <-ctx.Done():
				return
			case <-time.After(failing):
			}
			continue
		}
		if failing != 0 {
			failing = 0
			s.log.Info("receiving DHCP messages again", "conn", conn)
		}
		s.handle(conn, &packet)
	}
}

// handle answers one message, or has it answered after the commit.
func (s *Server) handle(conn Conn, packet *Packet) {
	defer func() {
		// One message must not end DNS and xDS of all tenants.
		if p := recover(); p != nil {
			s.drop(dropPanic)
			s.log.Error("bug: a DHCP message made the server panic", "panic", p, "message", fmt.Sprintf("%x", packet.Payload), "stack", string(debug.Stack()))
		}
	}()
	r, err := parse(packet.Payload)
	if err != nil {
		s.drop(dropMalformed)
		s.log.Debug("malformed DHCP message", "source", packet.Source, "error", err)
		return
	}
	s.metrics.received.WithLabelValues(typeLabel(r.kind)).Inc()
	j, v := s.process(conn, packet, r)
	if s.log.Enabled(context.Background(), slog.LevelDebug) {
		s.log.Debug("DHCP message", "type", r.kind, "mac", r.mac, "hostname", r.hostname, "ciaddr", r.ciaddr, "requested", r.requested,
			"relay", r.giaddr, "answer", v.kind, "address", v.yiaddr, "reason", v.reason)
	}
	switch {
	case v.change != nil:
		select {
		case s.wake <- struct{}{}:
		default:
		}
	case v.kind == dhcpv4.MessageTypeNone:
		s.drop(v.reason)
	default:
		s.send(&j)
	}
}

// process decides under the lock. Changes are queued under the same lock, so that the store sees
// them in the order in which they were made.
func (s *Server) process(conn Conn, packet *Packet, r *request) (job, verdict) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pending) >= maxPending && r.kind != dhcpv4.MessageTypeDiscover && r.kind != dhcpv4.MessageTypeInform {
		return job{}, ignore(dropBusy)
	}
	v := s.table.decide(r, packet.Destination.Addr() == s.table.serverIP(), s.now())
	s.noteExhaustion(r, &v)
	s.noteLimit(r, &v)
	if v.kind == dhcpv4.MessageTypeAck && v.yiaddr.IsValid() && v.change == nil {
		s.metrics.early.Inc()
	}
	j := job{change: v.change, kind: v.kind}
	if v.kind != dhcpv4.MessageTypeNone {
		j.conn, j.to, j.reply = conn, target(packet, r, &v), s.table.model.reply(r, &v)
	}
	if v.change != nil {
		s.pending = append(s.pending, j)
	}
	return j, v
}

// noteExhaustion logs that the pool has run out of addresses, once in a while: the next client may
// be one that has an address.
func (s *Server) noteExhaustion(r *request, v *verdict) {
	now := s.now()
	if v.reason != dropExhausted || now.Sub(s.exhausted) < exhaustedEvery {
		return
	}
	s.exhausted = now
	s.log.Warn("DHCP pool exhausted: new clients get no address; widen the pool", "mac", r.mac, "addresses", s.table.model.pool.size)
}

// noteLimit logs that clients change leases too often, once in a while.
func (s *Server) noteLimit(r *request, v *verdict) {
	now := s.now()
	if v.reason != dropTooOften && v.reason != dropManyNew || now.Sub(s.limited) < limitedEvery {
		return
	}
	s.limited = now
	s.log.Warn("more changes of DHCP leases are asked for than clients need: messages are dropped; look for a host that makes up clients, or boots again and again", "mac", r.mac, "reason", v.reason)
}

func (s *Server) drop(reason string) { s.metrics.dropped.WithLabelValues(reason).Inc() }

func (s *Server) send(j *job) {
	if err := j.conn.Send(j.reply, j.to); err != nil {
		s.metrics.sendFailures.Inc()
		s.log.Debug("cannot send DHCP answer", "type", j.kind, "to", j.to.Addr, "error", err)
		return
	}
	s.metrics.sent.WithLabelValues(typeLabel(j.kind)).Inc()
}

// commitLoop writes what is pending until stop, and then the rest.
func (s *Server) commitLoop(ctx context.Context, stop <-chan struct{}) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	forget := make(<-chan time.Time)
	if s.forget {
		ticker := time.NewTicker(forgetEvery)
		defer ticker.Stop()
		forget = ticker.C
	}
	for {
		select {
		case <-stop:
			flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushTime)
			defer cancel()
			for s.commit(flush) && flush.Err() == nil {
			}
			return
		case <-s.wake:
			for s.commit(ctx) {
			}
		case <-look.C:
			s.mu.Lock()
			s.now()
			s.mu.Unlock()
		case <-forget:
			s.forgetOld(ctx)
		}
	}
}

// forgetOld deletes a few leases that have been over for long.
func (s *Server) forgetOld(ctx context.Context) {
	s.mu.Lock()
	var old []*Lease
	if m := s.table.model; m != nil {
		age, now := max(forgetAfter, forgetTimes*m.leaseTime), s.now()
		if now.Sub(s.steady) >= age {
			old = s.table.longOver(now, age, forgetMost)
		}
	}
	s.mu.Unlock()
	if len(old) == 0 {
		return
	}
	leases := make([]Lease, len(old))
	for i, lease := range old {
		leases[i] = *lease
	}
	errs := s.store.Delete(ctx, leases)

	var failed error
	s.mu.Lock()
	for i, lease := range old {
		var err error
		if errs != nil {
			err = errs[i]
		}
		switch conflict := (*ConflictError)(nil); {
		case err == nil:
			s.table.deleted(lease)
		case errors.As(err, &conflict):
			s.adopt(conflict.Current)
		default:
			failed = err
		}
	}
	news := failed != nil && !s.undeleted
	s.undeleted = failed != nil
	s.mu.Unlock()
	if news {
		s.log.Warn("DHCP leases that have been over for long cannot be deleted, trying again", "error", failed)
	}
	s.changed()
}

// adopt takes over a lease that somebody else has stored, and drops the changes to its address that wait to be written: they
// were decided in ignorance of it. The lock is held.
func (s *Server) adopt(lease Lease) {
	s.table.adopt(lease, s.now())
	kept := s.pending[:0:0]
	for _, j := range s.pending {
		if j.change.Address != lease.Address {
			kept = append(kept, j)
			continue
		}
		s.drop(dropConflict)
	}
	s.pending = kept
}

// commit writes one batch and sends its answers. It returns false when there was nothing to write.
func (s *Server) commit(ctx context.Context) bool {
	s.mu.Lock()
	batch := s.pending
	if len(batch) > maxBatch {
		batch, s.pending = batch[:maxBatch:maxBatch], batch[maxBatch:]
	} else {
		s.pending = nil
	}
	s.mu.Unlock()
	if len(batch) == 0 {
		return false
	}

	// Of several changes to one address the last one counts. One that was written for an earlier answer is not written again.
	leases := make([]Lease, 0, len(batch))
	place := make(map[netip.Addr]int, len(batch))
	s.mu.Lock()
	for i := range batch {
		change := batch[i].change
		if s.table.written(change) {
			continue
		}
		if n, twice := place[change.Address]; twice {
			leases[n] = *change
			continue
		}
		place[change.Address] = len(leases)
		leases = append(leases, *change)
	}
	s.mu.Unlock()
	if len(leases) == 0 {
		for i := range batch {
			if batch[i].conn != nil {
				s.send(&batch[i])
			}
		}
		return true
	}
	start := time.Now()
	errs := s.store.Put(ctx, leases)
	s.metrics.commitSeconds.Observe(time.Since(start).Seconds())

	var failed error
	var conflicts []*ConflictError
	fate := make([]string, len(batch)) // why it is dropped; empty: it is written
	lost := map[*Lease]struct{}{}
	s.mu.Lock()
	now := s.now()
	for i := range batch {
		change := batch[i].change
		n, put := place[change.Address]
		if !put {
			continue
		}
		var err error
		if errs != nil {
			err = errs[n]
		}
		if conflict := (*ConflictError)(nil); errors.As(err, &conflict) {
			fate[i] = dropConflict
			s.adopt(conflict.Current)
			conflicts = append(conflicts, conflict)
			continue
		}
		if err != nil {
			failed, fate[i] = err, dropNotWritten
			s.table.revert(change, now)
			lost[change] = struct{}{}
			continue
		}
		if follows := s.table.confirm(change, now); follows != nil {
			s.pending = append(s.pending, job{change: follows})
		}
	}
	s.dropWaiting(lost)
	was := s.problem
	s.problem = nil
	if failed != nil {
		s.problem = fmt.Errorf("leases cannot be written, and their clients get no answer: %w", failed)
	}
	s.mu.Unlock()

	s.noteProblem(was, failed)
	for _, conflict := range conflicts {
		s.log.Warn("a DHCP lease is not given: the store has another one, which counts from now on", "error", conflict)
	}
	for i := range batch {
		switch {
		case fate[i] == dropConflict:
			s.drop(dropConflict)
		case fate[i] != "":
			s.metrics.commitFailures.Inc()
			s.drop(dropNotWritten)
		case batch[i].conn != nil:
			s.send(&batch[i])
		}
	}
	s.changed()
	return true
}

// dropWaiting drops the answers that wait for changes which could not be written. The lock is held.
func (s *Server) dropWaiting(lost map[*Lease]struct{}) {
	if len(lost) == 0 {
		return
	}
	kept := s.pending[:0:0]
	for _, j := range s.pending {
		if _, waits := lost[j.change]; !waits {
			kept = append(kept, j)
			continue
		}
		s.drop(dropNotWritten)
	}
	s.pending = kept
}

// noteProblem logs once when leases cannot be written, and once when they can be again.
func (s *Server) noteProblem(was, now error) {
	switch {
	case now != nil && was == nil:
		s.log.Error("cannot make DHCP leases durable: their clients get no answer", "error", now)
	case now == nil && was != nil:
		s.log.Info("DHCP leases are durable again")
	}
}
