package plan

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// names are the five names of a hosted cluster under its domain (product rule 4).
var names = []string{"api", "api-int", "oauth", "ignition", "konnectivity"}

// leaveOutConflicts leaves out every attachment of one Infra that declares the domain or the
// HostedCluster of another one (product rule 12).
func leaveOutConflicts(infra *Infra) {
	byDomain := map[string][]*Attachment{}
	byCluster := map[types.NamespacedName][]*Attachment{}
	for _, a := range infra.Attachments {
		if a.LeftOut != nil {
			continue
		}
		byDomain[a.Domain] = append(byDomain[a.Domain], a)
		byCluster[a.hostedCluster] = append(byCluster[a.hostedCluster], a)
	}
	for _, domain := range slices.Sorted(maps.Keys(byDomain)) {
		if parties := byDomain[domain]; len(parties) > 1 {
			leaveOut(parties, v1alpha1.ReasonDuplicateHostname, fmt.Sprintf(
				"attachments %s declare the domain %s: remove or rename dns of all but one",
				list(parties), domain))
		}
		for _, covered := range coveredBy(domain, byDomain) {
			leaveOut(slices.Concat(byDomain[domain], byDomain[covered]), v1alpha1.ReasonDuplicateHostname,
				fmt.Sprintf("the domain %s of attachment %s is a name of the domain %s of attachment %s: rename one of them",
					domain, list(byDomain[domain]), covered, list(byDomain[covered])))
		}
	}
	for _, parties := range byCluster {
		if len(parties) > 1 {
			leaveOut(parties, v1alpha1.ReasonDuplicateHostedCluster, fmt.Sprintf(
				"attachments %s reference the HostedCluster %s: keep one attachment per HostedCluster",
				list(parties), parties[0].hostedCluster))
		}
	}
	leaveOutSharedControlPlanes(infra)
}

// leaveOutSharedControlPlanes leaves out attachments of different HostedClusters that lead to one control-plane namespace,
// by an override or because HyperShift's name for it is ambiguous: names of one cluster would reach the other's.
func leaveOutSharedControlPlanes(infra *Infra) {
	byNamespace := map[string][]*Attachment{}
	for _, a := range infra.Attachments {
		if a.LeftOut == nil {
			namespace := a.Object.ControlPlaneNamespace()
			byNamespace[namespace] = append(byNamespace[namespace], a)
		}
	}
	for namespace, parties := range byNamespace {
		if len(parties) > 1 {
			leaveOut(parties, v1alpha1.ReasonDuplicateHostedCluster, fmt.Sprintf(
				"attachments %s lead to one control-plane namespace, %s: correct controlPlaneNamespace or hostedClusterRef of all but one",
				list(parties), namespace))
		}
	}
}

// coveredBy gives the domains that have the given domain among their names: as one of the five, or
// under their apps wildcard.
func coveredBy(domain string, byDomain map[string][]*Attachment) []string {
	var covered []string
	first, parent, _ := strings.Cut(domain, ".")
	if slices.Contains(names, first) && byDomain[parent] != nil {
		covered = append(covered, parent)
	}
	for rest := domain; rest != ""; {
		label, up, _ := strings.Cut(rest, ".")
		if label == "apps" && byDomain[up] != nil {
			covered = append(covered, up)
		}
		rest = up
	}
	return covered
}

// leaveOut leaves the attachments out. The first reason found stands: hostname before HostedCluster, as
// in the Infra's own Ready condition.
func leaveOut(parties []*Attachment, reason, message string) {
	for _, a := range parties {
		switch {
		case a.LeftOut == nil:
			a.LeftOut = &Refusal{reason, message}
		case a.LeftOut.Reason != reason || !strings.Contains(a.LeftOut.Message, message):
			a.LeftOut.Message += "; " + message
		}
	}
}

func list(attachments []*Attachment) string {
	quoted := make([]string, len(attachments))
	for i, a := range attachments {
		quoted[i] = a.Object.Name
	}
	return strings.Join(quoted, ", ")
}

// claimedAddress is one server address that an Infra claims on its VLAN.
type claimedAddress struct {
	infra     *Infra
	component v1alpha1.Component
	address   netip.Addr
}

// nadOf is the network that an Infra is on.
func nadOf(infra *v1alpha1.Infra) types.NamespacedName {
	return types.NamespacedName{Namespace: infra.NADNamespace(), Name: infra.Spec.NetworkConfig.NetworkAttachmentDefinition}
}

// findNetworks groups the Infras by their NAD, and tells each which others are on the same one.
func findNetworks(infras []*Infra) [][]*Infra {
	byNAD := map[types.NamespacedName][]*Infra{}
	for _, infra := range infras {
		nad := nadOf(infra.Object)
		byNAD[nad] = append(byNAD[nad], infra)
	}
	for _, infra := range infras {
		for _, other := range byNAD[nadOf(infra.Object)] {
			if other != infra {
				infra.neighbours = append(infra.neighbours, other)
			}
		}
	}
	return slices.Collect(maps.Values(byNAD))
}

// refuseSharedAddresses takes out of service, in both, what two Infras on one NAD cannot both
// have: the same server address, or DHCP; and says when the pool of one holds a server address of
// another, which it then does not hand out (product rule 14).
func refuseSharedAddresses(infras []*Infra) {
	for i, infra := range infras {
		for _, other := range infra.neighbours {
			if slices.Index(infras, other) > i {
				refuseShared(nadOf(infra.Object), infra, other)
			}
			refuseGatewayOf(infra, other)
			refusePoolOver(infra, other)
		}
	}
}

// gatewayOf is the gateway of an Infra; the zero value: none that parses.
func gatewayOf(infra *Infra) netip.Addr {
	address, _ := netip.ParseAddr(infra.Object.Spec.NetworkConfig.Gateway)
	return address
}

// refuseGatewayOf takes a server address out of service that is the gateway of another Infra: that one is a router's.
func refuseGatewayOf(infra, other *Infra) {
	gateway := gatewayOf(other)
	for _, c := range claims(infra) {
		if c.address != gateway {
			continue
		}
		withdraw(c, v1alpha1.ReasonSharedAddress, fmt.Sprintf(
			"%s is the %s address of this Infra and the gateway of Infra %s on the same network: choose another address", gateway, c.component, other.Key()))
		other.report("", v1alpha1.ReasonSharedAddress, "spec.networkConfig.gateway", fmt.Sprintf(
			"%s is the gateway of this Infra and the %s address of Infra %s on the same network: give one of them another address", gateway, c.component, infra.Key()))
	}
}

// refusePoolOver reports a pool that holds a server address or the gateway of another Infra, to both.
func refusePoolOver(infra, other *Infra) {
	pool := poolOf(infra.Object)
	if gateway := gatewayOf(other); gateway != gatewayOf(infra) && pool.holds(gateway) {
		infra.report(v1alpha1.ComponentDHCP, v1alpha1.ReasonPoolHoldsAddress, "spec.infraComponents.dhcp.rangeStart", fmt.Sprintf(
			"the DHCP pool %s holds %s, the gateway of Infra %s on the same network; the pool does not hand it out: leave it out", pool, gateway, other.Key()))
		other.report("", v1alpha1.ReasonPoolHoldsAddress, "spec.networkConfig.gateway", fmt.Sprintf(
			"%s lies in the DHCP pool %s of Infra %s on the same network: correct the gateway, or that pool", gateway, pool, infra.Key()))
	}
	for _, c := range claims(other) {
		if !pool.holds(c.address) {
			continue
		}
		infra.report(v1alpha1.ComponentDHCP, v1alpha1.ReasonPoolHoldsAddress, "spec.infraComponents.dhcp.rangeStart", fmt.Sprintf(
			"the DHCP pool %s holds %s, the %s address of Infra %s on the same network; the pool does not hand it out: leave it out",
			pool, c.address, c.component, other.Key()))
		other.report(c.component, v1alpha1.ReasonPoolHoldsAddress, "spec.infraComponents."+string(c.component)+".serverIP", fmt.Sprintf(
			"%s lies in the DHCP pool %s of Infra %s on the same network: choose an address outside it", c.address, pool, infra.Key()))
	}
}

// report notes a problem that takes nothing out of service.
func (i *Infra) report(component v1alpha1.Component, reason, field, message string) {
	i.problems = append(i.problems, v1alpha1.Problem{Component: component, Reason: reason, Field: field, Message: message})
}

func refuseShared(nad types.NamespacedName, a, b *Infra) {
	for _, ca := range claims(a) {
		for _, cb := range claims(b) {
			if ca.address != cb.address {
				continue
			}
			withdraw(ca, v1alpha1.ReasonSharedAddress, fmt.Sprintf(
				"%s is the %s address of this Infra and the %s address of Infra %s on the same network %s: give one of them another address",
				ca.address, ca.component, cb.component, b.Key(), nad))
			withdraw(cb, v1alpha1.ReasonSharedAddress, fmt.Sprintf(
				"%s is the %s address of this Infra and the %s address of Infra %s on the same network %s: give one of them another address",
				cb.address, cb.component, ca.component, a.Key(), nad))
		}
	}
	if v1alpha1.On(a.Object.Spec.InfraComponents.DHCP.Enabled) && v1alpha1.On(b.Object.Spec.InfraComponents.DHCP.Enabled) {
		for _, pair := range [2][2]*Infra{{a, b}, {b, a}} {
			withdraw(claimedAddress{infra: pair[0], component: v1alpha1.ComponentDHCP}, v1alpha1.ReasonSharedDHCP, fmt.Sprintf(
				"this Infra and Infra %s both run DHCP on the network %s: set infraComponents.dhcp.enabled to false in one of them",
				pair[1].Key(), nad))
		}
	}
}

func claims(infra *Infra) []claimedAddress {
	var claimed []claimedAddress
	for component, text := range serverAddresses(infra.Object) {
		if address, err := netip.ParseAddr(text); err == nil && address.Is4() {
			claimed = append(claimed, claimedAddress{infra, component, address})
		}
	}
	slices.SortFunc(claimed, func(a, b claimedAddress) int { return a.address.Compare(b.address) })
	return claimed
}

// serverAddresses are the addresses of the enabled components.
func serverAddresses(infra *v1alpha1.Infra) map[v1alpha1.Component]string {
	c := &infra.Spec.InfraComponents
	addresses := map[v1alpha1.Component]string{}
	if v1alpha1.On(c.DHCP.Enabled) {
		addresses[v1alpha1.ComponentDHCP] = c.DHCP.ServerIP
	}
	if v1alpha1.On(c.DNS.Enabled) {
		addresses[v1alpha1.ComponentDNS] = c.DNS.ServerIP
	}
	if v1alpha1.On(c.Proxy.Enabled) {
		addresses[v1alpha1.ComponentProxy] = c.Proxy.ServerIP
	}
	return addresses
}

func withdraw(c claimedAddress, reason, message string) {
	c.infra.withdrawn[c.component] = true
	c.infra.report(c.component, reason, "spec.infraComponents."+string(c.component), message)
}
