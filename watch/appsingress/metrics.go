package appsingress

import (
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// phases are all that a status can be in.
var phases = []string{v1alpha1.PhasePending, v1alpha1.PhaseReady, v1alpha1.PhaseDegraded}

type metrics struct {
	phase    *prometheus.GaugeVec
	failures *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer) *metrics {
	m := &metrics{
		phase: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "oooi_apps_ingress_phase", Help: "1 for the phase that apps ingress of the attachment is in, as seen in its hosted cluster; 0 for the others.",
		}, []string{"namespace", "attachment", "phase"}),
		failures: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_hosted_cluster_requests_failed_total", Help: "Requests to the API server of the hosted cluster of the attachment that got no answer, or a refusal.",
		}, []string{"namespace", "attachment"}),
	}
	if registerer != nil {
		registerer.MustRegister(m.phase, m.failures)
	}
	return m
}

func (m *metrics) observed(key types.NamespacedName, phase string) {
	for _, p := range phases {
		value := 0.0
		if p == phase {
			value = 1
		}
		m.phase.WithLabelValues(key.Namespace, key.Name, p).Set(value)
	}
}

func (m *metrics) requestFailed(key types.NamespacedName) {
	m.failures.WithLabelValues(key.Namespace, key.Name).Inc()
}

func (m *metrics) forget(key types.NamespacedName) {
	labels := prometheus.Labels{"namespace": key.Namespace, "attachment": key.Name}
	m.phase.DeletePartialMatch(labels)
	m.failures.DeletePartialMatch(labels)
}
