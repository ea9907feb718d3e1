package dhcpserver

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// Store keeps the leases of one Infra. The package storetest holds every implementation to what is
// said here.
//
// A Store is used by one Server at a time; its methods are never called at the same time.
type Store interface {
	// Load returns every lease of the Infra, one an address, in any order. A lease that cannot be read has its address
	// and StateDamaged; if its address cannot be read either, Load fails.
	Load(ctx context.Context) ([]Lease, error)
	// Put writes leases, each replacing what was stored for its address. The addresses of one call
	// differ. It returns nil when all of them are durable: they survive the death of the process at
	// any later instant, and whatever the medium promises beyond (bbolt: loss of power). Otherwise it
	// returns one error per lease, nil for those that are durable. A lease with an error may or may
	// not have been written.
	//
	// Where others can write as well, a lease never replaces one of another client that was not loaded or put here: its
	// error is a *ConflictError then, and from then on what that one names counts as loaded.
	Put(ctx context.Context, leases []Lease) []error
	// Delete forgets leases that are over, so that nobody knows any more that there was one. Errors are those of
	// Put. A lease that is not there is no error.
	Delete(ctx context.Context, leases []Lease) []error
}

// SharedStore is a Store that several processes use, one after the other, and that they may be cut off from while they
// go on to renew leases.
type SharedStore interface {
	Store
	// OnHold makes the store call hold (Server.Hold) when leases may have been renewed that it knows nothing of: at once
	// for what is to be held already, and whenever that changes, before any Put that it matters to. A second call
	// replaces the first.
	OnHold(hold func(since, until time.Time))
	// Away tells whether the store cannot be reached, and since when.
	Away() (since time.Time, away bool)
	// Sure tells whether the store itself has the lease of an address as it was last put or loaded here, as far as is known now. It must
	// return at once.
	Sure(addr netip.Addr) bool
}

// ErrUnreachable is in the chain of what SharedStore.Put returns while the store cannot be reached: known leases are
// renewed, and no new one is given.
var ErrUnreachable = errors.New("the store of leases cannot be reached")

// ConflictError says that a lease was not written because somebody else has given or promised its address meanwhile.
type ConflictError struct {
	// Current is the lease that is stored.
	Current Lease
}

func (e *ConflictError) Error() string {
	return fmt.Sprintf("the lease of %s is somebody else's by now: client %s, %s until %s",
		e.Current.Address, e.Current.MAC, e.Current.State, e.Current.Expires.Format(time.RFC3339))
}
