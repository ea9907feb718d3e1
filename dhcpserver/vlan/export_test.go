package vlan

import "net/netip"

// Datagram writes a UDP datagram as one IPv4 packet.
func Datagram(source, destination netip.AddrPort, payload []byte) []byte {
	d := datagram{source: source, destination: destination, payload: payload}
	return d.bytes()
}
