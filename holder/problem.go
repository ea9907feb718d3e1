package holder

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// Reasons of problems. Each heals by itself when its cause is gone.
const (
	// InterfaceMissing: the VLAN interface is not there (yet).
	InterfaceMissing = "InterfaceMissing"
	// InterfaceDown: it is not set up, or has no carrier.
	InterfaceDown = "InterfaceDown"
	// InterfaceHasAddresses: somebody else, such as an IPAM plugin, put addresses on it. The server addresses are served all the same.
	InterfaceHasAddresses = "InterfaceHasAddresses"
	// InterfaceUnusable: it is there, and addresses or sockets cannot be had on it; the message says why.
	InterfaceUnusable = "InterfaceUnusable"
	// AddressInUse: another host has an address that this Infra never held. It is not claimed.
	AddressInUse = "AddressInUse"
	// AddressContested: another host says that it has an address that is held. It is defended.
	AddressContested = "AddressContested"
	// NotHealthy: what serves at the addresses does not, and no other pod could take over.
	NotHealthy = "NotHealthy"
	// NoLease: the addresses are held without the record that says so, because it cannot be had.
	NoLease = "NoLease"
)

// Problem is something that is not as it should be.
type Problem struct{ Reason, Message string }

// interfaceProblem tells what is wrong with an interface that Look did not find, or found.
func interfaceProblem(name string, link *vlan.Link, err error) (Problem, bool) {
	switch {
	case errors.Is(err, vlan.ErrMissing):
		return Problem{InterfaceMissing, err.Error()}, true
	case err != nil:
		return Problem{InterfaceUnusable, err.Error()}, true
	case link == nil:
		return Problem{}, false
	case !link.Up:
		return Problem{InterfaceDown, fmt.Sprintf("interface %s: %s", name, link.Down)}, true
	}
	return Problem{}, false
}

func foreignAddresses(name string, foreign []vlan.Address) Problem {
	list := make([]string, len(foreign))
	for i, a := range foreign {
		list[i] = a.String()
	}
	return Problem{InterfaceHasAddresses, fmt.Sprintf(
		"interface %s: has %s, which oooi did not put there: the NetworkAttachmentDefinition must have no IPAM", name, strings.Join(list, ", "))}
}

func inUse(name string, addr netip.Addr, mac [6]byte) Problem {
	err := vlan.AddressInUseError{Interface: name, Address: addr, MAC: net.HardwareAddr(mac[:])}
	return Problem{AddressInUse, err.Error()}
}

func contested(name string, addr netip.Addr, mac [6]byte) Problem {
	return Problem{AddressContested, fmt.Sprintf(
		"interface %s: address %s is claimed by %s as well: it is held and defended; take it away from that host", name, addr, net.HardwareAddr(mac[:]))}
}
