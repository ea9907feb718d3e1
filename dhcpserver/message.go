package dhcpserver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/densityops/oooi/api/dhcpoption"
)

// Layout of a message (RFC 2131 section 2).
const (
	offsetServerName = 44
	offsetFile       = 108
	offsetOptions    = 240
	broadcastFlag    = 0x8000
	// minReply is the length of a BOOTP message: relays drop what is shorter.
	minReply = 300
	// minSize is the datagram that every client can take, and what it gets unless it asks for more
	// (option 57). maxSize is the datagram that the VLAN can carry.
	minSize, maxSize = 576, 1500
	// datagramHeaders are the IP and UDP headers, which option 57 counts.
	datagramHeaders = 28
)

// request is one message of a client, checked.
type request struct {
	kind                 dhcpv4.MessageType
	xid                  dhcpv4.TransactionID
	flags                uint16
	mac                  MAC
	ciaddr, giaddr       netip.Addr
	requested            netip.Addr // option 50, not valid if there is none
	serverID             netip.Addr // option 54, not valid if there is none
	parameters           []byte     // option 55
	clientID, relay      []byte     // options 61 and 82
	hostname             string     // option 12, fit to be shown
	size                 int        // the largest answer, in bytes of UDP payload
	hasClientID, isRelay bool
}

var (
	errNotRequest  = errors.New("not a message of a client")
	errNotEthernet = errors.New("not the hardware address of an Ethernet card")
)

// parse reads a message. What it returns does not share memory with raw.
func parse(raw []byte) (*request, error) {
	// The library refuses messages without an end option; real clients send some. One more does not
	// hurt those that have it.
	terminated := make([]byte, len(raw)+1)
	terminated[copy(terminated, raw)] = optEnd
	m, err := dhcpv4.FromBytes(terminated)
	if err != nil {
		return nil, err
	}
	if err := unload(m, raw); err != nil {
		return nil, err
	}
	if m.OpCode != dhcpv4.OpcodeBootRequest {
		return nil, errNotRequest
	}
	if m.HWType != 1 || len(m.ClientHWAddr) != len(MAC{}) || m.ClientHWAddr[0]&1 != 0 || MAC(m.ClientHWAddr) == (MAC{}) {
		return nil, errNotEthernet
	}
	r := &request{
		kind: m.MessageType(), xid: m.TransactionID, flags: m.Flags, mac: MAC(m.ClientHWAddr),
		ciaddr: netip.AddrFrom4([4]byte(m.ClientIPAddr.To4())), giaddr: netip.AddrFrom4([4]byte(m.GatewayIPAddr.To4())),
		parameters: m.Options[optParameters], size: minSize,
	}
	if r.requested, err = optionalAddr(m.Options, optRequested); err != nil {
		return nil, err
	}
	if r.serverID, err = optionalAddr(m.Options, optServerID); err != nil {
		return nil, err
	}
	r.clientID, r.hasClientID = m.Options[optClientID]
	r.relay, r.isRelay = m.Options[optRelay]
	if len(r.clientID) > dhcpoption.MaxBytes || len(r.relay) > dhcpoption.MaxBytes {
		return nil, errors.New("an option to be echoed is longer than an option can be")
	}
	r.hostname = printable(m.Options[optHostname])
	if asked := m.Options[optMaxSize]; len(asked) == 2 {
		r.size = min(max(int(binary.BigEndian.Uint16(asked)), minSize), maxSize)
	}
	r.size -= datagramHeaders
	return r, nil
}

// unload reads the options that overflowed into the fields for file and server name (RFC 2131
// section 4.1, RFC 2132 section 9.3).
func unload(m *dhcpv4.DHCPv4, raw []byte) error {
	overload, ok := m.Options[optOverload]
	if !ok {
		return nil
	}
	if len(overload) != 1 || overload[0] < 1 || overload[0] > 3 {
		return fmt.Errorf("option overload %x", overload)
	}
	if overload[0]&1 != 0 {
		if err := m.Options.FromBytes(raw[offsetFile : offsetOptions-4]); err != nil {
			return err
		}
	}
	if overload[0]&2 != 0 {
		return m.Options.FromBytes(raw[offsetServerName:offsetFile])
	}
	return nil
}

func optionalAddr(options dhcpv4.Options, code uint8) (netip.Addr, error) {
	value, ok := options[code]
	if !ok {
		return netip.Addr{}, nil
	}
	if len(value) != 4 {
		return netip.Addr{}, fmt.Errorf("option %d has %d bytes", code, len(value))
	}
	return netip.AddrFrom4([4]byte(value)), nil
}

// printable keeps what a host name can be made of, so that a client cannot write to terminals and logs.
func printable(value []byte) string {
	name := make([]byte, 0, len(value))
	for _, b := range value {
		if b == '.' || b == '-' || b == '_' || '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z' {
			name = append(name, b)
		}
	}
	return string(name[:min(len(name), 253)])
}

// reply writes the answer to r.
//
// The library could not: it writes options in the order of their numbers, where RFC 2132 section
// 9.8 wants the client's order, and as many as there are, where option 57 sets a limit.
func (m *Model) reply(r *request, v *verdict) []byte {
	kind, yiaddr := v.kind, v.yiaddr
	b := make([]byte, offsetOptions, minSize)
	b[0], b[1], b[2] = byte(dhcpv4.OpcodeBootReply), 1, byte(len(r.mac))
	copy(b[4:], r.xid[:])
	flags := r.flags
	if kind == dhcpv4.MessageTypeNak && !r.giaddr.IsUnspecified() {
		// The relay must broadcast it: the client's address is wrong (RFC 2131 section 4.3.2).
		flags |= broadcastFlag
	}
	binary.BigEndian.PutUint16(b[10:], flags)
	if kind == dhcpv4.MessageTypeAck {
		copy(b[12:], r.ciaddr.AsSlice())
	}
	if yiaddr.IsValid() {
		copy(b[16:], yiaddr.AsSlice())
	}
	copy(b[24:], r.giaddr.AsSlice())
	copy(b[28:], r.mac[:])
	copy(b[offsetOptions-4:], []byte{99, 130, 83, 99})

	b = appendOption(b, optMessageType, []byte{byte(kind)})
	b = appendOption(b, optServerID, m.serverIP.AsSlice())
	room := r.size - 1 // the end option
	if r.hasClientID { // RFC 6842
		room -= 2 + len(r.clientID)
	}
	if r.isRelay { // RFC 3046 section 2.2
		room -= 2 + len(r.relay)
	}
	if kind == dhcpv4.MessageTypeNak {
		b = appendOption(b, optMessage, []byte(v.reason))
	} else {
		if yiaddr.IsValid() {
			b = m.appendTimes(b, v.lasts)
		}
		b = m.appendParameters(b, r, room)
	}
	if r.hasClientID {
		b = appendOption(b, optClientID, r.clientID)
	}
	if r.isRelay { // last, by RFC 3046 section 2.1
		b = appendOption(b, optRelay, r.relay)
	}
	b = append(b, optEnd)
	for len(b) < minReply {
		b = append(b, optPad)
	}
	return b
}

// appendTimes appends how long the client may use its address, and when it is to renew and to rebind (RFC 2131 section 4.4.5).
func (m *Model) appendTimes(b []byte, lasts time.Duration) []byte {
	if lasts == 0 || lasts == m.leaseTime {
		return append(b, m.times...)
	}
	return appendTimes(b, lasts)
}

func appendTimes(b []byte, lasts time.Duration) []byte {
	seconds := uint32(lasts / time.Second)
	b = appendOption(b, optLeaseTime, binary.BigEndian.AppendUint32(nil, seconds))
	b = appendOption(b, optT1, binary.BigEndian.AppendUint32(nil, seconds/2))
	return appendOption(b, optT2, binary.BigEndian.AppendUint32(nil, uint32(uint64(seconds)*7/8)))
}

// appendParameters appends what the client asked for, in its order, as far as there is room; mask,
// router and DNS servers whether it asked or not. A client that says nothing gets everything.
func (m *Model) appendParameters(b []byte, r *request, room int) []byte {
	asked := r.parameters
	if len(asked) == 0 {
		asked = m.order
		if m.reservations[r.mac].hostname != "" {
			asked = append([]byte{optHostname}, asked...)
		}
	}
	var done [256]bool
	always := m.order[:3]
	for _, code := range always {
		room -= len(m.options[code]) // kept for them until they are in
	}
	add := func(code uint8, option []byte) {
		if !done[code] && len(b)+len(option) <= room {
			done[code] = true
			b = append(b, option...)
		}
	}
	addKept := func(code uint8) {
		if !done[code] {
			room += len(m.options[code])
			done[code] = true
			b = append(b, m.options[code]...)
		}
	}
	for _, code := range asked {
		switch code {
		case optMask, optDNS:
			addKept(code)
		case optRouter:
			addKept(optMask) // RFC 2132 section 3.3: the mask comes first
			addKept(optRouter)
		case optHostname:
			if name := m.reservations[r.mac].hostname; name != "" {
				add(code, appendOption(nil, code, []byte(name)))
			}
		default:
			add(code, m.options[code])
		}
	}
	for _, code := range always {
		addKept(code)
	}
	return b
}
