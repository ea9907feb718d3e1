package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// calm is how long a service must answer without a failure to be taken for back.
const calm = 2 * time.Second

// Services of a VLAN that are asked for.
const (
	serviceDNS   = "DNS"
	serviceTLS   = "TLS"
	serviceDHCP  = "DHCP"
	serviceOfIPs = "Service" // the proxy's Service, from the pod network
	// direct is what the proxy stands in front of, asked without it: the machine's own part in what is measured.
	direct = "direct"
)

// probe asks for one service over and over. It does not wait for one answer before it asks again: what it measures is the service,
// not its own patience.
type probe struct {
	name  string
	every time.Duration
	// patience with one attempt.
	patience time.Duration
	// try asks once; attempts are numbered.
	try func(ctx context.Context, attempt int) error

	mu   sync.Mutex
	past []attempt // in the order in which they ended
}

// attempt is one question and what became of it.
type attempt struct {
	begun, ended time.Time
	err          error
}

// relays is how many DHCP relays ask in turn: one has to be done before it asks again.
const relays = 4

// relayAddress is that of a relay on the VLAN.
func relayAddress(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(60 + i)}) }

// startRelays gives the prober the addresses of the DHCP relays.
func (w *world) startRelays(t testing.TB) {
	t.Helper()
	for i := range relays {
		if _, err := w.prober.Run(t.Context(), "ip", "addr", "replace", relayAddress(i).String()+"/24", "dev", "vlan0"); err != nil {
			t.Fatal(err)
		}
	}
}

// probes of the three services of a VLAN, as a worker with an address sees them, and of the proxy's Service.
func (w *world) probes(t testing.TB) []*probe {
	t.Helper()
	service, err := w.clusterIP(t.Context(), v1alpha1.ProxyServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	return []*probe{
		{name: serviceDNS, every: w.pace, patience: 200 * time.Millisecond, try: func(ctx context.Context, _ int) error {
			got, err := lookup(ctx, w.workerA, addressDNS, "api."+domain(clusterA))
			if err == nil && got != addressProxy {
				err = fmt.Errorf("got %s, want %s", got, addressProxy)
			}
			return err
		}},
		{name: serviceTLS, every: w.pace, patience: 300 * time.Millisecond, try: func(ctx context.Context, _ int) error {
			return w.reachedAt(ctx, w.workerA, netip.MustParseAddrPort(addressProxy+":443"))
		}},
		{name: serviceDHCP, every: 100 * time.Millisecond, patience: 350 * time.Millisecond, try: func(ctx context.Context, attempt int) error {
			i := attempt % relays
			relay := stack.Relay{
				Host: w.prober, Address: netip.AddrPortFrom(relayAddress(i), 67), Server: netip.MustParseAddrPort(addressDHCP + ":67"),
			}
			_, err := relay.Lease(ctx, net.HardwareAddr{0x52, 0x54, 0, 0, 2, byte(0x60 + i)})
			return err
		}},
		{name: serviceOfIPs, every: w.pace, patience: 300 * time.Millisecond, try: func(ctx context.Context, _ int) error {
			return w.reachedAt(ctx, "", netip.AddrPortFrom(service, 443))
		}},
		{name: direct, every: w.pace, patience: 300 * time.Millisecond, try: func(ctx context.Context, _ int) error {
			return w.reachedAt(ctx, "", backendA)
		}},
	}
}

// run asks until ctx ends.
func (p *probe) run(ctx context.Context) {
	ticker := time.NewTicker(p.every)
	defer ticker.Stop()
	var group sync.WaitGroup
	defer group.Wait()
	for number := 0; ctx.Err() == nil; number++ {
		group.Go(func() {
			a := attempt{begun: time.Now()}
			ctx, cancel := context.WithTimeoutCause(ctx, p.patience, errors.New("no answer"))
			defer cancel()
			a.err = p.try(ctx, number)
			if errors.Is(ctx.Err(), context.Canceled) {
				return // no fault of the service
			}
			p.mu.Lock()
			defer p.mu.Unlock()
			a.ended = time.Now()
			p.past = append(p.past, a)
		})
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
	var good time.Time
	var failed attempt
	failures := 0
	for _, a := range p.past {
		switch {
		case a.err == nil:
			good = a.ended
		case a.ended.After(since):
			failed, since, failures = a, a.ended, failures+1
		}
	}
	if good.Sub(since) < calm {
		return fmt.Errorf("%s: %d failures, the last one %s ago: %w", p.name, failures, time.Since(failed.ended).Round(time.Millisecond), failed.err)
	}
	return nil
}

// outage is the longest time without an answer.
type outage struct {
	service  string
	from, to time.Time
	// failures are those of the attempts that ended after the disruption.
	failures int
	// history are the attempts that began or ended in that time.
	history []attempt
}

func (o *outage) String() string {
	return fmt.Sprintf("%s %.2f s (%d failures)", o.service, o.length().Seconds(), o.failures)
}

func (o *outage) length() time.Duration { return o.to.Sub(o.from) }

// details are all attempts, a line each.
func (o *outage) details() string {
	var text strings.Builder
	const clock = "15:04:05.000"
	fmt.Fprintf(&text, "%s: no answer from %s to %s\n", o.service, o.from.Format(clock), o.to.Format(clock))
	for _, a := range o.history {
		fmt.Fprintf(&text, "%s to %s: %v\n", a.begun.Format(clock), a.ended.Format(clock), a.err)
	}
	return text.String()
}

// outage finds the longest time without an answer between two points in time that some moment falls into; the zero one: any does.
func (p *probe) outage(since, until, moment time.Time) *outage {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &outage{service: p.name}
	last := since // of the answers
	weigh := func(to time.Time) {
		covers := moment.IsZero() || !moment.Before(last) && moment.Before(to)
		if covers && to.Sub(last) > o.length() {
			o.from, o.to = last, to
		}
	}
	for _, a := range p.past {
		switch {
		case !a.ended.After(since):
		case a.err == nil:
			weigh(a.ended)
			last = a.ended
		default:
			o.failures++
		}
	}
	weigh(until)
	for _, a := range p.past {
		if a.ended.After(o.from) && a.begun.Before(o.to) {
			o.history = append(o.history, a)
		}
	}
	return o
}

// measurement is what the probes saw between two points in time.
type measurement struct {
	since, until time.Time
	probes       []*probe
}

// longest is the longest time without an answer of each service.
func (m *measurement) longest() []*outage { return m.at(time.Time{}) }

// at is the time without an answer of each service into which a moment falls.
func (m *measurement) at(moment time.Time) []*outage {
	outages := make([]*outage, len(m.probes))
	for i, p := range m.probes {
		outages[i] = p.outage(m.since, m.until, moment)
	}
	return outages
}

// measure asks for all services while something is done to them, until all but the excepted ones have answered again for a while.
func (w *world) measure(t testing.TB, disrupt func(), except ...string) *measurement {
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
	all := func(since time.Time, except ...string) error {
		var errs []error
		for _, p := range probes {
			if p.name != direct && !slices.Contains(except, p.name) {
				errs = append(errs, p.steady(since))
			}
		}
		return errors.Join(errs...)
	}
	eventually(t, "services before anything is done to them", func(context.Context) error { return all(begun) })
	m := &measurement{since: time.Now(), probes: probes}
	disrupt()
	eventually(t, "services again", func(context.Context) error { return all(m.since, except...) })
	m.until = time.Now()
	return m
}

// line of a table.
func line(outages []*outage) string {
	var text strings.Builder
	for _, o := range outages {
		fmt.Fprintf(&text, "%-28s", o)
	}
	return text.String()
}
