package appsingress

import (
	"context"
	"slices"
	"strings"

	"github.com/densityops/oooi/api/v1alpha1"
)

// remove takes away what was made for the attachment, by its labels, in the order in which nothing is announced that leads
// nowhere: the Service, then the advertisement and the pool, then what installed MetalLB. A problem says what it waits for. A kind
// that cannot be listed holds up only what comes after it. What others need by now stays, and is in left although the removal is done. An
// operator that OLM installed stays, too: only its Subscription was ours.
func (l *look) remove(ctx context.Context) (left []string, err error) {
	for _, step := range [][]kind{{services}, {l2Advertisements, pools}, {metalLBs}, {subscriptions, operatorGroups}, {namespaces}} {
		for _, k := range step {
			read := l.readOurs
			if k == pools {
				read = func(ctx context.Context, _ kind) (bool, error) { return l.readPools(ctx) }
			}
			if _, err := read(ctx, k); err != nil {
				return nil, err
			}
		}
		if step[0] == services {
			l.service, l.serviceRead = l.find(services, l.wanted.Service.Namespace, l.wanted.Service.Name), true
		}
		stays := step[0] == namespaces || l.shared && step[0] != services && step[0] != l2Advertisements
		if stays || len(l.names(step...)) == 0 {
			continue
		}
		for _, k := range step {
			for _, object := range l.ours[k] {
				if err := l.hosted.remove(ctx, k, object); err != nil {
					return nil, l.refusedRemoval(err)
				}
			}
		}
		p := pending(v1alpha1.ReasonRemoving, "waits until %s is gone from the hosted cluster", some(l.names(step...)))
		p.soon = true
		return nil, p
	}
	return l.names(metalLBs, subscriptions, operatorGroups, namespaces), nil
}

// known are the names of what is left, as far as this look came: those of before, of the kinds that it did not read.
func (l *look) known(before []string) []string {
	left := []string{}
	for _, k := range removable {
		if l.read[k] {
			left = append(left, l.names(k)...)
			continue
		}
		for _, name := range before {
			if strings.HasPrefix(name, k.kind+" ") {
				left = append(left, name)
			}
		}
	}
	return left
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
	if w.MetalLB.Install {
		names = append(names, metalLBs.String(w.operatorNamespace(), instanceName), subscriptions.String(w.operatorNamespace(), operatorPackage))
	}
	return names
}
