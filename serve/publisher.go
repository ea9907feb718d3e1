package serve

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/dnsserver"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/xds"
)

// routePatience is how long a new name waits for Envoy to acknowledge its route.
const routePatience = 2 * time.Second

// publisher brings the children of one Infra to its servers, one set after the other.
type publisher struct {
	infra  string
	server *Server
	log    *slog.Logger

	// changed has room for one: the newest children wait in next.
	changed chan struct{}
	quit    chan struct{}
	done    chan struct{} // closed when run has returned
	// after is the done of an earlier publisher of the same Infra, which must be gone first.
	after <-chan struct{}

	mu        sync.Mutex
	next      *Children
	published bool
	proxy     *ComponentState
	// served is the ProxyServer whose routes are current.
	served *v1alpha1.ProxyServer

	dns       component[*dnsserver.Model, *dnsserver.Server]
	dhcp      component[*dhcpserver.Model, *dhcpserver.Server]
	addresses component[holder.Claim, *claimer]
	// holder takes the place of addresses where several processes serve the VLAN.
	holder component[holder.Claim, *holder.Holder]
	// Owned by run.
	names   *v1alpha1.DNSServerSpec // what the DNS server was told last
	waiting time.Time               // since when new names wait for Envoy; zero: none does
	term    int64                   // of the holder, that the DHCP server was started in
}

func newPublisher(s *Server, infra string) *publisher {
	p := &publisher{
		infra:   infra,
		server:  s,
		log:     s.cfg.Log.With("infra", infra),
		changed: make(chan struct{}, 1),
		quit:    make(chan struct{}),
		done:    make(chan struct{}),
	}
	p.dns.log, p.dhcp.log, p.addresses.log = p.log.With("server", "dns"), p.log.With("server", "dhcp"), p.log.With("server", "vlan addresses")
	p.holder.log = p.addresses.log
	return p
}

// publish replaces the children to be published next.
func (p *publisher) publish(c Children) {
	p.mu.Lock()
	p.next = &c
	p.mu.Unlock()
	p.wake()
}

// wake makes run publish the newest children. It never blocks.
func (p *publisher) wake() {
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// stop ends the publisher; run returns when its servers have stopped.
func (p *publisher) stop() { close(p.quit) }

func (p *publisher) stopped() bool {
	select {
	case <-p.quit:
		return true
	default:
		return false
	}
}

func (p *publisher) run(ctx context.Context) {
	defer close(p.done)
	if p.after != nil {
		<-p.after
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.addresses.stop()
	defer p.dns.stop()
	defer p.dhcp.stop()
	defer p.holder.stop() // first: who follows waits for it
	for {
		select {
		case <-ctx.Done():
			// Envoy keeps what it has: a restart must not cut anybody off.
			return
		case <-p.quit:
			p.dns.stop()
			p.server.xds.Remove(p.infra)
			return
		case <-p.changed:
			if p.stopped() {
				continue // for quit: an Infra that has gone is not published again
			}
		}
		p.mu.Lock()
		c := p.next
		p.mu.Unlock()
		p.apply(ctx, c)
		p.mu.Lock()
		p.published = true
		p.mu.Unlock()
	}
}

// apply publishes in the order that the package promises. It is called again at once when newer children come
// while new names wait for their routes.
func (p *publisher) apply(ctx context.Context, children *Children) {
	consistent := *children
	consistent.DNS = routed(children.DNS, children.Proxy)
	c := &consistent
	p.applyAddresses(ctx, c)
	if p.server.has(RoleDHCP) && !c.Refused[v1alpha1.ComponentDHCP] {
		p.applyDHCP(ctx, c)
	}
	dns := p.server.has(RoleDNS) && !c.Refused[v1alpha1.ComponentDNS] && p.acceptsDNS(c.DNS)
	newNames := dns && c.DNS != nil
	if newNames && p.names != nil {
		var known *v1alpha1.DNSServerSpec
		known, newNames = withoutUnrouted(p.names, &c.DNS.Spec)
		first := *c.DNS
		first.Spec = *known
		p.applyDNS(ctx, &first)
	}
	if p.server.has(RoleXDS) && !c.Refused[v1alpha1.ComponentProxy] {
		if !p.applyProxy(c) {
			return // no new name without its route
		}
		if newNames && c.Proxy != nil && !p.waitForRoutes(ctx) {
			return
		}
	}
	p.waiting = time.Time{}
	if dns {
		p.applyDNS(ctx, c.DNS)
	}
}

// acceptsDNS refuses a child that cannot be served before any of its names is withdrawn.
func (p *publisher) acceptsDNS(child *v1alpha1.DNSServer) bool {
	if child == nil {
		return true
	}
	_, err := dnsserver.Build(child, dnsserver.Options{})
	if err != nil {
		p.dns.refuse(err)
	}
	return err == nil
}

// waitForRoutes waits until every connected Envoy has acknowledged the routes, for at most routePatience since
// the first name began to wait. It returns false when newer children came meanwhile.
func (p *publisher) waitForRoutes(ctx context.Context) bool {
	if p.waiting.IsZero() {
		p.waiting = time.Now()
	}
	ctx, cancel := context.WithDeadline(ctx, p.waiting.Add(routePatience))
	defer cancel()
	acknowledged := make(chan error, 1)
	go func() { acknowledged <- p.server.xds.WaitAcknowledged(ctx, p.infra) }()
	select {
	case err := <-acknowledged:
		if err != nil && ctx.Err() != nil {
			p.log.Warn("Envoy has not acknowledged the routes in time, names are published all the same", "patience", routePatience)
		}
		return true
	case <-p.quit:
		cancel()
		_ = <-acknowledged // the Infra has gone: its names are not published any more
		return false
	case <-p.changed:
		p.wake() // for run, which looks at the newest children
		cancel()
		_ = <-acknowledged // the newer children are waited for instead
		return false
	}
}

// applyProxy hands the routes to Envoy's control plane; false: they are refused.
func (p *publisher) applyProxy(c *Children) bool {
	if c.Proxy == nil {
		p.server.xds.Remove(p.infra)
		p.setProxy(nil)
		return true
	}
	snapshot, err := xds.Build(c.Proxy, xds.Options{AnyAddress: p.server.cfg.ProxyBindAny, PortOffset: p.server.cfg.PortOffset})
	if err != nil {
		p.log.Error("routes are refused, the last good ones stay", "error", err)
		p.setProxy(&ComponentState{Message: err.Error()})
		return false
	}
	p.server.xds.Apply(p.infra, snapshot)
	p.setProxy(&ComponentState{})
	p.mu.Lock()
	p.served = c.Proxy
	p.mu.Unlock()
	return true
}

func (p *publisher) setProxy(state *ComponentState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.proxy = state
}

// applyDNS tells the DNS server its names.
func (p *publisher) applyDNS(ctx context.Context, child *v1alpha1.DNSServer) {
	if child == nil {
		p.dns.stop()
		p.names = nil
		return
	}
	model, err := dnsserver.Build(child, dnsserver.Options{PodNetworks: p.server.cfg.PodNetworks})
	if err != nil {
		p.dns.refuse(err)
		return
	}
	p.names = &child.Spec
	address := offset(model.ServerAddr(), p.server.cfg.PortOffset)
	if p.server.cfg.Shared != nil {
		// The address comes and goes with the holder, and the Service of the VLAN leads to the pod's own.
		address = netip.AddrPortFrom(netip.IPv4Unspecified(), address.Port())
	}
	p.dns.apply(ctx, address, model, func(registry *prometheus.Registry) (*dnsserver.Server, error) {
		return dnsserver.NewServer(dnsserver.Config{Log: p.dns.log, Registerer: p.labelled(registry)})
	}, func(ctx context.Context, server *dnsserver.Server, ready func()) error {
		if err := p.awaitAddress(ctx, address.Addr()); err != nil {
			return err
		}
		return runDNS(ctx, server, address, ready)
	})
}

func (p *publisher) applyDHCP(ctx context.Context, c *Children) {
	if c.DHCP == nil {
		p.dhcp.stop()
		return
	}
	if p.server.cfg.Shared != nil {
		p.applySharedDHCP(ctx, c.DHCP)
		return
	}
	if p.server.leases == nil {
		p.dhcp.refuse(p.server.leasesProblem)
		return
	}
	model, err := dhcpserver.Build(c.DHCP)
	if err != nil {
		p.dhcp.refuse(err)
		return
	}
	server := netip.MustParseAddr(c.DHCP.Spec.NetworkConfig.ServerIP) // Build has read it
	address := offset(netip.AddrPortFrom(server, dhcpserver.ServerPort), p.server.cfg.PortOffset)
	p.dhcp.apply(ctx, address, model, func(registry *prometheus.Registry) (*dhcpserver.Server, error) {
		return dhcpserver.NewServer(dhcpserver.Config{
			Log:        p.dhcp.log,
			Registerer: p.labelled(registry),
			Store:      p.server.leases.Infra(p.infra),
			Changed:    p.server.cfg.LeasesChanged,
		})
	}, func(ctx context.Context, server *dhcpserver.Server, ready func()) error {
		if err := p.awaitAddress(ctx, address.Addr()); err != nil {
			return err
		}
		return p.runDHCP(ctx, server, address, ready)
	})
}

// labelled lets the servers of several Infras have the same metrics.
func (p *publisher) labelled(registry *prometheus.Registry) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"infra": p.infra}, registry)
}

func (p *publisher) gatherers() prometheus.Gatherers {
	var all prometheus.Gatherers
	for _, registry := range []*prometheus.Registry{p.dns.metrics(), p.dhcp.metrics(), p.holder.metrics()} {
		if registry != nil {
			all = append(all, registry)
		}
	}
	return all
}

func (p *publisher) leases() []dhcpserver.Lease {
	if server := p.dhcp.current(); server != nil {
		return server.Leases()
	}
	return nil
}

// settled is true once the first children have been published.
func (p *publisher) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.published
}

func (p *publisher) state() InfraState {
	st := InfraState{Infra: p.infra, DNS: p.dns.state(), DHCP: p.dhcp.state(), Envoys: p.server.xds.Status(p.infra)}
	if st.VLAN = p.vlan(); st.VLAN != nil {
		p.judgeShared(&st)
	}
	// A server whose address is not on the VLAN serves nobody there.
	if addresses := p.addresses.state(); addresses != nil && !addresses.Ready {
		for _, c := range []*ComponentState{st.DNS, st.DHCP} {
			if c != nil && c.Ready {
				c.Ready, c.Message = false, "addresses: "+addresses.Message
			}
		}
	}
	if server := p.dhcp.current(); server != nil && st.DHCP != nil && st.DHCP.Ready {
		if err := server.Problem(); err != nil {
			st.DHCP.Ready, st.DHCP.Message = false, err.Error()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.proxy == nil {
		return st
	}
	st.Proxy, st.Refused = &ComponentState{Message: p.proxy.Message}, p.proxy.Message
	if p.served != nil {
		st.ProxyVersion, st.ProxyGeneration = p.server.xds.Version(p.infra), p.served.Generation
	}
	if st.Proxy.Message == "" {
		*st.Proxy = proxyState(st.Envoys, p.server.xds.Version(p.infra))
	}
	return st
}

// proxyState is ready when every connected Envoy has acknowledged the current routes, and one is connected.
func proxyState(envoys []v1alpha1.EnvoyStatus, version string) ComponentState {
	if len(envoys) == 0 {
		return ComponentState{Message: "no Envoy is connected"}
	}
	for _, e := range envoys {
		switch {
		case e.Error != "":
			return ComponentState{Message: "Envoy " + e.Name + " refused the routes: " + e.Error}
		case e.Acknowledged != version:
			return ComponentState{Message: "Envoy " + e.Name + " has not acknowledged the routes yet"}
		}
	}
	return ComponentState{Ready: true}
}
