package v1alpha1

import (
	"fmt"
	"strings"

	"github.com/densityops/oooi/api/dhcpoption"
)

// options checks what clients are told besides addresses and times. The values are those of the DHCPServer: encoded
// here by what encodes them there.
func (c *checker) options(d *DHCPComponent) {
	seen := map[int32]int{}
	for n, option := range d.Options {
		field := fmt.Sprintf("spec.infraComponents.dhcp.options[%d]", n)
		if option.Code < 1 || option.Code > 254 {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "%d is not the code of an option: use 1 to 254", option.Code)
			continue
		}
		code := uint8(option.Code)
		if why := dhcpoption.Reserved(code); why != "" {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d cannot be set here: %s", code, why)
			continue
		}
		if first, dup := seen[option.Code]; dup {
			c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d is already entry %d: remove one", code, first)
			continue
		}
		seen[option.Code] = n
		for _, own := range []struct {
			code  uint8
			set   bool
			field string
		}{
			{dhcpoption.MTU, d.MTU != 0, "mtu"},
			{dhcpoption.NTPServers, len(d.NTPServers) > 0, "ntpServers"},
			{dhcpoption.SearchDomains, len(d.SearchDomains) > 0, "searchDomains"},
		} {
			if own.code == code && own.set {
				c.add(ComponentDHCP, ReasonInvalid, field+".code", "option %d is set by infraComponents.dhcp.%s as well: remove one", code, own.field)
			}
		}
		c.option(code, option.Value, field+".value")
	}
}

// option checks the text of one option.
func (c *checker) option(code uint8, text, field string) {
	if _, err := dhcpoption.Encode(code, text); err != nil {
		c.add(ComponentDHCP, ReasonInvalid, field, "option %d: %s", code, err)
	}
}

// searchDomains checks the names one by one, and all of them as the option that they become.
func (c *checker) searchDomains(domains []string) {
	const field = "spec.infraComponents.dhcp.searchDomains"
	before := len(c.problems)
	for n, value := range domains {
		if err := checkDomain(NormalizeDomain(value)); err != nil {
			c.add(ComponentDHCP, ReasonInvalid, fmt.Sprintf("%s[%d]", field, n), "%q is not a DNS name: %s", value, err)
		}
	}
	if len(domains) == 0 || len(c.problems) > before {
		return
	}
	if len(domains) == 1 && strings.HasPrefix(domains[0], "0x") && !strings.Contains(domains[0], ".") {
		c.add(ComponentDHCP, ReasonInvalid, field+"[0]", "%q would be taken for bytes in hexadecimal: write a dot at its end", domains[0])
		return
	}
	c.option(dhcpoption.SearchDomains, strings.Join(domains, ","), field)
}
