package xds

import (
	"slices"
	"testing"
	"time"
)

func TestRetriesComeAtGrowingIntervalsAndEndWithTheirCause(t *testing.T) {
	p := newPublisher(emptySnapshot())
	listeners := p.subscribe(listenerType, true, nil)
	listeners.refused["https"] = refusal{version: "1", message: "cannot bind '192.0.2.4:443': Address already in use"}
	ses := &session{pub: p, retry: stoppedTimer()}
	defer ses.retry.Stop()
	var waits []time.Duration
	for range 8 {
		ses.planRetry()
		waits = append(waits, ses.retryAfter)
	}
	want := []time.Duration{1, 2, 4, 8, 16, 32, 60, 60}
	for i := range want {
		want[i] *= time.Second
	}
	if !slices.Equal(waits, want) {
		t.Errorf("Envoy is asked again after %v, want %v", waits, want)
	}
	listeners.refused["https"] = refusal{version: "1", message: "Duplicate filter chain"}
	if ses.planRetry(); ses.retryAfter != 0 || ses.retry.Stop() {
		t.Error("content that Envoy refused is sent again without a change")
	}
}
