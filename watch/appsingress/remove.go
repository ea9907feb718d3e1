package appsingress

import (
	"context"
	"slices"
	"strings"

	"github.com/densityops/oooi/api/v1alpha1"
)

// remove takes away what was made for the attachment, by its labels, in the order in which nothing is announced that leads
// nowhere: the Service, then the advertisement and the pool, then what installed MetalLB. A problem says what it waits for. What
// others need by now stays, and is in left although the removal is done. An operator that OLM installed stays, too: only its
// Subscription was ours.
func (l *look) remove(ctx context.Context) (left []string, err error) {
	if _, err := l.readOurs(ctx, services); err != nil {
		return nil, err
	}
	l.service, l.serviceRead = l.find(services, l.wanted.Service.Namespace, l.wanted.Service.Name), true
	if _, err := l.readPools(ctx); err != nil {
		return nil, err
	}
	for _, k := range []kind{l2Advertisements, metalLBs, subscriptions, operatorGroups, namespaces} {
		if _, err := l.readOurs(ctx, k); err != nil {
			return nil, err
		}
	}
	steps := [][]kind{{services}, {l2Advertisements, pools}, {metalLBs}, {subscriptions, operatorGroups}}
	if l.shared {
		steps = steps[:2]
	}
	for _, step := range steps {
		if len(l.names(step...)) == 0 {
			continue
		}
		for _, k := range step {
			for _, object := range l.ours[k] {
				if err := l.hosted.remove(ctx, k, object); err != nil {
					return l.names(removable...), l.refusedRemoval(err)
				}
			}
		}
		p := pending(v1alpha1.ReasonRemoving, "waits until %s is gone from the hosted cluster", strings.Join(l.names(step...), " and "))
		p.soon = true
		return l.names(removable...), p
	}
	return l.names(metalLBs, subscriptions, operatorGroups, namespaces), nil
}

// removable are the kinds that are made, in the order in which they are named.
var removable = []kind{services, l2Advertisements, pools, metalLBs, subscriptions, operatorGroups, namespaces}

// refusedRemoval is what a deletion that failed means.
func (l *look) refusedRemoval(err error) error {
	if isAccess(err) || !isRequest(err) {
		return err
	}
	return degraded(v1alpha1.ReasonRemoving, "the hosted cluster refuses to take it away: %s", cut(err.Error()))
}

// names are those of the objects of ours.
func (l *look) names(kinds ...kind) []string {
	var names []string
	for _, k := range kinds {
		var of []string
		for _, object := range l.ours[k] {
			of = append(of, k.of(object))
		}
		slices.Sort(of)
		names = append(names, of...)
	}
	return names
}

// mayBeThere names what may be in a hosted cluster that was never asked.
func (w wanted) mayBeThere() []string {
	names := []string{services.String(w.Service.Namespace, w.Service.Name)}
	if w.ownPool() {
		names = append(names, l2Advertisements.String(w.MetalLB.Namespace, w.MetalLB.L2AdvertisementName), pools.String(w.MetalLB.Namespace, w.MetalLB.AddressPoolName))
	}
	return names
}
