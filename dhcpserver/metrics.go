package dhcpserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	received       *prometheus.CounterVec
	sent           *prometheus.CounterVec
	dropped        *prometheus.CounterVec
	early          prometheus.Counter
	sendFailures   prometheus.Counter
	commitFailures prometheus.Counter
	commitSeconds  prometheus.Histogram
}

// newMetrics registers the metrics of one server. Several servers register with a label each, by
// prometheus.WrapRegistererWith.
func newMetrics(reg prometheus.Registerer, count func() counts) (*metrics, error) {
	m := &metrics{
		received: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_dhcp_messages_total", Help: "DHCP messages of clients, by type.",
		}, []string{"type"}),
		sent: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_dhcp_replies_total", Help: "DHCP answers sent, by type.",
		}, []string{"type"}),
		dropped: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "oooi_dhcp_dropped_total",
			Help: "DHCP messages that got no answer, by reason; too many changes: of one client; too many new clients: of the VLAN.",
		}, []string{"reason"}),
		early: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dhcp_early_renewals_total", Help: "Clients that asked again for what they had, and were told how long it still lasts: nothing was written.",
		}),
		sendFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dhcp_send_failures_total", Help: "DHCP answers that could not be sent.",
		}),
		commitFailures: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "oooi_dhcp_commit_failures_total", Help: "Leases that could not be made durable; their clients got no answer.",
		}),
		commitSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oooi_dhcp_commit_seconds", Help: "Time to make one batch of leases durable.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14),
		}),
	}
	gauges := gaugeCollector{count: count}
	for _, g := range []struct {
		name, help string
		value      func(counts) int
	}{
		{"oooi_dhcp_leases_active", "Leases that clients hold now.", func(c counts) int { return c.active }},
		{"oooi_dhcp_leases", "Leases known, those whose time is over included.", func(c counts) int { return c.total }},
		{"oooi_dhcp_addresses_free", "Addresses of the pool that could be given to a new client now.", func(c counts) int { return c.free }},
		{"oooi_dhcp_offers", "Offers that no client has taken yet.", func(c counts) int { return c.offers }},
	} {
		gauges.gauges = append(gauges.gauges, gauge{prometheus.NewDesc(g.name, g.help, nil, nil), g.value})
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.received, m.sent, m.dropped, m.early, m.sendFailures, m.commitFailures, m.commitSeconds, gauges} {
		errs = append(errs, reg.Register(c))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("register DHCP metrics: %w", err)
	}
	return m, nil
}

type gauge struct {
	desc  *prometheus.Desc
	value func(counts) int
}

// gaugeCollector counts once for all its gauges.
type gaugeCollector struct {
	count  func() counts
	gauges []gauge
}

func (c gaugeCollector) Describe(descs chan<- *prometheus.Desc) {
	for _, g := range c.gauges {
		descs <- g.desc
	}
}

func (c gaugeCollector) Collect(values chan<- prometheus.Metric) {
	counts := c.count()
	for _, g := range c.gauges {
		values <- prometheus.MustNewConstMetric(g.desc, prometheus.GaugeValue, float64(g.value(counts)))
	}
}

// typeLabel names a message type. What no client can send is one label value.
func typeLabel(kind dhcpv4.MessageType) string {
	if kind < dhcpv4.MessageTypeDiscover || kind > dhcpv4.MessageTypeInform {
		return "other"
	}
	return strings.ToLower(kind.String())
}
