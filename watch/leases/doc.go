// Package leases keeps the DHCP leases of an Infra in a cluster: as DHCPLease objects, which the pods of a VLAN share, and in the
// state folder while the API is away.
//
//	dhcpserver ─> Store ─> DHCPLease, one an address ─watch─> Stores of the other pods
//	                └─> state folder: what the API has, and what it does not have yet
//
// The API has the last word about who has an address. While it is away, known leases renew and nobody gets the address of
// somebody else; a hold of one lease time after it is back keeps that true over restarts and take-overs.
package leases
