// Package vlan is the VLAN interface as the DHCP server and the holder of server addresses see it
// (Linux).
//
// Open gives the two ways on which DHCP messages reach a server on a VLAN, each message by one of
// them only:
//
//   - broadcasts, on a packet socket behind a BPF filter. Answers to clients that have no address yet, and to
//     everybody, leave there as frames, because a client without an address cannot answer ARP;
//   - what is sent to the server's own address (renewals, relays), on a UDP socket, which also keeps
//     the kernel from answering with ICMP "port unreachable". Its answers are routed.
//
// An interface that goes down or away is waited for: Receive says so, and opens it again, by name,
// when it is called again.
//
// Claim puts server addresses on the interface for good and announces them (RFC 5227). For who shares them with other pods, Link has what
// package holder decides with: Keep puts an address on for two seconds at a time, and Wire sends and hears ARP and frames.
//
// The package must never change anything of an interface but the addresses and the one route that
// it was told to claim, and what Isolate closes, and never trust a byte that came from the wire: tenants share it.
package vlan
