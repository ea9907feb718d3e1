package leases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// leaseHold is a time whose leases are held: see dhcpserver.Server.Hold.
type leaseHold struct {
	Since time.Time `json:"since"`
	Until time.Time `json:"until"`
}

// leaseState is what is kept beside the leases.
type leaseState struct {
	// Complete tells that all leases of the API are among those that are kept.
	Complete bool `json:"complete"`
	// Away is when the API was last seen; zero: it was there.
	Away time.Time `json:"away,omitzero"`
	// Behind is since when the API has not had every renewal.
	Behind time.Time   `json:"behind,omitzero"`
	Holds  []leaseHold `json:"holds,omitempty"`
	// Boot is the run of the host that Zero belongs to: see dhcpserver.WallClock.Zero.
	Boot string    `json:"boot,omitempty"`
	Zero time.Time `json:"zero,omitzero"`
}

// bootID names the run of the host; empty: it is not known (random(4)).
func bootID() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(id))
}

// keptLeases are the leases in the state folder: a copy of what the API has, and renewals that it does not have.
type keptLeases struct {
	log          *slog.Logger
	file         *dhcpserver.Bolt
	copy, unsent dhcpserver.Store // parts of the file
	statePath    string
	// damaged tells that a renewal may have been lost.
	damaged bool

	mu    sync.Mutex
	known map[netip.Addr]dhcpserver.Lease // the copy, as it should be
	dirty map[netip.Addr]struct{}         // not yet in the file as they should be
	state *leaseState                     // as in the file

	saving  sync.Mutex // is held while the file is written
	failing bool
}

// openKept opens the files of one Infra in the state folder. A damaged one is put aside.
func openKept(log *slog.Logger, dir string, infra types.NamespacedName) (*keptLeases, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder %s: %w: choose another one with --state-dir", dir, err)
	}
	base := filepath.Join(dir, "dhcpleases_"+v1alpha1.LabelValue(infra.Namespace+"_"+infra.Name))
	k := &keptLeases{log: log, statePath: base + ".json", known: map[netip.Addr]dhcpserver.Lease{}, dirty: map[netip.Addr]struct{}{}}
	path := base + ".db"
	var err error
	k.file, err = dhcpserver.OpenBolt(path)
	if corrupt := (*dhcpserver.CorruptError)(nil); errors.As(err, &corrupt) {
		k.damaged = true
		log.Error("the kept DHCP leases are damaged and put aside: those of the API count", "file", path, "aside", path+".damaged", "error", corrupt.Reason)
		if err = os.Rename(path, path+".damaged"); err == nil {
			k.file, err = dhcpserver.OpenBolt(path)
		}
	}
	if err != nil {
		return nil, err
	}
	k.copy, k.unsent = k.file.Infra("copy"), k.file.Infra("unsent")
	return k, nil
}

// load reads the files. lost tells that renewals may have been lost which the API never saw.
func (k *keptLeases) load() (state leaseState, unsent map[netip.Addr]dhcpserver.Lease, lost bool, err error) {
	lost = k.damaged
	data, err := os.ReadFile(k.statePath)
	if err == nil {
		err = json.Unmarshal(data, &state)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		k.log.Error("what was kept about DHCP leases cannot be read", "file", k.statePath, "error", err)
		state, lost = leaseState{}, true
	}
	if lost {
		state.Complete = false // the copy may be gone
	}
	copied, err := k.copy.Load(context.Background())
	if err != nil {
		return state, nil, lost, err
	}
	for _, lease := range copied {
		k.known[lease.Address] = lease
	}
	renewed, err := k.unsent.Load(context.Background())
	if err != nil {
		return state, nil, lost, err
	}
	unsent = make(map[netip.Addr]dhcpserver.Lease, len(renewed))
	for _, lease := range renewed {
		if lease.State == dhcpserver.StateDamaged {
			lost = true
			k.removeUnsent([]dhcpserver.Lease{lease})
			continue
		}
		unsent[lease.Address] = lease
	}
	k.state = &state
	return state, unsent, lost, nil
}

func (k *keptLeases) close() error { return k.file.Close() }

// leases are those of the copy.
func (k *keptLeases) leases() map[netip.Addr]dhcpserver.Lease {
	k.mu.Lock()
	defer k.mu.Unlock()
	return maps.Clone(k.known)
}

// saved counts the leases of the copy that are in the file as they should be.
func (k *keptLeases) saved() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	n := len(k.known)
	for addr := range k.dirty {
		if _, known := k.known[addr]; known {
			n--
		}
	}
	return n
}

// see notes what the API has; save keeps it.
func (k *keptLeases) see(leases ...dhcpserver.Lease) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, lease := range leases {
		if old, known := k.known[lease.Address]; !known || leaseSpec(&old) != leaseSpec(&lease) {
			k.known[lease.Address] = lease
			k.dirty[lease.Address] = struct{}{}
		}
	}
}

// drop notes what the API has no longer; save keeps it.
func (k *keptLeases) drop(addresses ...netip.Addr) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, addr := range addresses {
		if _, known := k.known[addr]; known {
			delete(k.known, addr)
			k.dirty[addr] = struct{}{}
		}
	}
}

// replace makes the copy be these leases.
func (k *keptLeases) replace(leases []dhcpserver.Lease) {
	gone := k.leases()
	for _, lease := range leases {
		delete(gone, lease.Address)
	}
	for addr := range gone {
		k.drop(addr)
	}
	k.see(leases...)
	k.save()
}

// save writes what has changed of the copy. What fails is tried again the next time.
func (k *keptLeases) save() {
	k.saving.Lock()
	defer k.saving.Unlock()
	k.mu.Lock()
	dirty := maps.Clone(k.dirty)
	was := make(map[netip.Addr]dhcpserver.Lease, len(dirty)) // what is written
	var changed, gone []dhcpserver.Lease
	for addr := range dirty {
		if lease, known := k.known[addr]; known {
			was[addr] = lease
			changed = append(changed, lease)
		} else {
			gone = append(gone, dhcpserver.Lease{Address: addr})
		}
	}
	k.mu.Unlock()
	if len(dirty) == 0 {
		return
	}
	err := errors.Join(first(k.copy.Put(context.Background(), changed)), first(k.copy.Delete(context.Background(), gone)))
	if err != nil {
		if !k.failing {
			k.log.Error("DHCP leases are not kept for a start without the API, trying again", "error", err)
		}
		k.failing = true
		return
	}
	k.failing = false
	k.mu.Lock()
	defer k.mu.Unlock()
	for addr := range dirty {
		now, known := k.known[addr]
		before, written := was[addr]
		if known == written && now == before { // else it has changed meanwhile
			delete(k.dirty, addr)
		}
	}
}

// putUnsent makes renewals durable that the API does not have.
func (k *keptLeases) putUnsent(leases []dhcpserver.Lease) error {
	return first(k.unsent.Put(context.Background(), leases))
}

// removeUnsent forgets renewals that the API has, or that do not count any more. One that stays is
// older than what the API has, and looked at again with it.
func (k *keptLeases) removeUnsent(leases []dhcpserver.Lease) {
	if len(leases) == 0 {
		return
	}
	if err := first(k.unsent.Delete(context.Background(), leases)); err != nil {
		k.log.Warn("DHCP renewals that the API has by now stay in the state folder", "error", err)
	}
}

// first is the error of a transaction, which is that of all its leases.
func first(errs []error) error {
	if errs == nil {
		return nil
	}
	return errs[0]
}

// saveState keeps a state.
func (k *keptLeases) saveState(state leaseState) error {
	k.saving.Lock()
	defer k.saving.Unlock()
	if k.state != nil && reflect.DeepEqual(*k.state, state) {
		return nil
	}
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(k.statePath, data, 0o600); err != nil {
		return err
	}
	k.state = &state
	return nil
}
