// Command run is `make run`: the example of two hosted clusters on one VLAN, on this machine, for anybody.
//
// The example's addresses are moved into 127.0.0.0/8 and the ports up by 10000, so that no privilege is
// needed. A real Envoy and the real oooi run beside TLS servers that stand in for the two control planes. The
// program prints what to try and what one should see, waits for Ctrl-C, and leaves nothing behind.
//
// With the arguments "dhcp MAC" it asks the DHCP server of a running `make run` for an address, as the relay
// of a client with that hardware address would: a client of its own would need a network interface.
package main
