package serve

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/holder"
)

// Shared is what a process needs that serves one VLAN together with others, of which one at a time is the holder: it
// has the server addresses and answers DHCP. DNS and Envoy serve in each, so that the next holder is ready.
type Shared struct {
	// Identity of this process among them.
	Identity string
	// Key signs what this process says to the others on the VLAN.
	Key ed25519.PrivateKey
	// Lock decides between them.
	Lock holder.Lock
	// Leases that they have in common.
	Leases SharedLeases
	// EnvoyAdmin is the address of Envoy's administration, which tells whether Envoy is ready; empty: it is not asked.
	EnvoyAdmin string
	// Changed is called when this process becomes the holder or is it no longer; it must not block.
	Changed func()
}

// SharedLeases are the DHCP leases of a VLAN that several processes serve, one after the other.
type SharedLeases interface {
	dhcpserver.SharedStore
	// TakeOver is called when this process becomes the holder, before it reads the leases: the holder before it was last
	// seen with the store at that time, and may have renewed leases since.
	TakeOver(renewed time.Time)
}

// VLANState is this process's part in holding the server addresses.
type VLANState struct {
	// Holding: this process has them.
	Holding bool `json:"holding"`
	// Epoch of the holder.
	Epoch int64 `json:"epoch,omitempty"`
	// Holder is who has them, as far as this process knows; empty: nobody.
	Holder string `json:"holder,omitempty"`
	// Addresses that this process has.
	Addresses []netip.Addr `json:"addresses,omitempty"`
	// Problems that keep this process from having them, or from having them undisputed.
	Problems []holder.Problem `json:"problems,omitempty"`
}

// message says why the addresses are not where they should be.
func (v *VLANState) message() string {
	var messages []string
	for _, p := range v.Problems {
		messages = append(messages, p.Message)
	}
	switch {
	case len(messages) > 0:
		return "addresses: " + strings.Join(messages, "; ")
	case v.Holder != "" && !v.Holding:
		return "standby, " + v.Holder + " has the addresses"
	}
	return "addresses: not claimed yet"
}

// applyHolder wants the server addresses of the children on the VLAN whenever this process is the holder.
func (p *publisher) applyHolder(ctx context.Context, c *Children) {
	shared := p.server.cfg.Shared
	p.holder.apply(ctx, netip.AddrPort{}, claimOf(c), func(registry *prometheus.Registry) (*holder.Holder, error) {
		name, err := p.interfaceName()
		if err != nil {
			return nil, err
		}
		return holder.New(holder.Config{
			Log: p.holder.log, Registerer: p.labelled(registry),
			Identity: shared.Identity, Key: shared.Key, Lock: shared.Lock, Interface: name, StateDir: p.server.cfg.StateDir,
			Healthy: p.healthy,
			Changed: func() {
				p.wake()
				shared.Changed()
			},
		})
	}, func(ctx context.Context, h *holder.Holder, ready func()) error {
		ready()
		return h.Run(ctx)
	})
}

// vlan is nil where this process shares no VLAN with others.
func (p *publisher) vlan() *VLANState {
	if p.server.cfg.Shared == nil {
		return nil
	}
	h := p.holder.current()
	if h == nil {
		return &VLANState{}
	}
	s := h.State()
	return &VLANState{Holding: s.Holding, Epoch: s.Epoch, Holder: s.Holder, Addresses: s.HeldAddresses, Problems: s.Problems}
}

// healthy says why another process had better be the holder.
func (p *publisher) healthy() error {
	if st := p.dns.state(); st != nil && !st.Ready {
		return fmt.Errorf("dns: %s", st.Message)
	}
	p.mu.Lock()
	wantsProxy := p.proxy != nil
	p.mu.Unlock()
	if !wantsProxy || !p.server.has(RoleXDS) {
		return nil
	}
	if len(p.server.xds.Status(p.infra)) == 0 {
		return errors.New("proxy: no Envoy is connected")
	}
	return p.server.envoy.problem()
}

// unusable are the problems with which a process cannot be the holder.
var unusable = []string{holder.InterfaceMissing, holder.InterfaceDown, holder.InterfaceUnusable}

// hot says why this process could not be the holder, if it had to; a holder is hot as well.
func (p *publisher) hot() error {
	if err := p.healthy(); err != nil {
		return err
	}
	if st := p.state().Proxy; st != nil && !st.Ready {
		return fmt.Errorf("proxy: %s", st.Message)
	}
	if h := p.holder.current(); h != nil {
		for _, problem := range h.State().Problems {
			if slices.Contains(unusable, problem.Reason) {
				return errors.New(problem.Message)
			}
		}
	}
	return nil
}

// Envoy is asked whether it is ready every envoyPeriod, and has envoyPatience for its answer: one that is frozen still accepts
// connections, and one that takes in a large change of routes says nothing for more than half a second.
const envoyPeriod, envoyPatience = 300 * time.Millisecond, 1500 * time.Millisecond

// envoyWatch knows whether Envoy is ready.
type envoyWatch struct {
	admin string
	bad   atomic.Pointer[error] // nil: Envoy is ready, or is not asked
}

// problem says why Envoy is not ready.
func (e *envoyWatch) problem() error {
	if bad := e.bad.Load(); bad != nil {
		return *bad
	}
	return nil
}

// run asks Envoy until ctx ends.
func (e *envoyWatch) run(ctx context.Context) error {
	transport := &http.Transport{DisableKeepAlives: true}
	httpClient := &http.Client{Transport: transport, Timeout: envoyPatience}
	ticker := time.NewTicker(envoyPeriod)
	defer ticker.Stop()
	for {
		if err := e.ask(ctx, httpClient); err != nil {
			err = fmt.Errorf("proxy: Envoy is not ready: %w", err)
			e.bad.Store(&err)
		} else {
			e.bad.Store(nil)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

func (e *envoyWatch) ask(ctx context.Context, httpClient *http.Client) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.admin+"/ready", http.NoBody)
	if err != nil {
		return err
	}
	response, err := httpClient.Do(request)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		err = fmt.Errorf("its administration at %s answers %s", e.admin, response.Status)
	}
	return errors.Join(err, response.Body.Close())
}

// applySharedDHCP serves DHCP while this process is the holder. Each time it becomes that, the leases are read anew: others
// have been given meanwhile.
func (p *publisher) applySharedDHCP(ctx context.Context, child *v1alpha1.DHCPServer) {
	h := p.holder.current()
	if h == nil {
		return
	}
	state := h.State()
	server, err := netip.ParseAddr(child.Spec.NetworkConfig.ServerIP)
	if err == nil && (!state.Holding || !slices.Contains(state.HeldAddresses, server)) {
		p.dhcp.stop()
		return
	}
	if p.term != state.Epoch {
		p.dhcp.stop() // another process was the holder in between
		if !state.PreviousRenewed.IsZero() {
			p.server.cfg.Shared.Leases.TakeOver(state.PreviousRenewed)
		}
		p.term = state.Epoch
	}
	model, err := dhcpserver.Build(child)
	if err != nil {
		p.dhcp.refuse(err)
		return
	}
	address := netip.AddrPortFrom(server, dhcpserver.ServerPort)
	p.dhcp.apply(ctx, address, model, func(registry *prometheus.Registry) (*dhcpserver.Server, error) {
		return dhcpserver.NewServer(dhcpserver.Config{
			Log: p.dhcp.log, Registerer: p.labelled(registry), Store: p.server.cfg.Shared.Leases, Changed: p.server.cfg.LeasesChanged,
			Forget: true,
		})
	}, func(ctx context.Context, server *dhcpserver.Server, ready func()) error {
		return p.runDHCP(ctx, server, address, ready)
	})
	if p.dhcp.current() == nil {
		time.AfterFunc(leasesRetry, p.wake) // the leases cannot be read yet
	}
}

// leasesRetry is how long a holder waits before it tries again to read the leases.
const leasesRetry = time.Second

// judgeShared takes into account who has the addresses of the servers.
func (p *publisher) judgeShared(st *InfraState) {
	p.mu.Lock()
	next := p.next
	p.mu.Unlock()
	if next == nil {
		return
	}
	lacks := func(address string) bool {
		a, err := netip.ParseAddr(address)
		return err == nil && !slices.Contains(st.VLAN.Addresses, a)
	}
	if d := next.DHCP; d != nil && p.server.has(RoleDHCP) && st.DHCP == nil {
		st.DHCP = &ComponentState{Message: st.VLAN.message()} // it runs on the holder only
	}
	if d := next.DNS; d != nil && st.DNS != nil && st.DNS.Ready && lacks(d.Spec.NetworkConfig.ServerIP) {
		st.DNS.Ready, st.DNS.Message = false, st.VLAN.message()
	}
}
