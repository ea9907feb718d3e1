package holder

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Claim is what the holder has on its VLAN interface.
type Claim struct {
	// CIDR of the VLAN, to which a link route leads while an address is held.
	CIDR netip.Prefix
	// Addresses of the servers, at most vlan.MaxWatched. None: nobody needs to be the holder.
	Addresses []netip.Addr
}

// Config is what a Holder needs. StateDir and Changed may be left out.
type Config struct {
	Log *slog.Logger
	// Identity is the name of this pod.
	Identity string
	// Interface is the name of the VLAN interface, which need not be there yet.
	Interface string
	Lock      Lock
	// Key signs what this pod says; its public part must be what the others' Lock calls a Peer. See LoadKey.
	Key ed25519.PrivateKey
	// Healthy says what is wrong with what serves at the addresses, nil when nothing is. It is called twenty times a second and more,
	// and must return at once: while it does not, nothing keeps the addresses.
	Healthy func() error
	// StateDir remembers addresses, record and pods for a start without the Lock.
	StateDir   string
	Registerer prometheus.Registerer
	// Changed is called when the State has changed. It must return at once.
	Changed func()
}

// State is what a Holder does.
type State struct {
	// Holding: this pod is the holder.
	Holding bool
	// Holder is the name of the one that is, as far as is known.
	Holder string
	Epoch  int64
	// Since when this pod is the holder.
	Since time.Time
	// HeldAddresses are on the interface.
	HeldAddresses []netip.Addr
	// Problems, in the order of their text.
	Problems []Problem
	// PreviousRenewed is when the record had been renewed the last time before this pod took over, by the clock of who did; zero when there was no
	// record.
	PreviousRenewed time.Time
}

// Holder decides, with those of the other pods, who of them has the addresses, and has them.
type Holder struct {
	config  Config
	log     *slog.Logger
	metrics *metrics
	nonce   uint64

	mu    sync.Mutex
	claim Claim
	state State
	wake  chan struct{}
}

// New returns a Holder that does nothing before Run.
func New(config Config) (*Holder, error) {
	switch {
	case config.Identity == "" || len(config.Identity) > maxName:
		return nil, fmt.Errorf("holder: identity %q: it must have 1 to %d characters", config.Identity, maxName)
	case config.Interface == "":
		return nil, errors.New("holder: no interface is named")
	case len(config.Key) != ed25519.PrivateKeySize:
		return nil, errors.New("holder: there is no key to sign with")
	}
	var nonce [8]byte
	_, _ = rand.Read(nonce[:]) // it never fails
	h := &Holder{
		config: config, log: config.Log.With("interface", config.Interface), nonce: binary.BigEndian.Uint64(nonce[:]) | 1,
		wake: make(chan struct{}, 1),
	}
	var err error
	if h.metrics, err = newMetrics(config.Registerer); err != nil {
		return nil, fmt.Errorf("holder: metrics: %w", err)
	}
	return h, nil
}

// Apply replaces what the holder is to have. Addresses that are wanted no more are taken off; new ones are claimed, without a
// disturbance of the others.
func (h *Holder) Apply(claim Claim) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.claim = Claim{CIDR: claim.CIDR, Addresses: slices.Clone(claim.Addresses)}
	select {
	case h.wake <- struct{}{}:
	default:
	}
}

// State returns what the Holder does now.
func (h *Holder) State() State {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.state
}

// Run takes part until the context is cancelled; then it lets go and returns within 200 ms. It returns an error only when it cannot
// begin. It can be run once.
func (h *Holder) Run(ctx context.Context) error {
	e, err := newEngine(h)
	if err != nil {
		return err
	}
	e.run(ctx)
	return nil
}
