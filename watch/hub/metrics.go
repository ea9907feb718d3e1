package hub

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/watch/plan"
)

type metrics struct {
	planSeconds   prometheus.Histogram
	writes        prometheus.Counter
	writeFailures prometheus.Counter
	conflicts     *prometheus.GaugeVec
}

func newMetrics(registerer prometheus.Registerer, queued func() int) *metrics {
	m := &metrics{
		planSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oooi_plan_seconds", Help: "How long one plan of all objects took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
		writes:        prometheus.NewCounter(prometheus.CounterOpts{Name: "oooi_api_writes_total", Help: "Writes of children, statuses and what belongs to VLAN pods. None while nothing changes."}),
		writeFailures: prometheus.NewCounter(prometheus.CounterOpts{Name: "oooi_api_write_failures_total", Help: "Infras that could not be written, and are tried again."}),
		conflicts: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "oooi_infra_left_out_attachments", Help: "Attachments of the Infra that are left out because of a conflict or a mistake.",
		}, []string{"infra"}),
	}
	queue := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_write_queue_length", Help: "Infras that wait to be written.",
	}, func() float64 { return float64(queued()) })
	registerer.MustRegister(m.planSeconds, m.writes, m.writeFailures, m.conflicts, queue)
	return m
}

func (m *metrics) planned(result *plan.Result) {
	m.conflicts.Reset()
	for _, infra := range result.Infras {
		n := 0
		for _, a := range infra.Attachments {
			if a.LeftOut != nil {
				n++
			}
		}
		m.conflicts.WithLabelValues(infra.Key().String()).Set(float64(n))
	}
}
