package appsingress

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

// heapGrowth is what a test may take that lets many clusters lie at once. One lie alone took 3 GiB and more without bounds.
const heapGrowth = 128 << 20

// peakHeap samples the heap until it is asked for the highest it was.
func peakHeap() (peak func() uint64) {
	stop, stopped := make(chan struct{}), make(chan uint64, 1)
	go func() {
		ticker := time.NewTicker(time.Millisecond)
		defer ticker.Stop()
		var highest uint64
		for {
			var stats runtime.MemStats
			runtime.ReadMemStats(&stats)
			highest = max(highest, stats.HeapAlloc)
			select {
			case <-ticker.C:
			case <-stop:
				stopped <- highest
				return
			}
		}
	}()
	return func() uint64 {
		close(stop)
		return <-stopped
	}
}

// endless writes text for as long as somebody reads it.
func endless(w io.Writer, text string) {
	chunk := []byte(strings.Repeat(text, 1+(64<<10)/len(text)))
	for {
		if _, err := w.Write(chunk); err != nil {
			return
		}
	}
}

// empty answers like an API server that has a node that is Ready, and nothing else.
func empty(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch name := r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]; name {
	case "nodes":
		_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"name":"a"},"status":{"conditions":[{"type":"Ready","status":"True"}]}}]}`)
	case "metallbs", metalLBNamespaces[0], metalLBNamespaces[1]:
		w.WriteHeader(http.StatusNotFound)
	default:
		_, _ = io.WriteString(w, `{"kind":"List","metadata":{"resourceVersion":"1"},"items":[]}`)
	}
}

// instead answers one plural in another way.
func instead(plural string, answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/"+plural) && r.URL.Query().Get("watch") == "":
			w.Header().Set("Content-Type", "application/json")
			answer(w, r)
		case r.URL.Query().Get("watch") != "":
			<-r.Context().Done()
		default:
			empty(w, r)
		}
	}
}

// TestALyingClusterCostsTheOthersNothing: whatever an API server answers, the hub's memory is bounded, its attachment says what is
// wrong, and others do not notice. It runs alone, for it measures.
func TestALyingClusterCostsTheOthersNothing(t *testing.T) {
	well := newCluster(t)
	h := newHub(t)
	b := well.attachment(h, "well")
	well.ready()
	h.put(b)
	well.until(services, "openshift-ingress", "oooi-ingress", "there", isThere)

	var bomb bytes.Buffer
	packer := gzip.NewWriter(&bomb)
	for range 1 << 10 {
		if _, err := packer.Write(bytes.Repeat([]byte(" "), 64<<10)); err != nil {
			t.Fatal(err)
		}
	}
	if err := packer.Close(); err != nil {
		t.Fatal(err)
	}
	var pages atomic.Int32
	page := func(w io.Writer, item string, n int) {
		_, _ = fmt.Fprintf(w, `{"kind":"List","metadata":{"resourceVersion":"1","continue":"%d"},"items":[%s]}`, pages.Add(1), strings.TrimSuffix(strings.Repeat(item+",", n), ","))
	}
	mebibyte := `{"metadata":{"name":"a","annotations":{"a":"` + strings.Repeat("x", 1<<20) + `"}}},`
	liars := []struct {
		name, message string
		answer        http.HandlerFunc
	}{
		{"one-string", `the answer to "list nodes" has more than 2 MiB`, instead("nodes", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"a":"`)
			endless(w, "x")
		})},
		{"small-objects", `the answer to "list services" has more than 2 MiB`, instead("services", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[`)
			endless(w, "{},")
		})},
		{"small-values", `one object (lb/dense) takes more than 1024 KiB of memory`, instead("ipaddresspools", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"metadata":{},"items":[{"metadata":{"name":"dense","namespace":"lb"},"spec":[`+strings.Repeat(`{"":0},`, 200<<10)+`0]}]}`)
		})},
		{"gzip-bomb", `the answer to "list nodes": the answer is not the JSON`, instead("nodes", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			_, _ = w.Write(bomb.Bytes())
		})},
		{"mebibytes", `the answer to "list ipaddresspools" has more than 2 MiB`, instead("ipaddresspools", func(w http.ResponseWriter, _ *http.Request) {
			_, _ = io.WriteString(w, `{"items":[`)
			for range 10_000 {
				if _, err := io.WriteString(w, mebibyte); err != nil {
					return
				}
			}
		})},
		{"large-pages", `its answers have more than 8 MiB, the last to "list ipaddresspools"`, instead("ipaddresspools", func(w http.ResponseWriter, _ *http.Request) {
			page(w, `{"metadata":{"name":"a","annotations":{"a":"`+strings.Repeat("x", 1<<19)+`"}}}`, 3)
		})},
		{"pages-without-end", `the answers to "list services" have no end after 200 pages`, instead("services", func(w http.ResponseWriter, _ *http.Request) {
			page(w, "", 0)
		})},
		{"our-labels", `its objects take more than 2 MiB of memory`, instead("services", func(w http.ResponseWriter, _ *http.Request) {
			page(w, `{"metadata":{"name":"a","namespace":"b","labels":`+ourLabels(t, "our-labels")+`}}`, pageSize)
		})},
		{"no-name", "a name that no object can have", instead("ipaddresspools", func(w http.ResponseWriter, _ *http.Request) {
			page(w, `{"metadata":{"name":"`+strings.Repeat("x", 1<<10)+`"}}`, 1)
		})},
		{"errors", "has prevented the request from succeeding", instead("nodes", func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","details":{"causes":[`)
			endless(w, "{},")
		})},
		{"headers", "connection error", instead("nodes", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("A", strings.Repeat("x", 8<<20))
			w.WriteHeader(http.StatusOK)
		})},
		{"drip", "no answer within 10s", instead("nodes", func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				if _, err := io.WriteString(w, " "); err != nil {
					return
				}
				_ = http.NewResponseController(w).Flush() // the client goes when it has enough
				<-time.After(10 * time.Millisecond)
			}
		})},
	}
	// Watches that never end an event, and that never end events.
	watched := map[string]string{"one-event": "", "events": `{"type":"MODIFIED","object":{}}` + "\n"}
	var ended sync.Map
	runtime.GC()
	var before runtime.MemStats
	runtime.ReadMemStats(&before)
	peak := peakHeap()
	lie := func(name string, answer http.HandlerFunc) Attachment {
		a := h.tenant(name, answer)
		h.put(a)
		return a
	}
	var lying []Attachment
	for _, liar := range liars {
		lying = append(lying, lie(liar.name, liar.answer))
	}
	for name, event := range watched {
		lie(name, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Query().Get("watch") == "" {
				empty(w, r)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			if event == "" {
				_, _ = io.WriteString(w, `{"type":"MODIFIED","object":{"a":"`)
			}
			endless(w, cmp.Or(event, "x"))
			ended.Store(name, true)
		})
	}
	for i, liar := range liars {
		o := h.waitFor(lying[i], degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "", liar.message)
		if len(o.Status.Message) > 1<<10 {
			t.Errorf("%s: a message of %d bytes", liar.name, len(o.Status.Message))
		}
		vip := fmt.Sprintf("192.0.2.%d", 200+i%10)
		well.announce("openshift-ingress", "oooi-ingress", `{"ip":"`+vip+`"}`)
		h.waitFor(b, readyPhase, v1alpha1.ReasonReconciliationSucceeded, vip)
	}
	for name := range watched {
		h.wait(b, "the watch of "+name+" ended", func(Observation) bool {
			_, yes := ended.Load(name)
			return yes
		})
	}
	highest := peak()
	for _, a := range h.all {
		h.drop(a)
	}
	if highest > before.HeapAlloc+heapGrowth {
		t.Errorf("the heap grew from %d to %d MiB", before.HeapAlloc>>20, highest>>20)
	}
	t.Logf("the heap was up to %d MiB, %d before", highest>>20, before.HeapAlloc>>20)
}
