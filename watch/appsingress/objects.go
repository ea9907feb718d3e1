package appsingress

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// kind is one kind of the hosted cluster.
type kind struct{ group, version, kind, plural string }

var (
	nodes            = kind{"", "v1", "Node", "nodes"}
	namespaces       = kind{"", "v1", "Namespace", "namespaces"}
	services         = kind{"", "v1", "Service", "services"}
	eventKind        = kind{"", "v1", "Event", "events"}
	deployments      = kind{"apps", "v1", "Deployment", "deployments"}
	pools            = kind{"metallb.io", "v1beta1", "IPAddressPool", "ipaddresspools"}
	l2Advertisements = kind{"metallb.io", "v1beta1", "L2Advertisement", "l2advertisements"}
	metalLBs         = kind{"metallb.io", "v1beta1", "MetalLB", "metallbs"}
	subscriptions    = kind{"operators.coreos.com", "v1alpha1", "Subscription", "subscriptions"}
	operatorGroups   = kind{"operators.coreos.com", "v1", "OperatorGroup", "operatorgroups"}
)

// String names one object of the kind: "Service openshift-ingress/oooi-ingress".
func (k kind) String(namespace, name string) string {
	if namespace == "" {
		return k.kind + " " + name
	}
	return k.kind + " " + namespace + "/" + name
}

// of names an object.
func (k kind) of(object *unstructured.Unstructured) string {
	return k.String(object.GetNamespace(), object.GetName())
}

const (
	labelManagedBy = "app.kubernetes.io/managed-by"
	managedBy      = "oooi"

	defaultServiceNamespace = "openshift-ingress"
	routerLabel             = "ingresscontroller.operator.openshift.io/deployment-ingresscontroller"
)

// wanted is what one attachment wants, with the defaults filled in.
type wanted struct {
	key types.NamespacedName
	v1alpha1.AppsIngress
}

// withDefaults fills in what was left out (api.md). The namespace of MetalLB has none: the hosted cluster tells.
func withDefaults(key types.NamespacedName, spec v1alpha1.AppsIngress) wanted {
	w := wanted{key, *spec.DeepCopy()}
	w.MetalLB.IPAddressPoolRange = strings.TrimSpace(w.MetalLB.IPAddressPoolRange)
	if w.MetalLB.L2AdvertisementName == "" {
		w.MetalLB.L2AdvertisementName = "advertise-" + w.MetalLB.AddressPoolName
	}
	if w.Service.Name == "" {
		w.Service.Name = v1alpha1.AppsServiceName
	}
	if w.Service.Namespace == "" {
		w.Service.Namespace = defaultServiceNamespace
	}
	if len(w.Service.Selector) == 0 {
		w.Service.Selector = map[string]string{routerLabel: "default"}
	}
	if w.Ports.HTTP == 0 {
		w.Ports.HTTP = 80
	}
	if w.Ports.HTTPS == 0 {
		w.Ports.HTTPS = 443
	}
	return w
}

// ownPool tells whether the pool and its advertisement are ours to make; else the pool of that name is somebody else's.
func (w wanted) ownPool() bool { return w.MetalLB.IPAddressPoolRange != "" }

// labels of all that is made for the attachment.
func (w wanted) labels() map[string]string {
	return map[string]string{
		labelManagedBy:                    managedBy,
		v1alpha1.LabelAttachment:          v1alpha1.LabelValue(w.key.Name),
		v1alpha1.LabelAttachmentNamespace: w.key.Namespace,
	}
}

// selector finds all that was made for the attachment.
func (w wanted) selector() string { return labels.SelectorFromSet(w.labels()).String() }

// owns tells whether an object was made for the attachment.
func (w wanted) owns(object *unstructured.Unstructured) bool {
	return labels.SelectorFromSet(w.labels()).Matches(labels.Set(object.GetLabels()))
}

// object is an object of ours.
func (w wanted) object(k kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: k.group, Version: k.version, Kind: k.kind})
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(w.labels())
	if spec != nil {
		u.Object["spec"] = spec
	}
	return u
}

// pool is the IPAddressPool. Nobody but who names it gets an address of it.
func (w wanted) pool(namespace string) (*unstructured.Unstructured, error) {
	addresses := w.MetalLB.IPAddressPoolRange
	first, last, err := v1alpha1.ParseAddressRange(addresses)
	if err != nil {
		return nil, fmt.Errorf("ipAddressPoolRange: %w", err)
	}
	if !strings.Contains(addresses, "/") {
		addresses = first.String() + "-" + last.String()
	}
	return w.object(pools, namespace, w.MetalLB.AddressPoolName, map[string]any{
		"addresses": []any{addresses}, "autoAssign": false,
	}), nil
}

// advertisement is the L2Advertisement of the pool.
func (w wanted) advertisement(namespace string) *unstructured.Unstructured {
	return w.object(l2Advertisements, namespace, w.MetalLB.L2AdvertisementName, map[string]any{
		"ipAddressPools": []any{w.MetalLB.AddressPoolName},
	})
}

// service is the LoadBalancer Service in front of the router.
func (w wanted) service() *unstructured.Unstructured {
	spec := map[string]any{
		"type": "LoadBalancer",
		"ports": []any{
			map[string]any{"name": "http", "port": int64(w.Ports.HTTP), "protocol": "TCP", "targetPort": "http"},
			map[string]any{"name": "https", "port": int64(w.Ports.HTTPS), "protocol": "TCP", "targetPort": "https"},
		},
		"selector": anyOf(w.Service.Selector),
	}
	if class := w.MetalLB.LoadBalancerClass; class != "" {
		spec["loadBalancerClass"] = class
	}
	u := w.object(services, w.Service.Namespace, w.Service.Name, spec)
	labels := v1alpha1.ServiceLabels(w.Service.Labels)
	maps.Copy(labels, w.labels())
	u.SetLabels(labels)
	u.SetAnnotations(v1alpha1.ServiceAnnotations(w.Service.Annotations, w.MetalLB.AddressPoolName))
	return u
}

// anyOf is a map of texts as unstructured objects have it.
func anyOf(m map[string]string) map[string]any {
	a := make(map[string]any, len(m))
	for k, v := range m {
		a[k] = v
	}
	return a
}

// isAsWanted tells whether an object holds all that is wanted, and nothing more that was applied by us. What others added
// does not count.
func isAsWanted(there, wanted *unstructured.Unstructured) bool {
	for _, field := range []string{"metadata", "spec"} {
		if !holds(there.Object[field], wanted.Object[field]) {
			return false
		}
	}
	for _, entry := range there.GetManagedFields() {
		if entry.Manager != fieldOwner || entry.Operation != metav1.ManagedFieldsOperationApply || entry.FieldsV1 == nil {
			continue
		}
		var owned map[string]any
		if err := json.Unmarshal(entry.FieldsV1.GetRawBytes(), &owned); err != nil || ownsMore(owned, wanted.Object) {
			return false
		}
	}
	return true
}

// holds tells whether a value has all of another: each key of a map, each entry of a list of maps. Other lists are the same, or not;
// and so are selectors, where more is something else.
func holds(there, wanted any) bool {
	switch wanted := wanted.(type) {
	case map[string]any:
		there, ok := there.(map[string]any)
		for k, v := range wanted {
			ok = ok && (k == "selector" && reflect.DeepEqual(there[k], v) || k != "selector" && holds(there[k], v))
		}
		return ok
	case []any:
		there, ok := there.([]any)
		if len(wanted) == 0 || !ok {
			return ok && len(there) == 0
		}
		if _, ofMaps := wanted[0].(map[string]any); !ofMaps {
			return reflect.DeepEqual(there, wanted)
		}
		for _, w := range wanted {
			found := false
			for _, t := range there {
				found = found || holds(t, w)
			}
			ok = ok && found
		}
		return ok
	}
	return reflect.DeepEqual(there, wanted)
}

// ownsMore tells whether a set of managed fields (FieldsV1 of structured-merge-diff) has one that a value lacks.
func ownsMore(owned map[string]any, value any) bool {
	for path, below := range owned {
		sub, _ := below.(map[string]any)
		kindOf, name, _ := strings.Cut(path, ":")
		switch kindOf {
		case "f":
			fields, _ := value.(map[string]any)
			child, has := fields[name]
			if !has || ownsMore(sub, child) {
				return true
			}
		case "k":
			var key map[string]any
			if err := json.Unmarshal([]byte(name), &key); err != nil {
				return true
			}
			entries, _ := value.([]any)
			i := 0
			for i < len(entries) && !hasKey(entries[i], key) {
				i++
			}
			if i == len(entries) || ownsMore(sub, entries[i]) {
				return true
			}
		}
	}
	return false
}

// hasKey tells whether an entry of a list is the one of a key, whose numbers are as JSON has them.
func hasKey(entry any, key map[string]any) bool {
	fields, _ := entry.(map[string]any)
	for k, v := range key {
		if fmt.Sprint(fields[k]) != fmt.Sprint(v) {
			return false
		}
	}
	return true
}

// vip is the address that a load balancer gave a Service.
type vip struct {
	ip, hostname string
	// wrong says why it cannot be used.
	wrong string
}

// vipOf reads status.loadBalancer.ingress.
func vipOf(service *unstructured.Unstructured) vip {
	var v vip
	if service == nil {
		return v
	}
	entries, _, _ := unstructured.NestedSlice(service.Object, "status", "loadBalancer", "ingress")
	var ips []string
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		if ip, _ := fields["ip"].(string); ip != "" {
			ips = append(ips, ip)
		}
		if hostname, _ := fields["hostname"].(string); hostname != "" && v.hostname == "" {
			v.hostname = hostname
		}
	}
	switch {
	case len(ips) > 1:
		v.wrong = fmt.Sprintf("has %d addresses (%s), and one is needed: leave only one IPv4 address to it", len(ips), cut(strings.Join(ips, ", ")))
	case len(ips) == 1:
		addr, err := netip.ParseAddr(ips[0])
		switch {
		case err != nil:
			v.wrong = fmt.Sprintf("has %q, which is no address", cut(ips[0]))
		case !addr.Is4():
			v.wrong = fmt.Sprintf("has the IPv6 address %s, and only IPv4 is supported", addr)
		default:
			v.ip = addr.String()
		}
	case v.hostname != "":
		v.wrong = fmt.Sprintf("has the name %s and no address: another load balancer than MetalLB took it, so set metallb.loadBalancerClass and run MetalLB with that class", cut(v.hostname))
	}
	return v
}

// isInRange tells whether an address is in the range; one that does not parse is in none.
func isInRange(ip, addresses string) bool {
	first, last, err := v1alpha1.ParseAddressRange(addresses)
	addr, errAddr := netip.ParseAddr(ip)
	return err == nil && errAddr == nil && first.Compare(addr) <= 0 && addr.Compare(last) <= 0
}

// overlap tells whether a pool has addresses of a range.
func overlap(pool *unstructured.Unstructured, addresses string) bool {
	first, last, err := v1alpha1.ParseAddressRange(addresses)
	if err != nil {
		return false
	}
	entries, _, _ := unstructured.NestedStringSlice(pool.Object, "spec", "addresses")
	for _, entry := range entries {
		if prefix, err := netip.ParsePrefix(strings.TrimSpace(entry)); err == nil {
			entry = prefix.Masked().String()
		}
		from, to, err := v1alpha1.ParseAddressRange(entry)
		if err == nil && from.Compare(last) <= 0 && first.Compare(to) <= 0 {
			return true
		}
	}
	return false
}
