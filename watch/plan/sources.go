package plan

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// member is one Machine of an attachment with the addresses of the VLAN that it shows.
type member struct {
	machine *Machine
	shown   []netip.Addr
}

// discoverSources finds the sources of each attachment: what its Machines show inside the CIDR, and for a
// Machine that shows nothing there, what it last showed (product rules 10 and 11).
//
// An attachment that is left out takes part: its claims make an address disputed all the same, and its
// memory must outlive the conflict.
func discoverSources(infra *Infra, w *index, leases []Lease) {
	live := make(map[netip.Addr]string, len(leases))
	for _, l := range leases {
		live[l.Address] = normalizeMAC(l.MAC)
	}
	reserved := map[netip.Addr]bool{}
	for _, r := range reservedAddresses(infra) {
		reserved[r.address] = true
	}

	members := make([][]member, len(infra.Attachments))
	shown := map[netip.Addr]bool{}
	for i, a := range infra.Attachments {
		members[i] = findMembers(a, w, infra.cidr, reserved)
		macs := macsByAddress(w.vmis[a.Object.ControlPlaneNamespace()])
		last := lastMACs(a.Object.Status.Sources)
		for _, m := range members[i] {
			for _, address := range m.shown {
				shown[address] = true
				claim := Claim{address, a.Object.Name, m.machine.Name, m.machine.UID}
				// The lease comes last: a Machine may show an address that another MAC has got meanwhile.
				mac := cmp.Or(macs[address], last[Claim{Address: address, Machine: claim.Machine, UID: claim.UID}], live[address])
				a.Sources = append(a.Sources, Source{Claim: claim, MAC: mac})
			}
		}
	}
	for i, a := range infra.Attachments {
		recall(a, members[i], w, shown, live, func(address netip.Addr) bool { return infra.cidr.Contains(address) && !reserved[address] })
	}
	dropDisputed(infra)
	for _, a := range infra.Attachments {
		slices.SortFunc(a.Sources, func(x, y Source) int {
			return cmp.Or(x.Address.Compare(y.Address), cmp.Compare(x.Machine, y.Machine))
		})
		for _, s := range a.Sources {
			a.Status.Sources = append(a.Status.Sources, v1alpha1.Source{
				Machine: s.Machine, UID: s.UID, Address: s.Address.String(), MAC: s.MAC,
			})
		}
	}
}

// findMembers finds the Machines of an attachment by its NodePools, sets the attachment's SourcesDiscovered
// condition when there is nothing to find, and notes whether a worker is a KubeVirt one.
func findMembers(a *Attachment, w *index, cidr netip.Prefix, reserved map[netip.Addr]bool) []member {
	pools := w.nodePools[a.hostedCluster]
	if len(pools) == 0 {
		a.sourcesMissing(v1alpha1.ReasonNoNodePools, fmt.Sprintf(
			"no NodePool in namespace %s names the HostedCluster %s", a.hostedCluster.Namespace, a.hostedCluster.Name))
		return nil
	}
	namespace := a.Object.ControlPlaneNamespace()
	var members []member
	var seen []string
	for _, pool := range pools {
		for _, machine := range w.machines[namespace][pool.Namespace+"/"+pool.Name] {
			m := member{machine: machine}
			for _, text := range machine.Addresses {
				address, err := netip.ParseAddr(text)
				if err != nil {
					continue // a host name
				}
				if cidr.Contains(address) && !reserved[address] {
					m.shown = append(m.shown, address)
				} else {
					seen = append(seen, text)
				}
			}
			// CAPK shows each address as an internal and an external one.
			slices.SortFunc(m.shown, netip.Addr.Compare)
			m.shown = slices.Compact(m.shown)
			members = append(members, m)
			if pool.Spec.Platform.Type == hypershift.KubeVirtPlatform {
				a.kubeVirt = true
			}
		}
	}
	switch {
	case len(members) == 0:
		a.sourcesMissing(v1alpha1.ReasonNoMachines, fmt.Sprintf(
			"no Machine in namespace %s carries the annotation %s of a NodePool of HostedCluster %s",
			namespace, hypershift.NodePoolAnnotation, a.hostedCluster))
	case len(seen) == 0:
		a.sourcesMissing(v1alpha1.ReasonNoAddresses, fmt.Sprintf("none of %d Machines in namespace %s shows an address yet", len(members), namespace))
	default:
		slices.Sort(seen)
		seen = slices.Compact(seen)
		a.sourcesMissing(v1alpha1.ReasonNoneInCIDR, fmt.Sprintf(
			"no address that the Machines in namespace %s show is a worker address of %s; seen: %s", namespace, cidr, abridge(seen)))
	}
	return members
}

// recall gives back to each Machine that shows no address of the VLAN those that it showed last,
// unless another Machine shows one of them, a live lease of another MAC holds it, or it is no worker address of the VLAN
// any more.
func recall(a *Attachment, members []member, w *index, shown map[netip.Addr]bool, live map[netip.Addr]string, isWorker func(netip.Addr) bool) {
	remembered := a.Object.Status.Sources
	if len(remembered) == 0 {
		return
	}
	type identity struct{ name, uid string }
	silent := map[identity]bool{}
	for _, m := range members {
		if len(m.shown) == 0 {
			silent[identity{m.machine.Name, m.machine.UID}] = true
		}
	}
	var macs map[string][]string
	for _, r := range remembered {
		address, err := netip.ParseAddr(r.Address)
		if err != nil || !silent[identity{r.Machine, r.UID}] || shown[address] || !isWorker(address) {
			continue
		}
		mac := normalizeMAC(r.MAC)
		if holder := live[address]; holder != "" && holder != mac {
			if macs == nil {
				macs = macsByName(w.vmis[a.Object.ControlPlaneNamespace()])
			}
			// A virtual machine may come back with a new MAC (its own lease then).
			if !slices.Contains(macs[r.Machine], holder) {
				continue
			}
			mac = holder
		}
		a.Sources = append(a.Sources, Source{
			Claim:      Claim{address, a.Object.Name, r.Machine, r.UID},
			MAC:        mac,
			Remembered: true,
		})
	}
}

// dropDisputed takes every address that Machines of two attachments claim from all of them.
func dropDisputed(infra *Infra) {
	owner := map[netip.Addr]Claim{}
	infra.Disputed = map[netip.Addr][]Claim{}
	for _, a := range infra.Attachments {
		for _, s := range a.Sources {
			first, claimed := owner[s.Address]
			switch {
			case !claimed:
				owner[s.Address] = s.Claim
			case first.Attachment != s.Attachment && !sameMachine(infra, first, s.Claim):
				if infra.Disputed[s.Address] == nil {
					infra.Disputed[s.Address] = []Claim{first}
				}
				infra.Disputed[s.Address] = append(infra.Disputed[s.Address], s.Claim)
			}
		}
	}
	if len(infra.Disputed) == 0 {
		return
	}
	for _, a := range infra.Attachments {
		kept := a.Sources[:0]
		for _, s := range a.Sources {
			if infra.Disputed[s.Address] == nil {
				kept = append(kept, s)
			}
		}
		if len(kept) == 0 && len(a.Sources) > 0 {
			a.sourcesMissing(v1alpha1.ReasonDuplicateSourceIP, "every address of its Machines is also shown by a Machine of another attachment")
		}
		a.Sources = kept
	}
}

// sameMachine tells whether two claims are one Machine seen through two attachments of one control plane, which
// is a conflict of the attachments and not of the address.
func sameMachine(infra *Infra, x, y Claim) bool {
	if x.Machine != y.Machine || x.UID != y.UID {
		return false
	}
	namespace := func(name string) string {
		for _, a := range infra.Attachments {
			if a.Object.Name == name {
				return a.Object.ControlPlaneNamespace()
			}
		}
		return ""
	}
	return namespace(x.Attachment) == namespace(y.Attachment)
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

func lastMACs(remembered []v1alpha1.Source) map[Claim]string {
	macs := make(map[Claim]string, len(remembered))
	for _, r := range remembered {
		if address, err := netip.ParseAddr(r.Address); err == nil {
			macs[Claim{Address: address, Machine: r.Machine, UID: r.UID}] = normalizeMAC(r.MAC)
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
