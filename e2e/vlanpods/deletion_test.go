package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
)

// belongings are the kinds of which an Infra has objects.
var belongings = []schema.GroupVersionResource{
	{Group: "apps", Version: "v1", Resource: "deployments"},
	{Group: "apps", Version: "v1", Resource: "replicasets"},
	{Version: "v1", Resource: "pods"},
	{Version: "v1", Resource: "services"},
	{Version: "v1", Resource: "configmaps"},
	{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"},
	{Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"},
	v1alpha1.GroupVersion.WithResource("dhcpleases"),
	v1alpha1.GroupVersion.WithResource("dhcpservers"),
	v1alpha1.GroupVersion.WithResource("dnsservers"),
	v1alpha1.GroupVersion.WithResource("proxyservers"),
}

// TestDeletion: when the Infra is deleted all that belongs to it goes, and the addresses, too.
func TestDeletion(t *testing.T) {
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
	arp := newARP(t, w.prober)
	for _, address := range []string{addressDHCP, addressDNS, addressProxy} {
		if mac, answered := arp.ask(netip.MustParseAddr(address), 10*time.Second); !answered {
			t.Errorf("nobody answers for %s before the Infra is deleted", address)
		} else if mac == strangerMAC.String() {
			t.Errorf("%s is the stranger's", address)
		}
	}
	w.deleteInfra(t)
	arp = newARP(t, w.prober) // the other one has heard what was said before
	for _, address := range []string{addressDHCP, addressDNS, addressProxy} {
		if mac, answered := arp.ask(netip.MustParseAddr(address), time.Second); answered {
			t.Errorf("%s still has %s", mac, address)
		}
	}
	w.settle(t)
	w.boot(t, w.workerA, netlab.Udhcpc, workerA)
}

// deleteInfra deletes the example's Infra and waits until nothing of it is left, in its namespace and in those of the control
// planes. Its attachments stay.
func (w *world) deleteInfra(t *testing.T) {
	t.Helper()
	infras := w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("infras")).Namespace(namespace)
	if err := infras.Delete(t.Context(), infra, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	eventually(t, "the end of all that belongs to the Infra", func(ctx context.Context) error {
		var left []error
		for _, kind := range belongings {
			for _, in := range []string{namespace, "clusters-" + clusterA, "clusters-" + clusterB} {
				list, err := w.Dynamic.Resource(kind).Namespace(in).List(ctx, metav1.ListOptions{LabelSelector: "hostedcluster.densityops.com/infra=" + infra})
				if err != nil {
					return err
				}
				for _, object := range list.Items {
					left = append(left, fmt.Errorf("%s %s/%s is left", kind.Resource, in, object.GetName()))
				}
			}
		}
		if names := w.nodes.Running(namespace); len(names) > 0 {
			left = append(left, fmt.Errorf("pods run: %v", names))
		}
		return errors.Join(left...)
	})
}

// apply applies the example as a user does.
func (w *world) apply(t testing.TB) {
	t.Helper()
	manifests, err := kustomize(t.Context(), "deploy/examples/vlan100")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), "kubectl", manifests); err != nil {
		t.Fatal(err)
	}
}
