package watch

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

var (
	infraReady = prometheus.NewDesc("oooi_infra_ready",
		"1 when the Infra is Ready, with the reason of its Ready condition.", []string{"infra", "reason"}, nil)
	attachmentReady = prometheus.NewDesc("oooi_attachment_ready",
		"1 when the attachment is Ready, with the reason of its Ready condition.", []string{"infra", "attachment", "reason"}, nil)
	attachmentSources = prometheus.NewDesc("oooi_attachment_sources",
		"Worker addresses that lead to the attachment's cluster by alias or without a server name.", []string{"infra", "attachment"}, nil)
	newestSourceAge = prometheus.NewDesc("oooi_attachment_newest_source_age_seconds",
		"How long ago the newest of the attachment's worker addresses appeared. Absent while there is none.", []string{"infra", "attachment"}, nil)
	sourcesDisputed = prometheus.NewDesc("oooi_infra_sources_disputed",
		"1 when Machines of two attachments show one address.", []string{"infra"}, nil)
)

// Describe implements prometheus.Collector.
func (s *Statuses) Describe(descs chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{infraReady, attachmentReady, attachmentSources, newestSourceAge, sourcesDisputed} {
		descs <- d
	}
}

// Collect implements prometheus.Collector with what was reported last.
func (s *Statuses) Collect(metrics chan<- prometheus.Metric) {
	s.mu.Lock()
	defer s.mu.Unlock()
	gauge := func(desc *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, value, labels...)
	}
	for _, infra := range s.reported {
		ready, reason := readiness(infra.Status.Conditions)
		gauge(infraReady, ready, infra.Infra, reason)
		disputed := 0.0
		if meta.IsStatusConditionFalse(infra.Status.Conditions, v1alpha1.ConditionSourcesUnique) {
			disputed = 1
		}
		gauge(sourcesDisputed, disputed, infra.Infra)
		for _, a := range infra.Attachments {
			ready, reason := readiness(a.Status.Conditions)
			gauge(attachmentReady, ready, infra.Infra, a.Attachment, reason)
			gauge(attachmentSources, float64(len(a.Status.Sources)), infra.Infra, a.Attachment)
			if newest, any := s.newestSource(a); any {
				gauge(newestSourceAge, s.clock().Sub(newest).Seconds(), infra.Infra, a.Attachment)
			}
		}
	}
}

func readiness(conditions []metav1.Condition) (ready float64, reason string) {
	c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
	if c == nil {
		return 0, ""
	}
	if c.Status == metav1.ConditionTrue {
		ready = 1
	}
	return ready, c.Reason
}

// source is one worker address of one attachment.
type source struct{ attachment, machine, address string }

func (s *Statuses) newestSource(a AttachmentReport) (newest time.Time, any bool) {
	for _, src := range a.Status.Sources {
		at, known := s.sources[source{a.Attachment, src.Machine, src.Address}]
		if known && at.After(newest) {
			newest, any = at, true
		}
	}
	return newest, any
}

// noteSources keeps since when each source of the reported attachments is known. The lock is held.
func (s *Statuses) noteSources() {
	known := make(map[source]time.Time, len(s.sources))
	for _, infra := range s.reported {
		for _, a := range infra.Attachments {
			for _, src := range a.Status.Sources {
				key := source{a.Attachment, src.Machine, src.Address}
				known[key] = s.clock()
				if at, old := s.sources[key]; old {
					known[key] = at
				}
			}
		}
	}
	s.sources = known
}
