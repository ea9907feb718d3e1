package serving

import (
	"crypto/ed25519"
	"encoding/base64"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/watch/process"
)

// longInfra is the name of an Infra whose pods' Leases have names that are cut.
const longInfra = "tenant-with-a-long-name-vlan100"

// servingLease is a Lease that says of a process that it serves an Infra.
func servingLease(name, infra, process string, key ed25519.PublicKey) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "clusters", Name: name,
			Labels:      map[string]string{v1alpha1.LabelInfra: infra},
			Annotations: map[string]string{"hostedcluster.densityops.com/peer-key": base64.StdEncoding.EncodeToString(key)},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &process},
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
			truly := servingLease(process.LeaseName(infra, other), infra, other, key)
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
				{"this pod", func() { handler.AddFunc(servingLease(process.LeaseName(infra, own), infra, own, forged)) }, map[string]string{}},
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
