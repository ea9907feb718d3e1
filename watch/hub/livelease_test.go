package hub

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

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
