package kube

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/watch/plan"
)

// longInfra is the name of an Infra whose pods' Leases have names that are cut.
const longInfra = "tenant-with-a-long-name-vlan100"

// servingLease is a Lease that says of a process that it serves an Infra.
func servingLease(name, infra, process string, key ed25519.PublicKey) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters", Name: name,
			Labels: map[string]string{servingLabel: infra, v1alpha1.LabelInfra: infra},
			Annotations: map[string]string{
				keyAnnotation:  base64.StdEncoding.EncodeToString(key),
				vlanAnnotation: fmt.Sprintf(`{"holding": true, "holder": %q}`, name),
			},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &process},
	}
}

// A Lease of another name tells nothing about a process, whatever its labels and its holder are.
func TestOnlyAProcessItselfSaysWhatItDoes(t *testing.T) {
	h := &Hub{world: &world{serving: map[types.NamespacedName]*coordinationv1.Lease{}}, wasAlive: map[types.NamespacedName]bool{}}
	for _, lease := range []*coordinationv1.Lease{
		servingLease("a-serving-a-vlan-1", "a", "a-vlan-1", nil),
		servingLease("b-serving-b-vlan-1", "a", "a-vlan-1", nil),
		servingLease("b-serving-b-vlan-2", "a", "b-vlan-2", nil),
		servingLease("a-vlan", "a", "a-vlan-1", nil),
		servingLease("a-serving-", "a", "", nil),
		servingLease("a-serving-by-hand", "a", "by-hand", nil),
		servingLease(servingName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde"), longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde", nil),
		servingLease(servingName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde"+"2"), longInfra, longInfra+"-vlan-6d5f8c9b7d-fghij", nil),
	} {
		key := client.ObjectKeyFromObject(lease)
		h.world.serving[key], h.wasAlive[key] = lease, true
	}
	for infra, want := range map[string]map[string]string{
		"a":       {"a-vlan-1": "a-serving-a-vlan-1", "by-hand": "a-serving-by-hand"},
		"b":       {},
		longInfra: {longInfra + "-vlan-6d5f8c9b7d-abcde": servingName(longInfra, longInfra+"-vlan-6d5f8c9b7d-abcde")},
	} {
		got := map[string]string{}
		for process, report := range h.processes(types.NamespacedName{Namespace: "clusters", Name: infra}) {
			got[process] = report.Holder
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("Infra %s (-want +got):\n%s", infra, d)
		}
	}
}

func TestKeysOfPeersComeFromTheirOwnLeases(t *testing.T) {
	for _, infra := range []string{"a", longInfra} {
		t.Run(infra, func(t *testing.T) {
			own, other := infra+"-vlan-6d5f8c9b7d-abcde", infra+"-vlan-6d5f8c9b7d-fghij"
			l, err := NewVLANLease(VLANLeaseConfig{
				REST: &rest.Config{Host: "127.0.0.1:1"}, Log: slog.New(slog.DiscardHandler),
				Infra: types.NamespacedName{Namespace: "clusters", Name: infra}, Identity: own,
			})
			if err != nil {
				t.Fatal(err)
			}
			key, forged := ed25519.PublicKey(slices.Repeat([]byte{1}, ed25519.PublicKeySize)), ed25519.PublicKey(slices.Repeat([]byte{2}, ed25519.PublicKeySize))
			truly := servingLease(servingName(infra, other), infra, other, key)
			elsewhere := servingLease("b-serving-b-vlan-1", infra, other, forged)
			handler := l.handler().(toolscache.ResourceEventHandlerFuncs)
			known := func() map[string]string {
				got := map[string]string{}
				_, peers, _ := l.Seen()
				for _, p := range peers {
					got[p.Name] = fmt.Sprint(p.Key[0])
				}
				return got
			}
			for _, step := range []struct {
				name string
				do   func()
				want map[string]string
			}{
				{"another Lease speaks first", func() { handler.AddFunc(elsewhere) }, map[string]string{}},
				{"this pod", func() { handler.AddFunc(servingLease(servingName(infra, own), infra, own, forged)) }, map[string]string{}},
				{"the peer itself", func() { handler.AddFunc(truly) }, map[string]string{other: "1"}},
				{"another Lease speaks later", func() { handler.UpdateFunc(elsewhere, elsewhere) }, map[string]string{other: "1"}},
				{"that is deleted", func() { handler.DeleteFunc(elsewhere) }, map[string]string{other: "1"}},
				{"the peer's own is deleted", func() { handler.DeleteFunc(truly) }, map[string]string{}},
			} {
				step.do()
				if got := known(); !maps.Equal(got, step.want) {
					t.Errorf("%s: %v, want %v", step.name, got, step.want)
				}
			}
			if record, _, _ := l.Seen(); !cmp.Equal(record, holder.Record{}) {
				t.Errorf("the record is %v", record)
			}
		})
	}
}

func TestLeasesOfWorkersAreKnownByTheirNames(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	w := &world{leases: map[types.NamespacedName]*liveLease{}}
	lease := func(name, infra, address string) {
		w.leases[types.NamespacedName{Namespace: "clusters", Name: name}] = readLive(&v1alpha1.DHCPLease{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{v1alpha1.LabelInfra: infra}},
			Spec: v1alpha1.DHCPLeaseSpec{
				Address: address, MAC: "52:54:00:00:00:01", State: v1alpha1.DHCPLeaseActive,
				Start: now.Format(time.RFC3339), Expires: now.Add(time.Hour).Format(time.RFC3339),
			},
		})
	}
	lease("a-192-0-2-117", "a", "192.0.2.117")
	lease("b-192-0-2-118", "a", "192.0.2.118")
	lease("a-192-0-2-119", "a", "192.0.2.120")
	lease("a-192-0-2-121", "b", "192.0.2.121")
	infra := func(name string) *v1alpha1.Infra {
		return &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}
	}
	got := w.liveLeases([]*v1alpha1.Infra{infra("a"), infra("b")}, now)
	want := map[types.NamespacedName][]plan.Lease{
		{Namespace: "clusters", Name: "a"}: {{Address: netip.MustParseAddr("192.0.2.117"), MAC: "52:54:00:00:00:01"}},
	}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}
