package holder

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"time"

	"github.com/google/renameio/v2"
)

// memory is what a state folder remembers, for starts without the lock.
type memory struct {
	Addresses []netip.Addr                 `json:"addresses,omitempty"`
	Holder    string                       `json:"holder,omitempty"`
	Epoch     int64                        `json:"epoch,omitempty"`
	MAC       string                       `json:"mac,omitempty"`
	Renewed   time.Time                    `json:"renewed,omitzero"`
	Known     bool                         `json:"known,omitempty"`
	Peers     map[string]ed25519.PublicKey `json:"peers,omitempty"`
}

const (
	memoryName = "holder.json"
	keyName    = "holder.key"
)

// recall reads what the folder remembers; nothing when there is no file yet.
func recall(folder string) (memory, error) {
	var m memory
	if folder == "" {
		return m, nil
	}
	path := filepath.Join(folder, memoryName)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return memory{}, fmt.Errorf("state of the holder: %s: %w", path, err)
	}
	return m, nil
}

func (m *memory) record() Record {
	r := Record{Holder: m.Holder, Epoch: m.Epoch, Addresses: m.Addresses, Renewed: m.Renewed}
	r.MAC, _ = net.ParseMAC(m.MAC) // one that is not there or does not parse is no MAC
	return r
}

// remember replaces what the folder remembers.
func (m *memory) remember(folder string) error {
	data, err := json.Marshal(m)
	if err == nil {
		err = renameio.WriteFile(filepath.Join(folder, memoryName), append(data, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("state of the holder: %w", err)
	}
	return nil
}

// LoadKey returns the key with which a pod signs what it says on the VLAN: the one in its state folder, or a new one that it puts
// there. A process that is started anew in its pod keeps the key, so that the other pods know it while they cannot learn a new one.
func LoadKey(folder string) (ed25519.PrivateKey, error) {
	path := filepath.Join(folder, keyName)
	seed, err := os.ReadFile(path)
	if err == nil && len(seed) == ed25519.SeedSize {
		return ed25519.NewKeyFromSeed(seed), nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("key of the holder: %w", err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err == nil {
		err = renameio.WriteFile(path, key.Seed(), 0o600)
	}
	if err != nil {
		return nil, fmt.Errorf("key of the holder: %w", err)
	}
	return key, nil
}

// remember has the state folder written when what is to be remembered has changed.
func (e *engine) remember() {
	if e.config.StateDir == "" {
		return
	}
	r := &e.lock.record
	m := memory{Addresses: e.everHeld(), Peers: e.memory.Peers}
	if e.lock.known {
		m.Known, m.Holder, m.Epoch, m.MAC = true, r.Holder, r.Epoch, r.MAC.String()
		m.Renewed = e.memory.Renewed
		if m.Holder != e.memory.Holder || m.Epoch != e.memory.Epoch || r.Renewed.Sub(m.Renewed) > time.Minute {
			m.Renewed = r.Renewed
		}
	} else {
		m.Known, m.Holder, m.Epoch, m.MAC, m.Renewed = e.memory.Known, e.memory.Holder, e.memory.Epoch, e.memory.MAC, e.memory.Renewed
	}
	if e.lock.peers != nil {
		m.Peers = e.lock.peers
	}
	if reflect.DeepEqual(m, e.memory) {
		return
	}
	e.memory = m
	select {
	case <-e.memories: // the newer one replaces it
	default:
	}
	e.memories <- m
}

func (e *engine) writeMemories() {
	write := func(m memory) {
		if err := m.remember(e.config.StateDir); err != nil {
			e.log.Error("cannot be remembered", "error", err)
		}
	}
	for {
		select {
		case m := <-e.memories:
			write(m)
		case <-e.quit:
			select {
			case m := <-e.memories:
				write(m)
			default:
			}
			return
		}
	}
}
