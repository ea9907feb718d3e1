package leases

import (
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

type leaseMetrics struct {
	renewedHere prometheus.Counter
	conflicts   prometheus.Counter
}

func newLeaseMetrics(registerer prometheus.Registerer, counts func() (away bool, unsent, kept int)) (*leaseMetrics, error) {
	m := &leaseMetrics{
		renewedHere: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dhcp_renewals_without_api_total", Help: "Renewals of known leases while the API was away.",
		}),
		conflicts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dhcp_lease_conflicts_total", Help: "Leases that were not written because somebody else had written another one for the address.",
		}),
	}
	away := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_dhcp_api_away", Help: "1 while leases cannot be written to the API: known ones are renewed, none is given.",
	}, func() float64 {
		if away, _, _ := counts(); away {
			return 1
		}
		return 0
	})
	unsent := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_dhcp_leases_unsent", Help: "Renewals that the API does not have yet.",
	}, func() float64 {
		_, unsent, _ := counts()
		return float64(unsent)
	})
	kept := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_dhcp_leases_kept", Help: "Leases in the state folder, for a start without the API.",
	}, func() float64 {
		_, _, kept := counts()
		return float64(kept)
	})
	var errs []error
	for _, c := range []prometheus.Collector{m.renewedHere, m.conflicts, away, unsent, kept} {
		errs = append(errs, registerer.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register DHCP lease metrics: %w", err)
	}
	return m, nil
}
