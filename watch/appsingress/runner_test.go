package appsingress

import (
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestWhatIsNoChange: the status that comes back by way of the plan disturbs nobody, and neither does a caller that goes on
// using what it gave.
func TestWhatIsNoChange(t *testing.T) {
	t.Parallel()
	a := Attachment{Addresses: []string{"192.0.2.1"}, Port: 6443}
	a.Key.Name = "a"
	a.Spec.Service.Labels = map[string]string{"a": "b"}
	for _, test := range []struct {
		name    string
		change  func(*Attachment)
		changed bool
	}{
		{"nothing", func(*Attachment) {}, false},
		{"what was known", func(a *Attachment) { a.Last.ExternalIP = "192.0.2.9" }, false},
		{"a label", func(a *Attachment) { a.Spec.Service.Labels = map[string]string{"a": "c"} }, true},
		{"an address", func(a *Attachment) { a.Addresses = []string{"192.0.2.2"} }, true},
		{"removing", func(a *Attachment) { a.Remove = true }, true},
		{"holding", func(a *Attachment) { a.Hold = true }, true},
		{"waiting", func(a *Attachment) { a.Waiting = "why" }, true},
	} {
		r := New(Config{})
		r.Set([]Attachment{a})
		other := a
		test.change(&other)
		r.Set([]Attachment{other})
		if changed := len(r.workers[a.Key].changed) > 0; changed != test.changed {
			t.Errorf("%s: changed is %v", test.name, changed)
		}
	}
	r := New(Config{})
	r.Set([]Attachment{a})
	a.Addresses[0], a.Spec.Service.Labels["a"] = "192.0.2.3", "d"
	if w := r.workers[a.Key].want; w.Addresses[0] != "192.0.2.1" || w.Spec.Service.Labels["a"] != "b" {
		t.Errorf("the caller's change came through: %+v", w)
	}
}

// TestMetrics of an attachment come with it, and go with it.
func TestMetrics(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	h := newHub(t)
	h.metrics = newMetrics(registry)
	a := Attachment{Addresses: []string{"127.0.0.1"}, Port: 1}
	a.Key.Name, a.Key.Namespace = "a", "clusters"
	cert, _ := selfSigned(t, time.Now().Add(time.Hour), "a")
	h.give(a, map[string][]byte{"kubeconfig": []byte(sample("server: https://a\ncertificate-authority-data: "+base64.StdEncoding.EncodeToString(cert), "token: abc"))})
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "", "connection refused")
	want := `
# HELP oooi_apps_ingress_phase 1 for the phase that apps ingress of the attachment is in, as seen in its hosted cluster; 0 for the others.
# TYPE oooi_apps_ingress_phase gauge
oooi_apps_ingress_phase{attachment="a",namespace="clusters",phase="Degraded"} 1
oooi_apps_ingress_phase{attachment="a",namespace="clusters",phase="Pending"} 0
oooi_apps_ingress_phase{attachment="a",namespace="clusters",phase="Ready"} 0
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "oooi_apps_ingress_phase"); err != nil {
		t.Error(err)
	}
	if n := testutil.ToFloat64(h.metrics.failures.WithLabelValues("clusters", "a")); n < 1 {
		t.Errorf("%v failed requests", n)
	}
	h.drop(a)
	if err := testutil.GatherAndCompare(registry, strings.NewReader("")); err != nil {
		t.Error(errors.Join(errors.New("series of an attachment that is forgotten"), err))
	}
}
