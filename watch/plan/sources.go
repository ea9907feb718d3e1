package plan

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// member is one Machine of an attachment with the addresses of the VLAN that it shows.
type member struct {
	machine *Machine
	shown   []netip.Addr
}

// claimant is one attachment of a network with its Machines.
type claimant struct {
	*Attachment
	infra     *Infra
	namespace string              // of the control plane
	reserved  map[netip.Addr]bool // addresses of its Infra that no worker has
	members   []member
	shows     int // addresses that its Machines show
}

// isWorker tells whether an address can be a worker's.
func (c *claimant) isWorker(address netip.Addr) bool {
	return c.infra.cidr.Contains(address) && !c.reserved[address]
}

// discoverSources finds the sources of each attachment of the Infras on one network: what its Machines show inside the
// CIDR, and for a Machine that shows nothing there, what it last showed (product rules 10 and 11).
//
// An attachment that is left out takes part: its claims make an address disputed all the same, and its
// memory must outlive the conflict.
func discoverSources(network []*Infra, w *index, leases map[types.NamespacedName][]Lease) {
	live := map[netip.Addr]string{}
	var claimants []*claimant
	for _, infra := range network {
		for _, l := range leases[infra.Key()] {
			live[l.Address] = normalizeMAC(l.MAC)
		}
		reserved := map[netip.Addr]bool{}
		for _, r := range reservedAddresses(infra) {
			reserved[r.address] = true
		}
		for _, a := range infra.Attachments {
			c := &claimant{Attachment: a, infra: infra, namespace: a.Object.ControlPlaneNamespace(), reserved: reserved}
			c.findMembers(w)
			claimants = append(claimants, c)
		}
	}
	most := 0
	for _, c := range claimants {
		most += c.shows
	}
	shown := make(map[netip.Addr]bool, most)
	for _, c := range claimants {
		c.claimShown(w, shown, live)
	}
	for _, c := range claimants {
		c.recall(w, shown, live)
	}
	dropDisputed(claimants)
	for _, c := range claimants {
		slices.SortFunc(c.Sources, func(x, y Source) int {
			return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Machine, y.Machine))
		})
		c.Status.Sources = slices.Grow(c.Status.Sources, len(c.Sources))
		for _, s := range c.Sources {
			c.Status.Sources = append(c.Status.Sources, v1alpha1.Source{
				Machine: s.Machine, UID: s.UID, Address: s.Address.String(), MAC: s.MAC,
			})
		}
	}
}

// claimShown claims what the Machines show, and notes it in shown.
func (c *claimant) claimShown(w *index, shown map[netip.Addr]bool, live map[netip.Addr]string) {
	macs := macsByAddress(w.vmis[c.namespace])
	last := lastMACs(c.Object.Status.Sources)
	c.Sources = slices.Grow(c.Sources, c.shows)
	for _, m := range c.members {
		for _, address := range m.shown {
			shown[address] = true
			claim := c.claim(address, m.machine.Name, m.machine.UID)
			// The lease only counts when the address is new to the Machine: it may go on showing one that
			// another MAC has got meanwhile.
			mac, known := last[memory{address, claim.Machine, claim.UID}]
			if !known {
				mac = live[address]
			}
			mac = cmp.Or(macs[address], mac)
			c.Sources = append(c.Sources, Source{Claim: claim, MAC: mac})
		}
	}
}

func (c *claimant) claim(address netip.Addr, machine, uid string) Claim {
	return Claim{Address: address, Attachment: c.Key(), Namespace: c.namespace, Machine: machine, UID: uid}
}

// findMembers finds the Machines of an attachment by its NodePools, notes whether a worker is a KubeVirt one, and if none of them
// shows an address of the VLAN, sets the attachment's SourcesDiscovered condition as if none were remembered.
func (c *claimant) findMembers(w *index) {
	pools := w.nodePools[c.hostedCluster]
	if len(pools) == 0 {
		c.sourcesMissing(v1alpha1.ReasonNoNodePools, fmt.Sprintf(
			"no NodePool in namespace %s names the HostedCluster %s", c.hostedCluster.Namespace, c.hostedCluster.Name))
		return
	}
	namespace := c.namespace
	var seen []string
	for _, pool := range pools {
		machines := w.machines[namespace][pool.Namespace+"/"+pool.Name]
		c.members = slices.Grow(c.members, len(machines))
		for _, machine := range machines {
			m := member{machine: machine}
			for _, text := range machine.Addresses {
				address, err := netip.ParseAddr(text)
				if err != nil {
					continue // a host name
				}
				if c.isWorker(address) {
					m.shown = append(m.shown, address)
				} else if c.shows == 0 {
					seen = append(seen, text)
				}
			}
			// CAPK shows each address as an internal and an external one.
			slices.SortFunc(m.shown, netip.Addr.Compare)
			m.shown = slices.Compact(m.shown)
			c.members = append(c.members, m)
			c.shows += len(m.shown)
			if pool.Spec.Platform.Type == hypershift.KubeVirtPlatform {
				c.kubeVirt = true
			}
		}
	}
	switch {
	case c.shows > 0:
	case len(c.members) == 0:
		c.sourcesMissing(v1alpha1.ReasonNoMachines, fmt.Sprintf(
			"no Machine in namespace %s carries the annotation %s of a NodePool of HostedCluster %s",
			namespace, hypershift.NodePoolAnnotation, c.hostedCluster))
	case len(seen) == 0:
		c.sourcesMissing(v1alpha1.ReasonNoAddresses, fmt.Sprintf("none of %d Machines in namespace %s shows an address yet", len(c.members), namespace))
	default:
		slices.Sort(seen)
		seen = slices.Compact(seen)
		c.sourcesMissing(v1alpha1.ReasonNoneInCIDR, fmt.Sprintf(
			"no address that the Machines in namespace %s show is a worker address of %s; seen: %s", namespace, c.infra.cidr, abridge(seen)))
	}
}

// recall gives back to each Machine that shows no address of the VLAN those that it showed last,
// unless another Machine shows one of them, a live lease of another MAC holds it, or it is no worker address of the VLAN
// any more.
func (c *claimant) recall(w *index, shown map[netip.Addr]bool, live map[netip.Addr]string) {
	remembered := c.Object.Status.Sources
	if len(remembered) == 0 {
		return
	}
	type identity struct{ name, uid string }
	silent := map[identity]bool{}
	for _, m := range c.members {
		if len(m.shown) == 0 {
			silent[identity{m.machine.Name, m.machine.UID}] = true
		}
	}
	var macs map[string][]string
	for _, r := range remembered {
		address, err := netip.ParseAddr(r.Address)
		if err != nil || !silent[identity{r.Machine, r.UID}] || shown[address] || !c.isWorker(address) {
			continue
		}
		mac := normalizeMAC(r.MAC)
		if holder := live[address]; holder != "" && holder != mac {
			if macs == nil {
				macs = macsByName(w.vmis[c.namespace])
			}
			// A virtual machine may come back with a new MAC (its own lease then).
			if !slices.Contains(macs[r.Machine], holder) {
				continue
			}
			mac = holder
		}
		c.Sources = append(c.Sources, Source{
			Claim:      c.claim(address, r.Machine, r.UID),
			MAC:        mac,
			Remembered: true,
		})
	}
}

// dropDisputed takes every address that Machines of two attachments claim from all of them.
func dropDisputed(claimants []*claimant) {
	most := 0
	for _, c := range claimants {
		most += len(c.Sources)
	}
	owner := make(map[netip.Addr]*Claim, most)
	disputed := map[netip.Addr][]Claim{}
	for _, c := range claimants {
		for i := range c.Sources {
			s := &c.Sources[i]
			first := owner[s.Address]
			switch {
			case first == nil:
				owner[s.Address] = &s.Claim
			case first.Attachment != s.Attachment && !first.sameMachine(s.Claim):
				if disputed[s.Address] == nil {
					disputed[s.Address] = []Claim{*first}
				}
				disputed[s.Address] = append(disputed[s.Address], s.Claim)
			}
		}
	}
	if len(disputed) == 0 {
		return
	}
	for _, c := range claimants {
		kept := c.Sources[:0]
		for _, s := range c.Sources {
			if claims := disputed[s.Address]; claims != nil {
				c.infra.Disputed[s.Address] = claims
				continue
			}
			kept = append(kept, s)
		}
		if len(kept) == 0 && len(c.Sources) > 0 {
			c.sourcesMissing(v1alpha1.ReasonDuplicateSourceIP, "every address of its Machines is also shown by a Machine of another attachment")
		}
		c.Sources = kept
	}
}

// sameMachine tells whether two claims are one Machine seen through two attachments of one control plane, which
// is a conflict of the attachments and not of the address.
func (c Claim) sameMachine(o Claim) bool {
	return c.Namespace == o.Namespace && c.Machine == o.Machine && c.UID == o.UID
}

// sourcesMissing notes why the attachment has no source; it only counts when none is found in the end.
func (a *Attachment) sourcesMissing(reason, message string) {
	setCondition(&a.Status.Conditions, v1alpha1.ConditionSourcesDiscovered, metav1.ConditionFalse, reason, message)
}

func macsByAddress(vmis []*VirtualMachineInstance) map[netip.Addr]string {
	macs := map[netip.Addr]string{}
	for _, v := range vmis {
		for _, i := range v.Interfaces {
			for _, text := range i.Addresses {
				if address, err := netip.ParseAddr(text); err == nil {
					macs[address] = normalizeMAC(i.MAC)
				}
			}
		}
	}
	return macs
}

func macsByName(vmis []*VirtualMachineInstance) map[string][]string {
	macs := map[string][]string{}
	for _, v := range vmis {
		for _, i := range v.Interfaces {
			macs[v.Name] = append(macs[v.Name], normalizeMAC(i.MAC))
		}
	}
	return macs
}

// memory is one remembered source of an attachment.
type memory struct {
	address      netip.Addr
	machine, uid string
}

func lastMACs(remembered []v1alpha1.Source) map[memory]string {
	macs := make(map[memory]string, len(remembered))
	for _, r := range remembered {
		if address, err := netip.ParseAddr(r.Address); err == nil {
			macs[memory{address, r.Machine, r.UID}] = normalizeMAC(r.MAC)
		}
	}
	return macs
}

// normalizeMAC brings a hardware address to the form that net.HardwareAddr prints; what does not
// parse stays as it is and equals nothing but itself.
func normalizeMAC(text string) string {
	if mac, err := net.ParseMAC(text); err == nil {
		return mac.String()
	}
	return text
}

// abridge lists at most ten texts.
func abridge(texts []string) string {
	const most = 10
	if len(texts) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(texts[:most], ", "), len(texts)-most)
	}
	return strings.Join(texts, ", ")
}
