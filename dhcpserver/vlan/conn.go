package vlan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/dhcpserver"
)

var everybody = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// link is the VLAN interface, shared by the two Conns on it.
type link struct {
	log      *slog.Logger
	name     string
	serverIP netip.Addr
	unicast  dhcpserver.Conn

	mu     sync.RWMutex
	socket *packetSocket // nil while the interface is not there
	closed bool
}

// Open listens for DHCP on a VLAN interface, which must be up; it takes CAP_NET_RAW and, for port 67,
// CAP_NET_BIND_SERVICE. It returns two Conns for the same Server: broadcasts, and what is sent to
// serverIP, an address that need not be there yet.
func Open(log *slog.Logger, ifname string, serverIP netip.Addr) ([]dhcpserver.Conn, error) {
	l := &link{log: log, name: ifname, serverIP: serverIP}
	var err error
	if l.socket, err = l.open(); err != nil {
		return nil, err
	}
	config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		}), err)
	}}
	own := netip.AddrPortFrom(serverIP, dhcpserver.ServerPort)
	udp, err := config.ListenPacket(context.Background(), "udp4", own.String())
	if err != nil {
		return nil, errors.Join(fmt.Errorf("listen for DHCP: %w", err), l.socket.close())
	}
	l.unicast = dhcpserver.NewUDPConn(udp.(*net.UDPConn))
	return []dhcpserver.Conn{(*broadcastConn)(l), (*unicastConn)(l)}, nil
}

func (l *link) open() (*packetSocket, error) {
	iface, err := interfaceByName(l.name)
	if err != nil {
		return nil, err
	}
	return openPacketSocket(iface, unix.ETH_P_IP, requestFilter(l.serverIP))
}

// requestFilter lets through unfragmented UDP to port 67 that is not for the server's own address,
// which the UDP socket gets.
func requestFilter(serverIP netip.Addr) []bpf.Instruction {
	own := serverIP.As4()
	const reject = 8 // where the last instruction is
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: protoUDP, SkipTrue: reject},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x3fff, SkipTrue: reject - 2},
		bpf.LoadAbsolute{Off: 16, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(own[0])<<24 | uint32(own[1])<<16 | uint32(own[2])<<8 | uint32(own[3]), SkipTrue: reject - 4},
		bpf.LoadMemShift{Off: 0}, // the length of the IP header
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: dhcpserver.ServerPort, SkipTrue: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

// current returns the socket, opened again if need be.
func (l *link) current() (*packetSocket, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, net.ErrClosed
	}
	if l.socket != nil {
		return l.socket, nil
	}
	socket, err := l.open()
	if err != nil {
		return nil, err
	}
	l.socket = socket
	l.log.Info("VLAN interface is back", "interface", l.name)
	return socket, nil
}

// discard closes a socket that failed.
func (l *link) discard(failed *packetSocket, cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.socket = nil
	return errors.Join(fmt.Errorf("interface %s: %w", l.name, cause), failed.close())
}

// receive waits for the next broadcast.
func (l *link) receive(buf []byte) (dhcpserver.Packet, error) {
	socket, err := l.current()
	if err != nil {
		return dhcpserver.Packet{}, err
	}
	for {
		r, err := socket.receive(buf)
		if err != nil {
			return dhcpserver.Packet{}, l.discard(socket, err)
		}
		if r.otherVLAN || r.kind == unix.PACKET_OTHERHOST || r.kind == unix.PACKET_OUTGOING {
			continue
		}
		d, err := parseDatagram(buf[:r.n], r.checksum)
		if err != nil || r.kind != unix.PACKET_BROADCAST && d.destination.Addr() != everybody {
			continue
		}
		return dhcpserver.Packet{Payload: d.payload, Source: d.source, Destination: d.destination}, nil
	}
}

func (l *link) send(payload []byte, to dhcpserver.Target) error {
	if !to.Link() {
		return l.unicast.Send(payload, to)
	}
	l.mu.RLock()
	defer l.mu.RUnlock()
	if l.closed {
		return net.ErrClosed
	}
	if l.socket == nil {
		return fmt.Errorf("interface %s: is down", l.name)
	}
	hardware := broadcastMAC
	if to.MAC != (dhcpserver.MAC{}) {
		hardware = to.MAC
	}
	d := datagram{source: netip.AddrPortFrom(l.serverIP, dhcpserver.ServerPort), destination: to.Addr, payload: payload}
	return l.socket.send(d.bytes(), hardware)
}

func (l *link) close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.socket == nil {
		return nil
	}
	return l.socket.close()
}

// broadcastConn receives what clients send to everybody.
type broadcastConn link

func (c *broadcastConn) Receive(buf []byte) (dhcpserver.Packet, error) {
	return (*link)(c).receive(buf)
}

func (c *broadcastConn) Send(payload []byte, to dhcpserver.Target) error {
	return (*link)(c).send(payload, to)
}
func (c *broadcastConn) Close() error { return (*link)(c).close() }

// String says what the Conn listens on, for logs.
func (c *broadcastConn) String() string { return "broadcasts on " + c.name }

// unicastConn receives what is sent to the server's address.
type unicastConn link

func (c *unicastConn) Receive(buf []byte) (dhcpserver.Packet, error) { return c.unicast.Receive(buf) }

func (c *unicastConn) Send(payload []byte, to dhcpserver.Target) error {
	return (*link)(c).send(payload, to)
}
func (c *unicastConn) Close() error { return c.unicast.Close() }

// String says what the Conn listens on, for logs.
func (c *unicastConn) String() string { return fmt.Sprint(c.unicast) }
