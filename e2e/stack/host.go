package stack

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// netnsFolder is where iproute2 keeps named network namespaces.
const netnsFolder = "/run/netns"

// Host is where sockets and processes live: a network namespace by name, or, empty, that of this process.
type Host string

// Argv is the command line that runs argv on the host.
func (h Host) Argv(argv ...string) []string {
	if h == "" {
		return argv
	}
	return append([]string{"nsenter", "--net=" + filepath.Join(netnsFolder, string(h)), "--"}, argv...)
}

// Do runs fn on a thread that is in the host's namespace. Sockets made by fn itself stay in that namespace;
// goroutines that fn starts are outside it.
func (h Host) Do(fn func() error) error {
	if h == "" {
		return fn()
	}
	done := make(chan error, 1)
	go func() {
		// Never unlocked: the thread ends with the goroutine rather than come back in the wrong namespace.
		runtime.LockOSThread()
		done <- func() error {
			path := filepath.Join(netnsFolder, string(h))
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return fmt.Errorf("network namespace %s: %w", path, err)
			}
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd) // only read
			if err != nil {
				return fmt.Errorf("entering network namespace %s: %w", path, err)
			}
			return fn()
		}()
	}()
	return <-done
}

// Listen listens for TCP on the host.
func (h Host) Listen(address string) (net.Listener, error) {
	var l net.Listener
	err := h.Do(func() (err error) {
		l, err = net.Listen("tcp4", address)
		return err
	})
	return l, err
}

// ListenPacket listens for UDP on the host.
func (h Host) ListenPacket(address string) (net.PacketConn, error) {
	var c net.PacketConn
	err := h.Do(func() (err error) {
		c, err = net.ListenPacket("udp4", address)
		return err
	})
	return c, err
}

// Dial connects by TCP from the host to an address, from a source address unless that is the zero one.
func (h Host) Dial(ctx context.Context, source netip.Addr, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: 5 * time.Second}
	if source.IsValid() {
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(source, 0))
	}
	var c net.Conn
	err := h.Do(func() (err error) {
		c, err = d.DialContext(ctx, "tcp4", address)
		return err
	})
	return c, err
}
