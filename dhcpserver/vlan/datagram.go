package vlan

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

const (
	ipHeader  = 20 // without options
	udpHeader = 8
	protoUDP  = 17
)

var (
	errNotUDP   = errors.New("not a UDP datagram over IPv4")
	errFragment = errors.New("a fragment")
	errChecksum = errors.New("wrong checksum")
)

// datagram is a UDP datagram over IPv4.
type datagram struct {
	source, destination netip.AddrPort
	payload             []byte
}

// parseDatagram reads an IPv4 packet, which padding may follow. IP options are skipped. The UDP checksum counts
// only if verify is set: the kernel leaves it to hardware, which the packets of a neighbour on the
// same host never see.
func parseDatagram(b []byte, verify bool) (datagram, error) {
	if len(b) < ipHeader || b[0]>>4 != 4 || b[9] != protoUDP {
		return datagram{}, errNotUDP
	}
	header, total := int(b[0]&0xf)*4, int(binary.BigEndian.Uint16(b[2:]))
	if header < ipHeader || total < header+udpHeader || len(b) < total {
		return datagram{}, errNotUDP
	}
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
		return datagram{}, errFragment
	}
	if checksum(0, b[:header]) != 0 {
		return datagram{}, errChecksum
	}
	udp := b[header:total]
	length := int(binary.BigEndian.Uint16(udp[4:]))
	if length < udpHeader || length > len(udp) {
		return datagram{}, errNotUDP
	}
	udp = udp[:length]
	source, destination := [4]byte(b[12:]), [4]byte(b[16:])
	if sent := binary.BigEndian.Uint16(udp[6:]); verify && sent != 0 && checksum(pseudoHeader(source, destination, length), udp) != 0 {
		return datagram{}, errChecksum
	}
	return datagram{
		source:      netip.AddrPortFrom(netip.AddrFrom4(source), binary.BigEndian.Uint16(udp)),
		destination: netip.AddrPortFrom(netip.AddrFrom4(destination), binary.BigEndian.Uint16(udp[2:])),
		payload:     udp[udpHeader:],
	}, nil
}

// bytes writes the datagram as one IPv4 packet.
func (d *datagram) bytes() []byte {
	total := ipHeader + udpHeader + len(d.payload)
	b := make([]byte, total)
	source, destination := d.source.Addr().As4(), d.destination.Addr().As4()
	b[0] = 4<<4 | ipHeader/4
	binary.BigEndian.PutUint16(b[2:], uint16(total))
	b[6] = 0x40 // don't fragment
	b[8] = 64   // time to live
	b[9] = protoUDP
	copy(b[12:], source[:])
	copy(b[16:], destination[:])
	binary.BigEndian.PutUint16(b[10:], checksum(0, b[:ipHeader]))

	udp := b[ipHeader:]
	binary.BigEndian.PutUint16(udp, d.source.Port())
	binary.BigEndian.PutUint16(udp[2:], d.destination.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[udpHeader:], d.payload)
	sum := checksum(pseudoHeader(source, destination, len(udp)), udp)
	if sum == 0 {
		sum = 0xffff // 0 means that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

// pseudoHeader is the sum of what the UDP checksum covers besides the datagram (RFC 768).
func pseudoHeader(source, destination [4]byte, length int) uint32 {
	sum := uint32(protoUDP) + uint32(length)
	for _, addr := range [][4]byte{source, destination} {
		sum += uint32(binary.BigEndian.Uint16(addr[:2])) + uint32(binary.BigEndian.Uint16(addr[2:]))
	}
	return sum
}

// checksum is the Internet checksum (RFC 1071): 0 over data that holds the right one.
func checksum(sum uint32, b []byte) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
