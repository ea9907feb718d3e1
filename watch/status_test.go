package watch

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

func TestStatusTellsWhatServesAndSinceWhen(t *testing.T) {
	var log bytes.Buffer
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := NewStatuses(slog.New(slog.NewTextHandler(&log, nil)), func() time.Time { return now })
	result := planWith("a", nil)
	result.Infras[0].Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady}}

	ready := func(serving Serving) metav1.Condition {
		t.Helper()
		infras, _ := s.Report(result, map[string]Serving{"clusters/vlan": serving})
		return *meta.FindStatusCondition(infras[0].Status.Conditions, v1alpha1.ConditionReady)
	}
	first := ready(Serving{Waiting: []string{"xds: no Envoy is connected", "dns: starting"}})
	if first.Status != metav1.ConditionFalse || first.Reason != v1alpha1.ReasonNotServing || first.Message != "xds: no Envoy is connected; dns: starting" {
		t.Errorf("not serving: %+v", first)
	}
	now = now.Add(time.Minute)
	if again := ready(Serving{Waiting: []string{"xds: no Envoy is connected"}}); again.LastTransitionTime != first.LastTransitionTime {
		t.Errorf("another message moved the transition time from %v to %v", first.LastTransitionTime, again.LastTransitionTime)
	}
	if good := ready(Serving{}); good.Status != metav1.ConditionTrue || !good.LastTransitionTime.Time.Equal(now) {
		t.Errorf("serving: %+v", good)
	}
	lines := strings.Count(log.String(), "type=Ready")
	_ = ready(Serving{})
	if after := strings.Count(log.String(), "type=Ready"); after != lines {
		t.Errorf("a condition that did not change was logged again:\n%s", log.String())
	}
	if result.Infras[0].Status.Conditions[0].Status != metav1.ConditionTrue {
		t.Error("Report changed the plan")
	}

	s.Report(&plan.Result{}, nil)
	if !strings.Contains(log.String(), `object="Infra clusters/vlan"`) || !strings.Contains(log.String(), "object is gone") {
		t.Errorf("an Infra that went is not logged:\n%s", log.String())
	}
}

func TestMetricsTellTheAgeOfTheNewestSource(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := NewStatuses(slog.New(slog.DiscardHandler), func() time.Time { return now })
	report := func(addresses ...string) {
		var sources []v1alpha1.Source
		for _, a := range addresses {
			sources = append(sources, v1alpha1.Source{Machine: "worker", Address: a})
		}
		s.Report(planWith("a", sources), nil)
	}
	report("192.0.2.117")
	now = now.Add(time.Minute)
	report("192.0.2.117", "192.0.2.118")
	now = now.Add(30 * time.Second)
	report("192.0.2.117", "192.0.2.118")
	want := `
# HELP oooi_attachment_newest_source_age_seconds How long ago the newest of the attachment's worker addresses appeared. Absent while there is none.
# TYPE oooi_attachment_newest_source_age_seconds gauge
oooi_attachment_newest_source_age_seconds{attachment="clusters/a",infra="clusters/vlan"} 30
# HELP oooi_attachment_sources Worker addresses that lead to the attachment's cluster by alias or without a server name.
# TYPE oooi_attachment_sources gauge
oooi_attachment_sources{attachment="clusters/a",infra="clusters/vlan"} 2
`
	names := []string{"oooi_attachment_newest_source_age_seconds", "oooi_attachment_sources"}
	if err := testutil.CollectAndCompare(s, strings.NewReader(want), names...); err != nil {
		t.Error(err)
	}
	report()
	if n := testutil.CollectAndCount(s, "oooi_attachment_newest_source_age_seconds"); n != 0 {
		t.Error("an attachment without sources has an age")
	}
}
