package dhcpserver

import "context"

// Store keeps the leases of one Infra. The package storetest holds every implementation to what is
// said here.
//
// A Store is used by one Server at a time; Load and Put are never called at the same time.
type Store interface {
	// Load returns every lease of the Infra, one an address, in any order. Leases are never deleted. A lease that
	// cannot be read has its address and StateDamaged; if its address cannot be read either, Load fails.
	Load(ctx context.Context) ([]Lease, error)
	// Put writes leases, each replacing what was stored for its address. The addresses of one call
	// differ. It returns nil when all of them are durable: they survive the death of the process at
	// any later instant, and whatever the medium promises beyond (bbolt: loss of power). Otherwise it
	// returns one error per lease, nil for those that are durable. A lease with an error may or may
	// not have been written.
	Put(ctx context.Context, leases []Lease) []error
}
