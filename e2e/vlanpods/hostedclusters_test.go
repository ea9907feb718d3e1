package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/stack"
)

var (
	secretResource = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	attachments    = v1alpha1.GroupVersion.WithResource("infraclusterattachments")
)

// appsSide is the world with a real cluster inside each of the example's hosted clusters.
type appsSide struct {
	*world
	a, b *insideCluster
}

// insideCluster is what is inside of one hosted cluster.
type insideCluster struct {
	*hosted.Cluster
	// name of the HostedCluster and of its attachment.
	name string
	// api is where its API server is.
	api netip.Addr
	// backend is the API server that stands there when no test of this kind runs.
	backend netip.Addr
	// attachment as in the example.
	attachment *unstructured.Unstructured
}

// startApps starts two hosted clusters for as long as the test lasts and puts their API servers behind the Services
// kube-apiserver of their control-plane namespaces, and their kubeconfigs into the Secrets that the HostedClusters name. They have
// no nodes and no MetalLB yet.
func startApps(t *testing.T) *appsSide {
	t.Helper()
	w := &appsSide{
		world: w,
		a:     &insideCluster{name: clusterA, api: netip.MustParseAddr("10.200.11.1"), backend: backends[0]},
		b:     &insideCluster{name: clusterB, api: netip.MustParseAddr("10.200.12.1"), backend: backends[1]},
	}
	var group errgroup.Group
	for i, c := range w.both() {
		group.Go(func() (err error) {
			c.Cluster, err = hosted.Start(t.Context(), hosted.Options{
				Name: c.name, BaseDomain: "clusters.example.com", Folder: w.site.Folder, CA: w.site.CA,
				VLAN: &hosted.VLAN{
					Network: w.network, Bridge: bridge, APIServer: c.api,
					// Not in the pool: it has its address without DHCP.
					Worker: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(41 + i)}), 24), MAC: fmt.Sprintf("52:54:00:00:06:%02x", i+1),
				},
			})
			return err
		})
	}
	err := group.Wait()
	t.Cleanup(func() { w.stopApps(t) })
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range w.both() {
		if err := w.point(t.Context(), c, c.api); err != nil {
			t.Fatal(err)
		}
		w.giveKubeconfig(t, c, controlplane.ClientCertificate)
	}
	return w
}

func (w *appsSide) both() []*insideCluster { return []*insideCluster{w.a, w.b} }

// stopApps ends the hosted clusters, once nothing is to be taken away in them any more.
func (w *appsSide) stopApps(t *testing.T) {
	if t.Failed() {
		for _, c := range w.both() {
			if c.Cluster != nil {
				t.Logf("attachment %s:\n%s\n%s", c.name, w.describe(c.name), c.Tails(15))
			}
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	client := w.Dynamic.Resource(attachments).Namespace(namespace)
	for _, c := range w.both() {
		if c.Cluster == nil {
			continue
		}
		_ = c.APIServer.Thaw() // it may not be frozen, nor run
		if err := client.Delete(ctx, c.name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	}
	for _, c := range w.both() {
		if c.Cluster == nil {
			continue
		}
		if err := stack.Until(ctx, "the end of attachment "+c.name, func(ctx context.Context) error { return w.gone(ctx, c.name) }); err != nil {
			t.Error(err)
		}
		err := w.Dynamic.Resource(secretResource).Namespace(namespace).Delete(ctx, kubeconfigSecret(c.name), metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) {
			err = nil
		}
		if err = errors.Join(err, w.point(ctx, c, c.backend), c.Stop()); err != nil {
			t.Error(err)
		}
	}
	manifests, err := kustomize(ctx, "deploy/examples/vlan100")
	if err == nil {
		_, err = w.Apply(ctx, "kubectl", manifests)
	}
	if err != nil {
		t.Error(err)
	}
}

// point makes an address the endpoint of the Service kube-apiserver of a control plane.
func (w *appsSide) point(ctx context.Context, c *insideCluster, address netip.Addr) error {
	_, err := w.Apply(ctx, "neighbours", endpoint(c.name, "kube-apiserver", netip.AddrPortFrom(address, hosted.APIPort)))
	return err
}

// kubeconfigSecret is the name that HyperShift gives.
func kubeconfigSecret(cluster string) string { return cluster + "-admin-kubeconfig" }

// giveKubeconfig writes the Secret of a hosted cluster, as HyperShift would.
func (w *appsSide) giveKubeconfig(t *testing.T, c *insideCluster, credentials controlplane.Credentials) {
	t.Helper()
	raw, err := c.Kubeconfig(t.Context(), 443, credentials)
	if err != nil {
		t.Fatal(err)
	}
	secret := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "Secret",
		"metadata":   map[string]any{"name": kubeconfigSecret(c.name), "namespace": namespace},
		"stringData": map[string]any{"kubeconfig": string(raw)},
	}}
	if _, err := w.ApplyObject(t.Context(), "hypershift", secret); err != nil {
		t.Fatal(err)
	}
}

// applyApps does what a user does: the example of apps ingress, with the role for its kubeconfigs. Nothing here is public.
func (w *appsSide) applyApps(t *testing.T) {
	t.Helper()
	manifests, err := kustomize(t.Context(), "deploy/examples/apps")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := controlplane.Decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	for _, object := range objects {
		unstructured.RemoveNestedField(object.Object, "spec", "externalService")
		if _, err := w.ApplyObject(t.Context(), "kubectl", object); err != nil {
			t.Fatal(err)
		}
		for _, c := range w.both() {
			if object.GetKind() == "InfraClusterAttachment" && object.GetName() == c.name {
				c.attachment = object
			}
		}
	}
}

// changed is the attachment of the example with changes in spec.appsIngress: the path of a field and its value, and so on.
func (c *insideCluster) changed(t *testing.T, changes ...any) *unstructured.Unstructured {
	t.Helper()
	object := c.attachment.DeepCopy()
	for change := range slices.Chunk(changes, 2) {
		path := append([]string{"spec", "appsIngress"}, strings.Split(change[0].(string), ".")...)
		if err := unstructured.SetNestedField(object.Object, change[1], path...); err != nil {
			t.Fatal(err)
		}
	}
	return object
}

// edit applies the attachment of a cluster with changes, without those of before.
func (w *appsSide) edit(t *testing.T, c *insideCluster, changes ...any) {
	t.Helper()
	if _, err := w.ApplyObject(t.Context(), "kubectl", c.changed(t, changes...)); err != nil {
		t.Fatal(err)
	}
}

// deleteAttachment deletes the attachment of a cluster and does not wait for its end.
func (w *appsSide) deleteAttachment(t *testing.T, c *insideCluster) {
	t.Helper()
	if err := w.Dynamic.Resource(attachments).Namespace(namespace).Delete(t.Context(), c.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// attachment reads one.
func (w *appsSide) attachment(ctx context.Context, name string) (*v1alpha1.InfraClusterAttachment, error) {
	object, err := w.Dynamic.Resource(attachments).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	a := &v1alpha1.InfraClusterAttachment{}
	return a, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, a)
}

// gone is an error while an attachment is there.
func (w *appsSide) gone(ctx context.Context, name string) error {
	a, err := w.attachment(ctx, name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("it is there, with the finalizers %v", a.Finalizers)
}

// describe tells the state of an attachment, for a test that failed.
func (w *appsSide) describe(name string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	object, err := w.Dynamic.Resource(attachments).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	status, _, _ := unstructured.NestedMap(object.Object, "status", "appsIngressStatus")
	spec, _, _ := unstructured.NestedMap(object.Object, "spec", "appsIngress")
	return fmt.Sprintf("finalizers %v, spec %v, status %v\n%s", object.GetFinalizers(), spec, status, conditions(object))
}

// phase is an error unless apps ingress of an attachment is in a phase for a reason, and its message has all of the words.
func (w *appsSide) phase(ctx context.Context, attachment, phase, reason string, words ...string) error {
	a, err := w.attachment(ctx, attachment)
	if err != nil {
		return err
	}
	s := a.Status.AppsIngressStatus
	if s == nil {
		return fmt.Errorf("attachment %s has no appsIngressStatus", attachment)
	}
	wrong := s.Phase != phase || s.Reason != reason
	for _, word := range words {
		wrong = wrong || !strings.Contains(s.Message, word)
	}
	if wrong {
		return fmt.Errorf("attachment %s: %+v, want %s, %s, with %q", attachment, *s, phase, reason, words)
	}
	for _, condition := range a.Status.Conditions {
		if condition.Type != v1alpha1.ConditionAppsIngressReady {
			continue
		}
		if want := phase == v1alpha1.PhaseReady; (condition.Status == metav1.ConditionTrue) != want || condition.Reason != reason || condition.Message != s.Message {
			return fmt.Errorf("attachment %s: condition %+v beside %+v", attachment, condition, *s)
		}
		return nil
	}
	return fmt.Errorf("attachment %s has no condition %s", attachment, v1alpha1.ConditionAppsIngressReady)
}

// awaitPhase waits for a phase.
func (w *appsSide) awaitPhase(t *testing.T, attachment, phase, reason string, words ...string) {
	t.Helper()
	begun := time.Now()
	eventually(t, reason, func(ctx context.Context) error { return w.phase(ctx, attachment, phase, reason, words...) })
	t.Logf("%s: %s after %s: %q", attachment, reason, time.Since(begun).Round(100*time.Millisecond), words)
}

// awaitVIP waits until an attachment is Ready with a VIP.
func (w *appsSide) awaitVIP(t *testing.T, attachment, vip string) {
	t.Helper()
	w.awaitPhase(t, attachment, v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded, "has the VIP "+vip)
}

// vip is that of the status.
func (w *appsSide) vip(t *testing.T, attachment string) string {
	t.Helper()
	a, err := w.attachment(t.Context(), attachment)
	if err != nil {
		t.Fatal(err)
	}
	if a.Status.AppsIngressStatus == nil || a.Status.AppsIngressStatus.ExternalIP == "" {
		t.Fatalf("attachment %s has no VIP", attachment)
	}
	return a.Status.AppsIngressStatus.ExternalIP
}

// awaitCondition waits for a condition of an attachment.
func (w *appsSide) awaitCondition(t *testing.T, attachment, kind string, status metav1.ConditionStatus, reason string) {
	t.Helper()
	eventually(t, kind, func(ctx context.Context) error {
		a, err := w.attachment(ctx, attachment)
		if err != nil {
			return err
		}
		for _, condition := range a.Status.Conditions {
			if condition.Type == kind && condition.Status == status && condition.Reason == reason {
				return nil
			}
		}
		return fmt.Errorf("attachment %s has no condition %s=%s for %s: %v", attachment, kind, status, reason, a.Status.Conditions)
	})
}

// finalized is an error unless an attachment has the finalizer, or has it not.
func (w *appsSide) finalized(ctx context.Context, attachment string, want bool) error {
	a, err := w.attachment(ctx, attachment)
	if err == nil && slices.Contains(a.Finalizers, v1alpha1.FinalizerAppsIngress) != want {
		err = fmt.Errorf("attachment %s has the finalizers %v", attachment, a.Finalizers)
	}
	return err
}

// events are those about an attachment, each as "reason: message".
func (w *appsSide) events(ctx context.Context, attachment string) ([]string, error) {
	list, err := w.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.kind=InfraClusterAttachment,involvedObject.name=" + attachment,
	})
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range list.Items {
		reason, _, _ := unstructured.NestedString(e.Object, "reason")
		message, _, _ := unstructured.NestedString(e.Object, "message")
		events = append(events, reason+": "+message)
	}
	return events, nil
}

// deleteHostedCluster has a HostedCluster be deleted, which takes until restore is called. Then it is gone, and made anew.
func (w *appsSide) deleteHostedCluster(t *testing.T, c *insideCluster) (restore func()) {
	t.Helper()
	client := w.Dynamic.Resource(hypershift.GroupVersion.WithResource("hostedclusters")).Namespace(namespace)
	finalizers := func(list string) error {
		_, err := client.Patch(t.Context(), c.name, types.MergePatchType, []byte(`{"metadata": {"finalizers": `+list+`}}`), metav1.PatchOptions{})
		return err
	}
	if err := finalizers(`["example.com/takes-its-time"]`); err != nil {
		t.Fatal(err)
	}
	if err := client.Delete(t.Context(), c.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return func() {
		t.Helper()
		if err := finalizers("null"); err != nil {
			t.Fatal(err)
		}
		documents, err := neighbours()
		if err != nil {
			t.Fatal(err)
		}
		for _, document := range documents {
			if strings.Contains(document, "kind: HostedCluster\n") && strings.Contains(document, "  name: "+c.name+"\n") {
				eventually(t, "HostedCluster "+c.name, func(ctx context.Context) error { return w.ApplyWithStatus(ctx, "neighbours", []byte(document)) })
			}
		}
	}
}

// killLeader kills the hub that leads, without a word to it, and waits until another one leads, which it returns.
func (w *appsSide) killLeader(t *testing.T) (now string) {
	t.Helper()
	const system = "oooi-system"
	leader := func(ctx context.Context) (string, error) {
		lease, err := w.Dynamic.Resource(coordinationv1.SchemeGroupVersion.WithResource("leases")).Namespace(system).Get(ctx, "oooi", metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		identity, _, err := unstructured.NestedString(lease.Object, "spec", "holderIdentity")
		return identity, err
	}
	before, err := leader(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	hubs, err := w.nodes.Pods(t.Context(), system, "app.kubernetes.io/component=hub")
	if err != nil {
		t.Fatal(err)
	}
	killed := false
	for _, hub := range hubs {
		if strings.HasPrefix(before, hub.Name) {
			atOnce := int64(0)
			if err := w.Dynamic.Resource(podResource).Namespace(system).Delete(t.Context(), hub.Name, metav1.DeleteOptions{GracePeriodSeconds: &atOnce}); err != nil {
				t.Fatal(err)
			}
			killed = true
		}
	}
	if !killed {
		t.Fatalf("no hub is %q, which leads", before)
	}
	begun := time.Now()
	eventually(t, "another leader", func(ctx context.Context) (err error) {
		now, err = leader(ctx)
		if err == nil && (now == before || now == "") {
			err = fmt.Errorf("%q leads", now)
		}
		return err
	})
	t.Logf("%s leads after %s", now, time.Since(begun).Round(100*time.Millisecond))
	return now
}

// rest is a point in time from which on nobody has a reason to write.
type rest struct {
	side       *appsSide
	management controlplane.Mark
	hosted     map[*insideCluster]controlplane.Mark
}

// atRest waits until nothing has been written for a while.
func (w *appsSide) atRest(t *testing.T) *rest {
	t.Helper()
	r := &rest{side: w, hosted: map[*insideCluster]controlplane.Mark{}}
	var err error
	if r.management, err = w.Mark(); err != nil {
		t.Fatal(err)
	}
	last := time.Now()
	eventually(t, "the last write of the hub", func(context.Context) error {
		writes, err := r.hubWrites()
		for _, q := range writes {
			if q.Time.After(last) {
				last = q.Time
			}
		}
		if err == nil && time.Since(last) < calm {
			err = fmt.Errorf("it was just now: %v", writes)
		}
		return err
	})
	if r.management, err = w.Mark(); err != nil {
		t.Fatal(err)
	}
	for _, c := range w.both() {
		if r.hosted[c], err = c.Mark(); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// requests of oooi in a hosted cluster.
func (r *rest) requests(c *insideCluster) ([]controlplane.Request, error) {
	all, err := c.Requests(r.hosted[c])
	return slices.DeleteFunc(all, func(q controlplane.Request) bool { return q.Agent != "oooi" }), err
}

// hubWrites are what hubs wrote in the management cluster, but the Leases of their election.
func (r *rest) hubWrites() ([]controlplane.Request, error) {
	all, err := r.side.Requests(r.management)
	return slices.DeleteFunc(all, func(q controlplane.Request) bool {
		return !strings.HasPrefix(q.User, "system:serviceaccount:oooi-system:") || !q.Write() || q.Resource == "leases"
	}), err
}

// check fails the test when there were writes.
func (r *rest) check(t *testing.T) {
	t.Helper()
	writes, err := r.hubWrites()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range r.side.both() {
		requests, err := r.requests(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range requests {
			if q.Write() {
				writes = append(writes, q)
			}
		}
	}
	for _, q := range writes {
		t.Errorf("at rest: %s", q)
	}
}
