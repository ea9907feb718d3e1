package vlanpods

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/densityops/oooi/e2e/netlab"
)

// BenchmarkFailover is `make bench-failover`: each round breaks the holder in every way, and a table is printed of how long services
// were away, beside the target.
func BenchmarkFailover(b *testing.B) {
	w.pace = 25 * time.Millisecond
	w.settle(b)
	w.boot(b, w.workerA, netlab.Udhcpc, workerA)
	w.startRelays(b)
	disruptions := slices.DeleteFunc(w.disruptions(), func(d disruption) bool { return d.unmeasured })
	services := []string{serviceDNS, serviceTLS, serviceDHCP, serviceOfIPs, direct}
	lengths := map[string][]time.Duration{} // by disruption and service
	rounds := 0
	for b.Loop() {
		rounds++
		for _, d := range disruptions {
			holder, standby := w.pair(b)
			outages, _ := w.breakHolder(b, &d, holder, standby)
			_, _ = fmt.Printf("round %d, %-24s %s\n", rounds, d.name, line(outages))
			for _, o := range outages {
				lengths[d.name+o.service] = append(lengths[d.name+o.service], o.length())
			}
		}
	}
	_, _ = fmt.Printf("\nlongest time without an answer, s: the median of %d rounds (the shortest to the longest)\n", rounds)
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprint(table, "holder")
	for _, service := range services {
		_, _ = fmt.Fprint(table, "\t", service)
	}
	_, _ = fmt.Fprintln(table, "\ttarget")
	for _, d := range disruptions {
		_, _ = fmt.Fprint(table, d.name)
		for _, service := range services {
			sorted := slices.Sorted(slices.Values(lengths[d.name+service]))
			_, _ = fmt.Fprintf(table, "\t%.2f (%.2f to %.2f)", sorted[len(sorted)/2].Seconds(), sorted[0].Seconds(), sorted[len(sorted)-1].Seconds())
		}
		target := "none away"
		if d.target > 0 {
			target = fmt.Sprintf("%.1f", d.target.Seconds())
		}
		_, _ = fmt.Fprintln(table, "\t"+target)
	}
	_ = table.Flush() // to the terminal
}
