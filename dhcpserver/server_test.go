package dhcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// pipe is a Conn whose other end is the test.
type pipe struct {
	in     chan []byte
	fail   chan error
	out    chan sent
	closed chan struct{}
	once   sync.Once
}

func newPipe() *pipe {
	return &pipe{in: make(chan []byte), fail: make(chan error), out: make(chan sent, 1<<16), closed: make(chan struct{})}
}

func (p *pipe) Receive(buf []byte) (Packet, error) {
	select {
	case raw := <-p.in:
		return Packet{Payload: buf[:copy(buf, raw)], Source: noAddress, Destination: everyClient}, nil
	case err := <-p.fail:
		return Packet{}, err
	case <-p.closed:
		return Packet{}, net.ErrClosed
	}
}

func (p *pipe) Send(payload []byte, to Target) error {
	m, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return err
	}
	p.out <- sent{message: m, raw: payload, to: to}
	return nil
}

func (p *pipe) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// slow is a Store whose every Put waits for the test.
type slow struct {
	memory
	mu      sync.Mutex
	puts    chan []Lease
	proceed chan error
}

func newSlow() *slow {
	return &slow{memory: memory{leases: map[netip.Addr]Lease{}}, puts: make(chan []Lease), proceed: make(chan error)}
}

func (s *slow) Put(ctx context.Context, leases []Lease) []error {
	s.puts <- leases
	err := <-s.proceed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fail = err
	return s.memory.Put(ctx, leases)
}

// running is a Server in its Run.
type running struct {
	*Server
	registry *prometheus.Registry
	log      *lines
	changed  atomic.Int32
	stop     func()
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) count(text string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.text.String(), text)
}

func serve(t *testing.T, store Store, conns ...Conn) *running {
	t.Helper()
	d := child()
	d.Spec.LeaseConfig.RangeEnd = "192.0.2.250"
	d.Spec.Reservations = nil
	r := &running{registry: prometheus.NewRegistry(), log: &lines{}}
	server, err := NewServer(Config{
		Log: slog.New(slog.NewTextHandler(r.log, nil)), Store: store, Changed: func() { r.changed.Add(1) },
		Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"infra": "clusters/tenant"}, r.registry),
	})
	if err != nil {
		t.Fatal(err)
	}
	r.Server = server
	server.Apply(model(t, d))
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, conns...) }()
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(r.stop)
	return r
}

// message is one of a client, whose number is the end of its hardware address.
func message(t *testing.T, client int, kind dhcpv4.MessageType, options ...dhcpv4.Option) []byte {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac(fmt.Sprintf("%02x", client))), dhcpv4.WithMessageType(kind))
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range options {
		m.UpdateOption(o)
	}
	return m.ToBytes()
}

// take is the message that takes an offered address.
func take(t *testing.T, client int, addr string) []byte {
	t.Helper()
	return message(t, client, dhcpv4.MessageTypeRequest, dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 2)), dhcpv4.OptRequestedIPAddress(net.ParseIP(addr)))
}

func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(30 * time.Second):
		t.Fatalf("waited 30s in vain for %s", what)
		panic("unreachable")
	}
}

func TestAnAckWaitsForTheStore(t *testing.T) {
	store, conn := newSlow(), newPipe()
	s := serve(t, store, conn)
	conn.in <- take(t, 1, "192.0.2.100")
	within(t, "the store", store.puts)
	// While it writes: other clients get offers, and more leases gather for the next commit.
	conn.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
	if offer := within(t, "an offer", conn.out); describe([]sent{offer}) != "OFFER 192.0.2.101 -> 02" {
		t.Errorf("the server answered %s", describe([]sent{offer}))
	}
	for client := 3; client <= 7; client++ {
		conn.in <- take(t, client, fmt.Sprintf("192.0.2.%d", 100+client))
	}
	conn.in <- take(t, 7, "192.0.2.107") // again
	conn.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", conn.out)
	if n := len(conn.out); n != 0 {
		t.Fatalf("%d answers before the lease is durable", n)
	}
	store.proceed <- nil
	if ack := within(t, "the ACK", conn.out); describe([]sent{ack}) != "ACK 192.0.2.100 -> 01" {
		t.Errorf("the server answered %s", describe([]sent{ack}))
	}
	if batch := within(t, "the store", store.puts); len(batch) != 5 {
		t.Errorf("the second commit has %d leases, want 5", len(batch))
	}
	store.proceed <- nil
	for range 6 {
		within(t, "an ACK", conn.out)
	}
	s.stop()
	if got := s.changed.Load(); got != 2 {
		t.Errorf("Changed was called %d times, want 2", got)
	}
	if got := len(s.Leases()); got != 6 {
		t.Errorf("%d leases", got)
	}
}

func TestARequestIsDroppedWhenTheStoreHangs(t *testing.T) {
	store, conn := newSlow(), newPipe()
	s := serve(t, store, conn)
	conn.in <- take(t, 1, "192.0.2.100")
	within(t, "the store", store.puts)
	again := take(t, 1, "192.0.2.100")
	for range maxPending + 3 {
		conn.in <- again
	}
	conn.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", conn.out)
	if got := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropBusy)); got != 3 {
		t.Errorf("%v dropped, want 3", got)
	}
	go func() {
		for {
			select {
			case store.proceed <- nil:
			case <-store.puts:
			case <-conn.closed:
				return
			}
		}
	}()
	for range maxPending + 1 {
		within(t, "an ACK", conn.out)
	}
}

func TestAFailingStoreIsLoggedOnce(t *testing.T) {
	store, conn := newSlow(), newPipe()
	s := serve(t, store, conn)
	for client := 1; client <= 3; client++ {
		conn.in <- take(t, client, fmt.Sprintf("192.0.2.%d", 100+client))
		within(t, "the store", store.puts)
		store.proceed <- errors.New("disk full")
	}
	conn.in <- take(t, 4, "192.0.2.104")
	within(t, "the store", store.puts)
	store.proceed <- nil
	if ack := within(t, "the ACK", conn.out); describe([]sent{ack}) != "ACK 192.0.2.104 -> 04" {
		t.Errorf("the server answered %s", describe([]sent{ack}))
	}
	s.stop()
	if bad, good := s.log.count("disk full"), s.log.count("durable again"); bad != 1 || good != 1 {
		t.Errorf("logged %d times that it fails, %d times that it works", bad, good)
	}
	if got := testutil.ToFloat64(s.metrics.commitFailures); got != 3 {
		t.Errorf("%v failures counted", got)
	}
	if len(store.leases) != 1 {
		t.Errorf("the store has %v", store.leases)
	}
}

func TestProblemIsThatOfTheLastCommit(t *testing.T) {
	v := newVLAN(t, child())
	request := "01 REQUEST server=192.0.2.2 requested=192.0.2.100"
	v.say("01 DISCOVER")
	for range 2 {
		v.store.fail = errors.New("disk full")
		if got := describe(v.say(request)); got != "silence" {
			t.Errorf("the server answered %s", got)
		}
		v.say("01 DISCOVER") // writes nothing, so it says nothing
		if err := v.server.Problem(); !errors.Is(err, v.store.fail) || err.Error() != "leases cannot be written, and their clients get no answer: disk full" {
			t.Errorf("problem %v", err)
		}
		v.store.fail = nil
		if err := v.server.Problem(); err == nil {
			t.Error("the problem is over before a commit has worked")
		}
		if got := describe(v.say(request)); got != "ACK 192.0.2.100 -> 01" {
			t.Errorf("the server answered %s", got)
		}
		if err := v.server.Problem(); err != nil {
			t.Errorf("after a commit that worked: %v", err)
		}
		v.now = v.now.Add(30 * time.Minute) // what is asked for again sooner is not written
	}
}

func TestWhatIsPendingIsWrittenBeforeRunEnds(t *testing.T) {
	store, conn := newSlow(), newPipe()
	s := serve(t, store, conn)
	conn.in <- take(t, 1, "192.0.2.100")
	within(t, "the store", store.puts)
	conn.in <- take(t, 2, "192.0.2.101")
	conn.in <- message(t, 3, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", conn.out)
	stopped := make(chan struct{})
	go func() { defer close(stopped); s.stop() }()
	<-conn.closed
	store.proceed <- nil
	within(t, "the store", store.puts)
	store.proceed <- nil
	within(t, "the end", stopped)
	if len(store.leases) != 2 {
		t.Errorf("the store has %v", store.leases)
	}
}

func TestAConnThatFailsIsTriedAgain(t *testing.T) {
	bad, good := newPipe(), newPipe()
	s := serve(t, &memory{leases: map[netip.Addr]Lease{}}, bad, good)
	for range 3 {
		bad.fail <- errors.New("network is down")
	}
	good.in <- message(t, 1, dhcpv4.MessageTypeDiscover)
	within(t, "an offer on the other Conn", good.out)
	bad.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", bad.out)
	s.stop()
	if down, up := s.log.count("network is down"), s.log.count("receiving DHCP messages again"); down != 1 || up != 1 {
		t.Errorf("logged %d times that it is down, %d times that it is up", down, up)
	}
}

func TestAPanicDoesNotEndTheServer(t *testing.T) {
	conn := newPipe()
	s := serve(t, &memory{leases: map[netip.Addr]Lease{}}, conn)
	s.mu.Lock()
	broken := *s.table
	broken.byAddr = nil // writing to it panics
	s.table = &broken
	s.mu.Unlock()
	conn.in <- message(t, 1, dhcpv4.MessageTypeDiscover)
	conn.in <- []byte("nonsense")
	s.mu.Lock()
	s.table = newTable(nil, time.Time{})
	s.mu.Unlock()
	d := child()
	s.Apply(model(t, d))
	conn.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", conn.out)
	if got := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropPanic)); got != 1 {
		t.Errorf("%v panics", got)
	}
}

func TestSilentWithoutAModel(t *testing.T) {
	conn := newPipe()
	s := serve(t, &memory{leases: map[netip.Addr]Lease{}}, conn)
	s.Apply(nil)
	conn.in <- message(t, 1, dhcpv4.MessageTypeDiscover)
	conn.in <- []byte("next") // the server has done with the one before
	if len(conn.out) != 0 {
		t.Error("an answer")
	}
	if got := testutil.ToFloat64(s.metrics.dropped.WithLabelValues(dropNoPool)); got != 1 {
		t.Errorf("%v dropped", got)
	}
}

func TestMetrics(t *testing.T) {
	conn := newPipe()
	s := serve(t, &memory{leases: map[netip.Addr]Lease{}}, conn)
	conn.in <- message(t, 1, dhcpv4.MessageTypeDiscover)
	within(t, "an offer", conn.out)
	conn.in <- take(t, 2, "192.0.2.101")
	within(t, "an ACK", conn.out)
	conn.in <- []byte("nonsense")
	s.stop()
	const want = `
# HELP oooi_dhcp_addresses_free Addresses of the pool that could be given to a new client now.
# TYPE oooi_dhcp_addresses_free gauge
oooi_dhcp_addresses_free{infra="clusters/tenant"} 149
# HELP oooi_dhcp_dropped_total DHCP messages that got no answer, by reason; too many changes: of one client; too many new clients: of the VLAN.
# TYPE oooi_dhcp_dropped_total counter
oooi_dhcp_dropped_total{infra="clusters/tenant",reason="malformed"} 1
# HELP oooi_dhcp_leases Leases known, those whose time is over included.
# TYPE oooi_dhcp_leases gauge
oooi_dhcp_leases{infra="clusters/tenant"} 1
# HELP oooi_dhcp_leases_active Leases that clients hold now.
# TYPE oooi_dhcp_leases_active gauge
oooi_dhcp_leases_active{infra="clusters/tenant"} 1
# HELP oooi_dhcp_messages_total DHCP messages of clients, by type.
# TYPE oooi_dhcp_messages_total counter
oooi_dhcp_messages_total{infra="clusters/tenant",type="discover"} 1
oooi_dhcp_messages_total{infra="clusters/tenant",type="request"} 1
# HELP oooi_dhcp_offers Offers that no client has taken yet.
# TYPE oooi_dhcp_offers gauge
oooi_dhcp_offers{infra="clusters/tenant"} 1
# HELP oooi_dhcp_replies_total DHCP answers sent, by type.
# TYPE oooi_dhcp_replies_total counter
oooi_dhcp_replies_total{infra="clusters/tenant",type="ack"} 1
oooi_dhcp_replies_total{infra="clusters/tenant",type="offer"} 1
`
	if err := testutil.GatherAndCompare(s.registry, strings.NewReader(want), "oooi_dhcp_addresses_free", "oooi_dhcp_dropped_total", "oooi_dhcp_leases",
		"oooi_dhcp_leases_active", "oooi_dhcp_messages_total", "oooi_dhcp_offers", "oooi_dhcp_replies_total"); err != nil {
		t.Error(err)
	}
	other := prometheus.WrapRegistererWith(prometheus.Labels{"infra": "clusters/other"}, s.registry)
	if _, err := NewServer(Config{Log: slog.New(slog.DiscardHandler), Registerer: other, Store: &memory{}}); err != nil {
		t.Errorf("a second server: %v", err)
	}
}

func TestLeasesAreShown(t *testing.T) {
	v := newVLAN(t, child())
	v.say("02 DISCOVER requested=192.0.2.101")
	v.say("02 REQUEST server=192.0.2.2 requested=192.0.2.101")
	v.say("01 DISCOVER requested=192.0.2.100")
	v.say("01 REQUEST server=192.0.2.2 requested=192.0.2.100")
	v.now = v.now.Add(30 * time.Minute)
	v.say("01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67")
	v.now = v.now.Add(40 * time.Minute)
	v.say("0a DISCOVER")
	v.say("0a REQUEST server=192.0.2.2 requested=192.0.2.50")
	v.say("0a RELEASE ciaddr=192.0.2.50 to=192.0.2.2:67")
	v.say("03 DISCOVER")
	var got []string
	for _, l := range v.server.Leases() {
		got = append(got, fmt.Sprintf("%s %s %q %s-%s %s", l.Address, l.MAC, l.Hostname, l.Start.Format("15:04"), l.Expires.Format("15:04"), l.State))
	}
	const want = `192.0.2.50 52:54:00:00:00:0a "reserved" 13:10-13:10 released
192.0.2.100 52:54:00:00:00:01 "" 12:00-13:30 active
192.0.2.101 52:54:00:00:00:02 "" 12:00-13:00 expired`
	if text := strings.Join(got, "\n"); text != want {
		t.Errorf("leases\n%s\nwant\n%s", text, want)
	}
}
