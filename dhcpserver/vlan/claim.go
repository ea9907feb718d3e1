package vlan

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink"
)

// AddressInUseError says that another host of the VLAN has an address that was to be claimed.
type AddressInUseError struct {
	Interface string
	Address   netip.Addr
	// MAC of the host that has it.
	MAC net.HardwareAddr
}

func (e *AddressInUseError) Error() string {
	return fmt.Sprintf("interface %s: address %s is in use by %s: take it away from that host, or choose another", e.Interface, e.Address, e.MAC)
}

// Claim puts server addresses on a VLAN interface, each as a /32, leads the CIDR there by a link route, and
// announces the addresses. What is there already is left as it is, so Claim can be called
// again. It never takes an address off.
//
// An address that is not there yet is probed for about a second first. If another host has it, that
// one is not claimed, the others are, and the error holds an *AddressInUseError. It takes
// CAP_NET_ADMIN and CAP_NET_RAW.
func Claim(ctx context.Context, log *slog.Logger, ifname string, cidr netip.Prefix, addrs []netip.Addr) error {
	iface, err := interfaceByName(ifname)
	if err != nil {
		return err
	}
	there, missing, err := sortAddresses(iface, addrs)
	errs := []error{err}
	speaksARP := iface.Flags&net.FlagLoopback == 0 && len(iface.HardwareAddr) == 6
	if speaksARP && len(missing) > 0 {
		taken, err := probe(ctx, iface, missing)
		if err != nil {
			return err
		}
		free := missing[:0]
		for _, addr := range missing {
			if mac, used := taken[addr]; used {
				errs = append(errs, &AddressInUseError{Interface: ifname, Address: addr, MAC: mac})
			} else {
				free = append(free, addr)
			}
		}
		missing = free
	}
	for _, addr := range missing {
		if err := add(iface, addr); err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("claimed address", "interface", ifname, "address", addr)
		there = append(there, addr)
	}
	if len(there) > 0 {
		errs = append(errs, addRoute(ifname, iface.Index, cidr))
		if speaksARP {
			errs = append(errs, announce(iface, there))
		}
	}
	return errors.Join(errs...)
}

// sortAddresses tells which addresses the interface has. One that another interface of this host has is
// neither there nor missing, but an error.
func sortAddresses(iface *net.Interface, addrs []netip.Addr) (there, missing []netip.Addr, err error) {
	present, err := netlink.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, nil, fmt.Errorf("interface %s: list addresses: %w", iface.Name, err)
	}
	at := map[netip.Addr]int{}
	for _, p := range present {
		if addr, ok := netip.AddrFromSlice(p.IP.To4()); ok && at[addr] != iface.Index {
			at[addr] = p.LinkIndex
		}
	}
	var errs []error
	for _, addr := range addrs {
		switch index, known := at[addr]; {
		case !known:
			missing = append(missing, addr)
		case index == iface.Index:
			there = append(there, addr)
		default:
			errs = append(errs, fmt.Errorf("interface %s: address %s is on interface %s of this host already", iface.Name, addr, nameOf(index)))
		}
	}
	return there, missing, errors.Join(errs...)
}

// Holds tells whether an interface is there and has an address.
func Holds(ifname string, addr netip.Addr) bool {
	iface, err := interfaceByName(ifname)
	if err != nil {
		return false
	}
	there, _, err := sortAddresses(iface, []netip.Addr{addr})
	return err == nil && len(there) == 1
}

// Release takes an address that Claim put on an interface off it. One that is not there, or has another mask than the
// /32 of Claim, is left as it is.
func Release(log *slog.Logger, ifname string, addr netip.Addr) error {
	iface, err := interfaceByName(ifname)
	if err != nil {
		return err
	}
	link := &Link{Name: ifname, Index: iface.Index}
	if err := link.Drop(addr); err != nil {
		return err
	}
	log.Info("released address", "interface", ifname, "address", addr)
	return nil
}

func nameOf(index int) string {
	iface, err := net.InterfaceByIndex(index)
	if err != nil {
		return fmt.Sprintf("number %d", index)
	}
	return iface.Name
}

// add puts one address on the interface for good.
func add(iface *net.Interface, addr netip.Addr) error {
	link := &Link{Name: iface.Name, Index: iface.Index}
	err := netlink.AddrAdd(link.target(), &netlink.Addr{IPNet: host(addr)})
	if err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("interface %s: add address %s: %w", iface.Name, addr, err)
	}
	return nil
}

// addRoute leads the CIDR to the interface, unless a route does so already.
func addRoute(ifname string, index int, cidr netip.Prefix) error {
	cidr = cidr.Masked()
	target := &net.IPNet{IP: cidr.Addr().AsSlice(), Mask: net.CIDRMask(cidr.Bits(), 32)}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Dst: target}, netlink.RT_FILTER_DST)
	if err != nil {
		return fmt.Errorf("interface %s: list routes to %s: %w", ifname, cidr, err)
	}
	for _, route := range routes {
		if route.LinkIndex == index {
			return nil
		}
	}
	if len(routes) > 0 {
		return fmt.Errorf("interface %s: %s leads to interface %s of this host already", ifname, cidr, nameOf(routes[0].LinkIndex))
	}
	route := &netlink.Route{LinkIndex: index, Dst: target, Scope: netlink.SCOPE_LINK}
	if err := netlink.RouteAdd(route); err != nil && !errors.Is(err, syscall.EEXIST) {
		return fmt.Errorf("interface %s: add route to %s: %w", ifname, cidr, err)
	}
	return nil
}
