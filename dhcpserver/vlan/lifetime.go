package vlan

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/dhcpserver"
)

const (
	// Lifetime is how long an address stays on the interface after Keep, unless Keep is called again: the kernel takes it off
	// by itself, so that a process which is frozen or dead loses it without anybody's help.
	Lifetime = 2 * time.Second
	// margin is how much earlier than the kernel Keep takes an address for lost: the kernel counts in whole
	// ticks, and looks a little ahead.
	margin = 100 * time.Millisecond
)

// LateError says that an address could not be kept because the moment for it had passed: this process was stopped for too
// long, and another host may have the address by now. The address is not on the interface.
type LateError struct {
	Interface string
	Address   netip.Addr
	// By is how much too late it was.
	By time.Duration
}

func (e *LateError) Error() string {
	return fmt.Sprintf("interface %s: address %s was not kept: it came %v too late", e.Interface, e.Address, e.By.Round(time.Millisecond))
}

// Boottime returns the time since this host started, the time that it was suspended included: a process cannot be stopped in any
// way that this clock does not count. It is the same clock in all processes of a host.
func Boottime() time.Duration {
	return dhcpserver.Boottime()
}

// Keep puts an address on the interface as a /32, or starts its Lifetime anew, if that is done before the moment notAfter of
// Boottime. It returns until when the address is there for sure, which is the latest notAfter of the next call, or
// a *LateError. It takes CAP_NET_ADMIN.
//
// The kernel cannot be told to prolong only what is there: the message that prolongs also creates. So the clock is read
// right before it and right after it, and what came late is taken off at once.
func (l *Link) Keep(addr netip.Addr, notAfter time.Duration) (until time.Duration, err error) {
	began := Boottime()
	if began > notAfter {
		return 0, errors.Join(&LateError{Interface: l.Name, Address: addr, By: began - notAfter}, l.Drop(addr))
	}
	const seconds = int(Lifetime / time.Second)
	err = netlink.AddrReplace(l.target(), &netlink.Addr{IPNet: host(addr), ValidLft: seconds, PreferedLft: seconds})
	if err != nil {
		return 0, fmt.Errorf("interface %s: put on address %s: %w%s", l.Name, addr, err, hint(err))
	}
	if ended := Boottime(); ended > notAfter {
		return 0, errors.Join(&LateError{Interface: l.Name, Address: addr, By: ended - notAfter}, l.Drop(addr))
	}
	return began + Lifetime - margin, nil
}

// Drop takes an address off that Keep or Claim put on. One that is not there, or has another mask than their /32, is left as it is.
func (l *Link) Drop(addr netip.Addr) error {
	err := netlink.AddrDel(l.target(), &netlink.Addr{IPNet: host(addr)})
	switch {
	case errors.Is(err, syscall.EADDRNOTAVAIL), errors.Is(err, syscall.ENODEV): // the second: it went with its interface
		return nil
	case err != nil:
		return fmt.Errorf("interface %s: take off address %s: %w%s", l.Name, addr, err, hint(err))
	}
	return nil
}

// Lead leads the CIDR to the interface by a link route, unless a route does so already, and nothing else any more: link routes to what
// the CIDR was before are taken away. Call it again after addresses came: the kernel removes the route with the last of them. The route
// names no source: what a server answers leaves with the address that was asked, and what is sent without one leaves with
// the first address of the interface.
func (l *Link) Lead(cidr netip.Prefix) error {
	if err := addRoute(l.Name, l.Index, cidr); err != nil {
		return err
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{LinkIndex: l.Index, Table: unix.RT_TABLE_MAIN},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("interface %s: list routes: %w", l.Name, err)
	}
	for _, route := range routes {
		// Those of addresses that somebody else put there are the kernel's.
		if route.Protocol != unix.RTPROT_BOOT || route.Scope != netlink.SCOPE_LINK || route.Dst == nil || route.Dst.String() == cidr.Masked().String() {
			continue
		}
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("interface %s: take away the route to %s: %w", l.Name, route.Dst, err)
		}
	}
	return nil
}

func (l *Link) target() netlink.Link {
	return &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: l.Name, Index: l.Index}}
}

// host is an address as a prefix of its own: addresses of one prefix on one interface vanish together when the
// first of them is removed.
func host(addr netip.Addr) *net.IPNet {
	return &net.IPNet{IP: addr.AsSlice(), Mask: net.CIDRMask(32, 32)}
}

func hint(err error) string {
	if errors.Is(err, syscall.EPERM) {
		return " (it takes CAP_NET_ADMIN)"
	}
	return ""
}
