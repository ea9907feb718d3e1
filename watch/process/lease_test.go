package process_test

import (
	"crypto/ed25519"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/densityops/oooi/watch/process"
)

// TestAWordKeepsItsForm: processes and hubs of other releases read it, too.
func TestAWordKeepsItsForm(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	word := process.Word{
		Process: "a-vlan-1", Key: slices.Repeat([]byte{1}, ed25519.PublicKeySize),
		VLAN: &process.VLAN{Holding: true, Epoch: 7, Holder: "a-vlan-1", Addresses: []string{"192.0.2.2"}, Problems: []process.VLANProblem{
			{Reason: "AddressContested", Message: "52:54:00:00:00:01 has 192.0.2.3"},
		}},
	}
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: process.LeaseName("a", "a-vlan-1")}}
	if err := word.Write(lease, "a", now); err != nil {
		t.Fatal(err)
	}
	want := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters", Name: "a-serving-a-vlan-1",
			Labels: map[string]string{"hostedcluster.densityops.com/serves": "a", "hostedcluster.densityops.com/infra": "a"},
			Annotations: map[string]string{
				"hostedcluster.densityops.com/peer-key": "AQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQE=",
				"hostedcluster.densityops.com/routes":   "by-host",
				"hostedcluster.densityops.com/vlan": `{"holding":true,"epoch":7,"holder":"a-vlan-1","addresses":["192.0.2.2"],` +
					`"problems":[{"reason":"AddressContested","message":"52:54:00:00:00:01 has 192.0.2.3"}]}`,
			},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a-vlan-1"), LeaseDurationSeconds: ptr.To[int32](30), RenewTime: ptr.To(metav1.NewMicroTime(now))},
	}
	if d := cmp.Diff(want, lease); d != "" {
		t.Errorf("the Lease (-want +got):\n%s", d)
	}
	read := process.Word{Process: process.SpokenFor(lease, "a"), Key: process.Key(lease), VLAN: process.ReadVLAN(lease)}
	if d := cmp.Diff(word, read); d != "" || !process.KnowsByHost(lease) {
		t.Errorf("it is read as another one (-want +got):\n%s", d)
	}
}

// TestWhatSomebodyElseWroteSaysNothing: Leases can be edited, and older releases say less.
func TestWhatSomebodyElseWroteSaysNothing(t *testing.T) {
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: "a-serving-a-vlan-1", Annotations: map[string]string{
			"hostedcluster.densityops.com/peer-key": "AQEB", "hostedcluster.densityops.com/vlan": "{",
			"hostedcluster.densityops.com/routes": "by-hostname",
		}},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To("a-vlan-2")},
	}
	for _, when := range []string{"damaged", "empty"} {
		if name, key, vlan := process.SpokenFor(lease, "a"), process.Key(lease), process.ReadVLAN(lease); name != "" || key != nil || vlan != nil || process.KnowsByHost(lease) {
			t.Errorf("%s: process %q, key %v, VLAN %v", when, name, key, vlan)
		}
		lease.Annotations, lease.Spec = nil, coordinationv1.LeaseSpec{}
	}
}
