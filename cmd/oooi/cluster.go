package main

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/hub"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
	"github.com/densityops/oooi/watch/serving"
)

// Calls of the API that this process may make a second, and at once: enough to write the statuses of 300 attachments
// in a second or two.
const (
	apiCallsPerSecond = 200
	apiCallsAtOnce    = 400
)

// cluster is a process that works with a cluster: hub, servers or both.
type cluster struct {
	log      *slog.Logger
	settings *settings
	metrics  *prometheus.Registry
	statuses *watch.Statuses
	identity string

	hub *hub.Hub // nil: not a role of this process

	server   *serve.Server // nil, with the rest: not a role of this process
	watcher  *serving.Watcher
	reporter *serving.Reporter
	children atomic.Pointer[[]serving.Children]
	shared   *sharedVLAN // nil: this process shares its VLANs with nobody
}

// serveCluster serves a cluster until ctx ends.
func serveCluster(ctx context.Context, log *slog.Logger, s *settings) (err error) {
	config, namespace, err := clusterConfig(s.kubeconfig)
	if err != nil {
		return err
	}
	log.Info("oooi starts", "version", version, "cluster", config.Host, "stateDir", s.stateDir)
	// What the libraries that talk to the API have to say, in the form of everything else.
	klog.SetSlogLogger(log.With("part", "client-go"))
	ctrllog.SetLogger(logr.FromSlogHandler(log.With("part", "controller-runtime").Handler()))
	c := &cluster{log: log, settings: s, metrics: newProcessMetrics(), statuses: watch.NewStatuses(log, time.Now)}
	c.metrics.MustRegister(c.statuses)
	c.identity = identify(s.stateDir)
	identity := c.identity
	if s.reconcile {
		if s.workloads == nil {
			log.Info("no VLAN pods are written: servers are started by hand; in a pod of its own, or with --vlan-image, the hub writes them")
		}
		if c.hub, err = hub.New(hub.Config{
			REST: config, Log: log.With("part", "hub"), Registerer: c.metrics,
			Identity: identity, Namespace: namespace, Infra: splitKey(s.infra), Clock: time.Now,
			Planned:   func(result *plan.Result) { c.statuses.Report(result, c.hub.Serving(result)) },
			Workloads: s.workloads,
		}); err != nil {
			return err
		}
	}
	if len(s.serve.Roles) > 0 {
		if err := c.openServers(config, identity); err != nil {
			return err
		}
		defer func() {
			err = errors.Join(err, c.server.Close())
			if c.shared != nil {
				err = errors.Join(err, c.shared.leases.Close())
			}
		}()
	}
	group, ctx := errgroup.WithContext(ctx)
	if c.hub != nil {
		group.Go(func() error { return c.hub.Run(ctx) })
	}
	if c.server != nil {
		group.Go(func() error { return c.server.Run(ctx) })
		group.Go(func() error { return c.watcher.Run(ctx, c.apply) })
		group.Go(func() error { return c.reporter.Run(ctx, c.reports) })
		if c.shared != nil {
			c.shared.run(ctx, group, c.holding)
		}
	}
	group.Go(func() error { return c.web().serve(ctx, s.httpListen, c.shared != nil) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve: %w", err)
	}
	log.Info("oooi has stopped")
	return nil
}

// clusterConfig finds the cluster, and the namespace that this process belongs to in it.
func clusterConfig(kubeconfig string) (*rest.Config, string, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("cluster: %w: give --kubeconfig, or --config-dir to serve a folder without a cluster", err)
	}
	config.QPS, config.Burst = apiCallsPerSecond, apiCallsAtOnce
	config.UserAgent = "oooi/" + version
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("cluster: %w", err)
	}
	return config, cmp.Or(os.Getenv("POD_NAMESPACE"), namespace), nil
}

// identify names this process among others of its cluster: by its pod, or by its host and state folder, which no
// other process shares. A restart keeps the name.
func identify(stateDir string) string {
	if pod := os.Getenv("POD_NAME"); pod != "" {
		return pod
	}
	host, err := os.Hostname()
	if err != nil {
		host = "oooi"
	}
	sum := sha256.Sum256([]byte(stateDir))
	return v1alpha1.LabelValue(host + "-" + hex.EncodeToString(sum[:4]))
}

// ownPod is the pod of this process; zero: it does not run in one that says so.
func ownPod() types.NamespacedName {
	pod := types.NamespacedName{Namespace: os.Getenv("POD_NAMESPACE"), Name: os.Getenv("POD_NAME")}
	if pod.Namespace == "" || pod.Name == "" {
		return types.NamespacedName{}
	}
	return pod
}

// podOwner is the pod of this process, as owner of what goes with it; nil: it does not run in one that says so.
func podOwner() *metav1.OwnerReference {
	name, uid := os.Getenv("POD_NAME"), os.Getenv("POD_UID")
	if name == "" || uid == "" {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(uid)}
}

func (c *cluster) openServers(config *rest.Config, identity string) error {
	settings := c.settings.serve
	settings.Log = c.log
	settings.LeasesChanged = func() {}
	var err error
	var key ed25519.PublicKey
	if settings.ClaimAddresses {
		if c.shared, err = c.shareVLAN(config); err != nil {
			return err
		}
		settings.Shared = c.shared.shared(identity, c.settings.envoyAdmin)
		key = c.shared.key.Public().(ed25519.PublicKey)
	}
	if c.server, err = serve.New(settings); err != nil {
		return err
	}
	if c.watcher, err = serving.NewWatcher(serving.WatcherConfig{
		REST: config, Log: c.log.With("part", "children"), Infra: splitKey(c.settings.infra), StateDir: c.settings.stateDir,
	}); err != nil {
		return errors.Join(err, c.server.Close())
	}
	if c.reporter, err = serving.NewReporter(serving.ReporterConfig{
		REST: config, Log: c.log.With("part", "report"), Identity: identity, Pod: podOwner(), Key: key, Clock: time.Now,
	}); err != nil {
		return errors.Join(err, c.server.Close())
	}
	return nil
}

// apply hands the children in the cluster to the servers.
func (c *cluster) apply(children []serving.Children) {
	c.children.Store(&children)
	all := make([]serve.Children, len(children))
	for i, k := range children {
		all[i] = serve.Children{Infra: k.Infra.String(), DHCP: k.DHCP, DNS: k.DNS, Proxy: k.Proxy}
	}
	c.server.Apply(all)
	if err := c.settings.serving(c.server.State()); err != nil {
		c.log.Warn("nothing is served", "error", err)
	}
}

// reports say what the servers of this process do.
func (c *cluster) reports() []serving.Report {
	if c.children.Load() == nil || c.watcher.Stale() {
		return nil // nothing is served, or there is no API to tell
	}
	states := map[string]serve.InfraState{}
	for _, st := range c.server.State() {
		states[st.Infra] = st
	}
	active, total := countLeases(c.server.Leases())
	var reports []serving.Report
	for _, k := range c.watcher.Children() {
		st := states[k.Infra.String()]
		r := serving.Report{Children: serving.Children{Infra: k.Infra}, VLAN: vlanReport(st.VLAN)}
		if st.DHCP != nil {
			r.DHCP, r.DHCPReady, r.DHCPMessage = k.DHCP, st.DHCP.Ready, st.DHCP.Message
			r.ActiveLeases, r.TotalLeases = active[st.Infra], total[st.Infra]
		}
		if st.DNS != nil {
			r.DNS, r.DNSReady, r.DNSMessage = k.DNS, st.DNS.Ready, st.DNS.Message
		}
		if slices.Contains(c.settings.serve.Roles, serve.RoleXDS) {
			r.Proxy, r.Envoys = k.Proxy, envoysOf(st, c.identity)
		}
		reports = append(reports, r)
	}
	return reports
}

// vlanReport is what this process says of its part in holding the server addresses.
func vlanReport(v *serve.VLANState) *process.VLAN {
	if v == nil {
		return nil
	}
	r := &process.VLAN{Holding: v.Holding, Epoch: v.Epoch, Holder: v.Holder}
	for _, a := range v.Addresses {
		r.Addresses = append(r.Addresses, a.String())
	}
	for _, p := range v.Problems {
		r.Problems = append(r.Problems, process.VLANProblem{Reason: p.Reason, Message: p.Message})
	}
	return r
}

// envoysOf says which generation of the ProxyServer each Envoy serves, as far as it is the current one. Routes that oooi itself
// refuses are nobody's fault among the Envoys, but it is there that it is looked for.
func envoysOf(st serve.InfraState, identity string) []v1alpha1.EnvoyStatus {
	envoys := slices.Clone(st.Envoys)
	if st.Refused != "" && len(envoys) == 0 {
		envoys = []v1alpha1.EnvoyStatus{{Name: identity}}
	}
	for i := range envoys {
		switch {
		case st.Refused != "":
			envoys[i].Error = "not sent, refused by oooi: " + st.Refused
		case envoys[i].Acknowledged == st.ProxyVersion:
			envoys[i].Generation = st.ProxyGeneration
		}
	}
	return envoys
}

func countLeases(leases []serve.Lease) (active, total map[string]int32) {
	active, total = map[string]int32{}, map[string]int32{}
	for _, l := range leases {
		total[l.Infra]++
		if l.State == dhcpserver.StateActive {
			active[l.Infra]++
		}
	}
	return active, total
}

// web is the HTTP endpoints of this process.
func (c *cluster) web() *web {
	e := &web{
		ready:       c.ready,
		result:      c.result,
		status:      c.status,
		leases:      func() []serve.Lease { return nil },
		metrics:     c.metrics,
		podNetworks: c.settings.serve.PodNetworks,
	}
	if c.server != nil {
		e.leases = c.server.Leases
		e.metrics = prometheus.Gatherers{c.metrics, c.server}
	}
	return e
}

func (c *cluster) ready() error {
	if c.server != nil {
		// A hub that cannot reach the API must not take the servers out of service.
		return c.settings.ready(c.server)
	}
	return c.hub.Ready()
}

// result is the plan of the hub, or without one what the children tell.
func (c *cluster) result() *plan.Result {
	if c.hub != nil && c.hub.Result() != nil {
		return c.hub.Result()
	}
	children := c.children.Load()
	if children == nil {
		return nil
	}
	result := &plan.Result{}
	for _, k := range *children {
		result.Infras = append(result.Infras, plan.FromChildren(k.Infra, k.DNS, k.Proxy))
	}
	return result
}

func (c *cluster) status() statusReport {
	r := statusReport{Infras: []watch.InfraReport{}, Serving: []serve.InfraState{}}
	if c.hub != nil {
		r.Leading = c.hub.Leading()
		if result := c.hub.Result(); result != nil {
			r.Infras, r.Orphans = c.statuses.Report(result, c.hub.Serving(result))
		}
	}
	if c.server != nil {
		r.Serving, r.Stale = c.server.State(), c.watcher.Stale()
	}
	return r
}
