package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// image is that of a release of oooi, by its number.
func image(release int) string { return fmt.Sprintf("registry.example.com/oooi:%d", release) }

// pods stands in for a kubelet: it says that the VLAN pods are ready, except those of images and Infras that never get ready.
type pods struct {
	site   *site
	mu     sync.Mutex
	broken map[string]bool
}

// startPods does so until the test ends.
func (s *site) startPods(t *testing.T) *pods {
	t.Helper()
	p := &pods{site: s, broken: map[string]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(100 * time.Millisecond)
		defer ticker.Stop()
		for {
			if err := p.tell(ctx); err != nil && ctx.Err() == nil {
				t.Logf("telling how pods are: %v", err)
			}
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
			}
		}
	})
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	return p
}

// breaks has the pods of an image or of an Infra, by its name, never get ready, and those that are be ready no longer; or repairs them.
func (p *pods) breaks(what string, broken bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken[what] = broken
}

func (p *pods) tell(ctx context.Context) error {
	resource := p.site.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"})
	list, err := resource.List(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=vlan"})
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Items {
		pod := &corev1.Pod{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, pod); err != nil {
			return err
		}
		p.mu.Lock()
		want := corev1.ConditionTrue
		if p.broken[pod.Spec.Containers[0].Image] || p.broken[pod.Labels[v1alpha1.LabelInfra]] {
			want = corev1.ConditionFalse
		}
		p.mu.Unlock()
		if slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady && c.Status == want }) {
			continue
		}
		text := fmt.Sprintf(`{"status":{"phase":"Running","conditions":[{"type":"Ready","status":%q,"lastTransitionTime":%q}]}}`, want, time.Now().UTC().Format(time.RFC3339))
		_, err := resource.Namespace(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "kubelet"}, "status")
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// The objects that belong to the VLAN pods of an Infra.
func deployment(infra string) *unstructured.Unstructured {
	return refers("apps/v1", "Deployment", infra+"-vlan")
}

func shared(infra string) []*unstructured.Unstructured {
	namespace, _, _ := strings.Cut(infra, "/")
	return []*unstructured.Unstructured{
		refers("v1", "ServiceAccount", namespace+"/"+v1alpha1.VLANAccount), refers("rbac.authorization.k8s.io/v1", "RoleBinding", namespace+"/"+v1alpha1.VLANAccount),
	}
}

func ofDNS(infra string) []*unstructured.Unstructured {
	return []*unstructured.Unstructured{refers("v1", "Service", infra+"-dns")}
}

func ofProxy(infra string, clusters ...string) []*unstructured.Unstructured {
	all := []*unstructured.Unstructured{refers("v1", "Service", infra+"-proxy"), refers("v1", "ConfigMap", infra+"-envoy")}
	for _, cluster := range clusters {
		for _, target := range []string{"kube-apiserver", "oauth-openshift", "ignition-server-proxy"} {
			all = append(all, refers("networking.k8s.io/v1", "NetworkPolicy", cluster+"/oooi."+strings.ReplaceAll(infra, "/", ".")+"."+target))
		}
	}
	return all
}

func ofPods(infra string) []*unstructured.Unstructured {
	return []*unstructured.Unstructured{
		deployment(infra), refers("policy/v1", "PodDisruptionBudget", infra+"-vlan"), refers("networking.k8s.io/v1", "NetworkPolicy", infra+"-vlan"),
	}
}

// workloads are all of them.
func workloads(infra string, clusters ...string) []*unstructured.Unstructured {
	return slices.Concat(shared(infra), ofDNS(infra), ofProxy(infra, clusters...), ofPods(infra))
}

func each(objects []*unstructured.Unstructured, is func(*unstructured.Unstructured) func(context.Context) error) check {
	var checks []check
	for _, o := range objects {
		checks = append(checks, is(o))
	}
	return all(checks...)
}

// hasImage is a condition: the Deployment of an Infra asks for an image.
func (s *site) hasImage(infra, image string) check {
	return func(ctx context.Context) error {
		d, err := s.deployment(ctx, infra)
		if err != nil {
			return err
		}
		if got := d.Spec.Template.Spec.Containers[0].Image; got != image {
			return fmt.Errorf("the Deployment of %s asks for %s, want %s", infra, got, image)
		}
		return nil
	}
}

func (s *site) deployment(ctx context.Context, infra string) (*appsv1.Deployment, error) {
	object, err := s.fetch(ctx, deployment(infra))
	if err != nil {
		return nil, err
	}
	d := &appsv1.Deployment{}
	return d, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, d)
}

// podsReady is a condition: an Infra says that its pods are, and its Deployment asks for an image.
func (s *site) podsReady(infra, image string) check {
	return all(s.says("Infra", infra, v1alpha1.ConditionVLANPodsReady, "True Ready", "2 of 2"), s.hasImage(infra, image))
}

// writesPods makes a hub that writes VLAN pods of a release.
func (s *site) writesPods(t *testing.T, release int) *process {
	t.Helper()
	return s.newProcess(t, "--roles", "reconcile", "--vlan-image", image(release))
}

// atRest waits for longer than every period of the hub, and fails when it has written anything since a mark, Leases aside.
func (s *site) atRest(t *testing.T, mark controlplane.Mark) {
	t.Helper()
	start := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 2*restPeriod)
	defer cancel()
	if err := stack.Until(ctx, "the end of the period of rest", func(context.Context) error {
		if writes := s.writes(t, mark); len(writes) > 0 {
			return stack.Final(fmt.Errorf("%d writes while nothing changed: %v", len(writes), writes))
		}
		if since := time.Since(start); since < restPeriod {
			return fmt.Errorf("%s have passed", since)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}

// TestVLANPods has a hub write what belongs to VLAN pods, with a real garbage collector and real Deployments; somebody says of the pods
// that they are ready, as a kubelet would.
func TestVLANPods(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	if err := s.ControllerManager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := s.vlan(1)
	kubelet := s.startPods(t)
	hub := s.writesPods(t, 1).start(t)
	const clusterA, clusterB = "clusters-example-hcp-a", "clusters-example-hcp-b"
	neighbours := s.neighbours(t, v) // a Service of the user stands where the hub's is to be
	s.apply(t, namespace("clusters"), documents(neighbours, "kind: Service\n", "tenant-vlan100-proxy"), s.page(t, v))
	proxyService := refers("v1", "Service", infra+"-proxy")
	theirs := s.copyOf(t, proxyService)
	within(t, "the user's Service to be told", s.says("Infra", infra, v1alpha1.ConditionVLANPodsReady, "False NotOurs", "Service "+infra+"-proxy"),
		s.there(deployment(infra)), s.children(infra, true), each(ofDNS(infra), s.there))
	if now := s.copyOf(t, proxyService); fmt.Sprint(now) != fmt.Sprint(theirs) {
		t.Errorf("the user's Service was changed from\n%v to\n%v", theirs, now)
	}
	s.remove(t, proxyService)
	within(t, "the pods", s.podsReady(infra, image(1)), each(workloads(infra), s.there))

	// Control planes come.
	s.apply(t, strings.Replace(neighbours, documents(neighbours, "kind: Service\n", "tenant-vlan100-proxy"), "", 1))
	within(t, "the ways to both", each(workloads(infra, clusterA, clusterB), s.there), s.podsReady(infra, image(1)), s.owned(deployment(infra), infra))

	s.quiet(t, 2*time.Second)
	mark := s.mark(t)
	s.atRest(t, mark)
	hub.restart(t) // it finds everything as it is wanted
	within(t, "the hub to lead again", hub.leads(true))
	s.atRest(t, mark)

	t.Run("edits", func(t *testing.T) { s.testWorkloadEdits(t, clusterA) })
	t.Run("not ours", func(t *testing.T) { s.testNotOurs(t) })
	t.Run("two of a namespace", func(t *testing.T) { s.testShared(t) })
	t.Run("components", func(t *testing.T) {
		enable := func(dhcp, dns, proxy bool) {
			t.Helper()
			s.patch(t, ours("Infra", infra), fmt.Sprintf(
				`{"spec": {"infraComponents": {"dhcp": {"enabled": %t}, "dns": {"enabled": %t}, "proxy": {"enabled": %t}}}}`, dhcp, dns, proxy))
		}
		enable(true, true, false)
		within(t, "the proxy to go", each(ofProxy(infra, clusterA, clusterB), s.gone), each(slices.Concat(shared(infra), ofDNS(infra), ofPods(infra)), s.there), s.containers(infra, 1))
		enable(true, false, false)
		within(t, "DNS to go", each(ofDNS(infra), s.gone), each(ofPods(infra), s.there))
		enable(false, false, false)
		within(t, "everything to go", each(workloads(infra, clusterA, clusterB), s.gone), s.saysNot("Infra", infra, v1alpha1.ConditionVLANPodsReady))
		enable(true, true, true)
		within(t, "everything back", each(workloads(infra, clusterA, clusterB), s.there), s.containers(infra, 2), s.podsReady(infra, image(1)))
	})
	t.Run("an attachment", func(t *testing.T) {
		a := ofProxy(infra, clusterA)[2:]
		s.remove(t, ours("InfraClusterAttachment", "clusters/example-hcp-a"))
		within(t, "the way to its control plane to go", each(a, s.gone), each(workloads(infra, clusterB), s.there))
		s.apply(t, documents(s.page(t, v), "kind: InfraClusterAttachment", "name: example-hcp-a"))
		within(t, "the way back", each(a, s.there))
		// An attachment that is left out has no way in either.
		s.apply(t, attachment("double", "other", "example-hcp-a", ", controlPlaneNamespace: "+clusterB))
		within(t, "the conflict", each(ofProxy(infra, clusterA)[2:], s.gone))
		s.remove(t, ours("InfraClusterAttachment", "clusters/double"))
		within(t, "its end", each(ofProxy(infra, clusterA, clusterB), s.there))
	})
	t.Run("a control plane", func(t *testing.T) {
		s.remove(t, refers("v1", "Namespace", clusterB))
		within(t, "the namespace to go", s.gone(refers("v1", "Namespace", clusterB)), s.podsReady(infra, image(1)))
		s.apply(t, namespace(clusterB))
		within(t, "the way into the new one", each(ofProxy(infra, clusterB), s.there))
	})
	t.Run("pods", func(t *testing.T) {
		kubelet.breaks("tenant-vlan100", true)
		within(t, "the pods to fail", s.says("Infra", infra, v1alpha1.ConditionVLANPodsReady, "False PodsNotReady", "0 of 2"))
		kubelet.breaks("tenant-vlan100", false)
		within(t, "the pods to recover", s.podsReady(infra, image(1)))
	})
	t.Run("deletion", func(t *testing.T) {
		s.remove(t, ours("Infra", infra))
		within(t, "everything to go", s.gone(ours("Infra", infra)), each(workloads(infra, clusterA, clusterB), s.gone))
		s.apply(t, documents(s.page(t, v), "kind: Infra\n"))
		within(t, "everything back", each(workloads(infra, clusterA, clusterB), s.there), s.podsReady(infra, image(1)))

		// While no hub runs, the garbage collector takes what it may. The rest goes when a hub is back.
		if err := hub.run.Stop(); err != nil {
			t.Fatal(err)
		}
		s.remove(t, ours("Infra", infra))
		within(t, "what is owned to go", each(ofPods(infra), s.gone), each(ofProxy(infra, clusterA, clusterB)[2:], s.there))
		hub.start(t)
		within(t, "the rest to go", each(workloads(infra, clusterA, clusterB), s.gone))
	})
}

// copyOf is an object as it is now, without what moves by itself. The hub must never have written to it.
func (s *site) copyOf(t *testing.T, object *unstructured.Unstructured) map[string]any {
	t.Helper()
	there, err := s.fetch(t.Context(), object)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range there.GetManagedFields() {
		if strings.HasPrefix(m.Manager, "oooi") {
			t.Errorf("%s %s has fields of %s", there.GetKind(), there.GetName(), m.Manager)
		}
	}
	there.SetManagedFields(nil)
	there.SetResourceVersion("")
	delete(there.Object, "status")
	return there.Object
}

// containers is a condition: each VLAN pod of an Infra is to have so many containers.
func (s *site) containers(infra string, want int) check {
	return func(ctx context.Context) error {
		d, err := s.deployment(ctx, infra)
		if err == nil && len(d.Spec.Template.Spec.Containers) != want {
			err = fmt.Errorf("%d containers, want %d", len(d.Spec.Template.Spec.Containers), want)
		}
		return err
	}
}

// testWorkloadEdits changes what belongs to VLAN pods by hand: what the hub decides is put back, the rest is left alone.
func (s *site) testWorkloadEdits(t *testing.T, cluster string) {
	policy := ofProxy(infra, cluster)[2]
	before := map[string]string{}
	asBefore := func(object *unstructured.Unstructured) check {
		return func(ctx context.Context) error {
			there, err := s.fetch(ctx, object)
			if err != nil {
				return err
			}
			for _, field := range []string{"status", "metadata"} {
				delete(there.Object, field)
			}
			unstructured.RemoveNestedField(there.Object, "spec", "clusterIP") // of a Service that is made anew
			unstructured.RemoveNestedField(there.Object, "spec", "clusterIPs")
			key := object.GetKind() + " " + object.GetNamespace() + "/" + object.GetName()
			now, want := fmt.Sprint(there.Object), before[key]
			if want == "" {
				before[key] = now
			} else if now != want {
				return fmt.Errorf("%s is\n%s, want\n%s", key, now, want)
			}
			return nil
		}
	}
	labelled := func(object *unstructured.Unstructured) check {
		return func(ctx context.Context) error {
			there, err := s.fetch(ctx, object)
			if err == nil && there.GetLabels()["app.kubernetes.io/managed-by"] != "oooi" {
				err = fmt.Errorf("labels %v", there.GetLabels())
			}
			return err
		}
	}
	objects := workloads(infra, cluster)
	within(t, "a first look", each(objects, asBefore))
	if len(before) != len(objects) {
		t.Fatalf("%d objects, and %d are known", len(objects), len(before))
	}
	account, binding := shared(infra)[0], shared(infra)[1]
	for _, edit := range []struct {
		name   string
		object *unstructured.Unstructured
		patch  string
		also   check
	}{
		{"replicas", deployment(infra), `{"spec":{"replicas":0}}`, s.podsReady(infra, image(1))},
		{"strategy", deployment(infra), `{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null}}}`, nil},
		{"label", deployment(infra), `{"metadata":{"labels":{"app.kubernetes.io/managed-by":null}}}`, labelled(deployment(infra))},
		{"owners", deployment(infra), `{"metadata":{"ownerReferences":null}}`, s.owned(deployment(infra), infra)},
		{"owners and label of a ConfigMap", ofProxy(infra)[1], `{"metadata":{"ownerReferences":null}}`, s.owned(ofProxy(infra)[1], infra)},
		{"data", ofProxy(infra)[1], `{"data":{"envoy.yaml":"{}"}}`, nil},
		{"selector", ofDNS(infra)[0], `{"spec":{"selector":{"app":"somebody"}}}`, nil},
		{"ports", policy, `{"spec":{"ingress":[{}]}}`, nil},
		{"label of a policy", policy, `{"metadata":{"labels":{"hostedcluster.densityops.com/infra":"another"}}}`, nil},
		{"subjects", binding, `{"subjects":[]}`, nil},
		{"token", account, `{"automountServiceAccountToken":true}`, nil},
		{"budget", ofPods(infra)[1], `{"spec":{"maxUnavailable":2}}`, nil},
	} {
		t.Run(edit.name, func(t *testing.T) {
			s.patch(t, edit.object, edit.patch)
			also := edit.also
			if also == nil {
				also = labelled(edit.object)
			}
			within(t, "the edit to be put back", asBefore(edit.object), also)
		})
	}
	for _, object := range objects {
		t.Run("deleted "+object.GetKind()+" "+object.GetName(), func(t *testing.T) {
			s.remove(t, object)
			within(t, "it to be back", asBefore(object))
		})
	}
	t.Run("what others add", func(t *testing.T) {
		within(t, "the pods", s.podsReady(infra, image(1)))
		s.patch(t, deployment(infra), `{"metadata":{"labels":{"example.com/team":"night"}},"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":"now"}}}}}`)
		s.patch(t, account, `{"imagePullSecrets":[{"name":"added-by-the-platform"}]}`)
		within(t, "the pods again", s.podsReady(infra, image(1)))
		s.patch(t, deployment(infra), `{"spec":{"replicas":1}}`)
		within(t, "a later write", func(ctx context.Context) error {
			d, err := s.deployment(ctx, infra)
			if err == nil && *d.Spec.Replicas != 2 {
				err = fmt.Errorf("%d replicas", *d.Spec.Replicas)
			}
			return err
		})
		d, err := s.deployment(t.Context(), infra)
		if err != nil {
			t.Fatal(err)
		}
		if d.Labels["example.com/team"] != "night" || d.Spec.Template.Annotations["kubectl.kubernetes.io/restartedAt"] != "now" {
			t.Errorf("labels %v, annotations of pods %v", d.Labels, d.Spec.Template.Annotations)
		}
		a, err := s.fetch(t.Context(), account)
		if err != nil {
			t.Fatal(err)
		}
		if secrets := fmt.Sprint(a.Object["imagePullSecrets"]); secrets != "[map[name:added-by-the-platform]]" {
			t.Errorf("pull secrets of the account: %v", secrets)
		}
		s.patch(t, account, `{"imagePullSecrets":null}`)
		s.patch(t, deployment(infra), `{"spec":{"template":{"metadata":{"annotations":{"kubectl.kubernetes.io/restartedAt":null}}}}}`)
		within(t, "the pods as before", s.podsReady(infra, image(1)))
	})
}

// testNotOurs has an Infra whose names are taken: nothing of others is touched, and everything else of it, and of other
// Infras, is written.
func (s *site) testNotOurs(t *testing.T) {
	const other = "taken/taken"
	s.apply(t, namespace("taken"))
	owner := s.apply(t, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: somebody, namespace: taken}\n")[0]
	for what, manifest := range map[string]string{
		"ConfigMap taken/taken-envoy": "{apiVersion: v1, kind: ConfigMap, metadata: {name: taken-envoy, namespace: taken}, data: {a: b}}",
		// It has our label, and somebody else controls it.
		"PodDisruptionBudget taken/taken-vlan": fmt.Sprintf(`
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: taken-vlan
  namespace: taken
  labels: {app.kubernetes.io/managed-by: oooi}
  ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: somebody, uid: %s, controller: true}]
spec: {minAvailable: 7, selector: {matchLabels: {a: b}}}
`, owner.GetUID()),
	} {
		t.Run(what, func(t *testing.T) {
			theirs := s.apply(t, manifest)[0]
			before := s.copyOf(t, theirs)
			s.apply(t, s.plainInfra("taken", s.vlan(60)))
			within(t, "the Infra to say so", s.says("Infra", other, v1alpha1.ConditionVLANPodsReady, "False NotOurs", what),
				s.children(other, true), each(shared(other), s.there), each(ofDNS(other), s.there))
			// Envoy must not start with what somebody else wrote.
			if theirs.GetKind() == "ConfigMap" {
				if err := s.gone(deployment(other))(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if now := s.copyOf(t, theirs); fmt.Sprint(now) != fmt.Sprint(before) {
				t.Errorf("it was changed from\n%v to\n%v", before, now)
			}
			s.remove(t, theirs)
			within(t, "the Infra to be written in full", s.podsReady(other, image(1)), each(workloads(other), s.there))
			s.remove(t, ours("Infra", other))
			within(t, "its end", each(workloads(other), s.gone))
		})
	}
}

// testShared has two Infras in one namespace: they have one account, which goes with the last of them.
func (s *site) testShared(t *testing.T) {
	const first, second = "both/first", "both/second"
	plain := func(name string, number int) string {
		text := strings.ReplaceAll(s.plainInfra("both", s.vlan(number)), "name: both, namespace: both", "name: "+name+", namespace: both")
		return strings.ReplaceAll(text, "networkAttachmentDefinition: vlan", "networkAttachmentDefinition: "+name)
	}
	owners := func(want ...string) check {
		return each(shared(first), func(object *unstructured.Unstructured) func(context.Context) error {
			return func(ctx context.Context) error {
				there, err := s.fetch(ctx, object)
				if err != nil {
					return err
				}
				var got []string
				for _, o := range there.GetOwnerReferences() {
					got = append(got, o.Name)
				}
				if slices.Sort(got); !slices.Equal(got, want) {
					return fmt.Errorf("owners of %s %s: %v, want %v", object.GetKind(), object.GetName(), got, want)
				}
				return nil
			}
		})
	}
	s.apply(t, plain("first", 61))
	within(t, "the first", owners("first"), s.podsReady(first, image(1)))
	s.apply(t, plain("second", 62))
	within(t, "the second", owners("first", "second"), s.podsReady(second, image(1)))
	s.quiet(t, 2*time.Second) // they do not take it from each other
	enable := func(enabled bool) {
		t.Helper()
		s.patch(t, ours("Infra", first), fmt.Sprintf(`{"spec": {"infraComponents": {"dhcp": {"enabled": %t}, "dns": {"enabled": %t}, "proxy": {"enabled": %t}}}}`, enabled, enabled, enabled))
	}
	enable(false)
	within(t, "the first to ask for nothing", owners("second"), each(ofPods(first), s.gone), s.podsReady(second, image(1)))
	enable(true)
	within(t, "the first again", owners("first", "second"), s.podsReady(first, image(1)))
	s.remove(t, ours("Infra", first))
	within(t, "the first to go", owners("second"), each(ofPods(first), s.gone), s.podsReady(second, image(1)))
	s.remove(t, ours("Infra", second))
	within(t, "the second to go", each(workloads(second), s.gone))
}

// TestUpgrade rolls releases out over several Infras: one at a time, and no further than the first that does not get ready.
func TestUpgrade(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	if err := s.ControllerManager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	kubelet := s.startPods(t)
	names := []string{"a", "b", "c", "d"}
	// The first by name has no ready pods from the beginning.
	kubelet.breaks("a", true)
	hub := s.writesPods(t, 1).start(t)
	for i, name := range names {
		s.apply(t, s.plainInfra(name, s.vlan(1+i)))
	}
	ready := func(release int, names ...string) check {
		var checks []check
		for _, name := range names {
			checks = append(checks, s.podsReady(name+"/"+name, image(release)))
		}
		return all(checks...)
	}
	pending := func(want float64) check {
		return func(ctx context.Context) error {
			text, err := hub.Get(ctx, "/metrics")
			if err != nil {
				return err
			}
			if got := metric(t, text, "oooi_vlan_upgrade_pending"); got != want {
				return fmt.Errorf("oooi_vlan_upgrade_pending is %v, want %v", got, want)
			}
			return nil
		}
	}
	notReady := s.says("Infra", "a/a", v1alpha1.ConditionVLANPodsReady, "False PodsNotReady", "0 of 2")
	within(t, "the first release", ready(1, "b", "c", "d"), notReady, s.hasImage("a/a", image(1)), pending(0))
	install := func(release int) {
		t.Helper()
		if err := hub.run.Stop(); err != nil {
			t.Fatal(err)
		}
		hub = s.writesPods(t, release).start(t)
	}

	stop := s.watchUpgrade(t)
	install(2)
	within(t, "the second release", ready(2, "b", "c", "d"), s.hasImage("a/a", image(2)), notReady, pending(0))
	if order := stop(); !slices.Equal(order, []string{"b", "c", "d", "a"}) {
		t.Errorf("upgraded in the order %v", order)
	}

	// A release that does not get ready.
	kubelet.breaks(image(3), true)
	install(3)
	within(t, "the third release to stop at once",
		s.says("Infra", "b/b", v1alpha1.ConditionVLANPodsReady, "False PodsNotReady", "1 of 2", "other Infras waits for it: 3"),
		s.says("Infra", "c/c", v1alpha1.ConditionVLANPodsReady, "True UpgradeWaiting", "2 of 2", "waits for Infra b/b", "1 of 2"),
		s.says("Infra", "d/d", v1alpha1.ConditionVLANPodsReady, "True UpgradeWaiting", "b/b"),
		s.hasEvent("Infra", "b/b", "PodsNotReady"), s.hasEvent("Infra", "c/c", "UpgradeWaiting"), pending(3))
	hub.restart(t)
	within(t, "the hub to lead again", hub.leads(true), pending(3))
	stopped := all(s.hasImage("a/a", image(2)), s.hasImage("b/b", image(3)), s.hasImage("c/c", image(2)), s.hasImage("d/d", image(2)))
	within(t, "it to stay there", stopped)
	s.quiet(t, 2*time.Second)

	// What an Infra itself decides goes at once: a new one, another field, an image of its own.
	s.apply(t, s.plainInfra("e", s.vlan(9)))
	s.patch(t, ours("Infra", "d/d"), `{"spec":{"infraComponents":{"proxy":{"managerImage":"registry.example.com/pinned:1"}}}}`)
	within(t, "what Infras decide", s.hasImage("e/e", image(3)), s.podsReady("d/d", "registry.example.com/pinned:1"), pending(2))
	// The rest of an Infra that waits is kept as it should be.
	s.remove(t, ofDNS("c/c")...)
	within(t, "a deleted Service to be back", each(ofDNS("c/c"), s.there), s.hasImage("c/c", image(2)))
	// One whose Deployment is deleted has no old pods to wait with.
	s.remove(t, deployment("a/a"))
	within(t, "a Deployment made anew", s.hasImage("a/a", image(3)), s.hasImage("c/c", image(2)), pending(1))

	// The release gets ready after all.
	kubelet.breaks("a", false)
	kubelet.breaks(image(3), false)
	within(t, "the third release", ready(3, "a", "b", "c", "e"), s.podsReady("d/d", "registry.example.com/pinned:1"), pending(0))
	s.quiet(t, 2*time.Second)

	// The stuck one goes away: the rest goes on. Back to an earlier release is an upgrade as well.
	kubelet.breaks(image(4), true)
	stop = s.watchUpgrade(t)
	install(4)
	within(t, "the fourth release to stop", s.says("Infra", "b/b", v1alpha1.ConditionVLANPodsReady, "True UpgradeWaiting", "a/a"), pending(3))
	install(3)
	within(t, "the release before", ready(3, "a", "b", "c", "e"), pending(0))
	if order := stop(); !slices.Equal(order, []string{"a", "a"}) {
		t.Errorf("upgraded in the order %v", order)
	}
	kubelet.breaks(image(4), false)
	kubelet.breaks("a", true)
	within(t, "the pods of one to fail", notReady)
	install(4)
	within(t, "the fourth release", ready(4, "b", "c", "e"), s.podsReady("d/d", "registry.example.com/pinned:1"), pending(0))
}

// watchUpgrade collects the Infras in the order in which their Deployments get another image, until the function that it returns
// is called, and fails when one gets it before the one before is ready with its own, unless that was not ready before either.
func (s *site) watchUpgrade(t *testing.T) func() []string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	events, err := s.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Watch(ctx, metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=vlan"})
	if err != nil {
		t.Fatal(err)
	}
	var order []string
	last := map[string]*appsv1.Deployment{}
	under := map[string]bool{}
	complete := func(d *appsv1.Deployment) bool {
		return d.Status.ObservedGeneration >= d.Generation && d.Status.UpdatedReplicas == 2 && d.Status.AvailableReplicas == 2 && d.Status.Replicas == 2
	}
	var collecting sync.WaitGroup
	collecting.Go(func() {
		for event := range events.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			d := &appsv1.Deployment{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, d); err != nil {
				t.Error(err)
				continue
			}
			before := last[d.Namespace]
			last[d.Namespace] = d
			if before != nil && before.Spec.Template.Spec.Containers[0].Image != d.Spec.Template.Spec.Containers[0].Image {
				if others := slices.Sorted(maps.Keys(under)); len(others) > 0 && !slices.Equal(others, []string{d.Namespace}) {
					t.Errorf("%s is upgraded while %v are not ready", d.Namespace, others)
				}
				order = append(order, d.Namespace)
				if complete(before) {
					under[d.Namespace] = true
				}
			}
			if complete(d) {
				delete(under, d.Namespace)
			}
		}
	})
	t.Cleanup(collecting.Wait)
	t.Cleanup(events.Stop)
	return func() []string {
		events.Stop()
		collecting.Wait()
		return order
	}
}

// TestHubWithoutRights runs a hub under roles of a release that knew no VLAN pods: children and statuses are written as ever, it is
// said what is missing, and it heals.
func TestHubWithoutRights(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	if err := s.ControllerManager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.deploy(t)
	// without takes the rights on a resource from a role, and restore gives them back.
	without := func(kind, name, resource string) (restore func()) {
		t.Helper()
		role, err := s.fetch(t.Context(), refers("rbac.authorization.k8s.io/v1", kind, name))
		if err != nil {
			t.Fatal(err)
		}
		rules, _, err := unstructured.NestedSlice(role.Object, "rules")
		if err != nil {
			t.Fatal(err)
		}
		kept := slices.DeleteFunc(slices.Clone(rules), func(rule any) bool {
			resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
			return slices.Contains(resources, resource)
		})
		if len(kept) == len(rules) {
			t.Fatalf("%s %s has no rule for %s", kind, name, resource)
		}
		set := func(rules []any) {
			text, err := json.Marshal(map[string]any{"rules": rules})
			if err != nil {
				t.Fatal(err)
			}
			s.patch(t, role, string(text))
		}
		set(kept)
		return func() { set(rules) }
	}
	mayWrite := without("ClusterRole", "oooi-hub", "deployments")
	mayReadItself := without("Role", "oooi-system/oooi-leader", "pods")
	s.hubOfPod(t).start(t)
	s.apply(t, s.plainInfra("first", s.vlan(1)), plainAttachment("first", "hcp"))
	within(t, "children and statuses", s.children("first/first", true),
		s.says("InfraClusterAttachment", "first/hcp", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound"),
		s.says("Infra", "first/first", v1alpha1.ConditionVLANPodsReady, "False WorkloadNotWritten", "own pod oooi-system/", "forbidden"))
	mayReadItself()
	within(t, "the own pod to be read",
		s.says("Infra", "first/first", v1alpha1.ConditionVLANPodsReady, "False WorkloadNotWritten", "cannot be read"), s.gone(shared("first/first")[0]))
	s.startPods(t)
	mayWrite()
	afterReturn(t, "everything", s.podsReady("first/first", "oooi:latest"))
}
