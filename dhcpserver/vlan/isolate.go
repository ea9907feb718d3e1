package vlan

import (
	"encoding/binary"
	"fmt"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Numbers of the settings of an interface (linux/ip.h).
const (
	devconfForwarding      = 1
	devconfAcceptRedirects = 4
	devconfSendRedirects   = 6
	devconfRPFilter        = 8
	devconfSourceRoute     = 9
	devconfARPAnnounce     = 18
	devconfARPIgnore       = 19
	// inetConf is IFLA_INET_CONF (linux/if_link.h).
	inetConf = 1
)

// Isolate keeps the network behind this host from the hosts of the VLAN: nothing that comes in there is forwarded, whatever
// the host does elsewhere, or is taken from an address that belongs elsewhere (RFC 3704 section 2.2, strict); ARP tells and asks of
// no address but those of the interface itself. Nothing of IPv6 is taken at all. Isolate can be called again. It takes
// CAP_NET_ADMIN, and no /proc/sys that can be written; and nf_tables in the kernel, unless IPv6 is disabled on the interface.
func Isolate(ifname string) error {
	iface, err := interfaceByName(ifname)
	if err != nil {
		return err
	}
	request := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	message := nl.NewIfInfomsg(unix.AF_UNSPEC)
	message.Index = int32(iface.Index)
	request.AddData(message)
	families := nl.NewRtAttr(unix.IFLA_AF_SPEC, nil)
	settings := families.AddRtAttr(unix.AF_INET, nil).AddRtAttr(inetConf, nil)
	for setting, value := range map[int]uint32{
		devconfForwarding: 0, devconfAcceptRedirects: 0, devconfSendRedirects: 0, devconfSourceRoute: 0,
		devconfRPFilter: 1, devconfARPAnnounce: 2, devconfARPIgnore: 1,
	} {
		settings.AddRtAttr(setting, binary.NativeEndian.AppendUint32(nil, value))
	}
	request.AddData(families)
	if _, err := request.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("interface %s: isolate it from other networks of this host: %w", ifname, err)
	}
	return closeIPv6(iface)
}
