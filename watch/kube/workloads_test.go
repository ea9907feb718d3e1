package kube

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
)

func TestCoversIgnoresOnlyWhatOthersMayAdd(t *testing.T) {
	for _, c := range []struct {
		name, wanted, there string
		want                bool
	}{
		{"the same", "{a: {b: 1}}", "{a: {b: 1}}", true},
		{"a default", "{a: {b: 1}}", "{a: {b: 1, c: 2}, d: 3}", true},
		{"another value", "{a: {b: 1}}", "{a: {b: 2}}", false},
		{"a missing field", "{a: {b: 1}}", "{a: {}}", false},
		{"an empty struct that is left out", "{a: {}}", "{}", true},
		{"another kind of value", "{a: {b: 1}}", "{a: 1}", false},
		{"defaults in a list", "{a: [{b: 1}]}", "{a: [{b: 1, c: 2}]}", true},
		{"one more in a list", "{a: [{b: 1}]}", "{a: [{b: 1}, {c: 2}]}", false},
		{"one less in a list", "{a: [{b: 1}, {c: 2}]}", "{a: [{b: 1}]}", false},
		{"another order", "{a: [1, 2]}", "{a: [2, 1]}", false},
		{"one more label", "{labels: {a: b}}", "{labels: {a: b, c: d}}", true},
		{"one more label of a selector", "{selector: {a: b}}", "{selector: {a: b, c: d}}", false},
		{"an expression beside the labels", "{podSelector: {matchLabels: {a: b}}}", "{podSelector: {matchLabels: {a: b}, matchExpressions: [{key: c}]}}", false},
		{"an empty selector", "{podSelector: {}}", "{podSelector: {}}", true},
		{"no selector any more", "{podSelector: {}}", "{podSelector: {matchLabels: {a: b}}}", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var wanted, there map[string]any
			if err := yaml.Unmarshal([]byte(c.wanted), &wanted); err != nil {
				t.Fatal(err)
			}
			if err := yaml.Unmarshal([]byte(c.there), &there); err != nil {
				t.Fatal(err)
			}
			if got := covers(wanted, there); got != c.want {
				t.Errorf("got %t", got)
			}
		})
	}
}

// fleet is a hub's view of Infras in namespaces of their own names, without an API server.
type fleet struct {
	*workloads
	t       *testing.T
	release int
	now     time.Time
}

func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, release: 1, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.workloads = &workloads{
		clock: func() time.Time { return f.now }, leads: func() (time.Time, bool) { return f.now.Add(time.Minute), true },
		infras: map[types.NamespacedName]*wantedInfra{}, there: map[workloadKey]client.Object{},
		events: map[workloadKey]int64{}, applied: map[workloadKey]appliedObject{}, waiting: map[types.NamespacedName]bool{},
	}
	for _, name := range names {
		f.add(name)
	}
	return f
}

// add makes an Infra, without its Deployment.
func (f *fleet) add(name string) {
	infra := &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: name, UID: types.UID("uid of " + name)}}
	infra.Spec.NetworkConfig.NetworkAttachmentDefinition = "vlan"
	f.infras[types.NamespacedName{Namespace: name, Name: name}] = &wantedInfra{infra: infra}
	f.plan()
}

// plan builds what every Infra wants.
func (f *fleet) plan() {
	f.t.Helper()
	for key, want := range f.infras {
		now := &wantedInfra{
			infra: want.infra, byKey: map[workloadKey]*wantedObject{},
			settings: &workload.Settings{Image: fmt.Sprintf("oooi:%d", f.release), EnvoyImage: "envoy:1"},
		}
		objects, err := workload.Build(now.infra, workload.Attachments{}, *now.settings)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, object := range objects {
			o, err := newWantedObject(workloadKey{object.GetObjectKind().GroupVersionKind().Kind, types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}, now.infra, object)
			if err != nil {
				f.t.Fatal(err)
			}
			now.objects = append(now.objects, o)
			now.byKey[o.key] = o
		}
		f.infras[key] = now
	}
}

func (f *fleet) key(name string) types.NamespacedName {
	return types.NamespacedName{Namespace: name, Name: name}
}

// write applies the Deployment of an Infra, as the watch shows it then; its pods are not ready yet.
func (f *fleet) write(name string) *appsv1.Deployment {
	f.t.Helper()
	wanted := f.infras[f.key(name)].deployment()
	before, _ := f.there[wanted.key].(*appsv1.Deployment)
	d := &appsv1.Deployment{}
	var there client.Object
	if before != nil {
		there = before
		d.Status = before.Status
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(wanted.contentFor(there), d); err != nil {
		f.t.Fatal(err)
	}
	d.UID, d.Generation = types.UID("deployment of "+name), 1
	if before != nil {
		d.Generation = before.Generation + 1
	}
	d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 1, 1
	d.Status.ObservedGeneration = d.Generation
	f.there[wanted.key] = d
	return d
}

// ready has all pods of an Infra ready.
func (f *fleet) ready(names ...string) {
	for _, name := range names {
		d := f.deployment(f.key(name))
		d.Status.Replicas, d.Status.UpdatedReplicas, d.Status.AvailableReplicas = 2, 2, 2
	}
}

// turns tells which Infras may write their Deployments now.
func (f *fleet) turns() string {
	var may []string
	f.turn = nil
	for key, want := range f.infras {
		if d := want.deployment(); d != nil && !d.isIn(f.there[d.key], appliedObject{}) && !f.waits(key, d) {
			may = append(may, key.Name)
		}
	}
	slices.Sort(may)
	return strings.Join(may, " ")
}

// say is the condition of an Infra.
func (f *fleet) say(name string) string {
	f.turn = nil
	c := &metav1.Condition{Status: metav1.ConditionFalse}
	f.judge(c, f.key(name), f.infras[f.key(name)].deployment(), f.deployment(f.key(name)))
	return fmt.Sprintf("%s %s %s", c.Status, c.Reason, c.Message)
}

func (f *fleet) expect(what, got, want string) {
	f.t.Helper()
	if got != want {
		f.t.Errorf("%s:\ngot  %s\nwant %s", what, got, want)
	}
}

// TestOneInfraIsUpgradedAtATime goes through an installation's life without an API server, which e2e/cluster has.
func TestOneInfraIsUpgradedAtATime(t *testing.T) {
	f := newFleet(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c"} {
		f.write(name)
	}
	f.ready("a", "b", "c")
	f.expect("nothing to do", f.turns(), "")
	f.expect("a ready Infra", f.say("a"), "True Ready 2 of 2 VLAN pods are ready")

	f.release = 2
	f.plan()
	f.expect("the first", f.turns(), "a")
	f.expect("the others", f.say("c"), "True UpgradeWaiting 2 of 2 VLAN pods are ready; the upgrade waits for Infra a/a")
	f.write("a")
	f.expect("while it is on its way", f.turns(), "")
	d := f.write("a") // once more: somebody edited it
	f.expect("after an edit was put back", f.turns(), "")
	f.expect("the one that is upgraded", f.say("a"), "False PodsNotReady 1 of 2 VLAN pods are ready, 1 of 2 are up to date; the upgrade of other Infras waits for it: 2; why says kubectl -n a describe pod -l hostedcluster.densityops.com/infra=a")
	f.expect("the next one", f.say("b"), "True UpgradeWaiting 2 of 2 VLAN pods are ready; the upgrade waits for Infra a/a, where 1 of 2 VLAN pods are ready, 1 of 2 are up to date")
	d.Status.Conditions = []appsv1.DeploymentCondition{
		{Type: appsv1.DeploymentProgressing, Status: corev1.ConditionFalse, Reason: "ProgressDeadlineExceeded", Message: "it takes too long"},
		{Type: appsv1.DeploymentReplicaFailure, Status: corev1.ConditionTrue, Message: "pods are forbidden"},
	}
	f.expect("when it is stuck", f.say("a"), "False ProgressDeadlineExceeded 1 of 2 VLAN pods are ready, 1 of 2 are up to date: it takes too long: pods are forbidden; the upgrade of other Infras waits for it: 2; why says kubectl -n a describe pod -l hostedcluster.densityops.com/infra=a")

	// A Deployment whose controller has not looked yet is not ready, whatever its status says.
	f.ready("a")
	d.Status.ObservedGeneration--
	f.expect("before its controller has looked", f.turns(), "")
	d.Status.ObservedGeneration++
	f.expect("when it is ready", f.turns(), "b")
	if _, pending := f.first(); pending != 2 {
		t.Errorf("%d are pending", pending)
	}

	// What was written and is not shown by the watch yet is on its way, too.
	wanted := f.infras[f.key("b")].deployment()
	f.applied[wanted.key] = appliedObject{before: "1", after: "2", events: f.events[wanted.key], at: f.now}
	f.expect("before the watch shows it", f.turns(), "b") // itself: writeObject knows
	f.ready("b")
	f.turn = nil
	if first, _ := f.first(); first != f.key("b") {
		t.Errorf("it is the turn of %s", first)
	}
	f.events[wanted.key]++
	f.write("b")
	f.ready("b")
	f.expect("the last", f.turns(), "c")

	// What the Infra itself decides goes at once.
	f.release = 3
	f.infras[f.key("c")].infra.Spec.InfraComponents.Proxy.ManagerImage = "pinned:1"
	f.plan()
	f.expect("the first of the next release, and the one that was changed", f.turns(), "a c")
	f.write("c")
	f.expect("it is none of those that the rest waits for", f.turns(), "a")

	// Those that are not ready come last and hold up nobody.
	f.add("0")
	f.add("1")
	f.release = 2
	f.plan()
	f.write("0")
	f.write("1")
	f.release = 3
	f.plan()
	f.expect("the order", f.turns(), "a")
	f.write("a")
	f.ready("a")
	f.write("b")
	f.ready("b")
	f.expect("those without ready pods", f.turns(), "0")
	f.write("0")
	f.expect("the next of them", f.turns(), "1")
	f.write("1")
	f.expect("the end", f.turns(), "")
}

func TestOwnedByTellsWhoseAnObjectIs(t *testing.T) {
	f := newFleet(t, "a")
	want := f.infras[f.key("a")]
	controlled := want.byKey[workloadKey{"PodDisruptionBudget", types.NamespacedName{Namespace: "a", Name: "a-vlan"}}]
	shared := want.byKey[workloadKey{"ServiceAccount", types.NamespacedName{Namespace: "a", Name: v1alpha1.VLANAccount}}]
	service := &corev1.Service{Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer}}
	service.OwnerReferences = controlled.object.GetOwnerReferences()
	public := &wantedObject{key: workloadKey{"Service", types.NamespacedName{Namespace: "a", Name: "hcp-proxy-external"}}, object: service}
	yes := true
	of := func(infra string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{Kind: "Infra", Name: infra, UID: types.UID(infra), Controller: &yes}}
	}
	if err := ownedBy(want.infra, public, &corev1.Service{ObjectMeta: metav1.ObjectMeta{OwnerReferences: of("b"), DeletionTimestamp: &metav1.Time{}}}); err == nil || !strings.Contains(err.Error(), "belongs to Infra b") {
		t.Errorf("a public Service of another Infra: %v", err)
	}
	if err := ownedBy(want.infra, public, &corev1.Service{ObjectMeta: metav1.ObjectMeta{OwnerReferences: of("b"), DeletionTimestamp: &metav1.Time{Time: time.Now()}}}); err == nil || !strings.Contains(err.Error(), "which the attachment has left") {
		t.Errorf("a public Service of the Infra of before, which is going: %v", err)
	}
	for _, c := range []struct {
		name   string
		wanted *wantedObject
		labels map[string]string
		owners []metav1.OwnerReference
		want   string
	}{
		{"controlled", controlled, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "uid of a", Controller: &yes}}, ""},
		{"without owners, by its labels", controlled, controlled.object.GetLabels(), nil, ""},
		{"nobody's", controlled, nil, nil, "belongs to somebody else, by its labels"},
		{"another Infra's", controlled, map[string]string{v1alpha1.LabelInfra: "b"}, nil, "belongs to somebody else, by its labels"},
		{"controlled by somebody else", controlled, controlled.object.GetLabels(), []metav1.OwnerReference{{Kind: "Job", Name: "j", UID: "1", Controller: &yes}}, "belongs to Job j"},
		{"an Infra's that is gone", controlled, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "before", Controller: &yes}}, "an Infra of this name that is gone"},
		{"shared", shared, shared.object.GetLabels(), []metav1.OwnerReference{{Kind: "Infra", Name: "b", UID: "uid of b"}}, ""},
		{"shared, without its label", shared, nil, []metav1.OwnerReference{{Kind: "Infra", Name: "a", UID: "uid of a"}}, ""},
		{"somebody else's of that name", shared, nil, nil, "belongs to somebody else, by its labels"},
	} {
		t.Run(c.name, func(t *testing.T) {
			there := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Labels: c.labels, OwnerReferences: c.owners}}
			err := ownedBy(want.infra, c.wanted, there)
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

// TestWhatIsWantedNoLongerMakesAnotherHash is how a hub of another release knows that fields have to go.
func TestWhatIsWantedNoLongerMakesAnotherHash(t *testing.T) {
	hash := func(object *corev1.ConfigMap, owner types.UID) string {
		t.Helper()
		object.OwnerReferences = []metav1.OwnerReference{{UID: owner}}
		o, err := newWantedObject(workloadKey{}, nil, object)
		if err != nil {
			t.Fatal(err)
		}
		return (&unstructured.Unstructured{Object: o.content}).GetAnnotations()[annotationApplied]
	}
	two := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}, "x")
	if one := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1"}}, "x"); one == two || one == "" {
		t.Errorf("hashes %q and %q", two, one)
	}
	if again := hash(&corev1.ConfigMap{Data: map[string]string{"a": "1", "b": "2"}}, "y"); again != two {
		t.Error("two Infras that share an object write other hashes")
	}
}

func TestSettingsComeFromTheHubsOwnPod(t *testing.T) {
	pod := func(containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}}
	}
	oooi := corev1.Container{Name: "oooi", Image: "example.com/oooi:1", ImagePullPolicy: corev1.PullAlways}
	for _, c := range []struct {
		name  string
		given workload.Settings
		pod   *corev1.Pod
		want  *workload.Settings
	}{
		{"everything", workload.Settings{EnvoyImage: "e"}, pod(corev1.Container{Name: "proxy"}, oooi), &workload.Settings{Image: "example.com/oooi:1", EnvoyImage: "e", PullPolicy: corev1.PullAlways, PullSecrets: []string{"registry"}}},
		{"the only container", workload.Settings{}, pod(corev1.Container{Name: "hub", Image: "i"}), &workload.Settings{Image: "i", PullSecrets: []string{"registry"}}},
		{"an image that was given", workload.Settings{Image: "other:1"}, pod(oooi), &workload.Settings{Image: "other:1", PullSecrets: []string{"registry"}}},
		{"a policy and secrets that were given", workload.Settings{PullPolicy: corev1.PullNever, PullSecrets: []string{"mine"}}, pod(oooi), &workload.Settings{Image: "example.com/oooi:1", PullPolicy: corev1.PullNever, PullSecrets: []string{"mine"}}},
		{"no container of oooi", workload.Settings{}, pod(corev1.Container{Name: "a"}, corev1.Container{Name: "b"}), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := fromPod(c.given, c.pod)
			if (err == nil) != (c.want != nil) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
