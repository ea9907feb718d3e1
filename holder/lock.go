package holder

import (
	"context"
	"crypto/ed25519"
	"errors"
	"net"
	"net/netip"
	"time"
)

// Record says who the holder of an Infra's addresses is. It is kept where all its pods can read it and one can write at a time.
type Record struct {
	// Holder is the name of the pod; empty when the last one gave it back.
	Holder string
	// Epoch grows by one each time that another holder takes the record.
	Epoch int64
	// MAC is that of the holder, or of the last one.
	MAC net.HardwareAddr
	// Addresses have been held by this Infra at some time: they need no full probe.
	Addresses []netip.Addr
	// Renewed is when the holder last wrote the record, by its own clock.
	Renewed time.Time
	// Version is opaque; empty when there is no record.
	Version string
}

// Peer is another pod of the Infra.
type Peer struct {
	Name string
	// Key verifies what it says on the VLAN.
	Key ed25519.PublicKey
}

// ErrConflict says that the record was written by somebody else in the meantime.
var ErrConflict = errors.New("the record was changed by somebody else in the meantime")

// Lock keeps the Record. Its methods are called at the same time.
type Lock interface {
	// Get returns the record as it is now; one without a Version when there is none.
	Get(ctx context.Context) (Record, error)
	// Put replaces the record if it still is of that Version (if there is none, when the Version is empty) and returns
	// it with its new Version, or ErrConflict.
	Put(ctx context.Context, record Record) (Record, error)
	// Seen returns, at once, the newest record and pods that a watch has seen, and a channel that is closed
	// when they change. The record has no Version while nothing was seen.
	Seen() (Record, []Peer, <-chan struct{})
}
