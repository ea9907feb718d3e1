package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// lockStateDir makes the state folder this process's own for as long as the file is open: two processes that write one
// would lose leases and sources.
func lockStateDir(dir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("state folder %s: %w: choose another one with --state-dir", dir, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("state folder %s: %w: choose another one with --state-dir", dir, err)
	}
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = errors.New("another oooi uses it")
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("state folder %s: %w: stop that one, or choose another folder with --state-dir", dir, err), lock.Close())
	}
	return lock, nil
}
