package dhcpserver

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/densityops/oooi/api/dhcpoption"
	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	defaultLeaseTime = time.Hour
	minLeaseTime     = time.Minute
	maxLeaseTime     = 365 * 24 * time.Hour
	// minPrefix bounds the pool, which costs a bit of memory an address.
	minPrefix = 8
	// maxPrefix is the smallest network that has host addresses between network and broadcast.
	maxPrefix = 30
)

// Model is a DHCPServer made ready to serve. It never changes.
type Model struct {
	cidr         netip.Prefix
	serverIP     netip.Addr
	pool         pool
	leaseTime    time.Duration
	reservations map[MAC]reservation
	reserved     map[netip.Addr]MAC

	// options that a client gets when it asks, already encoded with code and length, mask and router
	// and DNS servers among them. order is their codes, those three first.
	options map[uint8][]byte
	order   []uint8
	// times are the encoded options 51, 58 and 59.
	times []byte
}

type reservation struct {
	addr     netip.Addr // not valid: any address of the pool
	hostname string
}

// Build checks a DHCPServer and makes a Model of it. It refuses a pool that could give out an
// address of the VLAN's own (product rule 14), and options that do not fit or that the server
// writes itself. The error names the object and the field.
func Build(dhcp *v1alpha1.DHCPServer) (*Model, error) {
	m, err := build(&dhcp.Spec)
	if err != nil {
		return nil, fmt.Errorf("DHCPServer %s/%s: spec.%w", dhcp.Namespace, dhcp.Name, err)
	}
	return m, nil
}

func build(spec *v1alpha1.DHCPServerSpec) (*Model, error) {
	m := &Model{leaseTime: defaultLeaseTime}
	network := &spec.NetworkConfig

	cidr, err := netip.ParsePrefix(network.CIDR)
	switch {
	case err != nil:
		return nil, fmt.Errorf("networkConfig.cidr: %q is not a CIDR, for example 192.0.2.0/24", network.CIDR)
	case !cidr.Addr().Is4():
		return nil, fmt.Errorf("networkConfig.cidr: %s is not IPv4", cidr)
	case cidr.Bits() < minPrefix || cidr.Bits() > maxPrefix:
		return nil, fmt.Errorf("networkConfig.cidr: %s is not between /%d and /%d", cidr, minPrefix, maxPrefix)
	}
	m.cidr = cidr.Masked()
	if m.serverIP, err = m.host("networkConfig.serverIP", network.ServerIP); err != nil {
		return nil, err
	}
	gateway, err := m.host("networkConfig.gateway", network.Gateway)
	if err != nil {
		return nil, err
	}
	if gateway == m.serverIP {
		return nil, fmt.Errorf("networkConfig.serverIP: %s is the gateway", m.serverIP)
	}
	var dns []byte
	var dnsServers []netip.Addr
	for i, text := range network.DNSServers {
		addr, err := netip.ParseAddr(text)
		if err != nil || !addr.Is4() {
			return nil, fmt.Errorf("networkConfig.dnsServers[%d]: %q is not an IPv4 address", i, text)
		}
		dns = append(dns, addr.AsSlice()...)
		dnsServers = append(dnsServers, addr)
	}
	if len(dns) > dhcpoption.MaxBytes {
		return nil, fmt.Errorf("networkConfig.dnsServers: has %d entries, and the option holds %d", len(dnsServers), dhcpoption.MaxBytes/4)
	}

	if err := m.buildPool(spec, gateway, dnsServers); err != nil {
		return nil, err
	}
	if err := m.buildReservations(spec, gateway); err != nil {
		return nil, err
	}
	return m, m.buildOptions(spec, gateway, dns)
}

// host parses an address that a host of the VLAN can have.
func (m *Model) host(field, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case err != nil || !addr.Is4():
		return netip.Addr{}, fmt.Errorf("%s: %q is not an IPv4 address", field, text)
	case !m.cidr.Contains(addr):
		return netip.Addr{}, fmt.Errorf("%s: %s is outside of the CIDR %s", field, addr, m.cidr)
	case addr == m.cidr.Addr():
		return netip.Addr{}, fmt.Errorf("%s: %s is the network address of %s", field, addr, m.cidr)
	case addr == m.broadcast():
		return netip.Addr{}, fmt.Errorf("%s: %s is the broadcast address of %s", field, addr, m.cidr)
	}
	return addr, nil
}

func (m *Model) broadcast() netip.Addr {
	return addrOf(number(m.cidr.Addr()) | (1<<(32-m.cidr.Bits()) - 1))
}

func (m *Model) buildPool(spec *v1alpha1.DHCPServerSpec, gateway netip.Addr, dnsServers []netip.Addr) error {
	lease := &spec.LeaseConfig
	first, err := m.host("leaseConfig.rangeStart", lease.RangeStart)
	if err != nil {
		return err
	}
	last, err := m.host("leaseConfig.rangeEnd", lease.RangeEnd)
	if err != nil {
		return err
	}
	if last.Less(first) {
		return fmt.Errorf("leaseConfig.rangeEnd: %s is below rangeStart %s", last, first)
	}
	m.pool = newPool(first, last)
	for _, own := range []struct {
		addr netip.Addr
		what string
	}{{m.serverIP, "serverIP"}, {gateway, "the gateway"}} {
		if m.pool.contains(own.addr) {
			return fmt.Errorf("leaseConfig: the pool %s-%s holds %s, %s", first, last, own.addr, own.what)
		}
	}
	for i, text := range lease.Excluded {
		from, to, err := parseRange(text)
		if err != nil {
			return fmt.Errorf("leaseConfig.excluded[%d]: %w", i, err)
		}
		m.pool.remove(from, to)
	}
	// Nothing may be left: an apps range that an attachment lays over the whole pool must not cost the clients that
	// have reservations their DHCP, nor those that have leases what else is configured.
	for _, addr := range dnsServers {
		m.pool.remove(addr, addr)
	}
	if lease.LeaseTime != "" {
		if m.leaseTime, err = time.ParseDuration(lease.LeaseTime); err != nil {
			return fmt.Errorf("leaseConfig.leaseTime: %q is not a duration, for example 1h or 30m", lease.LeaseTime)
		}
	}
	if m.leaseTime < minLeaseTime || m.leaseTime > maxLeaseTime {
		return fmt.Errorf("leaseConfig.leaseTime: %s is not between %s and %s", m.leaseTime, minLeaseTime, maxLeaseTime)
	}
	// The client counts in seconds.
	m.leaseTime = m.leaseTime.Truncate(time.Second)
	return nil
}

func (m *Model) buildReservations(spec *v1alpha1.DHCPServerSpec, gateway netip.Addr) error {
	m.reservations = make(map[MAC]reservation, len(spec.Reservations))
	m.reserved = make(map[netip.Addr]MAC, len(spec.Reservations))
	for i, r := range spec.Reservations {
		field := fmt.Sprintf("reservations[%d]", i)
		mac, err := ParseMAC(r.MAC)
		if err != nil {
			return fmt.Errorf("%s.mac: %w", field, err)
		}
		if _, dup := m.reservations[mac]; dup {
			return fmt.Errorf("%s.mac: %s has a reservation already", field, mac)
		}
		kept := reservation{hostname: v1alpha1.NormalizeDomain(r.Hostname)}
		if kept.hostname != "" {
			if err := dhcpoption.CheckName(kept.hostname); err != nil {
				return fmt.Errorf("%s.hostname: %w", field, err)
			}
		}
		if r.IP != "" {
			if kept.addr, err = m.host(field+".ip", r.IP); err != nil {
				return err
			}
			if kept.addr == gateway || kept.addr == m.serverIP {
				return fmt.Errorf("%s.ip: %s is the gateway or serverIP", field, kept.addr)
			}
			if other, dup := m.reserved[kept.addr]; dup {
				return fmt.Errorf("%s.ip: %s is reserved for %s already", field, kept.addr, other)
			}
			if excludes(spec.LeaseConfig.Excluded, kept.addr) {
				// The exclusion wins, and the client gets an address of the pool: an apps range that an
				// attachment lays over a reservation must not cost the whole VLAN its DHCP.
				kept.addr = netip.Addr{}
			} else {
				m.reserved[kept.addr] = mac
				m.pool.remove(kept.addr, kept.addr)
			}
		}
		m.reservations[mac] = kept
	}
	return nil
}

func (m *Model) buildOptions(spec *v1alpha1.DHCPServerSpec, gateway netip.Addr, dns []byte) error {
	mask := binary.BigEndian.AppendUint32(nil, ^uint32(0)<<(32-m.cidr.Bits()))
	values := map[uint8][]byte{optMask: mask, optRouter: gateway.AsSlice(), optBroadcast: m.broadcast().AsSlice()}
	if len(dns) > 0 {
		values[optDNS] = dns
	}
	set := map[uint8]int{}
	for i, option := range spec.Options {
		field := fmt.Sprintf("options[%d]", i)
		if option.Code < 0 || option.Code > 255 {
			return fmt.Errorf("%s.code: %d is not the code of an option", field, option.Code)
		}
		code := uint8(option.Code)
		value, err := dhcpoption.Encode(code, option.Value)
		if err != nil {
			return fmt.Errorf("%s: option %d: %w", field, code, err)
		}
		if first, dup := set[code]; dup {
			return fmt.Errorf("%s.code: option %d is options[%d] already", field, code, first)
		}
		set[code] = i
		values[code] = value
	}
	for _, code := range []uint8{dhcpoption.Routes, dhcpoption.RoutesMicrosoft} {
		if value, ok := values[code]; ok {
			values[code] = dhcpoption.WithDefaultRoute(value, gateway)
		}
	}
	m.options = make(map[uint8][]byte, len(values))
	for code, value := range values {
		m.options[code] = appendOption(nil, code, value)
	}
	m.order = []uint8{optMask, optRouter, optDNS}
	for _, code := range slices.Sorted(maps.Keys(set)) {
		if !slices.Contains(m.order, code) {
			m.order = append(m.order, code)
		}
	}
	m.times = appendTimes(nil, m.leaseTime)
	return nil
}

// excludes tells whether one of the ranges, which buildPool has checked, holds the address.
func excludes(ranges []string, addr netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(text string) bool {
		first, last, err := parseRange(text)
		return err == nil && !addr.Less(first) && !last.Less(addr)
	})
}

// parseRange reads "ip" or "first-last".
func parseRange(text string) (first, last netip.Addr, err error) {
	from, to, isRange := strings.Cut(text, "-")
	first, err = netip.ParseAddr(strings.TrimSpace(from))
	last = first
	if err == nil && isRange {
		last, err = netip.ParseAddr(strings.TrimSpace(to))
	}
	if err != nil || !first.Is4() || !last.Is4() || last.Less(first) {
		return first, last, fmt.Errorf("%q is neither an IPv4 address nor a range first-last", text)
	}
	return first, last, nil
}

// pool is a range of addresses with holes, a bit an address.
type pool struct {
	first uint32
	words []uint64
	size  int // addresses without the holes
}

func newPool(first, last netip.Addr) pool {
	count := int(number(last)-number(first)) + 1
	p := pool{first: number(first), words: make([]uint64, (count+63)/64), size: count}
	for i := range p.words {
		p.words[i] = ^uint64(0)
	}
	if rest := count % 64; rest != 0 {
		p.words[len(p.words)-1] = 1<<rest - 1
	}
	return p
}

func (p *pool) contains(addr netip.Addr) bool {
	i := number(addr) - p.first // wraps for what lies below, to a number that is too large
	return int64(i) < int64(len(p.words))*64 && p.words[i/64]&(1<<(i%64)) != 0
}

// remove takes a range out; what lies outside of the pool does not matter.
func (p *pool) remove(first, last netip.Addr) {
	end := uint64(p.first) + uint64(len(p.words))*64
	for n := max(uint64(number(first)), uint64(p.first)); n <= uint64(number(last)) && n < end; n++ {
		i := n - uint64(p.first)
		if bit := uint64(1) << (i % 64); p.words[i/64]&bit != 0 {
			p.words[i/64] &^= bit
			p.size--
		}
	}
}

// add puts an address back that remove took out, and returns its word.
func (p *pool) add(addr netip.Addr) int {
	i := number(addr) - p.first
	p.words[i/64] |= 1 << (i % 64)
	p.size++
	return int(i / 64)
}

// lowest returns the lowest address whose word is not before the given one, and its word.
func (p *pool) lowest(word int) (netip.Addr, int, bool) {
	for ; word < len(p.words); word++ {
		if w := p.words[word]; w != 0 {
			return addrOf(p.first + uint32(word*64+bits.TrailingZeros64(w))), word, true
		}
	}
	return netip.Addr{}, word, false
}

func (p *pool) clone() pool {
	return pool{first: p.first, words: slices.Clone(p.words), size: p.size}
}

func number(addr netip.Addr) uint32 {
	raw := addr.As4()
	return binary.BigEndian.Uint32(raw[:])
}

func addrOf(n uint32) netip.Addr {
	var raw [4]byte
	binary.BigEndian.PutUint32(raw[:], n)
	return netip.AddrFrom4(raw)
}
