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
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/stack"
)

var (
	secretResource  = schema.GroupVersionResource{Version: "v1", Resource: "secrets"}
	serviceResource = schema.GroupVersionResource{Version: "v1", Resource: "services"}
	poolResource    = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "ipaddresspools"}
	adResource      = schema.GroupVersionResource{Group: "metallb.io", Version: "v1beta1", Resource: "l2advertisements"}
	attachments     = v1alpha1.GroupVersion.WithResource("infraclusterattachments")
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

// edit applies the attachment of the example with changes in spec.appsIngress: the path of a field and its value, and so on.
func (w *appsSide) edit(t *testing.T, c *insideCluster, changes ...any) {
	t.Helper()
	object := c.attachment.DeepCopy()
	for change := range slices.Chunk(changes, 2) {
		path := append([]string{"spec", "appsIngress"}, strings.Split(change[0].(string), ".")...)
		if err := unstructured.SetNestedField(object.Object, change[1], path...); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.ApplyObject(t.Context(), "kubectl", object); err != nil {
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
	eventually(t, reason, func(ctx context.Context) error { return w.phase(ctx, attachment, phase, reason, words...) })
}

// awaitVIP waits until an attachment is Ready with a VIP.
func (w *appsSide) awaitVIP(t *testing.T, attachment, vip string) {
	t.Helper()
	w.awaitPhase(t, attachment, v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded, vip)
}
