package hub

import (
	"net/netip"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/leases"
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
	lease := leases.Read(object)
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
