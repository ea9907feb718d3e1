package workloads

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
)

// fleet is a hub's view of Infras in namespaces of their own names, without an API server.
type fleet struct {
	*Writer
	t       *testing.T
	release int
	now     time.Time
}

func newFleet(t *testing.T, names ...string) *fleet {
	t.Helper()
	f := &fleet{t: t, release: 1, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	f.Writer = &Writer{
		cfg: Config{
			Clock: func() time.Time { return f.now },
			Lead:  func() (time.Time, bool) { return f.now.Add(time.Minute), true },
		},
		infras: map[types.NamespacedName]*wantedInfra{}, there: map[objectKey]client.Object{},
		events: map[objectKey]int64{}, applied: map[objectKey]appliedObject{}, waiting: map[types.NamespacedName]bool{},
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
			infra: want.infra, byKey: map[objectKey]*wantedObject{},
			settings: &workload.Settings{Image: fmt.Sprintf("oooi:%d", f.release), EnvoyImage: "envoy:1"},
		}
		objects, err := workload.Build(now.infra, workload.Attachments{}, *now.settings)
		if err != nil {
			f.t.Fatal(err)
		}
		for _, object := range objects {
			o, err := newWantedObject(objectKey{object.GetObjectKind().GroupVersionKind().Kind, types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}, now.infra, object)
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
