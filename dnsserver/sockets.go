package dnsserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// receiveBuffer, in bytes, is what the kernel keeps of a burst while a socket's goroutine works.
const receiveBuffer = 1 << 20

// Sockets are the UDP sockets and the TCP listener of one address.
type Sockets struct {
	tcp *net.TCPListener
	udp []*net.UDPConn
	// any is true when the sockets are bound to all addresses: then an answer has to be sent from
	// the address that was asked.
	any bool
}

// Listen opens n UDP sockets that share one IPv4 address and port (SO_REUSEPORT), and one TCP
// listener beside them. Port 0 takes any port that both have free.
func Listen(ctx context.Context, addr netip.AddrPort, n int) (*Sockets, error) {
	if !addr.Addr().Is4() || n < 1 {
		return nil, fmt.Errorf("listen on %s with %d sockets: want an IPv4 address and at least one socket", addr, n)
	}
	for attempt := 1; ; attempt++ {
		s, err := listen(ctx, addr, n)
		if err == nil {
			return s, nil
		}
		// The port that TCP was given may be taken for UDP.
		if addr.Port() != 0 || attempt == 10 || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("listen for DNS on %s: %w", addr, err)
		}
	}
}

func listen(ctx context.Context, addr netip.AddrPort, n int) (*Sockets, error) {
	// TCP comes first and without SO_REUSEPORT: a second server on the same address fails here
	// instead of taking half of the UDP packets in silence.
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp4", addr.String())
	if err != nil {
		return nil, err
	}
	s := &Sockets{tcp: listener.(*net.TCPListener), any: addr.Addr().IsUnspecified()}
	config := net.ListenConfig{Control: s.control}
	for range n {
		conn, err := config.ListenPacket(ctx, "udp4", s.Addr().String())
		if err != nil {
			return nil, errors.Join(err, s.Close())
		}
		s.udp = append(s.udp, conn.(*net.UDPConn))
	}
	return s, nil
}

func (s *Sockets) control(_, _ string, raw syscall.RawConn) error {
	var err error
	controlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		if err == nil && s.any {
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_PKTINFO, 1)
		}
		// The kernel caps it; a smaller buffer works too.
		_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer)
	})
	return errors.Join(controlErr, err)
}

// Addr is the address and port of all the sockets.
func (s *Sockets) Addr() netip.AddrPort {
	return s.tcp.Addr().(*net.TCPAddr).AddrPort()
}

// Close closes the sockets. Server.Run does it on its way out.
func (s *Sockets) Close() error {
	err := s.tcp.Close()
	for _, conn := range s.udp {
		err = errors.Join(err, conn.Close())
	}
	return err
}
