package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"golang.org/x/sync/errgroup"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/xds"
)

// Role is one kind of server.
type Role string

// The roles of a serving process.
const (
	RoleXDS  Role = "xds"
	RoleDNS  Role = "dns"
	RoleDHCP Role = "dhcp"
)

// Children are what one Infra's servers are made from. A nil child is not served; a
// Refused one stays as it is.
type Children struct {
	// Infra as "namespace/name".
	Infra   string
	DHCP    *v1alpha1.DHCPServer
	DNS     *v1alpha1.DNSServer
	Proxy   *v1alpha1.ProxyServer
	Refused map[v1alpha1.Component]bool
}

// Config is what a Server needs.
type Config struct {
	Log *slog.Logger
	// Roles that this process has.
	Roles []Role
	// XDSListen is the address of the xDS server.
	XDSListen string
	// StateDir holds the leases.
	StateDir string
	// Interfaces are the VLAN interfaces by Infra ("namespace/name"); the key "" is for the only one.
	Interfaces map[string]string
	// ClaimAddresses puts the server addresses on the VLAN interface.
	ClaimAddresses bool
	// PodNetworks may ask the DNS servers besides the VLANs.
	PodNetworks []netip.Prefix
	// ProxyBindAny lets Envoy listen on all its addresses instead of the proxy's server address.
	ProxyBindAny bool
	// PortOffset is added to the ports of the DNS and DHCP servers and of Envoy's listeners.
	PortOffset int
	// Shared is set where several processes serve the VLAN of one Infra; nil: this one is alone on its VLANs.
	Shared *Shared
	// LeasesChanged is called after a lease was given or has gone; it must not block.
	LeasesChanged func()
}

// Server runs the servers of all Infras.
type Server struct {
	cfg    Config
	xds    *xds.Server
	leases *dhcpserver.Bolt
	// leasesProblem is why there are none to work with: DHCP is not served then.
	leasesProblem error
	// envoy is asked whether it is ready where this process shares a VLAN.
	envoy envoyWatch
	// metrics of the xDS server; each Infra has a registry of its own.
	metrics *prometheus.Registry

	first     chan struct{} // closed by the first Apply
	firstOnce sync.Once

	mu         sync.Mutex
	publishers map[string]*publisher
	stopping   map[string]<-chan struct{} // of Infras that have gone: closed when their servers have stopped
	ctx        context.Context            // of Run; nil before
	running    sync.WaitGroup
	xdsReady   bool
}

// New opens the leases. A lease file that cannot be opened takes DHCP out of service, not the other servers. Close the
// Server when Run has returned.
func New(cfg Config) (*Server, error) {
	s := &Server{
		cfg:        cfg,
		metrics:    prometheus.NewRegistry(),
		first:      make(chan struct{}),
		publishers: map[string]*publisher{},
		stopping:   map[string]<-chan struct{}{},
	}
	s.xds = xds.NewServer(cfg.Log.With("server", "xds"), s.metrics)
	if cfg.Shared != nil {
		s.envoy.admin = cfg.Shared.EnvoyAdmin
		return s, nil
	}
	if s.has(RoleDHCP) {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("state folder %s: %w: choose another one with --state-dir", cfg.StateDir, err)
		}
		s.leases, s.leasesProblem = dhcpserver.OpenBolt(filepath.Join(cfg.StateDir, "leases.db"))
		if s.leasesProblem != nil {
			cfg.Log.Error("DHCP is not served, the other servers are", "error", s.leasesProblem)
		}
	}
	return s, nil
}

// Close closes the leases.
func (s *Server) Close() error {
	if s.leases == nil {
		return nil
	}
	return s.leases.Close()
}

func (s *Server) has(role Role) bool { return slices.Contains(s.cfg.Roles, role) }

// Apply hands on the complete set of children: an Infra that is not in it is no longer served. It returns at
// once.
func (s *Server) Apply(all []Children) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gone := maps.Clone(s.publishers)
	for _, c := range all {
		delete(gone, c.Infra)
		p := s.publishers[c.Infra]
		if p == nil {
			p = newPublisher(s, c.Infra)
			p.after = s.stopping[c.Infra]
			delete(s.stopping, c.Infra)
			s.publishers[c.Infra] = p
			s.start(p)
		}
		p.publish(c)
	}
	for infra, p := range gone {
		p.stop()
		delete(s.publishers, infra)
		if s.ctx != nil { // else it never ran
			s.stopping[infra] = p.done
		}
	}
	s.firstOnce.Do(func() { close(s.first) })
}

// start runs a publisher once Run has begun. The lock is held.
func (s *Server) start(p *publisher) {
	if s.ctx == nil {
		return
	}
	s.running.Go(func() { p.run(s.ctx) })
}

// Run serves until ctx ends, and returns when everything has stopped.
func (s *Server) Run(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-s.first:
	}
	group, ctx := errgroup.WithContext(ctx)
	s.mu.Lock()
	s.ctx = ctx
	for _, p := range s.publishers {
		s.start(p)
	}
	s.mu.Unlock()
	if s.has(RoleXDS) {
		group.Go(func() error { return s.serveXDS(ctx) })
	}
	if s.envoy.admin != "" {
		group.Go(func() error { return s.envoy.run(ctx) })
	}
	group.Go(func() error {
		<-ctx.Done()
		s.running.Wait()
		return nil
	})
	return group.Wait()
}

func (s *Server) serveXDS(ctx context.Context) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", s.cfg.XDSListen)
	if err != nil {
		return fmt.Errorf("xDS server: %w: choose another address with --xds-listen", err)
	}
	s.mu.Lock()
	s.xdsReady = true
	s.mu.Unlock()
	s.cfg.Log.Info("xDS server listens", "address", l.Addr().String())
	return s.xds.Serve(ctx, l)
}

// Lease is a lease of one Infra.
type Lease struct {
	// Infra as "namespace/name".
	Infra string `json:"infra"`
	dhcpserver.Lease
}

// Leases lists the leases of every Infra, in order of Infra and address.
func (s *Server) Leases() []Lease {
	var leases []Lease
	for _, p := range s.sorted() {
		for _, l := range p.leases() {
			leases = append(leases, Lease{Infra: p.infra, Lease: l})
		}
	}
	return leases
}

// LeasesOf lists the leases of one Infra, also of one that is not served yet: they are read from the state folder
// then, so that the first plan after a start knows them.
func (s *Server) LeasesOf(ctx context.Context, infra string) ([]dhcpserver.Lease, error) {
	s.mu.Lock()
	p := s.publishers[infra]
	s.mu.Unlock()
	if p != nil && p.dhcp.current() != nil {
		return p.leases(), nil
	}
	if s.leases == nil {
		return nil, nil
	}
	return s.leases.Infra(infra).Load(ctx)
}

// InfraState is what really serves of one Infra.
type InfraState struct {
	// Infra as "namespace/name".
	Infra string `json:"infra"`
	// DHCP, DNS and Proxy say whether the server serves; nil: it is not asked for.
	DHCP  *ComponentState `json:"dhcp,omitempty"`
	DNS   *ComponentState `json:"dns,omitempty"`
	Proxy *ComponentState `json:"proxy,omitempty"`
	// ProxyVersion is the version of the current routes, ProxyGeneration that of the ProxyServer that they were made from.
	ProxyVersion    string `json:"proxyVersion,omitempty"`
	ProxyGeneration int64  `json:"proxyGeneration,omitempty"`
	// Refused is why the newest routes are not served.
	Refused string `json:"refused,omitempty"`
	// VLAN is this process's part in holding the server addresses; nil: it shares the VLAN with nobody.
	VLAN *VLANState `json:"vlan,omitempty"`
	// Envoys that are connected.
	Envoys []v1alpha1.EnvoyStatus `json:"envoys,omitempty"`
}

// ComponentState is whether one server serves.
type ComponentState struct {
	Ready bool `json:"ready"`
	// Message says what it waits for.
	Message string `json:"message,omitempty"`
}

// State says what really serves, in order of Infra.
func (s *Server) State() []InfraState {
	states := []InfraState{}
	for _, p := range s.sorted() {
		states = append(states, p.state())
	}
	return states
}

// Ready is true when everything that was asked for listens; Envoy is its own master. A process that shares its VLAN is ready
// when it could be the holder, and Envoy with it.
func (s *Server) Ready() error {
	select {
	case <-s.first:
	default:
		return errors.New("waiting for the first complete set of objects")
	}
	s.mu.Lock()
	xdsReady := s.xdsReady || !s.has(RoleXDS)
	s.mu.Unlock()
	if !xdsReady {
		return errors.New("xDS server does not listen yet")
	}
	var waiting []string
	for _, p := range s.sorted() {
		if !p.settled() {
			waiting = append(waiting, p.infra+": first publication under way")
		}
		if s.cfg.Shared != nil {
			if err := p.hot(); err != nil {
				waiting = append(waiting, p.infra+": "+err.Error())
			}
			continue
		}
		st := p.state()
		for name, c := range map[string]*ComponentState{"dhcp": st.DHCP, "dns": st.DNS} {
			if c != nil && !c.Ready {
				waiting = append(waiting, fmt.Sprintf("%s: %s: %s", p.infra, name, c.Message))
			}
		}
	}
	if len(waiting) > 0 {
		slices.Sort(waiting)
		return errors.New(strings.Join(waiting, "; "))
	}
	return nil
}

// Gather collects the metrics of every server; those of an Infra go with it. It implements prometheus.Gatherer.
func (s *Server) Gather() ([]*dto.MetricFamily, error) {
	gatherers := prometheus.Gatherers{s.metrics}
	for _, p := range s.sorted() {
		gatherers = append(gatherers, p.gatherers()...)
	}
	return gatherers.Gather()
}

func (s *Server) sorted() []*publisher {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.publishers), func(a, b *publisher) int { return strings.Compare(a.infra, b.infra) })
}
