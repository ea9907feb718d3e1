package dhcpserver

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"syscall"
	"time"

	bolt "go.etcd.io/bbolt"
)

const (
	// lockTimeout bounds how long OpenBolt waits for another process to let go of the file, lockRetry is how often
	// it looks.
	lockTimeout, lockRetry = time.Second, 50 * time.Millisecond
	// sumSize is the checksum in front of each lease.
	sumSize = 8
)

// leasesBucket holds a bucket for each Infra, and that a lease for each address (4 bytes): the checksum of the
// JSON, and the JSON of a Lease. The bucket's sequence number is the XOR of the fingerprints of all leases, so
// that a lease that is missing is missed.
var leasesBucket = []byte("leases")

// fingerprint stands for one lease of one Infra in the digest of all.
func fingerprint(infra string, key, value []byte) uint64 {
	return sum64([]byte(infra), []byte{0}, key, value[:sumSize])
}

// CorruptError says that a lease file is damaged, or is no lease file.
type CorruptError struct{ Path, Reason string }

func (e *CorruptError) Error() string {
	return fmt.Sprintf("lease file %s is damaged: %s: move it away to start without leases: clients then keep the addresses that they renew, "+
		"but until all have renewed (half of the leaseTime) a new client may be given an address that is in use: let none join before", e.Path, e.Reason)
}

// Bolt keeps the leases of all Infras in one file.
type Bolt struct{ db *bolt.DB }

// OpenBolt opens the lease file, and makes it if it is not there; its folder must exist. The file is locked: a
// second process gets an error within a second or so.
//
// The whole file is checked before. If leases of it are lost the error is a *CorruptError. One lease that cannot
// be read any more, but whose address is known, is none: Load returns it as StateDamaged.
func OpenBolt(path string) (*Bolt, error) {
	created := false
	// The freelist is rebuilt at open instead of written at each commit: fewer pages to sync.
	db, err := bolt.Open(path, 0o600, &bolt.Options{
		NoFreelistSync: true, FreelistType: bolt.FreelistMapType,
		OpenFile: func(path string, _ int, mode os.FileMode) (file *os.File, err error) {
			file, created, err = openLeaseFile(path, mode)
			return file, err
		},
	})
	if err != nil {
		if created { // for a full disk, say: what there is of it must not pass for a damaged one
			err = errors.Join(err, os.Remove(path))
		}
		if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
			return nil, err
		}
		return nil, fmt.Errorf("lease file %s: %w", path, err)
	}
	// A new file is only durable once its folder is.
	if err := syncFolder(filepath.Dir(path)); err != nil {
		return nil, errors.Join(fmt.Errorf("lease file %s: %w", path, err), db.Close())
	}
	return &Bolt{db: db}, nil
}

// openLeaseFile returns the file locked, and either new and empty or good.
func openLeaseFile(path string, mode os.FileMode) (file *os.File, created bool, err error) {
	file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode)
	created = err == nil
	if errors.Is(err, os.ErrExist) {
		file, err = os.OpenFile(path, os.O_RDWR, 0)
	}
	if err != nil {
		return nil, false, err
	}
	// The lock is the one that bbolt takes again; it is for the check that it is taken here.
	if err = lock(file); err == nil && !created {
		err = check(file, path)
	}
	if err != nil {
		return nil, created, errors.Join(err, file.Close())
	}
	return file, created, nil
}

func lock(file *os.File) error {
	for start := time.Now(); ; time.Sleep(lockRetry) {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EWOULDBLOCK) {
			return err
		}
		if time.Since(start) > lockTimeout {
			return errors.New("in use by another process: stop the other oooi, or give this one its own --state-dir")
		}
	}
}

func check(file *os.File, path string) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	err = checkLeaseFile(file, info.Size())
	if corrupt := (*CorruptError)(nil); errors.As(err, &corrupt) {
		corrupt.Path = path
	}
	return err
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
			lease, err := readLease(key, value)
			if err != nil {
				return err
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

func readLease(key, value []byte) (Lease, error) {
	addr, ok := netip.AddrFromSlice(key)
	if !ok || len(value) < sumSize {
		return Lease{}, fmt.Errorf("%x is not a lease", key)
	}
	sum, text := binary.BigEndian.Uint64(value), value[sumSize:]
	if sum != sum64(text) {
		// The key is right: the digest of the file has vouched for it.
		return Lease{Address: addr, State: StateDamaged}, nil
	}
	var lease Lease
	if err := json.Unmarshal(text, &lease); err != nil {
		return Lease{}, fmt.Errorf("lease of %s: %w", addr, err)
	}
	if lease.Address != addr {
		return Lease{}, fmt.Errorf("lease of %s is stored under %s", lease.Address, addr)
	}
	return lease, nil
}

func (s *boltStore) Put(_ context.Context, leases []Lease) []error {
	return s.update(leases, func(tx *bolt.Tx) error { return s.put(tx, leases) })
}

func (s *boltStore) Delete(_ context.Context, leases []Lease) []error {
	return s.update(leases, func(tx *bolt.Tx) error { return s.remove(tx, leases) })
}

// update makes one transaction, and what went wrong with it the error of every lease.
func (s *boltStore) update(leases []Lease, change func(*bolt.Tx) error) []error {
	if len(leases) == 0 {
		return nil
	}
	err := s.db.Update(change)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("write leases of Infra %s to %s: %w", s.infra, s.db.Path(), err)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		err = fmt.Errorf("%w: free space there", err)
	}
	errs := make([]error, len(leases))
	for i := range errs {
		errs[i] = err
	}
	return errs
}

func (s *boltStore) put(tx *bolt.Tx, leases []Lease) error {
	all, err := tx.CreateBucketIfNotExists(leasesBucket)
	if err != nil {
		return err
	}
	bucket, err := all.CreateBucketIfNotExists([]byte(s.infra))
	if err != nil {
		return err
	}
	digest := all.Sequence()
	for i := range leases {
		key := leases[i].Address.AsSlice()
		text, err := json.Marshal(&leases[i])
		if err != nil {
			return fmt.Errorf("lease of %s: %w", leases[i].Address, err)
		}
		value := append(binary.BigEndian.AppendUint64(nil, sum64(text)), text...)
		if old := bucket.Get(key); old != nil {
			digest ^= fingerprint(s.infra, key, old)
		}
		digest ^= fingerprint(s.infra, key, value)
		if err := bucket.Put(key, value); err != nil {
			return fmt.Errorf("lease of %s: %w", leases[i].Address, err)
		}
	}
	return all.SetSequence(digest)
}

func (s *boltStore) remove(tx *bolt.Tx, leases []Lease) error {
	all := tx.Bucket(leasesBucket)
	if all == nil {
		return nil
	}
	bucket := all.Bucket([]byte(s.infra))
	if bucket == nil {
		return nil
	}
	digest := all.Sequence()
	for i := range leases {
		key := leases[i].Address.AsSlice()
		old := bucket.Get(key)
		if old == nil {
			continue
		}
		digest ^= fingerprint(s.infra, key, old)
		if err := bucket.Delete(key); err != nil {
			return fmt.Errorf("lease of %s: %w", leases[i].Address, err)
		}
	}
	return all.SetSequence(digest)
}
