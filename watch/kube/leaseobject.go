package kube

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/watch/plan"
)

// liveLease is what the plan reads of a DHCPLease.
type liveLease struct {
	infra   string // the label: LabelValue of the Infra's name
	address netip.Addr
	mac     string
	state   v1alpha1.DHCPLeaseState
	start   string
	expires time.Time
}

func readLive(object *v1alpha1.DHCPLease) *liveLease {
	lease := readLease(object)
	return &liveLease{
		infra: object.Labels[v1alpha1.LabelInfra], address: lease.Address, mac: object.Spec.MAC,
		state: object.Spec.State, start: object.Spec.Start, expires: lease.Expires,
	}
}

// sameHold ignores renewals: they change nothing for the plan, and there are many.
func (l *liveLease) sameHold(renewed *liveLease) bool {
	return l.infra == renewed.infra && l.address == renewed.address && l.mac == renewed.mac && l.state == renewed.state && l.start == renewed.start
}

// liveLeases are the live leases of the Infras: a remembered address yields to that of another MAC (product rule 10).
func (w *world) liveLeases(infras []*v1alpha1.Infra, now time.Time) map[types.NamespacedName][]plan.Lease {
	type owner struct{ namespace, label string }
	byOwner := make(map[owner]types.NamespacedName, len(infras))
	for _, infra := range infras {
		byOwner[owner{infra.Namespace, v1alpha1.LabelValue(infra.Name)}] = types.NamespacedName{Namespace: infra.Namespace, Name: infra.Name}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	live := map[types.NamespacedName][]plan.Lease{}
	for key, l := range w.leases {
		infra, known := byOwner[owner{key.Namespace, l.infra}]
		if !known || l.state != v1alpha1.DHCPLeaseActive || !now.Before(l.expires) {
			continue
		}
		// Whose a lease is its name says: a label is written by whoever writes the object.
		if key.Name != v1alpha1.DHCPLeaseName(infra.Name, l.address.String()) {
			continue
		}
		live[infra] = append(live[infra], plan.Lease{Address: l.address, MAC: l.mac})
	}
	return live
}

// leaseSpec writes a lease as a DHCPLease has it.
func leaseSpec(l *dhcpserver.Lease) v1alpha1.DHCPLeaseSpec {
	id, _ := l.ClientID.MarshalText() // never fails
	return v1alpha1.DHCPLeaseSpec{
		Address: l.Address.String(), MAC: l.MAC.String(), ClientID: string(id), Hostname: l.Hostname,
		Start: l.Start.UTC().Format(time.RFC3339Nano), Expires: l.Expires.UTC().Format(time.RFC3339Nano),
		State: v1alpha1.DHCPLeaseState(l.State),
	}
}

// readLease reads a DHCPLease. One that a newer version of the definition lets be what this one does not know is damaged:
// only its address counts. One without an address is the zero Lease.
func readLease(object *v1alpha1.DHCPLease) dhcpserver.Lease {
	s := &object.Spec
	address, err := netip.ParseAddr(s.Address)
	if err != nil || !address.Is4() {
		return dhcpserver.Lease{}
	}
	damaged := dhcpserver.Lease{Address: address, State: dhcpserver.StateDamaged}
	lease := dhcpserver.Lease{Address: address, Hostname: s.Hostname, State: dhcpserver.State(s.State)}
	switch s.State {
	case v1alpha1.DHCPLeaseActive, v1alpha1.DHCPLeaseReleased, v1alpha1.DHCPLeaseDeclined:
	default:
		return damaged
	}
	if lease.MAC, err = dhcpserver.ParseMAC(s.MAC); err != nil {
		return damaged
	}
	if err := lease.ClientID.UnmarshalText([]byte(s.ClientID)); err != nil {
		return damaged
	}
	if lease.Start, err = time.Parse(time.RFC3339, s.Start); err != nil {
		return damaged
	}
	if lease.Expires, err = time.Parse(time.RFC3339, s.Expires); err != nil {
		return damaged
	}
	return lease
}
