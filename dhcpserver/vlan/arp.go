package vlan

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

const (
	arpLength            = 28
	arpRequest    uint16 = 1
	arpReply      uint16 = 2
	probes               = 3
	probeInterval        = 300 * time.Millisecond
)

// arpPacket is an ARP packet for IPv4 over Ethernet (RFC 826).
type arpPacket struct {
	operation            uint16
	senderMAC, targetMAC [6]byte
	senderIP, targetIP   netip.Addr
}

func (p *arpPacket) bytes() []byte {
	b := make([]byte, 0, arpLength)
	b = append(b, 0, 1, 8, 0, 6, 4) // Ethernet, IPv4, their address lengths
	b = binary.BigEndian.AppendUint16(b, p.operation)
	b = append(b, p.senderMAC[:]...)
	b = append(b, p.senderIP.AsSlice()...)
	b = append(b, p.targetMAC[:]...)
	return append(b, p.targetIP.AsSlice()...)
}

func parseARP(b []byte) (arpPacket, bool) {
	if len(b) < arpLength || [6]byte(b) != [6]byte{0, 1, 8, 0, 6, 4} {
		return arpPacket{}, false
	}
	return arpPacket{
		operation: binary.BigEndian.Uint16(b[6:]),
		senderMAC: [6]byte(b[8:]), senderIP: netip.AddrFrom4([4]byte(b[14:])),
		targetMAC: [6]byte(b[18:]), targetIP: netip.AddrFrom4([4]byte(b[24:])),
	}, true
}

// conflict returns the address that this packet shows to be in use by, or wanted by, somebody else
// (RFC 5227 section 2.1.1).
func (p *arpPacket) conflict(own [6]byte) (netip.Addr, bool) {
	switch {
	case p.senderMAC == own:
		return netip.Addr{}, false
	case !p.senderIP.IsUnspecified():
		return p.senderIP, true
	default: // a probe
		return p.targetIP, p.operation == arpRequest
	}
}

// probe asks the VLAN who has the addresses, for about a second, and returns who answered.
func probe(ctx context.Context, iface *net.Interface, addrs []netip.Addr) (map[netip.Addr]net.HardwareAddr, error) {
	socket, err := openPacketSocket(iface, unix.ETH_P_ARP, nil)
	if err != nil {
		return nil, err
	}
	defer func() { _ = socket.close() }() // nothing was written that closing could lose
	stop := context.AfterFunc(ctx, func() { _ = socket.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()

	own := [6]byte(iface.HardwareAddr)
	wanted := map[netip.Addr]bool{}
	for _, addr := range addrs {
		wanted[addr] = true
	}
	taken := map[netip.Addr]net.HardwareAddr{}
	buf := make([]byte, 256)
	for range probes {
		for _, addr := range addrs {
			if err := socket.ask(own, addr); err != nil {
				return nil, fmt.Errorf("interface %s: send ARP probe: %w", iface.Name, err)
			}
		}
		if err := socket.file.SetReadDeadline(time.Now().Add(probeInterval)); err != nil {
			return nil, fmt.Errorf("interface %s: %w", iface.Name, err)
		}
		for ctx.Err() == nil {
			r, err := socket.receive(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, fmt.Errorf("interface %s: receive ARP: %w", iface.Name, err)
			}
			if p, ok := parseARP(buf[:r.n]); ok {
				if addr, used := p.conflict(own); used && wanted[addr] {
					taken[addr] = net.HardwareAddr(p.senderMAC[:])
				}
			}
		}
		if err := ctx.Err(); err != nil {
			return nil, err
		}
	}
	return taken, nil
}

// announce tells the VLAN that the addresses are here now.
func announce(iface *net.Interface, addrs []netip.Addr) error {
	socket, err := openPacketSocket(iface, unix.ETH_P_ARP, nil)
	if err != nil {
		return err
	}
	for _, addr := range addrs {
		if err := socket.announce([6]byte(iface.HardwareAddr), addr); err != nil {
			return errors.Join(fmt.Errorf("interface %s: announce %s: %w", iface.Name, addr, err), socket.close())
		}
	}
	return socket.close()
}

// announce announces an address as a request and as a reply: some neighbours heed only one of them.
func (s *packetSocket) announce(own [6]byte, addr netip.Addr) error {
	for _, p := range []arpPacket{
		{operation: arpRequest, senderMAC: own, senderIP: addr, targetIP: addr},
		{operation: arpReply, senderMAC: own, senderIP: addr, targetMAC: broadcastMAC, targetIP: addr},
	} {
		if err := s.send(p.bytes(), broadcastMAC); err != nil {
			return err
		}
	}
	return nil
}

// ask sends an ARP probe, a request that changes no neighbour's table (RFC 5227 section 1.1).
func (s *packetSocket) ask(own [6]byte, addr netip.Addr) error {
	p := arpPacket{operation: arpRequest, senderMAC: own, senderIP: netip.IPv4Unspecified(), targetIP: addr}
	return s.send(p.bytes(), broadcastMAC)
}
