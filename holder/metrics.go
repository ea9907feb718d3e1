package holder

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	holding  prometheus.Gauge
	heard    *prometheus.CounterVec
	changes  *prometheus.CounterVec
	conflict prometheus.Counter
	deaf     prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		holding: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "oooi_holder", Help: "1 while this process is the holder of the server addresses on the VLAN.",
		}),
		heard: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_holder_frames_total", Help: "Frames that came from the VLAN in the name of other pods, by what became of them.",
		}, []string{"result"}),
		changes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_holder_changes_total", Help: "Times that this process took the addresses or let them go.",
		}, []string{"change"}),
		conflict: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_holder_arp_conflicts_total", Help: "ARP packets in which other hosts claimed an address that this process held.",
		}),
		deaf: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_holder_floods_total", Help: "Times that more came from the VLAN than could be heard, so that nothing was concluded from silence.",
		}),
	}
	return m, errors.Join(reg.Register(m.holding), reg.Register(m.heard), reg.Register(m.changes), reg.Register(m.conflict), reg.Register(m.deaf))
}
