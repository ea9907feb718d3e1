package hub

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/process"
)

func TestProgrammedFoldsWhatEnvoysSay(t *testing.T) {
	alive := map[string]*process.VLAN{"pod-1": nil, "pod-2": nil}
	served := v1alpha1.EnvoyStatus{Name: "e1", Process: "pod-1", Generation: 7}
	for _, c := range []struct {
		name   string
		envoys []v1alpha1.EnvoyStatus
		want   string
	}{
		{"no Envoy", nil, "False NoEnvoy no Envoy is connected"},
		{"served", []v1alpha1.EnvoyStatus{served}, "True Acknowledged acknowledged by every Envoy: 1"},
		{"an Envoy of a process that is gone does not count", []v1alpha1.EnvoyStatus{{Name: "e2", Process: "gone", Generation: 7}}, "False NoEnvoy no Envoy is connected"},
		{
			"Envoy's own words",
			[]v1alpha1.EnvoyStatus{served, {Name: "e2", Process: "pod-2", Generation: 6, Error: "cannot bind"}},
			"False Refused Envoy e2: cannot bind",
		},
		{"behind", []v1alpha1.EnvoyStatus{served, {Name: "e2", Process: "pod-2", Generation: 6}}, "False Pending not acknowledged yet by Envoy e2"},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
			h := &Hub{cfg: Config{Clock: func() time.Time { return now }}, pending: map[types.NamespacedName]time.Time{}}
			before := []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: "Before"}}
			p := &v1alpha1.ProxyServer{
				ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "p", Generation: 7},
				Status:     v1alpha1.ProxyServerStatus{Conditions: before, Envoys: c.envoys},
			}
			got := meta.FindStatusCondition(h.proxyConditions(p, alive), v1alpha1.ConditionProgrammed)
			if got.Reason == "Before" { // an answer that is due is waited for, but not for ever
				if h.pendingChanged() {
					t.Error("silence is too long at once")
				}
				now = now.Add(process.PendingPatience)
				if !h.pendingChanged() {
					t.Error("silence is never too long")
				}
				got = meta.FindStatusCondition(h.proxyConditions(p, alive), v1alpha1.ConditionProgrammed)
			}
			if text := fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message); text != c.want {
				t.Errorf("got  %s\nwant %s", text, c.want)
			}
		})
	}
}

func TestAddressesHeld(t *testing.T) {
	holding := &process.VLAN{Holding: true, Holder: "pod-1", Addresses: []string{"192.0.2.2", "192.0.2.3"}}
	standby := &process.VLAN{Holder: "pod-1"}
	cutOff := &process.VLAN{Holding: true, Holder: "pod-0", Addresses: []string{"192.0.2.2"}}
	holding.Epoch = 2
	disputed := &process.VLAN{
		Holding: true, Holder: "pod-1", Addresses: []string{"192.0.2.2"},
		Problems: []process.VLANProblem{{Reason: "AddressInUse", Message: "52:54:00:00:00:01 has 192.0.2.3"}},
	}
	down := &process.VLAN{Problems: []process.VLANProblem{{Reason: "InterfaceDown", Message: "vlan0 is down"}}}
	for _, c := range []struct {
		name  string
		alive map[string]*process.VLAN
		want  string
		has   int // addresses; -1: there is no holder
	}{
		{"nobody claims", map[string]*process.VLAN{"pod-1": nil}, "", -1},
		{"held", map[string]*process.VLAN{"pod-1": holding, "pod-2": standby}, "True Held pod pod-1 has 192.0.2.2, 192.0.2.3", 2},
		{"the trouble of a standby is its own", map[string]*process.VLAN{"pod-1": holding, "pod-2": down}, "True Held pod pod-1 has 192.0.2.2, 192.0.2.3", 2},
		{"by the later of two", map[string]*process.VLAN{"pod-0": cutOff, "pod-1": holding, "pod-2": cutOff}, "True Held pod pod-1 has 192.0.2.2, 192.0.2.3", 2},
		{
			"in part",
			map[string]*process.VLAN{"pod-1": disputed, "pod-2": standby},
			"False AddressInUse pod pod-1 has 192.0.2.2; pod pod-1: 52:54:00:00:00:01 has 192.0.2.3", 1,
		},
		{
			"for the first time",
			map[string]*process.VLAN{"pod-1": {Holding: true, Addresses: []string{"192.0.2.2"}}},
			"False Claiming pod pod-1 has 192.0.2.2, and is about to have 192.0.2.3", 1,
		},
		{"not at all", map[string]*process.VLAN{"pod-2": down}, "False InterfaceDown no VLAN pod has the addresses; pod pod-2: vlan0 is down", -1},
		{"not yet", map[string]*process.VLAN{"pod-2": {}}, "False NoHolder no VLAN pod has the addresses", -1},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, has := addressesHeld(c.alive, []string{"192.0.2.2", "192.0.2.3"})
			text := ""
			if got != nil {
				text = fmt.Sprintf("%s %s %s", got.Status, got.Reason, got.Message)
			}
			n := len(has)
			if has == nil {
				n = -1
			}
			if text != c.want || n != c.has {
				t.Errorf("got  %s, %d addresses\nwant %s, %d addresses", text, n, c.want, c.has)
			}
		})
	}
}

// TestRoutesByHost wait for every process that lives.
func TestRoutesByHost(t *testing.T) {
	infra := &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "a"}}
	h := &Hub{world: &world{serving: map[types.NamespacedName]*coordinationv1.Lease{}}, wasAlive: map[types.NamespacedName]bool{}}
	unknown := func() bool {
		return h.byHostUnknown([]*v1alpha1.Infra{infra})[client.ObjectKeyFromObject(infra)]
	}
	if unknown() {
		t.Error("nobody serves, and somebody does not know them")
	}
	for _, name := range []string{"new", "old"} {
		lease := servingLease(process.LeaseName("a", name), "a", name)
		if name == "new" {
			lease.Annotations["hostedcluster.densityops.com/routes"] = "something,by-host"
		}
		key := client.ObjectKeyFromObject(lease)
		h.world.serving[key], h.wasAlive[key] = lease, true
		if unknown() != (name == "old") {
			t.Errorf("with the process %s: %v", name, unknown())
		}
	}
	old := types.NamespacedName{Namespace: "clusters", Name: process.LeaseName("a", "old")}
	h.wasAlive[old] = false
	if unknown() {
		t.Error("a process that is gone counts")
	}
	// At the start it is not known yet whether it lives: what is served stays.
	delete(h.wasAlive, old)
	h.renewals = map[types.NamespacedName]renewal{}
	now := metav1.NowMicro()
	h.world.serving[old].Spec.RenewTime, h.world.serving[old].Spec.LeaseDurationSeconds = &now, ptr.To(int32(3600))
	h.cfg.Clock = time.Now
	proxy := &v1alpha1.ProxyServer{}
	h.world.proxies = map[types.NamespacedName]*v1alpha1.ProxyServer{{Namespace: "clusters", Name: "a-proxy"}: proxy}
	if !unknown() {
		t.Error("without routes by Host there would be some at once")
	}
	proxy.Spec.Backends = []v1alpha1.Backend{{Ports: []int32{80}}}
	if unknown() {
		t.Error("routes by Host would go at each start")
	}
}

// longInfra is the name of an Infra whose pods' Leases have names that are cut.
const longInfra = "tenant-with-a-long-name-vlan100"

// servingLease is a Lease that says of a process that it serves an Infra.
func servingLease(name, infra, process string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters", Name: name,
			Labels:      map[string]string{"hostedcluster.densityops.com/serves": infra},
			Annotations: map[string]string{"hostedcluster.densityops.com/vlan": fmt.Sprintf(`{"holding": true, "holder": %q}`, name)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &process},
	}
}

// A Lease of another name tells nothing about a process, whatever its labels and its holder are.
func TestOnlyAProcessItselfSaysWhatItDoes(t *testing.T) {
	h := &Hub{world: &world{serving: map[types.NamespacedName]*coordinationv1.Lease{}}, wasAlive: map[types.NamespacedName]bool{}}
	for _, lease := range []*coordinationv1.Lease{
		servingLease("a-serving-a-vlan-1", "a", "a-vlan-1"),
		servingLease("b-serving-b-vlan-1", "a", "a-vlan-1"),
		servingLease("b-serving-b-vlan-2", "a", "b-vlan-2"),
		servingLease("a-vlan", "a", "a-vlan-1"),
		servingLease("a-serving-", "a", ""),
		servingLease("a-serving-by-hand", "a", "by-hand"),
		servingLease(process.LeaseName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde"), longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde"),
		servingLease(process.LeaseName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde"+"2"), longInfra, longInfra+"-vlan-6d5f8c9b7d-fghij"),
	} {
		key := client.ObjectKeyFromObject(lease)
		h.world.serving[key], h.wasAlive[key] = lease, true
	}
	for infra, want := range map[string]map[string]string{
		"a":       {"a-vlan-1": "a-serving-a-vlan-1", "by-hand": "a-serving-by-hand"},
		"b":       {},
		longInfra: {longInfra + "-vlan-6d5f8c9b7d-abcde": process.LeaseName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde")},
	} {
		got := map[string]string{}
		for name, report := range h.processes(types.NamespacedName{Namespace: "clusters", Name: infra}) {
			got[name] = report.Holder
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Infra %s (-want +got):\n%s", infra, d)
		}
	}
}
