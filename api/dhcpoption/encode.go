package dhcpoption

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// Codes of options that have a field of their own in an Infra.
const (
	MTU           = 26  // RFC 2132 section 5.1
	NTPServers    = 42  // RFC 2132 section 8.3
	SearchDomains = 119 // RFC 3397
)

// Codes of classless static routes: RFC 3442, and Microsoft's number for the same.
const (
	Routes          = 121
	RoutesMicrosoft = 249
)

// MaxBytes is what one option carries (RFC 2132 section 2).
const MaxBytes = 255

// maxSplitBytes is what lists of names and routes may take, which are sent as several options when they are
// long (RFC 3396). Other options are not split: not every client puts them together again.
const maxSplitBytes = 1024

// reserved are the options that nobody can set, and why.
var reserved = map[uint8]string{
	0: "it is padding", 255: "it ends the options",
	1: "it comes from networkConfig.cidr", 3: "it comes from networkConfig.gateway",
	6:  "it is dns.serverIP, or networkConfig.dnsServers when DNS is disabled",
	12: "set reservations[].hostname", 51: "set leaseTime",
	50: protocol, 52: protocol, 53: protocol, 54: protocol, 55: protocol, 56: protocol, 57: protocol, 58: protocol,
	59: protocol, 61: protocol, 80: protocol, 81: protocol, 82: protocol, 90: protocol, 118: protocol,
	108: "it would turn IPv4 off in the clients", 116: "it would have clients choose addresses themselves",
}

const protocol = "it belongs to the protocol itself"

// Reserved tells why an option cannot be set. Empty: it can.
func Reserved(code uint8) string { return reserved[code] }

// Encode turns the text of an option into its bytes, at least one. Options that RFC 2132 gives a form (and 150, RFC
// 5859) take addresses, numbers or true and false; 119 takes domain names, 121 and 249 routes ("CIDR GATEWAY"); lists
// have commas. Every other option is the text as it is, and every option can be given as 0x and hexadecimal
// digits. The error, which names no option, says what to write.
func Encode(code uint8, text string) ([]byte, error) {
	if why := Reserved(code); why != "" {
		return nil, fmt.Errorf("cannot be set here: %s", why)
	}
	if digits, isHex := strings.CutPrefix(text, "0x"); isHex && (code != SearchDomains || !strings.ContainsAny(digits, ".,")) {
		value, err := hex.DecodeString(digits)
		if err != nil || len(value) == 0 || len(value) > limit(code) {
			return nil, fmt.Errorf("%q is not bytes in hexadecimal: write 0x and 1 to %d pairs of digits", text, limit(code))
		}
		return value, nil
	}
	value, err := encode(code, text)
	if err != nil {
		return nil, err
	}
	if most := limit(code); len(value) > most {
		return nil, fmt.Errorf("has %d bytes, and an option holds %d: shorten it", len(value), most)
	}
	return value, nil
}

// limit is how many bytes the option can have.
func limit(code uint8) int {
	switch code {
	case SearchDomains, Routes, RoutesMicrosoft:
		return maxSplitBytes
	}
	return MaxBytes
}

// encode writes the option in the form that it has. What is not known to be anything else is a text.
func encode(code uint8, text string) ([]byte, error) {
	switch code {
	case 2:
		return encodeInt32(text)
	case 13, 22, MTU:
		return encodeUint(text, 16)
	case 23, 37, 46:
		return encodeUint(text, 8)
	case 24, 35, 38:
		return encodeUint(text, 32)
	case 19, 20, 27, 29, 30, 31, 34, 36, 39:
		return encodeBool(text)
	case 16, 28, 32:
		return encodeAddr(text)
	case 4, 5, 7, 8, 9, 10, 11, 41, NTPServers, 44, 45, 48, 49, 65, 68, 69, 70, 71, 72, 73, 74, 75, 76, 150:
		return encodeAddrs(text)
	case 21, 33:
		return encodePairs(text)
	case SearchDomains:
		return encodeSearch(text)
	case Routes, RoutesMicrosoft:
		return encodeRoutes(text)
	}
	if text == "" {
		return nil, errors.New("has no value: give one, or remove the option")
	}
	return []byte(text), nil
}

// splitList splits a text at commas.
func splitList(text string) []string {
	parts := strings.Split(text, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	return parts
}

func encodeAddrs(text string) ([]byte, error) {
	var value []byte
	for _, part := range splitList(text) {
		addr, err := netip.ParseAddr(part)
		if err != nil || !addr.Is4() {
			return nil, fmt.Errorf("%q is not an IPv4 address: write addresses separated by commas", part)
		}
		value = append(value, addr.AsSlice()...)
	}
	if n, most := len(value)/4, MaxBytes/4; n > most {
		return nil, fmt.Errorf("has %d addresses, and an option holds %d: remove some", n, most)
	}
	return value, nil
}

func encodeAddr(text string) ([]byte, error) {
	value, err := encodeAddrs(text)
	if n := len(value) / 4; n > 1 {
		return nil, fmt.Errorf("has %d addresses, and this option holds one: remove the others", n)
	}
	return value, err
}

func encodePairs(text string) ([]byte, error) {
	value, err := encodeAddrs(text)
	if n := len(value) / 4; n%2 != 0 {
		return nil, fmt.Errorf("has %d addresses, and this option holds pairs: add the missing one", n)
	}
	return value, err
}

func encodeUint(text string, bits int) ([]byte, error) {
	n, err := strconv.ParseUint(text, 10, bits)
	if err != nil {
		return nil, fmt.Errorf("%q is not a number of 0 to %d", text, uint64(1)<<bits-1)
	}
	return binary.BigEndian.AppendUint64(nil, n)[8-bits/8:], nil
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

// encodeSearch writes a domain search list (RFC 3397) without compression, which RFC 3397 allows
// and some clients do not read.
func encodeSearch(text string) ([]byte, error) {
	var value []byte
	for _, domain := range splitList(text) {
		if err := CheckName(domain); err != nil {
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

// CheckName tells why a text is no name of a domain or a host as the options carry it: letters, digits, hyphens
// and underscores, with or without a dot at the end.
func CheckName(domain string) error {
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
