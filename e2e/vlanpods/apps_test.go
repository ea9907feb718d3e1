package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// The first address of each cluster's range in the example: MetalLB gives it unless somebody has it.
const appsVIPA, appsVIPB = "192.0.2.200", "192.0.2.210"

// console is a name of an app of a hosted cluster.
func console(cluster string) string { return "console.apps." + domain(cluster) }

// asker is somebody who wants to reach an app: where, which DNS server is asked, and where the names have to lead.
type asker struct {
	host   stack.Host
	server string
	// proxy is where the names lead when they do not lead to the VIP itself.
	proxy netip.Addr
}

// askers are a worker on the VLAN, and a pod.
func (w *appsSide) askers(t *testing.T) (worker, pod asker) {
	t.Helper()
	dnsService, err := w.clusterIP(t.Context(), v1alpha1.DNSServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	proxyService, err := w.clusterIP(t.Context(), v1alpha1.ProxyServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	return asker{host: w.workerA, server: addressDNS}, asker{server: dnsService.String(), proxy: proxyService}
}

// reach is an error unless the asker gets to the router of a cluster, which has a VIP, by name: over TLS and over HTTP.
func (w *appsSide) reach(ctx context.Context, a asker, cluster, vip string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	got, err := lookup(ctx, a.host, a.server, console(cluster))
	if err != nil {
		return err
	}
	want := vip
	if a.proxy.IsValid() {
		want = a.proxy.String()
	}
	if got != want {
		return fmt.Errorf("%s is at %s, want %s", console(cluster), got, want)
	}
	answer, err := w.callAt(ctx, a.host, got, 443, console(cluster))
	if err != nil {
		return err
	}
	if want := cluster + "/" + hosted.RouterService; answer != want {
		return fmt.Errorf("%s over TLS: %s answers, want %s", console(cluster), answer, want)
	}
	code, text, err := hosted.Get(ctx, a.host, netip.AddrPortFrom(netip.MustParseAddr(got), 80), console(cluster), "/dashboards")
	if err != nil {
		return err
	}
	if prefix := fmt.Sprintf("cluster %s, service router, sni -, host %s, ", cluster, console(cluster)); code != 200 || !strings.HasPrefix(text, prefix) {
		return fmt.Errorf("%s over HTTP: %d %q, want 200 and %q", console(cluster), code, text, prefix)
	}
	return nil
}

// reached waits until the worker and the pod get to the apps of a cluster.
func (w *appsSide) reached(t *testing.T, cluster, vip string) {
	t.Helper()
	worker, pod := w.askers(t)
	eventually(t, "apps of "+cluster+" from the VLAN", func(ctx context.Context) error { return w.reach(ctx, worker, cluster, vip) })
	eventually(t, "apps of "+cluster+" from a pod", func(ctx context.Context) error { return w.reach(ctx, pod, cluster, vip) })
}

// TestApps has a real cluster inside each of the example's hosted clusters, and MetalLB in them.
func TestApps(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	w := startApps(t)
	var group errgroup.Group
	for _, c := range w.both() {
		group.Go(func() error { return errors.Join(c.SetNode(t.Context(), true), c.StartMetalLB(t.Context(), "")) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	w.applyApps(t)
	w.awaitVIP(t, clusterA, appsVIPA)
	w.awaitVIP(t, clusterB, appsVIPB)
	w.reached(t, clusterA, appsVIPA)
	w.reached(t, clusterB, appsVIPB)
}
