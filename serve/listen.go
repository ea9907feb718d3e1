package serve

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"

	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/dhcpserver/vlan"
	"github.com/densityops/oooi/dnsserver"
)

// offset adds the port offset that lets an unprivileged user serve.
func offset(a netip.AddrPort, by int) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr(), uint16(int(a.Port())+by))
}

func runDNS(ctx context.Context, server *dnsserver.Server, address netip.AddrPort, ready func()) error {
	sockets, err := dnsserver.Listen(ctx, address, runtime.GOMAXPROCS(0))
	if err != nil {
		return fmt.Errorf("DNS server: %w", err)
	}
	ready()
	return server.Run(ctx, sockets)
}

// runDHCP serves the VLAN interface of the Infra, or without one what is sent to the server's address: unicast and
// relayed messages.
func (p *publisher) runDHCP(ctx context.Context, server *dhcpserver.Server, address netip.AddrPort, ready func()) error {
	name, err := p.interfaceName()
	if err != nil {
		return err
	}
	var conns []dhcpserver.Conn
	if name != "" {
		conns, err = vlan.Open(p.dhcp.log, name, address.Addr())
	} else {
		var udp dhcpserver.Conn
		udp, err = dhcpserver.ListenUDP(address)
		conns = []dhcpserver.Conn{udp}
	}
	if err != nil {
		return err
	}
	ready()
	return server.Run(ctx, conns...)
}

// interfaceName is the VLAN interface of this Infra; empty: it has none. One interface given for all Infras is
// only right while there is one.
func (p *publisher) interfaceName() (string, error) {
	if name := p.server.cfg.Interfaces[p.infra]; name != "" {
		return name, nil
	}
	name := p.server.cfg.Interfaces[""]
	if name == "" {
		return "", nil
	}
	if served := p.server.sorted(); len(served) > 1 {
		return "", fmt.Errorf("interface %s is given for one Infra and there are %d: give --interface %s=IF, or serve one with --infra",
			name, len(served), p.infra)
	}
	return name, nil
}
