package leases

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// Put implements dhcpserver.Store.
func (l *Store) Put(ctx context.Context, leases []dhcpserver.Lease) []error {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.look()
	errs := make([]error, len(leases))
	l.each(ctx, len(leases), func(ctx context.Context, i int) { errs[i] = l.put(ctx, &leases[i]) })

	var sent, renewed []dhcpserver.Lease
	var places []int // of renewed
	failed := false
	for i := range leases {
		switch {
		case errs[i] == nil:
			sent = append(sent, leases[i])
		case (errors.Is(errs[i], dhcpserver.ErrUnreachable) || isRefused(errs[i])) && l.knows(&leases[i]):
			if isRefused(errs[i]) {
				l.noteRefused(errs[i])
			}
			renewed, places = append(renewed, leases[i]), append(places, i)
		default:
			failed = true
		}
	}
	if len(renewed) > 0 {
		l.fallBehind()
		err := l.kept.putUnsent(renewed)
		for n, i := range places {
			if errs[i] = err; err == nil {
				l.renewedHere(&renewed[n])
			}
		}
		failed = failed || err != nil
	}
	l.noteSent(sent)
	if !failed {
		return nil
	}
	return errs
}

// each calls f for every number below n, several at a time, each with the time that one lease may take. Being told to stop does
// not end what has begun: it would not be known what became of it.
func (l *Store) each(ctx context.Context, n int, f func(ctx context.Context, i int)) {
	var group errgroup.Group
	group.SetLimit(leaseWriters)
	for i := range n {
		group.Go(func() error {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), leaseTimeout)
			defer cancel()
			f(ctx, i)
			return nil
		})
	}
	_ = group.Wait() // none fails
}

// Sure implements dhcpserver.SharedStore: the API has the lease that the server knows, and the watch says so.
func (l *Store) Sure(addr netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b, seen := l.base[addr], l.seen[addr]
	return l.away.IsZero() && b != nil && b.object != nil && seen != nil && !older(b.object, seen) &&
		leaseSpec(&b.lease) == leaseSpec(&b.stored)
}

// put writes one lease to the API.
func (l *Store) put(ctx context.Context, lease *dhcpserver.Lease) error {
	if held := l.heldFromOthers(lease); held != nil {
		return &dhcpserver.ConflictError{Current: *held}
	}
	if _, away := l.Away(); away {
		return fmt.Errorf("DHCPLease %s: %w: no answer of the API", l.name(lease.Address), dhcpserver.ErrUnreachable)
	}
	err := l.write(ctx, lease, true, func(there *dhcpserver.Lease) bool {
		// The client itself may have renewed with another pod. What it does now is newer.
		return there.MAC == lease.MAC && (there.State == dhcpserver.StateActive || there.State == dhcpserver.StateReleased)
	})
	if isAway(err) {
		return fmt.Errorf("DHCPLease %s: %w: %w", l.name(lease.Address), dhcpserver.ErrUnreachable, err)
	}
	return err
}

// write creates or replaces the object of a lease, if that is as it was when it was last looked at or mayReplace says so
// of what it is now. Else it is a conflict; adopt says that the server hears of it.
func (l *Store) write(ctx context.Context, lease *dhcpserver.Lease, adopt bool, mayReplace func(there *dhcpserver.Lease) bool) error {
	for range 3 {
		object, err := l.object(lease)
		if err != nil {
			return err
		}
		if object.ResourceVersion == "" {
			err = l.client.Create(ctx, object, client.FieldOwner(fieldOwner))
		} else {
			err = l.client.Update(ctx, object, client.FieldOwner(fieldOwner))
		}
		switch {
		case err == nil:
			object.ManagedFields = nil
			l.setStored(lease, object)
			return nil
		case !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err):
			return fmt.Errorf("DHCPLease %s: %w", object.Name, err)
		}
		if err := l.lookAgain(ctx, lease.Address, adopt, mayReplace); err != nil {
			return err
		}
	}
	return fmt.Errorf("DHCPLease %s: changes while it is written", l.name(lease.Address))
}

// object is what is written for a lease. Labels and annotations of others stay.
func (l *Store) object(lease *dhcpserver.Lease) (*v1alpha1.DHCPLease, error) {
	l.mu.Lock()
	b := l.base[lease.Address]
	l.mu.Unlock()
	object := &v1alpha1.DHCPLease{}
	if b != nil && b.object != nil {
		object = b.object.DeepCopy()
	}
	object.Namespace, object.Name = l.cfg.Infra.Namespace, l.name(lease.Address)
	if object.Labels == nil {
		object.Labels = map[string]string{}
	}
	for key, value := range l.labels() {
		object.Labels[key] = value
	}
	object.Spec = leaseSpec(lease)
	if owner := l.owner(); owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if len(object.OwnerReferences) == 0 {
		return nil, fmt.Errorf("DHCPLease %s: it is not known yet whose it is: the Infra has no DHCPServer", object.Name)
	}
	return object, nil
}

// owner is the Infra, known by the child that it controls; nil: not known.
func (l *Store) owner() *metav1.OwnerReference {
	if child := l.cfg.Child(); child != nil {
		return v1alpha1.OwnerOf(child)
	}
	return nil
}

// lookAgain finds out what the API has instead of what was expected. It is a conflict if that is somebody else's. What the
// server does not hear of stays unexpected.
func (l *Store) lookAgain(ctx context.Context, addr netip.Addr, adopt bool, mayReplace func(there *dhcpserver.Lease) bool) error {
	object, err := l.fetch(ctx, addr)
	if err != nil {
		return fmt.Errorf("DHCPLease %s: %w", l.name(addr), err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	found := &baseLease{}
	if before := l.base[addr]; before != nil {
		*found = *before
	}
	if object == nil {
		found.object, found.stored = nil, dhcpserver.Lease{}
		l.base[addr] = found
		return nil // deleted by hand: put back
	}
	object.ManagedFields = nil
	there, ok := l.mine(object)
	if !ok {
		there = dhcpserver.Lease{Address: addr, State: dhcpserver.StateDamaged}
	}
	asExpected := found.stored.Address.IsValid() && leaseSpec(&there) == leaseSpec(&found.stored)
	found.object, found.stored = object, there
	if asExpected || mayReplace(&there) {
		l.base[addr] = found
		return nil
	}
	if adopt {
		found.lease = there
		l.base[addr] = found
		l.metrics.conflicts.Inc()
	}
	return &dhcpserver.ConflictError{Current: there}
}

// setStored notes what the API has.
func (l *Store) setStored(lease *dhcpserver.Lease, object *v1alpha1.DHCPLease) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.base[lease.Address] = &baseLease{lease: *lease, stored: *lease, object: object}
}

// noteSent keeps what the API has for a start without it. That this fails takes nothing from the client.
func (l *Store) noteSent(leases []dhcpserver.Lease) {
	if len(leases) == 0 {
		return
	}
	l.mu.Lock()
	var late []dhcpserver.Lease
	for _, lease := range leases {
		if _, unsent := l.unsent[lease.Address]; unsent {
			delete(l.unsent, lease.Address)
			late = append(late, lease)
		}
	}
	l.caughtUp()
	taken := l.refused && len(l.unsent) == 0
	if taken {
		l.refused = false
	}
	l.mu.Unlock()
	if taken {
		l.cfg.Log.Info("the API takes DHCP leases again, and has all renewals")
	}
	l.kept.see(leases...)
	l.kept.save()
	l.kept.removeUnsent(late)
}

// knows tells whether a lease renews what this process knows as the client's own.
func (l *Store) knows(lease *dhcpserver.Lease) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.base[lease.Address]
	return b != nil && lease.State == dhcpserver.StateActive && b.lease.MAC == lease.MAC && l.live(&b.lease, l.cfg.Clock())
}

// renewedHere notes a renewal that the API does not have yet.
func (l *Store) renewedHere(lease *dhcpserver.Lease) {
	l.mu.Lock()
	l.base[lease.Address].lease = *lease
	l.unsent[lease.Address] = *lease
	l.mu.Unlock()
	l.metrics.renewedHere.Inc()
}

// Delete implements dhcpserver.Store.
func (l *Store) Delete(ctx context.Context, leases []dhcpserver.Lease) []error {
	l.writing.Lock()
	defer l.writing.Unlock()
	errs := make([]error, len(leases))
	l.each(ctx, len(leases), func(ctx context.Context, i int) {
		if errs[i] = l.delete(ctx, leases[i].Address); isAway(errs[i]) {
			errs[i] = fmt.Errorf("%w: %w", dhcpserver.ErrUnreachable, errs[i])
		}
	})
	var gone []dhcpserver.Lease
	for i := range leases {
		if errs[i] == nil {
			gone = append(gone, leases[i])
		}
	}
	l.mu.Lock()
	for _, lease := range gone {
		delete(l.base, lease.Address)
	}
	l.mu.Unlock()
	for _, lease := range gone {
		l.kept.drop(lease.Address)
	}
	l.kept.save()
	l.forgetUnsent(gone)
	if len(gone) == len(leases) {
		return nil
	}
	return errs
}

// delete takes the object of one lease away, if it is what it was when it was last looked at.
func (l *Store) delete(ctx context.Context, addr netip.Addr) error {
	for range 3 {
		l.mu.Lock()
		b := l.base[addr]
		l.mu.Unlock()
		if b == nil || b.object == nil {
			if b == nil || !b.stored.Address.IsValid() {
				return nil
			}
		} else {
			err := l.client.Delete(ctx, b.object, client.Preconditions{UID: &b.object.UID, ResourceVersion: &b.object.ResourceVersion})
			switch {
			case err == nil || apierrors.IsNotFound(err):
				return nil
			case !apierrors.IsConflict(err):
				return fmt.Errorf("DHCPLease %s: %w", l.name(addr), err)
			}
		}
		if err := l.lookAgain(ctx, addr, true, func(*dhcpserver.Lease) bool { return false }); err != nil {
			return err
		}
	}
	return fmt.Errorf("DHCPLease %s: changes while it is deleted", l.name(addr))
}
