package leases

import (
	"context"
	"fmt"
	"net/netip"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// Load implements dhcpserver.Store. While the API is away it gives what the watch has seen, or what the state
// folder has; if that is nothing, it fails.
func (l *Store) Load(ctx context.Context) ([]dhcpserver.Lease, error) {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.look()
	objects, err := l.listSoon(ctx)
	switch {
	case err == nil:
		l.back()
		l.setBase(objects)
		l.kept.replace(l.baseLeases())
		l.keepState(true)
	case isRefused(err):
		l.noteRefused(err)
		return l.loadKnown(err)
	case isAway(err):
		return l.loadKnown(err)
	default:
		return nil, fmt.Errorf("DHCPLeases of Infra %s: %w", l.cfg.Infra, err)
	}
	return l.baseLeases(), nil
}

// loadKnown loads what is known without the API, which has failed.
func (l *Store) loadKnown(failed error) ([]dhcpserver.Lease, error) {
	switch {
	case l.watch.HasSynced():
		l.setBase(l.seenObjects())
	case l.complete:
		l.setBase(nil)
	default:
		return nil, fmt.Errorf("DHCPLeases of Infra %s: %w, and the state folder has none from before", l.cfg.Infra, failed)
	}
	return l.baseLeases(), nil
}

func (l *Store) baseLeases() []dhcpserver.Lease {
	l.mu.Lock()
	defer l.mu.Unlock()
	leases := make([]dhcpserver.Lease, 0, len(l.base))
	for _, b := range l.base {
		leases = append(leases, b.lease)
	}
	return leases
}

// listSoon asks for all leases, and fails at once when this process has found the API away already: a pod that takes over
// must not wait for it.
func (l *Store) listSoon(ctx context.Context) ([]*v1alpha1.DHCPLease, error) {
	l.mu.Lock()
	missed := l.missed
	l.mu.Unlock()
	if missed {
		return nil, dhcpserver.ErrUnreachable
	}
	ctx, cancel := context.WithTimeout(ctx, leaseTimeout)
	defer cancel()
	return l.list(ctx)
}

// setBase starts from the leases that the API has (or, without objects, those that the state folder has), and adds what
// only this pod knows: renewals that the API does not have yet, and live leases whose objects somebody has deleted.
func (l *Store) setBase(objects []*v1alpha1.DHCPLease) {
	now := l.cfg.Clock()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base = make(map[netip.Addr]*baseLease, len(objects))
	for _, o := range objects {
		if lease, ok := l.mine(o); ok {
			l.base[lease.Address] = &baseLease{lease: lease, stored: lease, object: o}
		}
	}
	for addr, lease := range l.kept.leases() {
		if l.base[addr] == nil && (objects == nil || l.live(&lease, now)) {
			l.base[addr] = &baseLease{lease: lease}
			if objects == nil {
				l.base[addr].stored = lease
			}
		}
	}
	for addr, renewed := range l.unsent {
		b := l.base[addr]
		switch {
		case b == nil && l.live(&renewed, now):
			l.base[addr] = &baseLease{lease: renewed}
		case b != nil && renews(&b.lease, &renewed):
			b.lease = renewed
		}
	}
}

// renews tells whether a lease is the same client's, and newer.
func renews(old, renewed *dhcpserver.Lease) bool {
	return old.State == dhcpserver.StateActive && old.MAC == renewed.MAC && old.Expires.Before(renewed.Expires)
}

// mine reads an object; false: it is none of this Infra's leases.
func (l *Store) mine(o *v1alpha1.DHCPLease) (dhcpserver.Lease, bool) {
	lease := Read(o)
	if !lease.Address.IsValid() || o.Name != l.name(lease.Address) {
		return dhcpserver.Lease{}, false
	}
	return lease, true
}

func (l *Store) name(addr netip.Addr) string {
	return v1alpha1.DHCPLeaseName(l.cfg.Infra.Name, addr.String())
}

func (l *Store) labels() map[string]string {
	return map[string]string{v1alpha1.LabelInfra: v1alpha1.LabelValue(l.cfg.Infra.Name)}
}

// all selects the leases of the Infra.
func (l *Store) all(options ...client.ListOption) []client.ListOption {
	return append(options, client.InNamespace(l.cfg.Infra.Namespace), client.MatchingLabels(l.labels()))
}

// list asks the API for all leases of the Infra as they are now.
func (l *Store) list(ctx context.Context) ([]*v1alpha1.DHCPLease, error) {
	var all v1alpha1.DHCPLeaseList
	if err := l.client.List(ctx, &all, l.all()...); err != nil {
		return nil, err
	}
	objects := make([]*v1alpha1.DHCPLease, len(all.Items))
	for i := range all.Items {
		objects[i] = &all.Items[i]
		objects[i].ManagedFields = nil
	}
	return objects, nil
}

// fetch asks the API for one lease, whatever its labels; nil: there is none.
func (l *Store) fetch(ctx context.Context, addr netip.Addr) (*v1alpha1.DHCPLease, error) {
	var all v1alpha1.DHCPLeaseList
	if err := l.client.List(ctx, &all, client.InNamespace(l.cfg.Infra.Namespace), client.MatchingFields{"metadata.name": l.name(addr)}); err != nil {
		return nil, err
	}
	if len(all.Items) == 0 {
		return nil, nil
	}
	return &all.Items[0], nil
}
