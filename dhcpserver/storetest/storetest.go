// Package storetest holds implementations of dhcpserver.Store to their contract.
package storetest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/densityops/oooi/dhcpserver"
)

// Medium is where leases are stored, at first none.
type Medium struct {
	// Open returns the same Store as a new process would open it: what was held in memory is gone. It is called
	// once a subtest, and may close the Store when that has ended.
	Open func(t *testing.T) dhcpserver.Store
	// Process is a program that opens the same Store, does PutUntilKilled with it, and nothing else.
	Process func(t *testing.T) *exec.Cmd
	// Shared says that several processes can write; Open can be called twice in a subtest then.
	Shared bool
}

var start = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

func lease(addr string, last byte) dhcpserver.Lease {
	return dhcpserver.Lease{
		Address: netip.MustParseAddr(addr), MAC: dhcpserver.MAC{2, 0, 0, 0, 0, last}, ClientID: "\x01\xff\x00", Hostname: "worker",
		Start: start, Expires: start.Add(time.Hour), State: dhcpserver.StateActive,
	}
}

// test is one run.
type test struct {
	ctx  context.Context
	want map[netip.Addr]dhcpserver.Lease // that is stored
}

// Run tests the Stores of a medium.
func Run(t *testing.T, m Medium) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	s := &test{ctx, map[netip.Addr]dhcpserver.Lease{}}

	t.Run("empty at first", func(t *testing.T) { s.check(t, m.Open(t)) })
	t.Run("what was put is there", func(t *testing.T) {
		store := m.Open(t)
		s.load(t, store)
		s.put(t, store, lease("192.0.2.100", 1), lease("192.0.2.101", 2))
		s.check(t, store)
	})
	t.Run("and for the next process", func(t *testing.T) { s.check(t, m.Open(t)) })
	t.Run("the last put counts", func(t *testing.T) {
		store := m.Open(t)
		s.load(t, store)
		renewed := lease("192.0.2.100", 1)
		renewed.Expires = renewed.Expires.Add(time.Hour)
		s.put(t, store, renewed)
		taken := lease("192.0.2.101", 3)
		taken.ClientID, taken.Hostname = "", ""
		s.put(t, store, taken)
		s.check(t, store)
	})
	t.Run("every state is kept", func(t *testing.T) {
		store := m.Open(t)
		s.load(t, store)
		released, declined := lease("192.0.2.100", 1), lease("192.0.2.102", 4)
		released.State, declined.State = dhcpserver.StateReleased, dhcpserver.StateDeclined
		s.put(t, store, released, declined)
		s.check(t, store)
	})
	t.Run("in the next process too", func(t *testing.T) { s.check(t, m.Open(t)) })
	t.Run("nothing to put", func(t *testing.T) {
		store := m.Open(t)
		s.put(t, store)
		s.check(t, store)
	})
	t.Run("what was deleted is gone", func(t *testing.T) {
		store := m.Open(t)
		s.load(t, store)
		s.delete(t, store, lease("192.0.2.102", 4), lease("192.0.2.199", 1))
		s.check(t, store)
		s.put(t, store, lease("192.0.2.103", 5))
		s.delete(t, store, lease("192.0.2.103", 5))
		s.put(t, store, lease("192.0.2.102", 6))
		s.check(t, store)
	})
	t.Run("also for the next process", func(t *testing.T) { s.check(t, m.Open(t)) })
	t.Run("many at once", func(t *testing.T) {
		store := m.Open(t)
		var leases []dhcpserver.Lease
		for i := range 300 {
			leases = append(leases, lease(fmt.Sprintf("198.51.%d.%d", i/200, i%200), byte(i)))
		}
		s.put(t, store, leases...)
		s.check(t, store)
		for i := range leases {
			leases[i].Expires = leases[i].Expires.Add(time.Hour)
		}
		s.put(t, store, leases...)
		s.check(t, store)
	})
	t.Run("and after the last process", func(t *testing.T) { s.check(t, m.Open(t)) })
	for range 3 {
		t.Run("what was put outlives kill", func(t *testing.T) { s.kill(t, m) })
	}
	if m.Shared {
		t.Run("of two processes one has an address", func(t *testing.T) { s.conflict(t, m) })
	}
	t.Run("the end", func(t *testing.T) { s.check(t, m.Open(t)) })
}

func (s *test) load(t *testing.T, store dhcpserver.Store) map[netip.Addr]dhcpserver.Lease {
	t.Helper()
	leases, err := store.Load(s.ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[netip.Addr]dhcpserver.Lease{}
	for _, l := range leases {
		if _, twice := got[l.Address]; twice {
			t.Errorf("two leases of %s", l.Address)
		}
		got[l.Address] = l
	}
	return got
}

func (s *test) check(t *testing.T, store dhcpserver.Store) {
	t.Helper()
	if diff := cmp.Diff(s.want, s.load(t, store), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("stored leases (-want +got):\n%s", diff)
	}
}

func (s *test) put(t *testing.T, store dhcpserver.Store, leases ...dhcpserver.Lease) {
	t.Helper()
	if errs := tryPut(s.ctx, store, leases); errs != nil {
		t.Fatalf("Put of %d leases: %v", len(leases), errs)
	}
	for _, l := range leases {
		s.want[l.Address] = l
	}
}

// tryPut puts leases again, as clients would have a server do, for as long as a shared medium cannot be reached: it may be slow.
func tryPut(ctx context.Context, store dhcpserver.Store, leases []dhcpserver.Lease) []error {
	errs := make([]error, len(leases))
	left := make([]int, len(leases))
	for i := range left {
		left[i] = i
	}
	for failed := false; ; {
		var again []dhcpserver.Lease
		for _, i := range left {
			again = append(again, leases[i])
		}
		answers := store.Put(ctx, again)
		var unreachable []int
		for n, i := range left {
			errs[i] = nil
			if answers != nil {
				errs[i] = answers[n]
			}
			if errors.Is(errs[i], dhcpserver.ErrUnreachable) {
				unreachable = append(unreachable, i)
			}
			failed = failed || errs[i] != nil && !errors.Is(errs[i], dhcpserver.ErrUnreachable)
		}
		left = unreachable
		if len(left) == 0 && !failed {
			return nil
		}
		if len(left) == 0 {
			return errs
		}
		select {
		case <-ctx.Done():
			return errs
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// tryDelete deletes leases, again for as long as a shared medium cannot be reached.
func tryDelete(ctx context.Context, store dhcpserver.Store, leases []dhcpserver.Lease) []error {
	for {
		errs := store.Delete(ctx, leases)
		if !slices.ContainsFunc(errs, func(err error) bool { return errors.Is(err, dhcpserver.ErrUnreachable) }) || ctx.Err() != nil {
			return errs
		}
		time.Sleep(100 * time.Millisecond)
	}
}

func (s *test) delete(t *testing.T, store dhcpserver.Store, leases ...dhcpserver.Lease) {
	t.Helper()
	if errs := tryDelete(s.ctx, store, leases); errs != nil {
		t.Fatalf("Delete of %d leases: %v", len(leases), errs)
	}
	for _, l := range leases {
		delete(s.want, l.Address)
	}
}

// refused puts a lease that somebody else's is in the way of.
func (s *test) refused(t *testing.T, store dhcpserver.Store, l, current dhcpserver.Lease) {
	t.Helper()
	var conflict *dhcpserver.ConflictError
	if errs := tryPut(s.ctx, store, []dhcpserver.Lease{l}); len(errs) != 1 || !errors.As(errs[0], &conflict) {
		t.Fatalf("Put of %v: %v, want a conflict", l, errs)
	}
	if diff := cmp.Diff(current, conflict.Current, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("the lease in the way (-want +got):\n%s", diff)
	}
}

func (s *test) conflict(t *testing.T, m Medium) {
	one, other := m.Open(t), m.Open(t)
	s.load(t, one)
	s.load(t, other)
	mine, theirs := lease("203.0.113.1", 1), lease("203.0.113.1", 2)
	s.put(t, one, mine)
	s.refused(t, other, theirs, mine)
	s.check(t, other)
	// What was in the way is known now: the lease is over, and the address can have another client.
	s.put(t, other, theirs)
	s.check(t, one)
	// That check has loaded it, and so there is no conflict either.
	again := theirs
	again.Expires = again.Expires.Add(time.Hour)
	s.put(t, one, again)
	// The same client may have renewed with the other process. It has the address, whoever writes it.
	again.Expires = again.Expires.Add(time.Hour)
	s.put(t, other, again)
	later := lease("203.0.113.1", 3)
	s.refused(t, one, later, again)
	s.put(t, one, later)
	// Nor does anybody delete what somebody else has written.
	errs := tryDelete(s.ctx, other, []dhcpserver.Lease{again})
	if conflict := (*dhcpserver.ConflictError)(nil); len(errs) != 1 || !errors.As(errs[0], &conflict) || conflict.Current.MAC != later.MAC {
		t.Errorf("Delete: %v, want a conflict", errs)
	}
	s.check(t, other)
	s.delete(t, other, later)
	// Deleted by the other one: there is no lease in the way.
	s.put(t, one, mine)
	s.check(t, other)

	// Both want all of many addresses: each address has one that was told so.
	var ones, others []dhcpserver.Lease
	for i := range 100 {
		addr := fmt.Sprintf("203.0.113.%d", 100+i)
		ones, others = append(ones, lease(addr, 1)), append(others, lease(addr, 2))
	}
	told := make(chan []error)
	go func() { told <- tryPut(s.ctx, other, others) }()
	errs, errsOther := tryPut(s.ctx, one, ones), <-told
	for i := range ones {
		got, gotOther := errs == nil || errs[i] == nil, errsOther == nil || errsOther[i] == nil
		switch {
		case got == gotOther:
			t.Fatalf("%s: one process was told %v, the other one %v", ones[i].Address, errs, errsOther)
		case got:
			s.want[ones[i].Address] = ones[i]
		default:
			s.want[ones[i].Address] = others[i]
		}
	}
	s.check(t, m.Open(t))
}

// PutUntilKilled puts one lease after the other and writes a line with the address of each that is durable.
func PutUntilKilled(ctx context.Context, store dhcpserver.Store, w io.Writer) error {
	loaded, err := store.Load(ctx)
	if err != nil {
		return err
	}
	addr := netip.AddrFrom4([4]byte{10, byte(len(loaded) >> 8), byte(len(loaded)), 0}) // other ones for each life
	for {
		addr = addr.Next()
		if errs := tryPut(ctx, store, []dhcpserver.Lease{lease(addr.String(), 7)}); errs != nil {
			return errs[0]
		}
		if _, err := fmt.Fprintln(w, addr); err != nil {
			return err
		}
	}
}

// kill kills a process that puts leases, and looks what has become of them.
func (s *test) kill(t *testing.T, m Medium) {
	cmd := m.Process(t)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	told := map[netip.Addr]bool{}
	for lines.Scan() {
		told[netip.MustParseAddr(lines.Text())] = true
		if len(told) == 25 {
			if err := cmd.Process.Kill(); err != nil {
				t.Error(err)
			}
		}
	}
	_ = cmd.Wait() // it was killed
	if len(told) < 25 {
		t.Fatalf("the process ended after %d leases", len(told))
	}
	got := s.load(t, m.Open(t))
	for addr := range told {
		s.want[addr] = lease(addr.String(), 7)
	}
	for addr, l := range got {
		if _, known := s.want[addr]; !known && l.MAC[5] == 7 {
			s.want[addr] = l // written, and the process was killed before it could say so
		}
	}
	if diff := cmp.Diff(s.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("stored leases (-want +got):\n%s", diff)
	}
}
