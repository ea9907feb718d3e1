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

// TestRemovedIsAboutWhatIsWantedNow: whoever takes the finalizer off must not see the removal of before, whatever was wanted in between.
func TestRemovedIsAboutWhatIsWantedNow(t *testing.T) {
	t.Parallel()
	a := Attachment{UID: "1", Remove: true}
	a.Key.Name = "a"
	for _, test := range []struct {
		name    string
		between func(*Attachment)
		removed bool
	}{
		{"nothing", func(*Attachment) {}, true},
		{"what was known", func(a *Attachment) { a.Last.ExternalIP = "192.0.2.9" }, true},
		{"enabled", func(a *Attachment) { a.Remove = false }, false},
		{"held", func(a *Attachment) { a.Remove, a.Hold = false, true }, false},
		{"waiting", func(a *Attachment) { a.Waiting = "why" }, false},
		{"another spec", func(a *Attachment) { a.Spec.MetalLB.AddressPoolName = "other" }, false},
	} {
		r := New(Config{})
		r.Set([]Attachment{a})
		r.observed[a.Key] = Observation{UID: a.UID, Removed: true, Left: []string{"Namespace lb"}}
		other := a
		test.between(&other)
		r.Set([]Attachment{other})
		r.Set([]Attachment{a})
		if o, known := r.Observed()[a.Key]; !known || o.Removed != test.removed {
			t.Errorf("%s: %+v", test.name, o)
		}
	}
}

// TestAnotherUIDIsAnotherAttachment: nothing of the one before is known of it.
func TestAnotherUIDIsAnotherAttachment(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	a := Attachment{UID: "1", Addresses: []string{"127.0.0.1"}, Port: 1, Last: v1alpha1.AppsIngressStatus{ExternalIP: "192.0.2.9"}}
	a.Key.Name, a.Key.Namespace = "a", "clusters"
	h.put(a)
	if o := h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "192.0.2.9"); o.UID != "1" {
		t.Errorf("%+v", o)
	}
	a.UID, a.Last = "2", v1alpha1.AppsIngressStatus{}
	h.put(a)
	if o := h.Observed()[a.Key]; o.UID == "1" {
		t.Errorf("seen of the one before: %+v", o)
	}
	if o := h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, ""); o.UID != "2" {
		t.Errorf("%+v", o)
	}
}

// TestTheSpecThatWasTakenOut: what was made has the names of before.
func TestTheSpecThatWasTakenOut(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	a := Attachment{Addresses: []string{"127.0.0.1"}, Port: 1}
	a.Key.Name, a.Key.Namespace = "a", "clusters"
	a.Spec.MetalLB.AddressPoolName, a.Spec.Service.Name = "pool", "router"
	h.put(a)
	a.Spec, a.Remove = v1alpha1.AppsIngress{}, true
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "", "may be left there: Service openshift-ingress/router")
}

// TestBrake: setting up and taking away go on without a pause, what does not come to rest gets a longer one each time.
func TestBrake(t *testing.T) {
	t.Parallel()
	now := time.Unix(0, 0)
	var changing, stepping brake
	last := time.Duration(0)
	for n := 1; n <= 100; n++ {
		changing.change(now)
		stepping.step()
		interval := changing.interval(now)
		now = now.Add(max(soonInterval, interval))
		if n <= freeChanges && interval != 0 || n > freeChanges && (interval <= last && interval != backoffLast || interval > backoffLast) {
			t.Errorf("%d changes: %s after %s", n, interval, last)
		}
		last = interval
		if paused := stepping.interval(now) > 0; paused != (n > freeSteps) {
			t.Errorf("%d steps: paused %v", n, paused)
		}
	}
	if interval := changing.interval(now.Add(2 * calm)); interval != 0 {
		t.Errorf("calm, and yet a pause of %s", interval)
	}
	var waking brake // by a watch, whatever the looks find
	for n := 1; n <= 100; n++ {
		waking.wake(now)
		now = now.Add(max(soonInterval, waking.interval(now)))
		if paused := waking.interval(now) > 0; paused != (n > freeWakes) {
			t.Errorf("%d looks that a watch asked for: paused %v", n, paused)
		}
	}
	if interval := waking.interval(now.Add(2 * calm)); interval != 0 {
		t.Errorf("silence, and yet a pause of %s", interval)
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
