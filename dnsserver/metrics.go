package dnsserver

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of one server. The children of the hot path are resolved once.
type metrics struct {
	queries   [viewCount][outcomes]prometheus.Counter
	upstream  *prometheus.CounterVec
	latency   *prometheus.HistogramVec
	inFlight  prometheus.Gauge
	shared    prometheus.Counter
	unsent    prometheus.Counter
	panics    prometheus.Counter
	conns     prometheus.Gauge
	connsDeny prometheus.Counter
}

func newMetrics(registerer prometheus.Registerer) (*metrics, error) {
	r := registry{registerer: registerer}
	queries := register(&r, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "oooi_dns_queries_total",
		Help: "Queries by view of the client and by what became of them.",
	}, []string{"view", "outcome"}))
	m := &metrics{
		upstream: register(&r, prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_dns_upstream_exchanges_total",
			Help: "Exchanges with an upstream by their result: an RCODE, timeout or error.",
		}, []string{"upstream", "result"})),
		latency: register(&r, prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "oooi_dns_upstream_duration_seconds",
			Help:    "How long answered exchanges with an upstream took.",
			Buckets: []float64{.0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2},
		}, []string{"upstream"})),
		inFlight: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "oooi_dns_forwards_in_flight",
			Help: "Queries that wait for an upstream.",
		})),
		shared: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dns_forwards_shared_total",
			Help: "Queries that waited for the answer to an identical one instead of being forwarded.",
		})),
		unsent: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dns_replies_unsent_total",
			Help: "Replies that the kernel did not take.",
		})),
		panics: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dns_panics_total",
			Help: "Forwarded queries that ended in a panic: bugs.",
		})),
		conns: register(&r, prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "oooi_dns_tcp_connections",
			Help: "Open TCP connections of clients.",
		})),
		connsDeny: register(&r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dns_tcp_connections_refused_total",
			Help: "TCP connections closed at once because there are too many.",
		})),
	}
	for view := range m.queries {
		for o := range m.queries[view] {
			m.queries[view][o] = queries.WithLabelValues(string(viewNames[view]), outcome(o).String())
		}
	}
	return m, errors.Join(r.errs...)
}

type registry struct {
	registerer prometheus.Registerer
	errs       []error
}

// register registers c, or returns the collector that an earlier server of the same registerer left.
func register[C prometheus.Collector](r *registry, c C) C {
	if r.registerer == nil {
		return c
	}
	err := r.registerer.Register(c)
	var already prometheus.AlreadyRegisteredError
	if errors.As(err, &already) {
		if existing, ok := already.ExistingCollector.(C); ok {
			return existing
		}
	}
	if err != nil {
		r.errs = append(r.errs, err)
	}
	return c
}
