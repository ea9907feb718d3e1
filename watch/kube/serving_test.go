package kube

import (
	"fmt"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestProgrammedFoldsWhatEnvoysSay(t *testing.T) {
	alive := map[string]bool{"pod-1": true, "pod-2": true}
	served := v1alpha1.EnvoyStatus{Name: "e1", Process: "pod-1", Generation: 7}
	for _, c := range []struct {
		name   string
		envoys []v1alpha1.EnvoyStatus
		want   string
	}{
		{"no Envoy", nil, "False NoEnvoy no Envoy is connected"},
		{"served", []v1alpha1.EnvoyStatus{served}, "True Acknowledged acknowledged by every Envoy: 1"},
		{"an Envoy of a process that is gone does not count", []v1alpha1.EnvoyStatus{{Name: "e2", Process: "gone", Generation: 7}}, "False NoEnvoy no Envoy is connected"},
		{
			"Envoy's own words",
			[]v1alpha1.EnvoyStatus{served, {Name: "e2", Process: "pod-2", Generation: 6, Error: "cannot bind"}},
			"False Refused Envoy e2: cannot bind",
		},
		{"behind", []v1alpha1.EnvoyStatus{served, {Name: "e2", Process: "pod-2", Generation: 6}}, "False Pending not acknowledged yet by Envoy e2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			h := &Hub{cfg: HubConfig{Clock: func() time.Time { return now }}, pending: map[types.NamespacedName]time.Time{}}
			before := []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: "Before"}}
			p := &v1alpha1.ProxyServer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "p", Generation: 7},
				Status:     v1alpha1.ProxyServerStatus{Conditions: before, Envoys: c.envoys},
			}
			got := meta.FindStatusCondition(h.proxyConditions(p, alive), v1alpha1.ConditionProgrammed)
			if got.Reason == "Before" { // an answer that is due is waited for, but not for ever
				if h.pendingChanged() {
					t.Error("silence is too long at once")
				}
				now = now.Add(pendingPatience)
				if !h.pendingChanged() {
					t.Error("silence is never too long")
				}
				got = meta.FindStatusCondition(h.proxyConditions(p, alive), v1alpha1.ConditionProgrammed)
			}
			if text := fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}
