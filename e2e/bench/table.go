package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// quantile of durations, by rank.
func quantile(times []time.Duration, q float64) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))]
}

// spread is the median of the rounds' medians, their range, and the 99th percentile of all.
func spread(byRound [rounds][]time.Duration) (median, low, high, p99 time.Duration) {
	var medians, all []time.Duration
	for _, times := range byRound {
		medians, all = append(medians, quantile(times, 0.5)), append(all, times...)
	}
	return quantile(medians, 0.5), slices.Min(medians), slices.Max(medians), quantile(all, 0.99)
}

func milliseconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d)/float64(time.Millisecond), 'f', 1, 64)
}

// report prints the table, and then measures a rest.
func (b *bench) report(ctx context.Context, changes [rounds][]change, floors [rounds][]time.Duration) error {
	stage := func(read func(change) time.Duration) (times [rounds][]time.Duration) {
		for i, round := range changes {
			for _, c := range round {
				times[i] = append(times[i], read(c))
			}
		}
		return times
	}
	_, _ = fmt.Fprintf(b.out, "\n%d changes in %d rounds, ms\n", rounds*perRound, rounds)
	table := tabwriter.NewWriter(b.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	_, _ = fmt.Fprintln(table, "\tmedian\tmedians of rounds\tp99\t")
	row := func(name string, times [rounds][]time.Duration) (median, p99 time.Duration) {
		median, low, high, p99 := spread(times)
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s to %s\t%s\t\n", name, milliseconds(median), milliseconds(low), milliseconds(high), milliseconds(p99))
		return median, p99
	}
	median, p99 := row("status write -> ACK", stage(func(c change) time.Duration { return c.acked }))
	row("  the write itself", stage(func(c change) time.Duration { return c.written }))
	row("  write done -> hub applies the ProxyServer", stage(func(c change) time.Duration { return c.applied - c.written }))
	row("  applied -> update sent to Envoy", stage(func(c change) time.Duration { return c.sent - c.applied }))
	row("  sent -> ACK", stage(func(c change) time.Duration { return c.acked - c.sent }))
	floor, floor99 := row("Envoy's floor: the same updates, nothing else", floors)
	if err := table.Flush(); err != nil {
		return err
	}
	verdict := "met"
	if p99 > floor99+100*time.Millisecond {
		verdict = "MISSED"
	}
	_, _ = fmt.Fprintf(b.out, "median %.1f x the floor; p99 is the floor's + %s ms (target: + 100 ms, %s)\n",
		float64(median)/float64(floor), milliseconds(p99-floor99), verdict)

	if err := b.reportWrites(); err != nil {
		return err
	}
	writes, err := b.writes(ctx, restPeriod)
	if err != nil {
		return err
	}
	_, _ = fmt.Fprintf(b.out, "API writes in %.0f s of rest, Leases aside: %d\n", restPeriod.Seconds(), len(writes))
	for _, w := range writes {
		_, _ = fmt.Fprintln(b.out, "  ", w)
	}
	for _, p := range []struct {
		name    string
		process *stack.Process
	}{{"hub", b.hub}, {"serving process", b.serving}} {
		now, peak, err := memory(p.process.Pid())
		if err != nil {
			return err
		}
		_, _ = fmt.Fprintf(b.out, "memory of the %s: %d MiB, at most %d MiB\n", p.name, now>>10, peak>>10)
	}
	return nil
}

// reportWrites tells what the changes cost the API server.
func (b *bench) reportWrites() error {
	requests, err := b.Requests(b.began)
	if err != nil {
		return err
	}
	counts := map[string]int{}
	for _, r := range requests {
		if r.Write() && r.Resource != "leases" && r.Agent != "e2e" {
			counts[strings.TrimSuffix(r.Resource+"/"+r.Subresource, "/")]++
		}
	}
	var texts []string
	for _, resource := range slices.Sorted(maps.Keys(counts)) {
		texts = append(texts, fmt.Sprintf("%s %.1f", resource, float64(counts[resource])/(rounds*perRound)))
	}
	_, _ = fmt.Fprintf(b.out, "API writes of oooi for each change: %s\n", strings.Join(texts, ", "))
	return nil
}

// memory of a process, resident now and at most, in KiB.
func memory(pid int) (now, peak int, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		into := map[string]*int{"VmRSS": &now, "VmHWM": &peak}[name]
		if into == nil {
			continue
		}
		if *into, err = strconv.Atoi(strings.TrimSuffix(strings.TrimSpace(value), " kB")); err != nil {
			return 0, 0, err
		}
	}
	return now, peak, nil
}
