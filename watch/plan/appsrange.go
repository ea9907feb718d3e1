package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// addressRange is an inclusive range of addresses; the zero value is no range.
type addressRange struct {
	first, last netip.Addr
}

func (r addressRange) isSet() bool { return r.first.IsValid() }

func (r addressRange) holds(a netip.Addr) bool {
	return r.isSet() && a.IsValid() && !a.Less(r.first) && !r.last.Less(a)
}

func (r addressRange) overlaps(o addressRange) bool {
	return r.isSet() && o.isSet() && !r.last.Less(o.first) && !o.last.Less(r.first)
}

func (r addressRange) String() string { return r.first.String() + "-" + r.last.String() }

// refuseAppsRanges refuses the apps range of each attachment that reaches out of the VLAN, holds an
// address of it, or overlaps the pool or another attachment's range; on one Infra and on
// Infras that share a NAD (product rule 14). Only the apps range is refused: the attachment's names
// and routes stay, and the pool hands out none of the disputed addresses.
func refuseAppsRanges(infras []*Infra) {
	byNAD := map[types.NamespacedName][]*Attachment{}
	for _, infra := range infras {
		nad := nadOf(infra.Object)
		for _, a := range infra.Attachments {
			apps := a.Object.Spec.AppsIngress
			if !a.Object.AppsEnabled() || apps.MetalLB.IPAddressPoolRange == "" {
				continue
			}
			first, last, err := v1alpha1.ParseAddressRange(apps.MetalLB.IPAddressPoolRange)
			if err != nil {
				continue // the attachment is left out as Invalid already
			}
			a.appsRange = addressRange{first, last}
			refuseAppsRange(infra, a)
			byNAD[nad] = append(byNAD[nad], a)
		}
	}
	for _, sharing := range byNAD {
		// In order of first address, nothing behind the first range that starts past the end of
		// this one can overlap it.
		slices.SortStableFunc(sharing, func(a, b *Attachment) int { return a.appsRange.first.Compare(b.appsRange.first) })
		for i, a := range sharing {
			for _, b := range sharing[i+1:] {
				if a.appsRange.last.Less(b.appsRange.first) {
					break
				}
				refuseApps(a, v1alpha1.ReasonAppsRangeOverlap, overlapMessage(a, b))
				refuseApps(b, v1alpha1.ReasonAppsRangeOverlap, overlapMessage(b, a))
			}
		}
	}
}

func overlapMessage(own, other *Attachment) string {
	return fmt.Sprintf("the apps range %s overlaps %s of attachment %s: make the ranges disjoint",
		own.appsRange, other.appsRange, other.Key())
}

func refuseAppsRange(infra *Infra, a *Attachment) {
	r := a.appsRange
	if infra.cidr.IsValid() && (!infra.cidr.Contains(r.first) || !infra.cidr.Contains(r.last)) {
		refuseApps(a, v1alpha1.ReasonAppsRangeOutsideCIDR, fmt.Sprintf(
			"the apps range %s reaches out of the CIDR %s of Infra %s: choose addresses inside it", r, infra.cidr, infra.Object.Name))
	}
	said := map[netip.Addr]bool{} // Infras on one network may have one gateway
	refuseHeld := func(owner *Infra, name string) {
		for _, reserved := range owner.unfree() {
			if r.holds(reserved.address) && !said[reserved.address] {
				said[reserved.address] = true
				refuseApps(a, v1alpha1.ReasonAppsRangeHoldsAddress, fmt.Sprintf(
					"the apps range %s holds %s, the %s of Infra %s: leave that address out", r, reserved.address, reserved.what, name))
			}
		}
		refuseAppsRangeInPool(owner, a)
	}
	refuseHeld(infra, infra.Object.Name)
	for _, other := range infra.neighbours {
		refuseHeld(other, other.Key().String()+" on the same network")
	}
}

// refuseAppsRangeInPool reports an apps range that overlaps the pool of its own Infra or of another on the same network.
func refuseAppsRangeInPool(owner *Infra, a *Attachment) {
	r, pool := a.appsRange, poolOf(owner.Object)
	if !pool.overlaps(r) {
		return
	}
	refuseApps(a, v1alpha1.ReasonPoolHoldsAppsRange, fmt.Sprintf(
		"the apps range %s overlaps the DHCP pool %s of Infra %s: make them disjoint", r, pool, owner.Key()))
	owner.report(v1alpha1.ComponentDHCP, v1alpha1.ReasonPoolHoldsAppsRange, "spec.infraComponents.dhcp.rangeStart", fmt.Sprintf(
		"the DHCP pool %s overlaps the apps range %s of attachment %s; the pool hands out none of those addresses: make them disjoint",
		pool, r, a.Key()))
}

func refuseApps(a *Attachment, reason, message string) {
	if a.appsProblem == nil {
		a.appsProblem = &Refusal{Reason: reason, Message: message}
		return
	}
	a.appsProblem.Message += "; " + message
}

type reservedAddress struct {
	address netip.Addr
	what    string
}

// unfree are the addresses that no VIP may have: those that something else has, or that DHCP keeps for somebody.
func (i *Infra) unfree() []reservedAddress {
	if i.unfreeAddresses == nil {
		i.unfreeAddresses = slices.Concat(reservedAddresses(i), reservedForMACs(i))
	}
	return i.unfreeAddresses
}

// reservedForMACs are the addresses that DHCP keeps for one client each.
func reservedForMACs(infra *Infra) []reservedAddress {
	dhcp := &infra.Object.Spec.InfraComponents.DHCP
	if !v1alpha1.On(dhcp.Enabled) {
		return nil
	}
	var reserved []reservedAddress
	for _, r := range dhcp.Reservations {
		if address, err := netip.ParseAddr(r.IP); err == nil && address.Is4() {
			reserved = append(reserved, reservedAddress{address, "address reserved for " + r.MAC})
		}
	}
	return reserved
}

// reservedAddresses are the addresses of a VLAN that nothing else may have.
func reservedAddresses(infra *Infra) []reservedAddress {
	var reserved []reservedAddress
	add := func(text, what string) {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			reserved = append(reserved, reservedAddress{address, what})
		}
	}
	servers := serverAddresses(infra.Object)
	for _, component := range slices.Sorted(maps.Keys(servers)) {
		add(servers[component], string(component)+" server address")
	}
	add(infra.Object.Spec.NetworkConfig.Gateway, "gateway")
	if infra.cidr.IsValid() && infra.cidr.Addr().Is4() {
		reserved = append(reserved,
			reservedAddress{infra.cidr.Masked().Addr(), "network address"},
			reservedAddress{lastAddress(infra.cidr), "broadcast address"})
	}
	return reserved
}

// lastAddress is the broadcast address of an IPv4 prefix.
func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().As4()
	for bit := p.Bits(); bit < 32; bit++ {
		b[bit/8] |= 1 << (7 - bit%8)
	}
	return netip.AddrFrom4(b)
}

// poolOf is the DHCP pool of an Infra, if DHCP is enabled and the pool parses.
func poolOf(infra *v1alpha1.Infra) addressRange {
	dhcp := &infra.Spec.InfraComponents.DHCP
	if !v1alpha1.On(dhcp.Enabled) {
		return addressRange{}
	}
	first, errFirst := netip.ParseAddr(dhcp.RangeStart)
	last, errLast := netip.ParseAddr(dhcp.RangeEnd)
	if errFirst != nil || errLast != nil || last.Less(first) {
		return addressRange{}
	}
	return addressRange{first, last}
}
