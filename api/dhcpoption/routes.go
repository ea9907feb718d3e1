package dhcpoption

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// encodeRoutes writes classless static routes (RFC 3442): "CIDR GATEWAY", separated by commas.
func encodeRoutes(text string) ([]byte, error) {
	var value []byte
	for _, route := range splitList(text) {
		fields := strings.Fields(route)
		if len(fields) != 2 {
			return nil, fmt.Errorf("%q is not a route: write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1", route)
		}
		prefix, err := netip.ParsePrefix(fields[0])
		if err != nil || !prefix.Addr().Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 CIDR: write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1", fields[0])
		}
		gateway, err := netip.ParseAddr(fields[1])
		if err != nil || !gateway.Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 address: write a CIDR and a gateway, for example 198.51.100.0/24 192.0.2.1", fields[1])
		}
		value = appendRoute(value, prefix, gateway)
	}
	return value, nil
}

func appendRoute(value []byte, prefix netip.Prefix, gateway netip.Addr) []byte {
	value = append(value, byte(prefix.Bits()))
	value = append(value, prefix.Masked().Addr().AsSlice()[:(prefix.Bits()+7)/8]...)
	return append(value, gateway.AsSlice()...)
}

// WithDefaultRoute adds the default route to encoded routes that have none: who takes the option ignores the router
// option (RFC 3442). Bytes that are not routes stay as they are.
func WithDefaultRoute(routes []byte, gateway netip.Addr) []byte {
	for rest := routes; len(rest) > 0; {
		bits := int(rest[0])
		size := 1 + (bits+7)/8 + 4
		if bits == 0 || bits > 32 || len(rest) < size {
			return routes
		}
		rest = rest[size:]
	}
	return appendRoute(slices.Clip(routes), netip.PrefixFrom(netip.IPv4Unspecified(), 0), gateway)
}
