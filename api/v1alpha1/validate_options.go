package v1alpha1

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
)

// optionForms says how the values of the DHCP options of RFC 2132 (150: RFC 5859) are
// written. An option that is not here is a text, or bytes after 0x.
var optionForms = map[int32]string{
	2: "int32", 4: "ips", 5: "ips", 7: "ips", 8: "ips", 9: "ips", 10: "ips", 11: "ips", 13: "uint16",
	16: "ip", 19: "bool", 20: "bool", 21: "pairs", 22: "uint16", 23: "uint8", 24: "uint32", 26: "uint16", 27: "bool",
	28: "ip", 29: "bool", 30: "bool", 31: "bool", 32: "ip", 33: "pairs", 34: "bool", 35: "uint32", 36: "bool",
	37: "uint8", 38: "uint32", 39: "bool", 41: "ips", 42: "ips", 44: "ips", 45: "ips", 46: "uint8", 48: "ips",
	49: "ips", 65: "ips", 68: "ips", 69: "ips", 70: "ips", 71: "ips", 72: "ips", 73: "ips", 74: "ips", 75: "ips",
	76: "ips", 150: "ips",
}

// ownOptions are those that the server writes itself, and where their values come from.
var ownOptions = map[int32]string{
	1: "it comes from networkConfig.cidr", 3: "it comes from networkConfig.gateway",
	6:  "it is dns.serverIP, or networkConfig.dnsServers when DNS is disabled",
	12: "set reservations[].hostname", 51: "set leaseTime",
	50: protocolOption, 52: protocolOption, 53: protocolOption, 54: protocolOption, 55: protocolOption, 56: protocolOption,
	57: protocolOption, 58: protocolOption, 59: protocolOption, 61: protocolOption, 80: protocolOption, 81: protocolOption,
	82: protocolOption, 90: protocolOption, 108: protocolOption, 116: protocolOption, 118: protocolOption,
}

const protocolOption = "it belongs to the protocol itself"

func (c *checker) options(d *DHCPComponent) {
	seen := map[int32]int{}
	for n, option := range d.Options {
		field := fmt.Sprintf("spec.infraComponents.dhcp.options[%d]", n)
		if option.Code < 1 || option.Code > 254 {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "%d is not the code of an option: use 1 to 254", option.Code)
			continue
		}
		if why, own := ownOptions[option.Code]; own {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d cannot be set here: %s", option.Code, why)
			continue
		}
		if first, dup := seen[option.Code]; dup {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d is already entry %d: remove one", option.Code, first)
			continue
		}
		seen[option.Code] = n
		for _, own := range []struct {
			code  int32
			set   bool
			field string
		}{{26, d.MTU != 0, "mtu"}, {42, len(d.NTPServers) > 0, "ntpServers"}, {119, len(d.SearchDomains) > 0, "searchDomains"}} {
			if own.code == option.Code && own.set {
				c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d is set by infraComponents.dhcp.%s as well: remove one", option.Code, own.field)
			}
		}
		if err := checkOption(optionForms[option.Code], option.Value, limitOf(option.Code)); err != nil {
			c.add(ComponentDHCP, ReasonInvalid, field+".value", "option %d: %s", option.Code, err)
		}
	}
}

// limitOf is how many bytes an option can carry: lists of names and routes may be split over several options
// (RFC 3396), the others are better short.
func limitOf(code int32) int {
	switch code {
	case 119, 121, 249:
		return maxSplitBytes
	}
	return maxOptionBytes
}

// checkOption checks the text of an option by its form, as far as it goes without encoding it.
func checkOption(form, value string, limit int) error {
	if digits, isHex := strings.CutPrefix(value, "0x"); isHex {
		raw, err := hex.DecodeString(digits)
		if err != nil || len(raw) == 0 || len(raw) > limit {
			return fmt.Errorf("%q is not bytes in hexadecimal: write 0x and 1 to %d pairs of digits", value, limit)
		}
		return nil
	}
	switch form {
	case "ip", "ips", "pairs":
		values := strings.Split(value, ",")
		for _, v := range values {
			v = strings.TrimSpace(v)
			if addr, err := netip.ParseAddr(v); err != nil || !addr.Is4() {
				return fmt.Errorf("%q is not an IPv4 address: write addresses separated by commas", v)
			}
		}
		if most := limit / 4; len(values) > most {
			return fmt.Errorf("has %d addresses, and an option holds %d: remove some", len(values), most)
		}
		if form == "pairs" && len(values)%2 != 0 {
			return fmt.Errorf("has %d addresses, and this option holds pairs: add the missing one", len(values))
		}
		if form == "ip" && len(values) > 1 {
			return fmt.Errorf("has %d addresses, and this option holds one: remove the others", len(values))
		}
	case "bool":
		if value != "0" && value != "1" && value != "true" && value != "false" {
			return fmt.Errorf("%q is not a switch: write true or false", value)
		}
	case "int32":
		if _, err := strconv.ParseInt(value, 10, 32); err != nil {
			return fmt.Errorf("%q is not a number of %d to %d", value, -1<<31, 1<<31-1)
		}
	case "uint8", "uint16", "uint32":
		bits, _ := strconv.Atoi(form[len("uint"):]) // the forms are the three above
		if _, err := strconv.ParseUint(value, 10, bits); err != nil {
			return fmt.Errorf("%q is not a number of 0 to %d", value, uint64(1)<<bits-1)
		}
	default:
		if value == "" {
			return errors.New("has no value: give one, or remove the option")
		}
		if len(value) > limit {
			return fmt.Errorf("has %d bytes, and an option holds %d: shorten it", len(value), limit)
		}
	}
	return nil
}
