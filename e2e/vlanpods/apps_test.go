package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// The first address of each cluster's range in the example: MetalLB gives it unless somebody has it.
const appsVIPA, appsVIPB = "192.0.2.200", "192.0.2.210"

// TestApps has a real cluster inside each of the example's hosted clusters, and MetalLB in them. Its parts build on one another.
func TestApps(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	w := startApps(t)
	for _, part := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"pending", w.testPending},
		{"routes", w.testRoutes},
		{"MetalLB", w.testMetalLB},
		{"outages", w.testOutages},
		{"conflicts", w.testConflicts},
		{"removal", w.testRemoval},
	} {
		if !t.Run(part.name, part.run) {
			return // the clusters are not as the next one wants them
		}
	}
}

// testPending has cluster A come to life step by step, while B serves.
func (w *appsSide) testPending(t *testing.T) {
	if err := errors.Join(w.b.SetNode(t.Context(), true), w.b.StartMetalLB(t.Context(), "")); err != nil {
		t.Fatal(err)
	}
	w.applyApps(t)
	w.awaitVIP(t, clusterB, appsVIPB)
	w.reached(t, clusterB, appsVIPB)
	w.undisturbed(t, clusterB, appsVIPB)

	pending := func(reason string, words ...string) {
		t.Helper()
		w.awaitPhase(t, clusterA, v1alpha1.PhasePending, reason, words...)
	}
	pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "no nodes yet")
	eventually(t, "an attachment that is Ready all the same", func(ctx context.Context) error { return w.ready(ctx, "infraclusterattachments", clusterA) })
	w.closed(t, clusterA)
	if err := w.a.SetNode(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	pending(v1alpha1.ReasonWaitingForHostedClusterNodes, "none of the 1 nodes")
	if err := w.a.SetNode(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	pending(v1alpha1.ReasonWaitingForMetalLBCRDs, "metallb.install")
	if err := hosted.InstallMetalLBDefinitions(t.Context(), w.a.ControlPlane); err != nil {
		t.Fatal(err)
	}
	pending(v1alpha1.ReasonWaitingForExternalIP, "said nothing")
	w.closed(t, clusterA)
	if err := w.a.StartMetalLB(t.Context(), ""); err != nil {
		t.Fatal(err)
	}
	w.awaitVIP(t, clusterA, appsVIPA)
	w.reached(t, clusterA, appsVIPA)
}

// testRoutes asks for what there is and what there is not, also after the holder is gone.
func (w *appsSide) testRoutes(t *testing.T) {
	worker, pod := w.askers(t)
	for _, who := range []asker{worker, pod} {
		for name, want := range map[string]string{
			"a.deep.name.apps." + domain(clusterA):              who.leadsTo(appsVIPA),
			strings.ToUpper(console(clusterB)):                  who.leadsTo(appsVIPB),
			"apps." + domain(clusterA):                          "NOERROR", // it exists, and has nothing (RFC 4592, 2.2.2)
			"console.apps.example-hcp-c.clusters.example.com":   stack.UpstreamAnswer,
			"oauth." + domain(clusterA):                         who.leadsTo(addressProxy),
			"oauth-openshift.apps-" + domain(clusterA):          stack.UpstreamAnswer,
			"canary-openshift-ingress.apps." + domain(clusterB): who.leadsTo(appsVIPB),
		} {
			if got, err := lookup(t.Context(), who.host, who.server, name); err != nil || got != want {
				t.Errorf("%s for %s: %s (%v), want %s", name, who, got, err, want)
			}
		}
	}
	for sni, want := range map[string]string{
		strings.ToUpper(console(clusterA)):     clusterA + "/router",
		"a.deep.name.apps." + domain(clusterB): clusterB + "/router",
		"apps." + domain(clusterA):             "closed",
		"console.apps.example.org":             "closed",
		"":                                     "closed",
	} {
		if got, err := w.callAt(t.Context(), pod.host, pod.proxy.String(), 443, sni); err != nil || got != want {
			t.Errorf("SNI %q: %s (%v), want %s", sni, got, err, want)
		}
	}
	if got, err := w.callAt(t.Context(), pod.host, pod.proxy.String(), 6443, console(clusterA)); err != nil || got != "closed" {
		t.Errorf("an app at the port of API servers: %s (%v)", got, err)
	}
	for host, want := range map[string]string{
		console(clusterA):                      clusterA,
		strings.ToUpper(console(clusterA)):     clusterA,
		console(clusterB) + ":80":              clusterB,
		console(clusterB) + ":8080":            clusterB,
		"a.deep.name.apps." + domain(clusterB): clusterB,
		"apps." + domain(clusterA):             "",
		"api." + domain(clusterA):              "",
		"kubernetes.default.svc":               "",
		"console.apps.example.org":             "",
		pod.proxy.String():                     "",
	} {
		code, text, err := pod.get(t.Context(), host)
		switch {
		case err != nil:
			t.Errorf("Host %s: %v", host, err)
		case want == "" && code != 404:
			t.Errorf("Host %s: %d %q, want 404", host, code, text)
		case want != "" && (code != 200 || !strings.HasPrefix(text, fmt.Sprintf("cluster %s, service router, sni -, host %s, client 192.0.2.", want, host))):
			t.Errorf("Host %s: %d %q, want the router of %s", host, code, text, want)
		}
	}

	holder, _ := w.pair(t)
	if err := w.force(t.Context(), holder); err != nil {
		t.Fatal(err)
	}
	w.reached(t, clusterA, appsVIPA)
	w.reached(t, clusterB, appsVIPB)
	w.pair(t)
}

// testMetalLB changes what is around the VIP of A, in its cluster and in its attachment, while B serves.
func (w *appsSide) testMetalLB(t *testing.T) {
	w.undisturbed(t, clusterB, appsVIPB)
	w.testRange(t)
	w.testDrift(t)
	w.testOthers(t)
	w.testClass(t)
}

// testRange has the pool full, and the VIP move.
func (w *appsSide) testRange(t *testing.T) {
	const last = "192.0.2.209"
	w.a.person(t, `apiVersion: v1
kind: Service
metadata:
  name: an-app
  namespace: default
  annotations: {metallb.universe.tf/address-pool: example-hcp-a-apps, metallb.universe.tf/loadBalancerIPs: `+last+`}
spec:
  type: LoadBalancer
  ports: [{port: 5432}]
`)
	eventually(t, "an app's own address", func(ctx context.Context) error {
		if given, err := w.a.given(ctx, "default", "an-app"); err != nil || given != last {
			return errors.Join(fmt.Errorf("it has %q", given), err)
		}
		return nil
	})
	w.edit(t, w.a, "metallb.ipAddressPoolRange", last+"-"+last)
	w.awaitPhase(t, clusterA, v1alpha1.PhasePending, v1alpha1.ReasonWaitingForExternalIP, "AllocationFailed", "no available IPs")
	w.closed(t, clusterA)
	w.a.remove(t, serviceResource, "default", "an-app")
	w.awaitVIP(t, clusterA, last)
	w.reached(t, clusterA, last)

	w.edit(t, w.a)
	eventually(t, "the whole range again", func(ctx context.Context) error {
		return w.a.has(ctx, poolResource, hosted.MetalLBNamespace, "example-hcp-a-apps", "192.0.2.200-192.0.2.209", "spec", "addresses")
	})
	w.reached(t, clusterA, last) // MetalLB takes nothing away that is still in the pool
	w.a.remove(t, serviceResource, hosted.IngressNamespace, "oooi-ingress")
	w.awaitVIP(t, clusterA, appsVIPA)
	w.reached(t, clusterA, appsVIPA)
}

// testDrift has objects of ours edited and deleted.
func (w *appsSide) testDrift(t *testing.T) {
	w.a.merge(t, poolResource, hosted.MetalLBNamespace, "example-hcp-a-apps", `{"spec": {"addresses": ["192.0.2.230-192.0.2.231"], "autoAssign": true}}`)
	w.a.remove(t, adResource, hosted.MetalLBNamespace, "advertise-example-hcp-a-apps")
	w.a.merge(t, serviceResource, hosted.IngressNamespace, "oooi-ingress",
		`{"metadata": {"annotations": {"example.com/note": "hands off", "metallb.universe.tf/address-pool": "other"}}, "spec": {"selector": {"app": "other"}}}`)
	for _, field := range []struct {
		description string
		has         func(context.Context) error
	}{
		{"the pool", func(ctx context.Context) error {
			return w.a.has(ctx, poolResource, hosted.MetalLBNamespace, "example-hcp-a-apps", "192.0.2.200-192.0.2.209", "spec", "addresses")
		}},
		{"autoAssign", func(ctx context.Context) error {
			return w.a.has(ctx, poolResource, hosted.MetalLBNamespace, "example-hcp-a-apps", "false", "spec", "autoAssign")
		}},
		{"the advertisement", func(ctx context.Context) error {
			return w.a.has(ctx, adResource, hosted.MetalLBNamespace, "advertise-example-hcp-a-apps", "example-hcp-a-apps", "spec", "ipAddressPools")
		}},
		{"the selector", func(ctx context.Context) error {
			return w.a.has(ctx, serviceResource, hosted.IngressNamespace, "oooi-ingress", fmt.Sprintf("map[%s:default]", hosted.RouterLabel), "spec", "selector")
		}},
		{"the pool of the Service", func(ctx context.Context) error {
			return w.a.has(ctx, serviceResource, hosted.IngressNamespace, "oooi-ingress", "example-hcp-a-apps", "metadata", "annotations", "metallb.universe.tf/address-pool")
		}},
		{"somebody's own annotation", func(ctx context.Context) error {
			return w.a.has(ctx, serviceResource, hosted.IngressNamespace, "oooi-ingress", "hands off", "metadata", "annotations", "example.com/note")
		}},
	} {
		eventually(t, field.description+", put back", field.has)
	}
	w.awaitVIP(t, clusterA, appsVIPA)
	w.reached(t, clusterA, appsVIPA)
}

// testOthers has objects in the way that belong to others.
func (w *appsSide) testOthers(t *testing.T) {
	const theirs = `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: theirs, namespace: ` + hosted.MetalLBNamespace + `}
spec: {addresses: ["192.0.2.230-192.0.2.230"], autoAssign: false}
---
apiVersion: v1
kind: Service
metadata: {name: theirs, namespace: ` + hosted.IngressNamespace + `}
spec: {ports: [{name: http, port: 80, targetPort: http}]}
`
	w.a.person(t, theirs)
	before := w.a.versions(t, theirs)
	untouched := func() {
		t.Helper()
		if after := w.a.versions(t, theirs); !slices.Equal(before, after) {
			t.Errorf("objects of others were changed: versions %q, %q before", after, before)
		}
	}
	w.edit(t, w.a, "metallb.addressPoolName", "theirs")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonMetalLBInstallFailed,
		"IPAddressPool "+hosted.MetalLBNamespace+"/theirs belongs to somebody else", "metallb.addressPoolName")
	untouched()
	w.reached(t, clusterA, appsVIPA)
	w.edit(t, w.a, "service.name", "theirs")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonIngressServiceFailed,
		"Service "+hosted.IngressNamespace+"/theirs belongs to somebody else", "service.name")
	untouched()
	w.reached(t, clusterA, appsVIPA) // by the Service of before
	w.edit(t, w.a, "metallb.addressPoolName", "theirs", "service.name", "theirs")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonMetalLBInstallFailed, "belongs to somebody else")
	w.a.remove(t, poolResource, hosted.MetalLBNamespace, "theirs")
	w.a.remove(t, serviceResource, hosted.IngressNamespace, "theirs")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded)
	w.reached(t, clusterA, w.vip(t, clusterA))
	eventually(t, "the end of what had the names before", func(ctx context.Context) error {
		return errors.Join(w.a.isGone(ctx, serviceResource, hosted.IngressNamespace, "oooi-ingress"), w.a.isGone(ctx, poolResource, hosted.MetalLBNamespace, "example-hcp-a-apps"))
	})
	w.edit(t, w.a)
	w.awaitPhase(t, clusterA, v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded, "oooi-ingress has the VIP")
	w.reached(t, clusterA, w.vip(t, clusterA))
}

// testClass has MetalLB run with a class, and another controller give an address.
func (w *appsSide) testClass(t *testing.T) {
	const class = "metallb.io/metallb"
	w.edit(t, w.a, "metallb.loadBalancerClass", class)
	w.awaitPhase(t, clusterA, v1alpha1.PhasePending, v1alpha1.ReasonWaitingForExternalIP, "said nothing")
	w.a.cloud(t, "192.0.2.240")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonExternalIPDiscoveryFailed, "192.0.2.240 is not published", "192.0.2.200-192.0.2.209")
	w.closed(t, clusterA)
	w.a.cloud(t, "192.0.2.215")
	w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonExternalIPDiscoveryFailed, "192.0.2.215 is not published")
	if err := errors.Join(w.a.MetalLB.Kill(), w.a.StartMetalLB(t.Context(), class)); err != nil {
		t.Fatal(err)
	}
	w.awaitPhase(t, clusterA, v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded)
	w.reached(t, clusterA, w.vip(t, clusterA))
	w.a.attachment = w.a.changed(t, "metallb.loadBalancerClass", class) // from now on
}

// testOutages has the API server of A hang, refuse the hub and be gone, and the leading hub die; the apps of both are served on.
func (w *appsSide) testOutages(t *testing.T) {
	vip := w.vip(t, clusterA)
	w.undisturbed(t, clusterA, vip)
	w.undisturbed(t, clusterB, appsVIPB)
	w.heldOpen(t)

	failed := func(words ...string) {
		t.Helper()
		w.awaitPhase(t, clusterA, v1alpha1.PhaseDegraded, v1alpha1.ReasonHostedClusterAccessFailed, words...)
	}
	if err := w.a.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	failed("refused")
	if err := w.a.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.awaitVIP(t, clusterA, vip)

	if err := w.a.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	w.edit(t, w.a, "service.annotations", map[string]any{"example.com/note": "later"}) // does not wait for the next look
	failed("no answer within")

	rest := w.atRest(t)
	leader := w.killLeader(t)
	eventually(t, "what the next leader sees", func(context.Context) error {
		log := w.nodes.Log("oooi-system", leader, "oooi")
		for _, cluster := range []string{clusterA, clusterB} {
			if !regexp.MustCompile(`(?m)"apps ingress".*attachment=clusters/` + cluster).MatchString(log) {
				return fmt.Errorf("it has not looked into %s:\n%s", cluster, log)
			}
		}
		return nil
	})
	rest.check(t)

	w.giveKubeconfig(t, w.a, controlplane.ExpiredCertificate)
	if err := w.a.APIServer.Thaw(); err != nil {
		t.Fatal(err)
	}
	failed("expired on")
	w.giveKubeconfig(t, w.a, controlplane.BearerToken)
	w.awaitVIP(t, clusterA, vip)
	eventually(t, "what was asked for meanwhile", func(ctx context.Context) error {
		return w.a.has(ctx, serviceResource, hosted.IngressNamespace, "oooi-ingress", "later", "metadata", "annotations", "example.com/note")
	})
}

// testConflicts declares ranges that overlap.
func (w *appsSide) testConflicts(t *testing.T) {
	vip := w.vip(t, clusterA)
	w.edit(t, w.b, "metallb.ipAddressPoolRange", "192.0.2.209-192.0.2.219")
	for i, c := range w.both() {
		other := w.both()[1-i]
		w.awaitPhase(t, c.name, v1alpha1.PhaseDegraded, v1alpha1.ReasonMetalLBInstallFailed, "overlaps", "of attachment clusters/"+other.name)
		w.awaitCondition(t, c.name, v1alpha1.ConditionAppsRangeAccepted, metav1.ConditionFalse, v1alpha1.ReasonAppsRangeOverlap)
		w.closed(t, c.name)
	}
	if given, err := w.b.given(t.Context(), hosted.IngressNamespace, "oooi-ingress"); err != nil || given != appsVIPB {
		t.Errorf("in B the Service has %s (%v), want %s still", given, err, appsVIPB)
	}
	w.edit(t, w.b)
	w.awaitVIP(t, clusterA, vip)
	w.awaitVIP(t, clusterB, appsVIPB)
	w.reached(t, clusterA, vip)
	w.reached(t, clusterB, appsVIPB)
}

// testRemoval takes apps ingress away in every way.
func (w *appsSide) testRemoval(t *testing.T) {
	// A cannot be reached: its deletion takes the time that it may, and meanwhile the leader dies.
	t.Run("one of two", func(t *testing.T) {
		w.undisturbed(t, clusterB, appsVIPB)
		if err := w.a.APIServer.Freeze(); err != nil {
			t.Fatal(err)
		}
		w.deleteAttachment(t, w.a)
		w.awaitCondition(t, clusterA, v1alpha1.ConditionAppsIngressReady, metav1.ConditionFalse, v1alpha1.ReasonRemoving)
		w.closed(t, clusterA)
		w.killLeader(t)
	})

	w.edit(t, w.b, "enabled", false)
	w.awaitEmpty(t, w.b)
	w.closed(t, clusterB)
	eventually(t, "the end of the finalizer", func(ctx context.Context) error { return w.finalized(ctx, clusterB, false) })
	w.edit(t, w.b)
	w.awaitVIP(t, clusterB, appsVIPB)
	w.reached(t, clusterB, appsVIPB)

	restore := w.deleteHostedCluster(t, w.b)
	w.awaitEmpty(t, w.b)
	w.closed(t, clusterB)
	w.awaitPhase(t, clusterB, v1alpha1.PhasePending, v1alpha1.ReasonWaitingForHostedClusterNodes, "is being deleted")
	restore()
	w.awaitVIP(t, clusterB, appsVIPB)
	w.reached(t, clusterB, appsVIPB)

	w.deleteAttachment(t, w.b)
	w.awaitEmpty(t, w.b)
	eventually(t, "the end of attachment B", func(ctx context.Context) error { return w.gone(ctx, clusterB) })
	w.closed(t, clusterB)

	eventually(t, "the end of attachment A", func(ctx context.Context) error { return w.gone(ctx, clusterA) })
	eventually(t, "the Event that says what was left", func(ctx context.Context) error { // it is written just after the end
		events, err := w.events(ctx, clusterA)
		for _, left := range []string{"Service openshift-ingress/oooi-ingress", "IPAddressPool example-hcp-a-apps", "no answer within"} {
			if !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "LeftInHostedCluster: ") && strings.Contains(e, left) }) {
				err = errors.Join(err, fmt.Errorf("no Event says that %q was left: %q", left, events))
			}
		}
		return err
	})
}
