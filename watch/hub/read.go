package hub

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/plan"
)

// strip takes from an object what nobody reads, before the cache keeps it.
func strip(object any) (any, error) {
	object, err := informer.Strip(object)
	if err != nil {
		return nil, err
	}
	switch v := object.(type) {
	case *corev1.Service:
		v.Labels, v.Annotations = nil, nil
		v.Spec.Selector = nil
		v.Status = corev1.ServiceStatus{LoadBalancer: v.Status.LoadBalancer}
	case *hypershift.HostedCluster:
		v.Labels, v.Annotations = nil, nil
	case *unstructured.Unstructured:
		v.Object = reduced(v)
	}
	return object, nil
}

// reduced keeps of a Machine or a VirtualMachineInstance what readMachine and readInstance read.
func reduced(u *unstructured.Unstructured) map[string]any {
	small := &unstructured.Unstructured{Object: map[string]any{}}
	small.SetGroupVersionKind(u.GroupVersionKind())
	small.SetNamespace(u.GetNamespace())
	small.SetName(u.GetName())
	small.SetUID(u.GetUID())
	small.SetResourceVersion(u.GetResourceVersion())
	if pool, ok := u.GetAnnotations()[hypershift.NodePoolAnnotation]; ok {
		small.SetAnnotations(map[string]string{hypershift.NodePoolAnnotation: pool})
	}
	status := map[string]any{}
	for _, field := range []string{"addresses", "interfaces"} {
		if list, found, err := unstructured.NestedSlice(u.Object, "status", field); err == nil && found {
			status[field] = list
		}
	}
	small.Object["status"] = status
	return small.Object
}

func readMachine(object client.Object) *plan.Machine {
	m := &plan.Machine{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: string(object.GetUID()),
		NodePool: object.GetAnnotations()[hypershift.NodePoolAnnotation],
	}
	for _, entry := range statusList(object, "addresses") {
		if address, _, _ := unstructured.NestedString(entry, "address"); address != "" {
			m.Addresses = append(m.Addresses, address)
		}
	}
	return m
}

func readInstance(object client.Object) *plan.VirtualMachineInstance {
	v := &plan.VirtualMachineInstance{Namespace: object.GetNamespace(), Name: object.GetName()}
	for _, entry := range statusList(object, "interfaces") {
		mac, _, _ := unstructured.NestedString(entry, "mac")
		addresses, _, _ := unstructured.NestedStringSlice(entry, "ipAddresses")
		if first, _, _ := unstructured.NestedString(entry, "ipAddress"); first != "" && !slices.Contains(addresses, first) {
			addresses = append(addresses, first)
		}
		v.Interfaces = append(v.Interfaces, plan.VMInterface{MAC: mac, Addresses: addresses})
	}
	return v
}

// statusList reads a list of objects under status; what has another shape is nothing.
func statusList(object client.Object, field string) []map[string]any {
	u, ok := object.(*unstructured.Unstructured)
	if !ok {
		return nil
	}
	list, _, _ := unstructured.NestedSlice(u.Object, "status", field)
	var entries []map[string]any
	for _, item := range list {
		if entry, ok := item.(map[string]any); ok {
			entries = append(entries, entry)
		}
	}
	return entries
}

// endpointSlice is the ready addresses of one EndpointSlice.
type endpointSlice struct {
	service   types.NamespacedName
	addresses []string
}

func readSlice(object client.Object) *endpointSlice {
	s := object.(*discoveryv1.EndpointSlice)
	read := &endpointSlice{service: types.NamespacedName{Namespace: s.Namespace, Name: s.Labels[discoveryv1.LabelServiceName]}}
	if s.AddressType != discoveryv1.AddressTypeIPv4 {
		return read
	}
	for _, e := range s.Endpoints {
		if e.Conditions.Ready == nil || *e.Conditions.Ready {
			read.addresses = append(read.addresses, e.Addresses...)
		}
	}
	return read
}

// endpoints joins the slices of each Service.
func endpoints(all map[types.NamespacedName]*endpointSlice) []*plan.Endpoints {
	byService := map[types.NamespacedName][]string{}
	for _, s := range all {
		byService[s.service] = append(byService[s.service], s.addresses...)
	}
	joined := make([]*plan.Endpoints, 0, len(byService))
	for service, addresses := range byService {
		slices.SortFunc(addresses, cmp.Compare[string])
		joined = append(joined, &plan.Endpoints{Namespace: service.Namespace, Service: service.Name, Addresses: slices.Compact(addresses)})
	}
	return joined
}
