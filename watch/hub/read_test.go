package hub

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/watch/plan"
)

// TestStripKeepsWhatIsRead reads each kind before and after it is stripped for the cache.
func TestStripKeepsWhatIsRead(t *testing.T) {
	object := func(kind string, status map[string]any) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": kind,
			"metadata": map[string]any{
				"namespace": "clusters-a", "name": "worker-0", "uid": "u1", "resourceVersion": "7",
				"annotations":   map[string]any{"hypershift.openshift.io/nodePool": "clusters/a", "kubectl.kubernetes.io/last-applied-configuration": "{}"},
				"managedFields": []any{map[string]any{"manager": "somebody"}},
			},
			"spec": map[string]any{"large": "thing"}, "status": status,
		}}
	}
	machine := object("Machine", map[string]any{
		"addresses": []any{map[string]any{"type": "InternalIP", "address": "192.0.2.117"}, map[string]any{"type": "Odd"}, "odd"},
		"phase":     "Running",
	})
	wantMachine := &plan.Machine{Namespace: "clusters-a", Name: "worker-0", UID: "u1", NodePool: "clusters/a", Addresses: []string{"192.0.2.117"}}
	instance := object("VirtualMachineInstance", map[string]any{
		"interfaces": []any{map[string]any{"mac": "52:54:00:00:01:17", "ipAddress": "192.0.2.117", "ipAddresses": []any{"192.0.2.117", "fe80::1"}}},
	})
	wantInstance := &plan.VirtualMachineInstance{Namespace: "clusters-a", Name: "worker-0", Interfaces: []plan.VMInterface{
		{MAC: "52:54:00:00:01:17", Addresses: []string{"192.0.2.117", "fe80::1"}},
	}}
	for _, when := range []string{"as it comes", "stripped"} {
		if d := cmp.Diff(wantMachine, readMachine(machine)); d != "" {
			t.Errorf("Machine %s (-want +got):\n%s", when, d)
		}
		if d := cmp.Diff(wantInstance, readInstance(instance)); d != "" {
			t.Errorf("VirtualMachineInstance %s (-want +got):\n%s", when, d)
		}
		for _, o := range []client.Object{machine, instance} {
			if _, err := strip(o); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, found, _ := unstructured.NestedMap(machine.Object, "spec"); found || machine.GetResourceVersion() != "7" {
		t.Errorf("stripped Machine: %v", machine.Object)
	}

	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "s", Labels: map[string]string{"a": "b"}},
		Spec:       corev1.ServiceSpec{ClusterIP: "172.30.0.1", Selector: map[string]string{"a": "b"}, Ports: []corev1.ServicePort{{Port: 6443}}},
	}
	if _, err := strip(service); err != nil || service.Spec.ClusterIP != "172.30.0.1" || service.Spec.Ports[0].Port != 6443 || service.Labels != nil {
		t.Errorf("stripped Service: %+v, %v", service, err)
	}
}

func TestEndpointsOfAServiceAreJoined(t *testing.T) {
	no := false
	slice := func(name string, kind discoveryv1.AddressType, endpoints ...discoveryv1.Endpoint) *endpointSlice {
		return readSlice(&discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "clusters-a", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "kube-apiserver"}},
			AddressType: kind, Endpoints: endpoints,
		})
	}
	all := map[types.NamespacedName]*endpointSlice{
		{Name: "1"}: slice("1", discoveryv1.AddressTypeIPv4, discoveryv1.Endpoint{Addresses: []string{"10.0.0.2"}}, discoveryv1.Endpoint{Addresses: []string{"10.0.0.9"}, Conditions: discoveryv1.EndpointConditions{Ready: &no}}),
		{Name: "2"}: slice("2", discoveryv1.AddressTypeIPv4, discoveryv1.Endpoint{Addresses: []string{"10.0.0.1"}}, discoveryv1.Endpoint{Addresses: []string{"10.0.0.2"}}),
		{Name: "3"}: slice("3", discoveryv1.AddressTypeIPv6, discoveryv1.Endpoint{Addresses: []string{"fd00::1"}}),
	}
	want := []*plan.Endpoints{{Namespace: "clusters-a", Service: "kube-apiserver", Addresses: []string{"10.0.0.1", "10.0.0.2"}}}
	if d := cmp.Diff(want, endpoints(all)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
