package leases

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// leaseSpec writes a lease as a DHCPLease has it.
func leaseSpec(l *dhcpserver.Lease) v1alpha1.DHCPLeaseSpec {
	id, _ := l.ClientID.MarshalText() // never fails
	return v1alpha1.DHCPLeaseSpec{
		Address: l.Address.String(), MAC: l.MAC.String(), ClientID: string(id), Hostname: l.Hostname,
		Start: l.Start.UTC().Format(time.RFC3339Nano), Expires: l.Expires.UTC().Format(time.RFC3339Nano),
		State: v1alpha1.DHCPLeaseState(l.State),
	}
}

// Read reads a DHCPLease. One that a newer version of the definition lets be what this one does not know is damaged:
// only its address counts. One without an address is the zero Lease.
func Read(object *v1alpha1.DHCPLease) dhcpserver.Lease {
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

// older compares the versions of two states of one object. A version that cannot be compared is not older.
func older(a, b *v1alpha1.DHCPLease) bool {
	order, err := resourceversion.CompareResourceVersion(a.ResourceVersion, b.ResourceVersion)
	return err == nil && order < 0
}
