package dhcpserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// lockTimeout bounds how long OpenBolt waits for another process to let go of the file.
const lockTimeout = time.Second

// leasesBucket holds a bucket for each Infra, and that a JSON Lease for each address (4 bytes).
var leasesBucket = []byte("leases")

// Bolt keeps the leases of all Infras in one file.
type Bolt struct{ db *bolt.DB }

// OpenBolt opens the lease file, and makes it if it is not there; its folder must exist. The file is locked: a
// second process gets an error within a second or so.
func OpenBolt(path string) (*Bolt, error) {
	// The freelist is rebuilt at open instead of written at each commit: fewer pages to sync.
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: lockTimeout, NoFreelistSync: true, FreelistType: bolt.FreelistMapType})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("lease file %s is in use by another process: stop the other oooi, or give this one its own --state-dir", path)
	}
	if err != nil {
		return nil, fmt.Errorf("lease file %s: %w", path, err)
	}
	// A new file is only durable once its folder is.
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("lease file %s: %w", path, err), db.Close())
	}
	return &Bolt{db: db}, nil
}

func syncFolder(path string) error {
	folder, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(folder.Sync(), folder.Close())
}

// Close closes the file. No Store of it may be used after.
func (b *Bolt) Close() error { return b.db.Close() }

// Infra is the Store of one Infra, named NAMESPACE/NAME. Each commit is one transaction with an
// fsync, whatever the number of leases.
func (b *Bolt) Infra(name string) Store { return &boltStore{db: b.db, infra: name} }

type boltStore struct {
	db    *bolt.DB
	infra string
}

func (s *boltStore) Load(context.Context) ([]Lease, error) {
	var leases []Lease
	err := s.db.View(func(tx *bolt.Tx) error {
		all := tx.Bucket(leasesBucket)
		if all == nil {
			return nil
		}
		bucket := all.Bucket([]byte(s.infra))
		if bucket == nil {
			return nil
		}
		return bucket.ForEach(func(key, value []byte) error {
			addr, ok := netip.AddrFromSlice(key)
			if !ok {
				return fmt.Errorf("%x is not an address", key)
			}
			var lease Lease
			if err := json.Unmarshal(value, &lease); err != nil {
				return fmt.Errorf("lease of %s: %w", addr, err)
			}
			if lease.Address != addr {
				return fmt.Errorf("lease of %s is stored under %s", lease.Address, addr)
			}
			leases = append(leases, lease)
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("read leases of Infra %s from %s: %w", s.infra, s.db.Path(), err)
	}
	return leases, nil
}

func (s *boltStore) Put(_ context.Context, leases []Lease) []error {
	err := s.db.Update(func(tx *bolt.Tx) error {
		all, err := tx.CreateBucketIfNotExists(leasesBucket)
		if err != nil {
			return err
		}
		bucket, err := all.CreateBucketIfNotExists([]byte(s.infra))
		if err != nil {
			return err
		}
		for i := range leases {
			value, err := json.Marshal(&leases[i])
			if err != nil {
				return fmt.Errorf("lease of %s: %w", leases[i].Address, err)
			}
			if err := bucket.Put(leases[i].Address.AsSlice(), value); err != nil {
				return fmt.Errorf("lease of %s: %w", leases[i].Address, err)
			}
		}
		return nil
	})
	if err == nil {
		return nil
	}
	err = fmt.Errorf("write leases of Infra %s to %s: %w", s.infra, s.db.Path(), err)
	errs := make([]error, len(leases))
	for i := range errs {
		errs[i] = err
	}
	return errs
}
