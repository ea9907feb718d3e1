// Package storetest holds implementations of dhcpserver.Store to their contract.
package storetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/densityops/oooi/dhcpserver"
)

// Run tests a Store. Each call of open returns the same, at first empty, Store as a new process would
// open it: what was held in memory is gone. It is called once a subtest.
func Run(t *testing.T, open func(t *testing.T) dhcpserver.Store) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	start := time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)
	lease := func(addr string, last byte) dhcpserver.Lease {
		return dhcpserver.Lease{
			Address: netip.MustParseAddr(addr), MAC: dhcpserver.MAC{2, 0, 0, 0, 0, last}, ClientID: "\x01\xff\x00", Hostname: "worker",
			Start: start, Expires: start.Add(time.Hour), State: dhcpserver.StateActive,
		}
	}
	want := map[netip.Addr]dhcpserver.Lease{}
	put := func(t *testing.T, store dhcpserver.Store, leases ...dhcpserver.Lease) {
		t.Helper()
		if errs := store.Put(ctx, leases); errs != nil {
			t.Fatalf("Put of %d leases: %v", len(leases), errs)
		}
		for _, l := range leases {
			want[l.Address] = l
		}
	}
	check := func(t *testing.T, store dhcpserver.Store) {
		t.Helper()
		leases, err := store.Load(ctx)
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
		if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
			t.Errorf("stored leases (-want +got):\n%s", diff)
		}
	}

	t.Run("empty at first", func(t *testing.T) { check(t, open(t)) })
	t.Run("what was put is there", func(t *testing.T) {
		store := open(t)
		put(t, store, lease("192.0.2.100", 1), lease("192.0.2.101", 2))
		check(t, store)
	})
	t.Run("and for the next process", func(t *testing.T) { check(t, open(t)) })
	t.Run("the last put counts", func(t *testing.T) {
		store := open(t)
		renewed := lease("192.0.2.100", 1)
		renewed.Expires = renewed.Expires.Add(time.Hour)
		put(t, store, renewed)
		taken := lease("192.0.2.101", 3)
		taken.ClientID, taken.Hostname = "", ""
		put(t, store, taken)
		check(t, store)
	})
	t.Run("every state is kept", func(t *testing.T) {
		store := open(t)
		released, declined := lease("192.0.2.100", 1), lease("192.0.2.102", 4)
		released.State, declined.State = dhcpserver.StateReleased, dhcpserver.StateDeclined
		put(t, store, released, declined)
		check(t, store)
	})
	t.Run("in the next process too", func(t *testing.T) { check(t, open(t)) })
	t.Run("nothing to put", func(t *testing.T) {
		store := open(t)
		put(t, store)
		check(t, store)
	})
	t.Run("many at once", func(t *testing.T) {
		store := open(t)
		var leases []dhcpserver.Lease
		for i := range 300 {
			leases = append(leases, lease(fmt.Sprintf("198.51.%d.%d", i/200, i%200), byte(i)))
		}
		put(t, store, leases...)
		check(t, store)
	})
	t.Run("and after the last process", func(t *testing.T) { check(t, open(t)) })
}
