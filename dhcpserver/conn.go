package dhcpserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
)

// The well-known ports of DHCP (RFC 2131 section 4.1).
const (
	ServerPort = 67
	ClientPort = 68
)

// MaxMessage is the largest message that is received: what an Ethernet frame of a VLAN can carry,
// with room for jumbo frames.
const MaxMessage = 9216

// Packet is one message as it arrived.
type Packet struct {
	// Payload is the DHCP message. It lies in the buffer that was given to Receive.
	Payload []byte
	// Source is who sent it: the client, 0.0.0.0 if it has no address yet, or its relay.
	Source netip.AddrPort
	// Destination is where it was sent to: the server's own address, or a broadcast address.
	Destination netip.AddrPort
}

// Target is where an answer goes.
type Target struct {
	// Addr is the address and port of the datagram. 255.255.255.255 is a broadcast on the VLAN.
	Addr netip.AddrPort
	// MAC is set when the client does not have its address yet and cannot answer ARP: the frame must
	// be sent to this hardware address.
	MAC MAC
}

// Link tells whether a plain UDP socket cannot reach the target: it takes a frame on the VLAN.
func (t Target) Link() bool { return t.MAC != MAC{} || t.Addr.Addr() == broadcast }

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// Conn is the operating system as the server sees it: where messages come from and answers go to.
// Receive is called by one goroutine; Send and Close by any.
type Conn interface {
	// Receive waits for the next message and reads it into buf. After Close it returns net.ErrClosed.
	// After any other error it can be called again: the Server does so, waiting longer each time.
	Receive(buf []byte) (Packet, error)
	// Send sends one answer.
	Send(payload []byte, to Target) error
	// Close ends Receive.
	Close() error
}

// ErrNeedsLink is returned by a Conn without access to the VLAN interface for a Target with Link.
var ErrNeedsLink = errors.New("a UDP socket cannot reach a client that has no address")

// udpBuffer is the receive buffer of a UDP socket, in bytes.
const udpBuffer = 4 << 20

type udpConn struct {
	socket *net.UDPConn
	local  netip.AddrPort
}

// ListenUDP answers what is sent to one address: by relays, and by clients that have an address
// already. Broadcasts never arrive there.
//
// On a port other than 67 every answer goes back to the port that the message came from, relayed or not (RFC
// 2131 section 4.1 says ports 67 and 68), so that clients and relays need no privileges either.
func ListenUDP(addr netip.AddrPort) (Conn, error) {
	if !addr.Addr().Is4() || addr.Addr().IsUnspecified() {
		return nil, fmt.Errorf("listen for DHCP on %s: needs one IPv4 address", addr)
	}
	socket, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(addr))
	if err != nil {
		return nil, fmt.Errorf("listen for DHCP: %w", err)
	}
	return NewUDPConn(socket), nil
}

// NewUDPConn makes a Conn of a socket that is bound to one address. The Conn owns the socket.
func NewUDPConn(socket *net.UDPConn) Conn {
	// Room for many renewals at once. The kernel may give less, and a lost renewal is sent again.
	_ = socket.SetReadBuffer(udpBuffer)
	return &udpConn{socket: socket, local: socket.LocalAddr().(*net.UDPAddr).AddrPort()}
}

func (c *udpConn) Receive(buf []byte) (Packet, error) {
	n, from, err := c.socket.ReadFromUDPAddrPort(buf)
	if err != nil {
		return Packet{}, err
	}
	return Packet{Payload: buf[:n], Source: from, Destination: c.local}, nil
}

func (c *udpConn) Send(payload []byte, to Target) error {
	if to.Link() {
		return ErrNeedsLink
	}
	_, err := c.socket.WriteToUDPAddrPort(payload, to.Addr)
	return err
}

func (c *udpConn) Close() error { return c.socket.Close() }

// String says what the Conn listens on, for logs.
func (c *udpConn) String() string { return "udp " + c.local.String() }
