package holder

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"slices"
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

// publish shows the state.
func (e *engine) publish() {
	s := State{Holder: e.lock.record.Holder, Epoch: e.lock.record.Epoch, HeldAddresses: e.heldAddresses(), Problems: e.problems()}
	if t := e.tenure; t != nil && t.said() {
		s.Holding, s.Holder, s.Epoch, s.Since, s.PreviousRenewed = true, e.config.Identity, t.epoch, e.since, t.previous
	} else {
		f := facts{now: vlan.Boottime()}
		for _, p := range e.peers.facts() {
			if f.fresh(&p) && p.holding {
				s.Holder, s.Epoch = p.name, p.epoch
			}
		}
	}
	e.mu.Lock()
	changed := !reflect.DeepEqual(s, e.state)
	e.state = s
	e.mu.Unlock()
	if changed && e.config.Changed != nil {
		e.config.Changed()
	}
}

func (e *engine) problems() []Problem {
	var list []Problem
	name := e.config.Interface
	if p, is := interfaceProblem(name, e.link, e.err); is {
		list = append(list, p)
	}
	if e.leads != nil {
		list = append(list, Problem{InterfaceUnusable, e.leads.Error()})
	}
	if e.link != nil {
		foreign := slices.DeleteFunc(slices.Clone(e.link.Addresses), func(a vlan.Address) bool { return a.Bits() == 32 && a.Expires })
		if len(foreign) > 0 {
			list = append(list, foreignAddresses(name, foreign))
		}
	}
	if n := len(e.claim.Addresses); n > vlan.MaxWatched {
		list = append(list, Problem{InterfaceUnusable, fmt.Sprintf("interface %s: %d addresses are wanted: at most %d are watched", name, n, vlan.MaxWatched)})
	}
	if e.healthy != nil {
		list = append(list, Problem{NotHealthy, e.healthy.Error()})
	}
	if e.tenure != nil {
		if !e.tenure.recorded {
			list = append(list, Problem{NoLease, "the addresses are held without the Lease, which cannot be had, and no other pod is heard on the VLAN: " + e.lock.problem()})
		}
		for addr, a := range e.addrs {
			switch {
			case a.err != nil:
				list = append(list, Problem{InterfaceUnusable, a.err.Error()})
			case a.phase == refused, a.phase == probing && a.stranger != [6]byte{}:
				list = append(list, inUse(name, addr, a.stranger))
			case a.phase == held && a.seen != 0:
				list = append(list, contested(name, addr, a.stranger))
			}
		}
	}
	slices.SortFunc(list, func(a, b Problem) int {
		return strings.Compare(a.Reason+"\x00"+a.Message, b.Reason+"\x00"+b.Message)
	})
	return list
}

func macString(mac [6]byte) string { return net.HardwareAddr(mac[:]).String() }
