package main

import (
	"context"
	"crypto/ed25519"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch/leases"
	"github.com/densityops/oooi/watch/serving"
)

// sharedVLAN is what a process has that shares a VLAN with others: one of them at a time is the holder of the server addresses.
type sharedVLAN struct {
	lease  *serving.VLANLease
	leases *leases.Store
	key    ed25519.PrivateKey
	mark   *serving.PodMark // nil: this process does not run in a pod
	// changed has a token when this process has become the holder, or is it no longer.
	changed chan struct{}
}

// shareVLAN prepares for sharing the VLAN of the Infra that --infra names.
func (c *cluster) shareVLAN(config *rest.Config) (*sharedVLAN, error) {
	infra := splitKey(c.settings.infra)
	v := &sharedVLAN{changed: make(chan struct{}, 1)}
	var err error
	if v.key, err = holder.LoadKey(c.settings.stateDir); err != nil {
		return nil, err
	}
	if v.lease, err = serving.NewVLANLease(serving.VLANLeaseConfig{
		REST: config, Log: c.log.With("part", "vlan lease"), Infra: infra, Identity: c.identity, Owner: c.owner,
		Annotate: func(annotations map[string]string) { v.leases.Annotate(annotations) },
		Learn:    func(annotations map[string]string) { v.leases.Learn(annotations) },
	}); err != nil {
		return nil, err
	}
	if pod := ownPod(); pod.Name != "" {
		if v.mark, err = serving.NewPodMark(config, c.log.With("part", "pod"), pod); err != nil {
			return nil, err
		}
	}
	// Last: it opens the state folder.
	v.leases, err = leases.New(leases.Config{
		REST: config, Log: c.log.With("part", "leases"), Infra: infra, Child: c.dhcp, StateDir: c.settings.stateDir, Clock: time.Now,
		Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"infra": c.settings.infra}, c.metrics),
	})
	return v, err
}

// shared is what the servers need of it.
func (v *sharedVLAN) shared(identity, envoyAdmin string) *serve.Shared {
	return &serve.Shared{
		Identity: identity, Key: v.key, Lock: v.lease, Leases: v.leases, EnvoyAdmin: envoyAdmin,
		Changed: func() {
			select {
			case v.changed <- struct{}{}:
			default:
			}
		},
	}
}

// run keeps what the pods of a VLAN have in common, until ctx ends.
func (v *sharedVLAN) run(ctx context.Context, group *errgroup.Group, holding func() bool) {
	group.Go(func() error { return v.lease.Run(ctx) })
	group.Go(func() error { return v.leases.Run(ctx) })
	if v.mark != nil {
		group.Go(func() error { return v.mark.Run(ctx, holding, v.others, v.changed) })
	}
}

// others are the names of the other pods.
func (v *sharedVLAN) others() []string {
	_, peers, _ := v.lease.Seen()
	var names []string
	for _, p := range peers {
		names = append(names, p.Name)
	}
	return names
}

// dhcp is the DHCPServer that is served; nil: none, or not known yet.
func (c *cluster) dhcp() *v1alpha1.DHCPServer {
	if k := c.only(); k != nil {
		return k.DHCP
	}
	return nil
}

// owner is the Infra that is served, as its children name it; nil: not known yet.
func (c *cluster) owner() *metav1.OwnerReference {
	if k := c.only(); k != nil {
		return k.Owner()
	}
	return nil
}

// only is the children of the Infra that --infra names; nil: not known yet.
func (c *cluster) only() *serving.Children {
	children := c.children.Load()
	if children == nil {
		return nil
	}
	for _, k := range *children {
		if k.Infra.String() == c.settings.infra {
			return &k
		}
	}
	return nil
}

// holding tells whether this process has the server addresses.
func (c *cluster) holding() bool {
	for _, st := range c.server.State() {
		if st.VLAN != nil && st.VLAN.Holding {
			return true
		}
	}
	return false
}
