package vlan

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	nfnetlink "github.com/mdlayher/netlink"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// closeIPv6 lets nothing of IPv6 in by an interface, and takes away what router advertisements (RFC 4861 section 6.3.4) have
// left there: any host of the VLAN can send one, and a /64 of its choice beats the default route. Netlink sets neither
// disable_ipv6 nor accept_ra, so it is a filter.
func closeIPv6(iface *net.Interface) error {
	disabled, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv6/conf", iface.Name, "disable_ipv6"))
	switch {
	case errors.Is(err, fs.ErrNotExist): // this kernel has no IPv6
		return nil
	case err != nil:
		return fmt.Errorf("interface %s: is IPv6 disabled: %w", iface.Name, err)
	case string(bytes.TrimSpace(disabled)) == "1":
		return nil
	}
	if err := dropIPv6(iface.Name); err != nil {
		return fmt.Errorf("interface %s: keep IPv6 out with nftables: %w: load the module nf_tables on the node, "+
			"or let the CNI plugin tuning set net.ipv6.conf.IFNAME.disable_ipv6 to 1 in the NetworkAttachmentDefinition", iface.Name, err)
	}
	if err := forgetIPv6(iface); err != nil {
		return fmt.Errorf("interface %s: take away what router advertisements left: %w", iface.Name, err)
	}
	return nil
}

// dropIPv6 sets the filter, in place of the one that is there. In between there is no moment without.
//
// The hook is prerouting, before anything else. The one called ingress, of the device, would be earlier, but it sees the EtherType
// of frames with two priority tags (VLAN 0) as that of the inner tag, and the kernel takes IPv6 out of those all the same.
// It would also go with the device, where this one is there before an interface of that name comes back.
func dropIPv6(ifname string) error {
	conn, err := nftables.New(nftables.WithSockOptions(func(c *nfnetlink.Conn) error {
		// A kernel that cannot do it answers some batches once, and not once for each message.
		return c.SetReadDeadline(time.Now().Add(time.Second))
	}))
	if err != nil {
		return err
	}
	// Alone, so that a kernel without nftables says so at once.
	table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv6, Name: "oooi"})
	if err := conn.Flush(); err != nil {
		return errnoOf(err)
	}
	name := "no-ipv6-" + ifname
	// What is not there cannot be deleted.
	conn.DelChain(conn.AddChain(&nftables.Chain{Table: table, Name: name}))
	chain := conn.AddChain(&nftables.Chain{
		Table: table, Name: name, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookPrerouting, Priority: nftables.ChainPriorityFirst,
	})
	conn.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: append([]byte(ifname), make([]byte, unix.IFNAMSIZ-len(ifname))...)},
		&expr.Verdict{Kind: expr.VerdictDrop},
	}})
	return errnoOf(conn.Flush())
}

// errnoOf returns what the kernel said first: the rest only follows from it.
func errnoOf(err error) error {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return errno
	}
	return err
}

// forgetIPv6 takes off all IPv6 addresses and routes of an interface, except for those that each link has (fe80::/10, ff00::/8).
func forgetIPv6(iface *net.Interface) error {
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: iface.Name, Index: iface.Index}}
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V6)
	if err != nil {
		return fmt.Errorf("list IPv6 addresses: %w", err)
	}
	for _, addr := range addrs {
		if addr.IP.IsLinkLocalUnicast() {
			continue
		}
		// Temporary addresses go with the one that they were made from.
		if err := netlink.AddrDel(link, &addr); err != nil && !errors.Is(err, syscall.EADDRNOTAVAIL) {
			return fmt.Errorf("delete %s: %w", addr.IPNet, err)
		}
	}
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_V6, &netlink.Route{LinkIndex: iface.Index, Table: unix.RT_TABLE_UNSPEC},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("list IPv6 routes: %w", err)
	}
	for _, route := range routes {
		// Those of the table local go with their addresses.
		if route.Table == unix.RT_TABLE_LOCAL || route.Dst != nil && (route.Dst.IP.IsLinkLocalUnicast() || route.Dst.IP.IsMulticast()) {
			continue
		}
		if err := netlink.RouteDel(&route); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("delete the route to %s: %w", route.Dst, err)
		}
	}
	return nil
}
