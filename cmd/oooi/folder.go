package main

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
)

// folder plans what the manifests of a folder ask for, and hands it to the servers.
type folder struct {
	log      *slog.Logger
	settings *settings
	server   *serve.Server
	source   *files.Source
	memory   *watch.Memory
	statuses *watch.Statuses
	metrics  *prometheus.Registry
	planTime prometheus.Histogram

	mu      sync.Mutex
	objects *plan.Objects
	changed chan struct{} // room for one
	result  atomic.Pointer[plan.Result]

	// Owned by run: why the sources are not remembered, and when it was tried last.
	forgetful       error
	triedToRemember time.Time
}

func newFolder(log *slog.Logger, s *settings, server *serve.Server, source *files.Source) (*folder, error) {
	memory, err := watch.OpenMemory(s.stateDir, log)
	if err != nil {
		return nil, err
	}
	f := &folder{
		log: log, settings: s, server: server, source: source, memory: memory,
		statuses: watch.NewStatuses(log, time.Now),
		metrics:  newProcessMetrics(),
		planTime: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "oooi_plan_seconds", Help: "How long one plan of all objects took.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 4, 8),
		}),
		changed: make(chan struct{}, 1),
	}
	problems := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "oooi_manifest_problems", Help: "What is wrong with manifests whose last good state is served.",
	}, func() float64 { return float64(len(source.Problems())) })
	f.metrics.MustRegister(f.statuses, f.planTime, problems)
	return f, nil
}

// web is the HTTP endpoints of this process.
func (f *folder) web() *web {
	return &web{
		ready:  func() error { return f.settings.ready(f.server) },
		result: f.result.Load,
		status: func() statusReport {
			infras, orphans := f.report()
			return statusReport{Infras: infras, Orphans: orphans, Serving: f.server.State(), Problems: f.source.Problems()}
		},
		leases:      f.server.Leases,
		metrics:     prometheus.Gatherers{f.metrics, f.server},
		podNetworks: f.settings.serve.PodNetworks,
	}
}

// setObjects takes the complete set of objects; the newest one counts.
func (f *folder) setObjects(objects plan.Objects) {
	f.mu.Lock()
	f.objects = &objects
	f.mu.Unlock()
	f.notify()
}

func (f *folder) notify() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}

// run plans on every change of the objects or the leases.
func (f *folder) run(ctx context.Context, leasesChanged <-chan struct{}) error {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			f.report()
			if f.forgetful == nil || time.Since(f.triedToRemember) < rememberRetry {
				continue
			}
		case <-f.changed:
		case <-leasesChanged:
		}
		f.mu.Lock()
		objects := f.objects
		f.mu.Unlock()
		if objects != nil {
			f.plan(ctx, *objects)
		}
	}
}

func (f *folder) plan(ctx context.Context, objects plan.Objects) {
	started := time.Now()
	f.memory.Recall(&objects)
	result := plan.Plan(plan.Input{
		Objects: objects, Leases: f.leases(ctx, objects.Infras), Published: f.memory.Published(), NobodyLooks: true,
	})
	f.planTime.Observe(time.Since(started).Seconds())
	// Remembered before it is served: a restart at any instant knows at least what was served.
	f.remember(result)
	f.result.Store(result)
	var all []serve.Children
	for _, infra := range result.Infras {
		if key := infra.Key().String(); f.settings.infra == "" || f.settings.infra == key {
			all = append(all, serve.Children{
				Infra: key, DHCP: infra.DHCP, DNS: infra.DNS, Proxy: infra.Proxy, Refused: infra.Refused,
			})
		}
	}
	f.server.Apply(all)
	if err := f.settings.serving(f.server.State()); err != nil {
		f.log.Warn("nothing is served", "error", err)
	}
	f.report()
}

// reportPeriod is how often the servers are looked at for what changes a condition.
const reportPeriod = time.Second

// rememberRetry is how long a state folder that cannot be written is left alone.
const rememberRetry = 10 * time.Second

// remember keeps what is to outlive a restart, and plans again a little later when they cannot be kept. It logs when that changes.
func (f *folder) remember(result *plan.Result) {
	err := f.memory.Keep(result)
	f.triedToRemember = time.Now()
	switch {
	case err != nil && f.forgetful == nil:
		f.log.Error("what is known of attachments is not remembered over a restart, trying again", "error", err)
	case err == nil && f.forgetful != nil:
		f.log.Info("what is known of attachments is remembered again")
	}
	f.forgetful = err
}

// leases are the live leases of the Infras, also before their servers have started.
func (f *folder) leases(ctx context.Context, infras []*v1alpha1.Infra) map[types.NamespacedName][]plan.Lease {
	now := time.Now()
	live := map[types.NamespacedName][]plan.Lease{}
	for _, infra := range infras {
		key := types.NamespacedName{Namespace: infra.Namespace, Name: infra.Name}
		leases, err := f.server.LeasesOf(ctx, key.String())
		if err != nil {
			f.log.Error("leases cannot be read", "infra", key.String(), "error", err)
		}
		for _, l := range leases {
			if l.Live(now) {
				live[key] = append(live[key], plan.Lease{Address: l.Address, MAC: l.MAC.String()})
			}
		}
	}
	return live
}

// report gives the statuses as they are now; changes of conditions are logged once.
func (f *folder) report() ([]watch.InfraReport, []watch.AttachmentReport) {
	result := f.result.Load()
	if result == nil {
		return nil, nil
	}
	serving := map[string]watch.Serving{}
	for _, state := range f.server.State() {
		serving[state.Infra] = servingOf(state, f.settings.serve.Roles)
	}
	return f.statuses.Report(result, serving)
}

// servingOf sums up what one Infra's servers do. A component that this process has no role for is
// another one's business.
func servingOf(state serve.InfraState, roles []serve.Role) watch.Serving {
	var s watch.Serving
	for _, c := range []struct {
		role  serve.Role
		state *serve.ComponentState
		ready *bool
	}{
		{serve.RoleDHCP, state.DHCP, &s.DHCPReady},
		{serve.RoleDNS, state.DNS, &s.DNSReady},
		{serve.RoleXDS, state.Proxy, &s.ProxyReady},
	} {
		if c.state == nil || !slices.Contains(roles, c.role) {
			continue
		}
		*c.ready = c.state.Ready
		if !c.state.Ready {
			s.Waiting = append(s.Waiting, string(c.role)+": "+c.state.Message)
		}
	}
	return s
}
