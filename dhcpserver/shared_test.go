package dhcpserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// newForgetful is a VLAN whose server forgets leases that have been over for long.
func newForgetful(t *testing.T) *vlan {
	t.Helper()
	v := newVLAN(t, child())
	server, err := NewServer(Config{
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: v.store,
		Clock: func() time.Time { return v.now }, Boottime: v.boottime, Forget: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	v.server = server
	server.Apply(model(t, v.child))
	return v
}

// get makes a client get an address.
func (v *vlan) get(client, addr string) {
	v.t.Helper()
	v.say(client + " DISCOVER requested=" + addr)
	if got := describe(v.say(client + " REQUEST server=192.0.2.2 requested=" + addr)); got != "ACK "+addr+" -> "+client {
		v.t.Fatalf("%s asked for %s: %s", client, addr, got)
	}
}

// expect says a line and checks the answer.
func (v *vlan) expect(line, want string) {
	v.t.Helper()
	if got := describe(v.say(line)); got != want {
		v.t.Errorf("%s: %s, want %s", line, got, want)
	}
	if err := v.server.table.check(); err != nil {
		v.t.Fatalf("%s: %v", line, err)
	}
}

func TestAHeldAddressIsNobodyElses(t *testing.T) {
	v := newVLAN(t, child())
	v.get("01", "192.0.2.100")
	v.get("02", "192.0.2.101")
	v.get("03", "192.0.2.102")
	v.now = v.now.Add(30 * time.Minute)
	v.say("03 RELEASE ciaddr=192.0.2.102 to=192.0.2.2:67")
	v.now = v.now.Add(15 * time.Minute)
	since := v.now
	v.now = v.now.Add(6 * time.Hour) // all are over, as far as this server knows
	v.server.Hold(since, v.now.Add(time.Hour))

	for _, l := range v.server.Leases() {
		want := map[string]State{"192.0.2.100": StateActive, "192.0.2.101": StateActive, "192.0.2.102": StateReleased}[l.Address.String()]
		if l.State != want {
			t.Errorf("%s is %s, want %s", l.Address, l.State, want)
		}
	}
	v.expect("04 DISCOVER", "OFFER 192.0.2.102 -> 04") // was given back
	v.expect("05 DISCOVER", "OFFER 192.0.2.102 -> 05") // the older offer makes room: nothing else is free
	v.expect("05 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
	v.expect("05 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68", "NAK -> everybody")
	v.expect("01 DISCOVER", "OFFER 192.0.2.100 -> 01")
	v.expect("02 REQUEST ciaddr=192.0.2.101 to=192.0.2.2:67 from=192.0.2.101:68", "ACK 192.0.2.101 -> 192.0.2.101:68")
	v.now = v.now.Add(time.Hour)
	v.expect("05 DISCOVER requested=192.0.2.100", "OFFER 192.0.2.100 -> 05")
	v.expect("06 DISCOVER requested=192.0.2.101", "OFFER 192.0.2.101 -> 06")
}

func TestWhatWasOverBeforeIsNotHeld(t *testing.T) {
	v := newVLAN(t, child())
	v.get("01", "192.0.2.100")
	v.now = v.now.Add(time.Hour)
	v.server.Hold(v.now, v.now.Add(time.Hour))
	v.expect("02 DISCOVER requested=192.0.2.100", "OFFER 192.0.2.100 -> 02")
}

// shared is a store that somebody else writes, too.
type shared struct {
	memory
	foreign map[netip.Addr]Lease
	onHold  func(since, until time.Time)
	away    bool
	unsure  map[netip.Addr]bool
}

func (s *shared) Away() (time.Time, bool) { return time.Time{}, s.away }

func (s *shared) Sure(addr netip.Addr) bool { return !s.away && !s.unsure[addr] }

func (s *shared) OnHold(hold func(since, until time.Time)) { s.onHold = hold }

func (s *shared) Put(ctx context.Context, leases []Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases {
		if current, foreign := s.foreign[l.Address]; foreign {
			delete(s.foreign, l.Address)
			s.leases[l.Address] = current
			errs[i] = &ConflictError{Current: current}
			continue
		}
		if put := s.memory.Put(ctx, leases[i:i+1]); put != nil {
			errs[i] = put[0]
		}
	}
	return errs
}

func newShared(t *testing.T) (*vlan, *shared) {
	t.Helper()
	v := newVLAN(t, child())
	store := &shared{memory: *v.store, foreign: map[netip.Addr]Lease{}}
	server, err := NewServer(Config{
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: store, Clock: func() time.Time { return v.now }, Boottime: v.boottime,
	})
	if err != nil {
		t.Fatal(err)
	}
	v.server = server
	server.Apply(model(t, v.child))
	return v, store
}

func TestALeaseOfSomebodyElseCounts(t *testing.T) {
	v, store := newShared(t)
	addr := netip.MustParseAddr("192.0.2.100")
	store.foreign[addr] = Lease{Address: addr, MAC: MAC{2, 0, 0, 0, 0, 99}, State: StateActive, Start: v.now, Expires: v.now.Add(time.Hour)}
	v.expect("01 DISCOVER", "OFFER 192.0.2.100 -> 01")
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.100", "silence")
	if err := v.server.Problem(); err != nil {
		t.Errorf("it passes for a problem of the store: %v", err)
	}
	// The client asks again, as every client does, and gets another address.
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
	v.expect("01 DISCOVER", "OFFER 192.0.2.101 -> 01")
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.101", "ACK 192.0.2.101 -> 01")
	if l := store.leases[addr]; l.MAC[5] != 99 {
		t.Errorf("the lease is now %v", l)
	}
}

// A client that had an address, and whose move to another one meets somebody else's lease, still has the first one.
func TestAMoveIntoAConflictIsNone(t *testing.T) {
	v, store := newShared(t)
	v.get("01", "192.0.2.100")
	addr := netip.MustParseAddr("192.0.2.101")
	store.foreign[addr] = Lease{Address: addr, State: StateDamaged}
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.101", "silence")
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
	v.expect("01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68", "ACK 192.0.2.100 -> 192.0.2.100:68")
}

// Changes that were decided before the conflict was known must not be written after it.
func TestWhatWaitsBehindAConflictIsDropped(t *testing.T) {
	v, store := newShared(t)
	addr := netip.MustParseAddr("192.0.2.100")
	store.foreign[addr] = Lease{Address: addr, MAC: MAC{2, 0, 0, 0, 0, 99}, State: StateActive, Start: v.now, Expires: v.now.Add(time.Hour)}
	v.server.mu.Lock()
	decide := func() *Lease {
		return v.server.table.grant(&request{mac: MAC{2, 0, 0, 0, 0, 1}}, addr, v.now)
	}
	first, second := decide(), decide()
	v.server.pending = []job{{change: first}}
	v.server.mu.Unlock()
	// The second comes while the first is being written.
	store.leases[addr] = Lease{}
	putting := &during{shared: store, then: func() {
		v.server.mu.Lock()
		defer v.server.mu.Unlock()
		v.server.pending = append(v.server.pending, job{change: second})
	}}
	v.server.store = putting
	for v.server.commit(context.Background()) {
	}
	if l := store.leases[addr]; l.MAC[5] != 99 {
		t.Errorf("the store has %v", l)
	}
	if err := v.server.table.check(); err != nil {
		t.Error(err)
	}
}

// during is a store with something that happens while it writes.
type during struct {
	*shared
	then func()
}

func (d *during) Put(ctx context.Context, leases []Lease) []error {
	errs := d.shared.Put(ctx, leases)
	if then := d.then; then != nil {
		d.then = nil
		then()
	}
	return errs
}

func TestAStoreSaysWhatToHold(t *testing.T) {
	v, store := newShared(t)
	v.get("01", "192.0.2.100")
	since := v.now
	v.now = v.now.Add(2 * time.Hour)
	store.onHold(since, v.now.Add(time.Hour))
	v.expect("02 DISCOVER requested=192.0.2.100", "OFFER 192.0.2.101 -> 02")
}

func TestAStoreThatIsBackIsNoProblem(t *testing.T) {
	v, store := newShared(t)
	store.away, store.fail = true, fmt.Errorf("lease: %w", ErrUnreachable)
	v.say("01 DISCOVER")
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.100", "silence")
	if err := v.server.Problem(); !errors.Is(err, ErrUnreachable) {
		t.Errorf("problem %v", err)
	}
	store.away = false
	if err := v.server.Problem(); err != nil {
		t.Errorf("problem %v", err)
	}
	store.fail = errors.New("disk full")
	v.expect("01 REQUEST server=192.0.2.2 requested=192.0.2.100", "silence")
	if err := v.server.Problem(); err == nil {
		t.Error("a store that fails and is there is no problem")
	}
}

func TestLeasesLongOverAreForgotten(t *testing.T) {
	v := newForgetful(t)
	v.get("01", "192.0.2.100")
	v.get("02", "192.0.2.101")
	v.get("03", "192.0.2.102")
	v.say("03 RELEASE ciaddr=192.0.2.102 to=192.0.2.2:67")
	left := func(want ...string) {
		t.Helper()
		v.server.forgetOld(context.Background())
		if err := v.server.table.check(); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range v.server.Leases() {
			got = append(got, l.Address.String())
			if stored := v.store.leases[l.Address]; stored.Address != l.Address {
				t.Errorf("%s is known and not stored", l.Address)
			}
		}
		if len(got) != len(want) || len(v.store.leases) != len(want) {
			t.Fatalf("left are %v, %d stored, want %v", got, len(v.store.leases), want)
		}
	}
	all := []string{"192.0.2.100", "192.0.2.101", "192.0.2.102"}
	v.now = v.now.Add(24 * time.Hour)
	left(all...)
	v.say("01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68")
	v.now = v.now.Add(time.Hour)
	v.server.Hold(v.now.Add(-26*time.Hour), v.now.Add(time.Minute))
	left("192.0.2.100", "192.0.2.101") // held
	v.say("01 DISCOVER")
	v.now = v.now.Add(25*time.Hour + 2*time.Minute)
	v.say("01 DISCOVER") // offered: in use
	left("192.0.2.100")
	v.expect("04 DISCOVER requested=192.0.2.101", "OFFER 192.0.2.101 -> 04")
	v.now = v.now.Add(time.Hour)
	v.say("05 DISCOVER requested=192.0.2.103") // takes back the offers that are over
	left()
	v.expect("01 DISCOVER", "OFFER 192.0.2.100 -> 01")
}
