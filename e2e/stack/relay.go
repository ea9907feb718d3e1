package stack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Relay is a DHCP relay agent (RFC 1542) that asks for its clients itself.
type Relay struct {
	Host    Host
	Address netip.AddrPort // where it is, and where answers come back: giaddr
	Server  netip.AddrPort
}

// Lease asks for an address for a client by DISCOVER and REQUEST, and returns the ACK.
func (r Relay) Lease(ctx context.Context, mac net.HardwareAddr, modifiers ...dhcpv4.Modifier) (*dhcpv4.DHCPv4, error) {
	conn, err := r.Host.ListenPacket(r.Address.String())
	if err != nil {
		return nil, fmt.Errorf("DHCP relay: %w", err)
	}
	defer func() { _ = conn.Close() }()

	modifiers = append(modifiers, dhcpv4.WithGatewayIP(net.IP(r.Address.Addr().AsSlice())))
	discover, err := dhcpv4.NewDiscovery(mac, modifiers...)
	if err != nil {
		return nil, err
	}
	offer, err := r.exchange(ctx, conn, discover, dhcpv4.MessageTypeOffer)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, modifiers...)
	if err != nil {
		return nil, err
	}
	return r.exchange(ctx, conn, request, dhcpv4.MessageTypeAck)
}

// exchange sends a message once a second until it is answered, or until the deadline of ctx.
func (r Relay) exchange(ctx context.Context, conn net.PacketConn, message *dhcpv4.DHCPv4, want dhcpv4.MessageType) (*dhcpv4.DHCPv4, error) {
	buffer := make([]byte, 1500)
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%s: %s answered nothing: %w", message.MessageType(), r.Server, ctx.Err())
		}
		if _, err := conn.WriteTo(message.ToBytes(), net.UDPAddrFromAddrPort(r.Server)); err != nil {
			return nil, err
		}
		wait := time.Now().Add(time.Second)
		if deadline, ok := ctx.Deadline(); ok && deadline.Before(wait) {
			wait = deadline
		}
		if err := conn.SetReadDeadline(wait); err != nil {
			return nil, err
		}
		n, _, err := conn.ReadFrom(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return nil, err
		}
		answer, err := dhcpv4.FromBytes(buffer[:n])
		if err != nil || answer.TransactionID != message.TransactionID {
			continue
		}
		if answer.MessageType() != want {
			return nil, fmt.Errorf("%s: got %s", message.MessageType(), answer.MessageType())
		}
		return answer, nil
	}
}
