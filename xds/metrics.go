package xds

import "github.com/prometheus/client_golang/prometheus"

// metrics of the xDS server; infra is NAMESPACE/NAME, type is cluster, clusterloadassignment, listener or routeconfiguration.
type metrics struct {
	pushes, acks, nacks *prometheus.CounterVec
	connected           *prometheus.GaugeVec
	ackSeconds          *prometheus.HistogramVec
	snapshotBytes       *prometheus.GaugeVec
	resources           *prometheus.GaugeVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	byType := []string{"infra", "type"}
	m := &metrics{
		pushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_xds_pushes_total", Help: "Responses sent to Envoys.",
		}, byType),
		acks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_xds_acks_total", Help: "Responses that Envoys acknowledged.",
		}, byType),
		nacks: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_xds_nacks_total", Help: "Responses that Envoys refused. Finding one bad resource among many takes several.",
		}, byType),
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "oooi_xds_connected_envoys", Help: "Envoys that have a stream open.",
		}, []string{"infra"}),
		ackSeconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "oooi_xds_ack_seconds",
			Help:    "Time from a new snapshot until an Envoy acknowledged the last of it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 14),
		}, []string{"infra"}),
		snapshotBytes: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "oooi_xds_snapshot_bytes", Help: "Size of all resources of the current snapshot.",
		}, []string{"infra"}),
		resources: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "oooi_xds_snapshot_resources", Help: "Resources of the current snapshot.",
		}, byType),
	}
	reg.MustRegister(m.pushes, m.acks, m.nacks, m.connected, m.ackSeconds, m.snapshotBytes, m.resources)
	return m
}

// applied records a new snapshot.
func (m *metrics) applied(infra string, snap *Snapshot) {
	m.snapshotBytes.WithLabelValues(infra).Set(float64(snap.size()))
	for _, typeURL := range servedTypes {
		m.resources.WithLabelValues(infra, shortType(typeURL)).Set(float64(len(snap.sets[typeURL].sorted)))
	}
}

// forget drops the series of an Infra that is gone.
func (m *metrics) forget(infra string) {
	labels := prometheus.Labels{"infra": infra}
	for _, vec := range []*prometheus.CounterVec{m.pushes, m.acks, m.nacks} {
		vec.DeletePartialMatch(labels)
	}
	for _, vec := range []*prometheus.GaugeVec{m.connected, m.snapshotBytes, m.resources} {
		vec.DeletePartialMatch(labels)
	}
	m.ackSeconds.DeletePartialMatch(labels)
}
