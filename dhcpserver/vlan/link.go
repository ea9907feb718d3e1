package vlan

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// ErrMissing says that there is no such interface.
var ErrMissing = errors.New("not found")

// Link is a VLAN interface as it is at one moment.
type Link struct {
	Name  string
	Index int
	// MAC is empty when the interface does not speak Ethernet.
	MAC net.HardwareAddr
	// Up: it is set up and has a carrier.
	Up bool
	// Down says why it is not up.
	Down string
	// Addresses are its IPv4 addresses.
	Addresses []Address
}

// Address is an IPv4 address of an interface.
type Address struct {
	netip.Prefix
	// Expires: the kernel will take it off unless it is prolonged, as those of Keep.
	Expires bool
}

// Look returns the state of an interface. The error is ErrMissing when it is not there.
func Look(name string) (*Link, error) {
	found, err := netlink.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, fmt.Errorf("interface %s: %w%s", name, ErrMissing, others())
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: %w", name, err)
	}
	attrs := found.Attrs()
	l := &Link{Name: name, Index: attrs.Index}
	if len(attrs.HardwareAddr) == 6 && attrs.Flags&net.FlagLoopback == 0 {
		l.MAC = attrs.HardwareAddr
	}
	switch {
	case attrs.Flags&net.FlagUp == 0:
		l.Down = "is down"
	case attrs.Flags&net.FlagRunning == 0 || attrs.RawFlags&unix.IFF_LOWER_UP == 0: // the second goes at once, the first up to a second later
		l.Down = "has no carrier"
	default:
		l.Up = true
	}
	present, err := netlink.AddrList(found, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("interface %s: list addresses: %w", name, err)
	}
	for _, p := range present {
		if addr, ok := netip.AddrFromSlice(p.IP.To4()); ok {
			bits, _ := p.Mask.Size()
			l.Addresses = append(l.Addresses, Address{
				Prefix: netip.PrefixFrom(addr, bits), Expires: p.ValidLft > 0 && p.ValidLft < math.MaxUint32,
			})
		}
	}
	return l, nil
}
