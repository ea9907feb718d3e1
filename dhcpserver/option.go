package dhcpserver

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Option codes that the server gives a meaning to (RFC 2132 unless said otherwise).
const (
	optPad             = 0
	optMask            = 1
	optRouter          = 3
	optDNS             = 6
	optHostname        = 12
	optBroadcast       = 28
	optRequested       = 50
	optLeaseTime       = 51
	optOverload        = 52
	optMessageType     = 53
	optServerID        = 54
	optParameters      = 55
	optMessage         = 56
	optMaxSize         = 57
	optT1              = 58
	optT2              = 59
	optClientID        = 61
	optRelay           = 82  // RFC 3046
	optSearch          = 119 // RFC 3397
	optRoutes          = 121 // RFC 3442
	optRoutesMicrosoft = 249 // the same under its older number
	optEnd             = 255
)

// maxOption is what one option can carry; those that may be split are sent as several (RFC 3396).
const (
	maxOption      = 255
	maxSplitOption = 1024
)

// ownOptions are the options that spec.options cannot set, and why.
var ownOptions = map[uint8]string{
	optPad: "it is padding", optEnd: "it ends the options",
	optMask: "it comes from networkConfig.cidr", optRouter: "it comes from networkConfig.gateway",
	optDNS: "it comes from networkConfig.dnsServers", optHostname: "it comes from reservations", optLeaseTime: "it comes from leaseConfig.leaseTime",
	optRequested: protocolOption, optOverload: protocolOption, optMessageType: protocolOption, optServerID: protocolOption,
	optParameters: protocolOption, optMessage: protocolOption, optMaxSize: protocolOption, optT1: protocolOption, optT2: protocolOption,
	optClientID: protocolOption, optRelay: protocolOption,
	80: protocolOption, 81: protocolOption, 90: protocolOption, 118: protocolOption,
	108: "it would turn IPv4 off in the clients", 116: "it would have clients choose addresses themselves",
}

const protocolOption = "it belongs to the protocol itself"

// formOf says how the text of an option becomes bytes. What is not known to be anything else is a text.
func formOf(code uint8) func(string) ([]byte, error) {
	switch code {
	case 2:
		return encodeInt32
	case 13, 22, 26:
		return encodeUint(16)
	case 23, 37, 46:
		return encodeUint(8)
	case 24, 35, 38:
		return encodeUint(32)
	case 19, 20, 27, 29, 30, 31, 34, 36, 39:
		return encodeBool
	case 16, optBroadcast, 32:
		return func(text string) ([]byte, error) { return encodeAddrs(text, 1, 1) }
	case 4, 5, 7, 8, 9, 10, 11, 41, 42, 44, 45, 48, 49, 65, 68, 69, 70, 71, 72, 73, 74, 75, 76, 150:
		return func(text string) ([]byte, error) { return encodeAddrs(text, 1, 0) }
	case 21, 33:
		return func(text string) ([]byte, error) { return encodeAddrs(text, 2, 0) }
	case optSearch:
		return encodeSearch
	case optRoutes, optRoutesMicrosoft:
		return encodeRoutes
	default:
		return encodeText
	}
}

// encodeOption turns the text of a DHCPOption into the bytes of the option.
func encodeOption(code uint8, text string) ([]byte, error) {
	if why, own := ownOptions[code]; own {
		return nil, fmt.Errorf("cannot be set here: %s", why)
	}
	encode := formOf(code)
	if digits, isHex := strings.CutPrefix(text, "0x"); isHex {
		encode = func(string) ([]byte, error) {
			raw, err := hex.DecodeString(digits)
			if err != nil || len(raw) == 0 {
				return nil, fmt.Errorf("%q is not bytes in hexadecimal: write 0x and pairs of digits", text)
			}
			return raw, nil
		}
	}
	value, err := encode(text)
	if err != nil {
		return nil, err
	}
	limit := maxOption
	if code == optSearch || code == optRoutes || code == optRoutesMicrosoft {
		limit = maxSplitOption
	}
	if len(value) > limit {
		return nil, fmt.Errorf("has %d bytes, and the option holds %d: shorten it", len(value), limit)
	}
	return value, nil
}

// splitList splits a text at commas.
func splitList(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

// encodeAddrs writes IPv4 addresses; their number must be a multiple of the first number, and at
// most the second unless that is 0.
func encodeAddrs(text string, multiple, most int) ([]byte, error) {
	var value []byte
	parts := splitList(text)
	for _, part := range parts {
		addr, err := netip.ParseAddr(part)
		if err != nil || !addr.Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 address: write addresses separated by commas", part)
		}
		value = append(value, addr.AsSlice()...)
	}
	if most > 0 && len(parts) > most {
		return nil, fmt.Errorf("has %d addresses, and the option takes %d", len(parts), most)
	}
	if len(parts)%multiple != 0 {
		return nil, fmt.Errorf("has %d addresses, and the option takes pairs", len(parts))
	}
	return value, nil
}

func encodeUint(bits int) func(string) ([]byte, error) {
	return func(text string) ([]byte, error) {
		n, err := strconv.ParseUint(text, 10, bits)
		if err != nil {
			return nil, fmt.Errorf("%q is not a number of 0 to %d", text, uint64(1)<<bits-1)
		}
		return binary.BigEndian.AppendUint64(nil, n)[8-bits/8:], nil
	}
}

func encodeInt32(text string) ([]byte, error) {
	n, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number of %d to %d", text, -1<<31, 1<<31-1)
	}
	return binary.BigEndian.AppendUint32(nil, uint32(n)), nil
}

func encodeBool(text string) ([]byte, error) {
	switch text {
	case "true", "1":
		return []byte{1}, nil
	case "false", "0":
		return []byte{0}, nil
	}
	return nil, fmt.Errorf("%q is not a switch: write true or false", text)
}

func encodeText(text string) ([]byte, error) {
	if text == "" {
		return nil, errors.New("has no value: give one, or remove the option")
	}
	return []byte(text), nil
}

// encodeSearch writes a domain search list (RFC 3397) without compression, which RFC 3397 allows
// and some clients do not read.
func encodeSearch(text string) ([]byte, error) {
	var value []byte
	for _, domain := range splitList(text) {
		if err := checkDomain(domain); err != nil {
			return nil, err
		}
		for label := range strings.SplitSeq(strings.TrimSuffix(domain, "."), ".") {
			value = append(value, byte(len(label)))
			value = append(value, label...)
		}
		value = append(value, 0)
	}
	return value, nil
}

// checkDomain tells whether a text is a domain name of letters, digits, hyphens and underscores.
func checkDomain(domain string) error {
	name := strings.TrimSuffix(domain, ".")
	if name == "" || len(name) > 253 {
		return fmt.Errorf("%q is not a domain name: write 1 to 253 characters", domain)
	}
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return fmt.Errorf("%q is not a domain name: each part has 1 to 63 characters and no hyphen at its ends", domain)
		}
		for _, r := range label {
			if !nameRune(r) {
				return fmt.Errorf("%q is not a domain name: %q cannot be part of one", domain, r)
			}
		}
	}
	return nil
}

func nameRune(r rune) bool {
	return r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z'
}

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
			return nil, fmt.Errorf("%q is not an IPv4 CIDR", fields[0])
		}
		gateway, err := netip.ParseAddr(fields[1])
		if err != nil || !gateway.Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 address", fields[1])
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

// hasDefaultRoute tells whether routes in the form of RFC 3442 hold 0.0.0.0/0. Bytes that are not
// such routes are left as they are, so the answer is true.
func hasDefaultRoute(value []byte) bool {
	for len(value) > 0 {
		bits := int(value[0])
		size := 1 + (bits+7)/8 + 4
		if bits == 0 || bits > 32 || len(value) < size {
			return true
		}
		value = value[size:]
	}
	return false
}

// appendOption appends one option, as several when it is longer than one can be (RFC 3396).
func appendOption(to []byte, code uint8, value []byte) []byte {
	for len(value) > maxOption {
		to = append(to, code, maxOption)
		to = append(to, value[:maxOption]...)
		value = value[maxOption:]
	}
	to = append(to, code, byte(len(value)))
	return append(to, value...)
}
