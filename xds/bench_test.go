package xds

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// large is an Infra with n attachments and m workers.
func large(serverIP string, n, m int) *v1alpha1.ProxyServer {
	var all [][]v1alpha1.Backend
	for i := range n {
		var sources []string
		for j := range m / n {
			k := i*(m/n) + j
			sources = append(sources, fmt.Sprintf("10.%d.%d.%d", k>>16, k>>8&255, k&255))
		}
		all = append(all, attachment(fmt.Sprintf("hosted-cluster-%d", i), "172.30.0.1", pagePorts, sources...))
	}
	return proxyServer(serverIP, all...)
}

var benchSizes = []struct{ attachments, workers int }{{10, 100}, {100, 5000}, {1000, 10000}}

func BenchmarkBuild(b *testing.B) {
	for _, size := range benchSizes {
		plain, apps := large("10.255.0.4", size.attachments, size.workers), large("10.255.0.4", size.attachments, size.workers)
		for i := range size.attachments {
			withApps(apps, fmt.Sprintf("hosted-cluster-%d", i))
		}
		for name, proxy := range map[string]*v1alpha1.ProxyServer{"": plain, "-apps": apps} {
			b.Run(fmt.Sprintf("%d-%d%s", size.attachments, size.workers, name), func(b *testing.B) {
				b.ReportAllocs()
				var snap *Snapshot
				for b.Loop() {
					snap = mustBuild(b, proxy, Options{})
				}
				b.ReportMetric(float64(snap.size()), "bytes")
			})
		}
	}
}

// BenchmarkWorkerComesAndGoes is the time from a changed ProxyServer until a real Envoy acknowledged it. "sent" leaves out
// Build: it is Envoy's own time and the wire. "envoy-bytes" is what Envoy has allocated then.
func BenchmarkWorkerComesAndGoes(b *testing.B) {
	for _, size := range benchSizes {
		with := large(loopbacks(1)[0], size.attachments, size.workers)
		without := with.DeepCopy()
		for i := range without.Spec.Backends[:7] {
			if sources := without.Spec.Backends[i].SourcePrefixRanges; len(sources) > 0 {
				without.Spec.Backends[i].SourcePrefixRanges = sources[1:]
			}
		}
		both := []*v1alpha1.ProxyServer{with, without}
		opts := Options{PortOffset: portOffset}
		built := []*Snapshot{mustBuild(b, with, opts), mustBuild(b, without, opts)}
		for what, snapshot := range map[string]func(i int) *Snapshot{
			"sent":  func(i int) *Snapshot { return built[i%2] },
			"whole": func(i int) *Snapshot { return mustBuild(b, both[i%2], opts) },
		} {
			b.Run(fmt.Sprintf("%d-%d/%s", size.attachments, size.workers, what), func(b *testing.B) {
				s := startServer(b, "127.0.0.1:0")
				s.Apply(testInfra, built[1])
				e := startEnvoy(b, "pod-1", s.address)
				waitAcknowledged(b, s.Server)
				i := 0
				for b.Loop() {
					s.Apply(testInfra, snapshot(i))
					waitAcknowledged(b, s.Server)
					i++
				}
				b.ReportMetric(e.allocated(), "envoy-bytes")
			})
		}
	}
}

// allocated is the memory that Envoy uses, in bytes.
func (e *envoy) allocated() float64 {
	e.t.Helper()
	var memory struct {
		Allocated float64 `json:"allocated,string"`
	}
	if err := json.Unmarshal([]byte(e.get("/memory")), &memory); err != nil {
		e.t.Fatal(err)
	}
	return memory.Allocated
}
