package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// calm is how long a service must answer without a failure to be taken for back.
const calm = 2 * time.Second

// probe asks for one service over and over.
type probe struct {
	name  string
	every time.Duration
	// bystander: nobody waits for its answers.
	bystander bool
	// try asks once, and gives up by itself soon.
	try func(context.Context) error

	mu       sync.Mutex
	good     []time.Time // when answers came
	failures int
	failed   time.Time // the last failure
	why      error
}

// probes of the three services of a VLAN, as a worker with an address sees them, and of the proxy's Service.
func (w *world) probes(t *testing.T) []*probe {
	service := w.clusterIP(t, v1alpha1.ProxyServiceName(infra))
	relay := stack.Relay{
		Host: w.prober, Address: netip.MustParseAddrPort("192.0.2.60:67"), Server: netip.MustParseAddrPort(addressDHCP + ":67"),
	}
	return []*probe{
		{name: "DNS", every: 20 * time.Millisecond, try: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
			defer cancel()
			got, err := lookup(ctx, w.workerA, addressDNS, "api."+domain(clusterA))
			if err == nil && got != addressProxy {
				err = fmt.Errorf("got %s, want %s", got, addressProxy)
			}
			return err
		}},
		{name: "TLS", every: 20 * time.Millisecond, try: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			got, err := w.call(ctx, w.workerA, 443, "api."+domain(clusterA))
			if want := clusterA + "/kube-apiserver"; err == nil && got != want {
				err = fmt.Errorf("got %s, want %s", got, want)
			}
			return err
		}},
		{name: "DHCP", every: 100 * time.Millisecond, try: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 400*time.Millisecond)
			defer cancel()
			_, err := relay.Lease(ctx, net.HardwareAddr{0x52, 0x54, 0, 0, 2, 0x60})
			return err
		}},
		{name: "Service", every: 50 * time.Millisecond, bystander: true, try: func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
			defer cancel()
			got, err := w.callAt(ctx, "", service, 443, "api."+domain(clusterA))
			if want := clusterA + "/kube-apiserver"; err == nil && got != want {
				err = fmt.Errorf("got %s, want %s", got, want)
			}
			return err
		}},
	}
}

// run asks until ctx ends.
func (p *probe) run(ctx context.Context) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	for ctx.Err() == nil {
		err := p.try(ctx)
		p.mu.Lock()
		switch {
		case ctx.Err() != nil: // no fault of the service
		case err != nil:
			p.failures, p.failed, p.why = p.failures+1, time.Now(), err
		default:
			p.good = append(p.good, time.Now())
		}
		p.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// steady is an error unless the service has answered without a failure for a while, after a point in time.
func (p *probe) steady(since time.Time) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.failed.After(since) {
		since = p.failed
	}
	last := len(p.good) - 1
	if last < 0 || p.good[last].Sub(since) < calm {
		return fmt.Errorf("%s: %d failures, the last one %s ago: %w", p.name, p.failures, time.Since(p.failed).Round(time.Millisecond), p.why)
	}
	return nil
}

// outage is the longest time without an answer after a point in time, until now, and the failures meanwhile.
func (p *probe) outage(since time.Time) (time.Duration, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var longest time.Duration
	for i, at := range p.good {
		if i > 0 && at.After(since) {
			longest = max(longest, at.Sub(p.good[i-1]))
		}
	}
	if len(p.good) == 0 {
		return time.Since(since), p.failures
	}
	return max(longest, time.Since(p.good[len(p.good)-1])), p.failures
}

// measure asks for all services while something is done to them, until all have answered again for a while. It returns a
// line for a table: the longest time without an answer of each.
func (w *world) measure(t *testing.T, disrupt func()) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	probes := w.probes(t)
	begun := time.Now()
	for _, p := range probes {
		group.Go(func() { p.run(ctx) })
	}
	all := func(since time.Time) error {
		var errs []error
		for _, p := range probes {
			if !p.bystander {
				errs = append(errs, p.steady(since))
			}
		}
		return errors.Join(errs...)
	}
	eventually(t, "services before anything is done to them", func(context.Context) error { return all(begun) })
	for _, p := range probes {
		p.mu.Lock()
		p.failures = 0
		p.mu.Unlock()
	}
	since := time.Now()
	disrupt()
	eventually(t, "services again", func(context.Context) error { return all(since) })
	var line strings.Builder
	for _, p := range probes {
		longest, failures := p.outage(since)
		fmt.Fprintf(&line, "%s %6.2f s (%d failures)  ", p.name, longest.Seconds(), failures)
	}
	return line.String()
}
