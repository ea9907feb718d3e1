package serve

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/dhcpserver/vlan"
	"github.com/densityops/oooi/holder"
)

// claimer puts server addresses on a VLAN interface, and lets servers wait for theirs.
type claimer struct {
	publisher *publisher

	mu      sync.Mutex
	wanted  holder.Claim
	claimed map[netip.Addr]bool
	changed chan struct{} // closed, and made anew, on every change of the two above
}

func newClaimer(p *publisher) *claimer {
	return &claimer{publisher: p, claimed: map[netip.Addr]bool{}, changed: make(chan struct{})}
}

// Apply replaces the wanted addresses.
func (c *claimer) Apply(wanted holder.Claim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.wanted.CIDR == wanted.CIDR && slices.Equal(c.wanted.Addresses, wanted.Addresses) {
		return
	}
	c.wanted = wanted
	c.notify()
}

func (c *claimer) notify() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// claimLook is how often the interface is looked at for addresses that it lost, for example by being made anew.
const claimLook = 2 * time.Second

// run claims what is wanted and not held, and releases what is wanted no longer. It returns an error when an address
// cannot be claimed, so that it is tried again; the others are claimed all the same.
func (c *claimer) run(ctx context.Context, interfaceName string, ready func()) error {
	ticker := time.NewTicker(claimLook)
	defer ticker.Stop()
	for {
		c.mu.Lock()
		wanted, changed := c.wanted, c.changed
		c.mu.Unlock()
		if err := errors.Join(c.release(wanted, interfaceName), c.claimAll(ctx, wanted, interfaceName)); err != nil {
			return err
		}
		ready()
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-ticker.C:
		}
	}
}

func (c *claimer) claimAll(ctx context.Context, wanted holder.Claim, interfaceName string) error {
	for _, address := range wanted.Addresses {
		if c.has(address) && !vlan.Holds(interfaceName, address) {
			c.setClaimed(address, false)
		}
	}
	missing := slices.DeleteFunc(slices.Clone(wanted.Addresses), c.has)
	// Each on its own: one that a stranger has keeps no other one waiting.
	errs := make([]error, len(missing))
	var claims sync.WaitGroup
	for i, address := range missing {
		claims.Go(func() {
			errs[i] = vlan.Claim(ctx, c.publisher.addresses.log, interfaceName, wanted.CIDR, []netip.Addr{address})
			if errs[i] == nil {
				c.setClaimed(address, true)
			}
		})
	}
	claims.Wait()
	return errors.Join(errs...)
}

// release takes off what was claimed and is not wanted any more: the pool may hand it out.
func (c *claimer) release(wanted holder.Claim, interfaceName string) error {
	c.mu.Lock()
	var gone []netip.Addr
	for address, claimed := range c.claimed {
		if claimed && !slices.Contains(wanted.Addresses, address) {
			gone = append(gone, address)
		}
	}
	c.mu.Unlock()
	var errs []error
	for _, address := range gone {
		if err := vlan.Release(c.publisher.addresses.log, interfaceName, address); err != nil {
			errs = append(errs, err)
			continue
		}
		c.setClaimed(address, false)
	}
	return errors.Join(errs...)
}

func (c *claimer) setClaimed(address netip.Addr, claimed bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claimed[address] = claimed
	c.notify()
}

func (c *claimer) has(address netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.claimed[address]
}

// wait returns when the address has been claimed.
func (c *claimer) wait(ctx context.Context, address netip.Addr) error {
	for {
		c.mu.Lock()
		done, changed := c.claimed[address], c.changed
		c.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// applyAddresses wants the server addresses of the children on the VLAN interface, if this process claims any.
func (p *publisher) applyAddresses(ctx context.Context, c *Children) {
	if p.server.cfg.Shared != nil {
		p.applyHolder(ctx, c)
		return
	}
	interfaces := p.server.cfg.Interfaces
	if !p.server.cfg.ClaimAddresses || interfaces[p.infra] == "" && interfaces[""] == "" {
		return
	}
	p.addresses.apply(ctx, netip.AddrPort{}, claimOf(c), func(*prometheus.Registry) (*claimer, error) {
		return newClaimer(p), nil
	}, func(ctx context.Context, claimer *claimer, ready func()) error {
		name, err := p.interfaceName()
		if err != nil {
			return err
		}
		return claimer.run(ctx, name, ready)
	})
}

func claimOf(c *Children) holder.Claim {
	var wanted holder.Claim
	add := func(cidr, address string) {
		if prefix, err := netip.ParsePrefix(cidr); err == nil {
			wanted.CIDR = prefix
		}
		if a, err := netip.ParseAddr(address); err == nil && !slices.Contains(wanted.Addresses, a) {
			wanted.Addresses = append(wanted.Addresses, a)
		}
	}
	if c.DHCP != nil {
		add(c.DHCP.Spec.NetworkConfig.CIDR, c.DHCP.Spec.NetworkConfig.ServerIP)
	}
	if c.DNS != nil {
		add(c.DNS.Spec.NetworkConfig.SecondaryNetworkCIDR, c.DNS.Spec.NetworkConfig.ServerIP)
	}
	if c.Proxy != nil {
		add(c.Proxy.Spec.NetworkConfig.CIDR, c.Proxy.Spec.NetworkConfig.ServerIP)
	}
	return wanted
}

// awaitAddress waits until the address is on the VLAN interface, if this process puts it there.
func (p *publisher) awaitAddress(ctx context.Context, address netip.Addr) error {
	if claimer := p.addresses.current(); claimer != nil {
		return claimer.wait(ctx, address)
	}
	return nil
}
