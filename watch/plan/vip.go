package plan

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// vipClaim is the VIP that one hosted cluster was seen to have.
type vipClaim struct {
	*Attachment
	infra   *Infra
	address netip.Addr
	had     bool // it was published at this address before
}

// yields says how the VIP of a claim can become another's.
func (c *vipClaim) yields() string {
	if c.Apps.Remove {
		return "it is being taken away there"
	}
	return "declare disjoint ranges in metallb.ipAddressPoolRange"
}

func (c *vipClaim) refuse(format string, args ...any) {
	if c.vipProblem == "" {
		c.vipProblem = fmt.Sprintf(format, args...)
	}
}

// publishVIPs decides which VIPs of the Infras on one network are published: those that nothing else there has.
//
// What the spec of an attachment declares outweighs what is seen: a VIP inside its own range stays published whichever
// address a Machine or the Service of another hosted cluster shows, since a tenant decides about those. Without a range, who
// had the address first keeps it.
func publishVIPs(network []*Infra, before map[types.NamespacedName]netip.Addr) {
	var claims []*vipClaim
	for _, infra := range network {
		for _, a := range slices.Concat(infra.Attachments, infra.deleting) {
			if c := claimVIP(infra, a); c != nil {
				c.had = before[a.Key()] == c.address
				claims = append(claims, c)
			}
		}
	}
	if len(claims) == 0 {
		return
	}
	slices.SortStableFunc(claims, func(a, b *vipClaim) int { return a.address.Compare(b.address) })
	refuseTakenVIPs(network, claims)
	refuseVIPsInOtherRanges(network, claims)
	refuseVIPsOfWorkers(network, claims)
	refuseSharedVIPs(claims)
	for _, c := range claims {
		if c.vipProblem == "" && c.appsServed {
			c.vip = c.address
		}
	}
}

// claimVIP gives the VIP that an attachment has as far as known, one that is being taken away included; nil: none.
func claimVIP(infra *Infra, a *Attachment) *vipClaim {
	observed := a.Object.Status.AppsIngressStatus
	if a.Apps == nil || a.appsForgotten && (!a.Apps.Remove || a.Apps.Gone) || observed == nil || observed.ExternalIP == "" {
		return nil
	}
	address, err := netip.ParseAddr(observed.ExternalIP)
	c := &vipClaim{Attachment: a, infra: infra, address: address}
	if err != nil || !address.Is4() {
		c.refuse("%q, the address of the Service in the hosted cluster, is no IPv4 address: let MetalLB give it one of the VLAN", observed.ExternalIP)
		return nil
	}
	switch {
	case a.appsRange.isSet() && !a.appsRange.holds(address):
		c.refuse("%s is not published: it lies outside the declared range %s; correct metallb.ipAddressPoolRange, or the pool that the Service in the hosted cluster takes its address from",
			address, a.appsRange)
	case !infra.cidr.Contains(address):
		c.refuse("%s is not published: it lies outside the CIDR %s of Infra %s; let MetalLB in the hosted cluster give an address of the VLAN",
			address, infra.cidr, infra.Object.Name)
	}
	return c
}

// refuseTakenVIPs refuses the addresses of servers, gateways, networks and reservations, and those of DHCP pools.
func refuseTakenVIPs(network []*Infra, claims []*vipClaim) {
	taken := map[netip.Addr]string{}
	for _, infra := range network {
		for _, r := range infra.unfree() {
			taken[r.address] = fmt.Sprintf("%s of Infra %s", r.what, infra.Key())
		}
	}
	for _, c := range claims {
		if what := taken[c.address]; what != "" {
			c.refuse("%s is not published: it is the %s; let MetalLB in the hosted cluster give another address", c.address, what)
		}
		for _, infra := range network {
			if pool := poolOf(infra.Object); pool.holds(c.address) {
				c.refuse("%s is not published: it lies in the DHCP pool %s of Infra %s; let MetalLB in the hosted cluster give an address outside it",
					c.address, pool, infra.Key())
			}
		}
	}
}

// refuseVIPsInOtherRanges refuses VIPs that lie in the range of another attachment. The claims are in order of address.
func refuseVIPsInOtherRanges(network []*Infra, claims []*vipClaim) {
	for _, infra := range network {
		for _, owner := range infra.Attachments {
			if !owner.appsRange.isSet() {
				continue
			}
			at, _ := slices.BinarySearchFunc(claims, owner.appsRange.first, func(c *vipClaim, a netip.Addr) int { return c.address.Compare(a) })
			for ; at < len(claims) && owner.appsRange.holds(claims[at].address); at++ {
				if c := claims[at]; c.Attachment != owner {
					c.refuse("%s is not published: it lies in the apps range %s of attachment %s; declare a range of its own",
						c.address, owner.appsRange, owner.Key())
				}
			}
		}
	}
}

// refuseVIPsOfWorkers refuses new VIPs outside a range of their own that a Machine shows.
func refuseVIPsOfWorkers(network []*Infra, claims []*vipClaim) {
	byAddress := make(map[netip.Addr][]*vipClaim, len(claims))
	for _, c := range claims {
		if !c.appsRange.isSet() && !c.had {
			byAddress[c.address] = append(byAddress[c.address], c)
		}
	}
	if len(byAddress) == 0 {
		return
	}
	refuse := func(shown Claim) {
		for _, c := range byAddress[shown.Address] {
			c.refuse("%s is not published: Machine %s of attachment %s has it; declare a range that no worker is in", c.address, shown.Machine, shown.Attachment)
		}
	}
	for _, infra := range network {
		for _, shown := range infra.Disputed {
			refuse(shown[0])
		}
		for _, a := range infra.Attachments {
			for i := range a.Sources {
				refuse(a.Sources[i].Claim)
			}
		}
	}
}

// refuseSharedVIPs refuses an address that two hosted clusters have and may both have, to all but the one that had it before;
// to all, when it is new to all. The claims are in order of address.
func refuseSharedVIPs(claims []*vipClaim) {
	may := slices.DeleteFunc(slices.Clone(claims), func(c *vipClaim) bool { return c.vipProblem != "" })
	for len(may) > 0 {
		n := 1
		for n < len(may) && may[n].address == may[0].address {
			n++
		}
		var holders []*vipClaim
		for _, c := range may[:n] {
			if c.had {
				holders = append(holders, c)
			}
		}
		for i, c := range may[:n] {
			other := may[(i+1)%n]
			if len(holders) == 1 {
				other = holders[0]
			}
			if other != c && (len(holders) != 1 || c != holders[0]) {
				c.refuse("%s is not published: attachment %s has it as well; %s", c.address, other.Key(), other.yields())
			}
		}
		may = may[n:]
	}
}
