package plan

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// index is the objects by the keys that the plan looks them up with.
type index struct {
	infras            []*Infra
	orphans, deleting []*Attachment

	namespaces map[string]bool
	services   map[types.NamespacedName]*corev1.Service
	endpoints  map[types.NamespacedName]*Endpoints
	clusters   map[types.NamespacedName]*hypershift.HostedCluster
	// nodePools by HostedCluster.
	nodePools map[types.NamespacedName][]*hypershift.NodePool
	// machines by control-plane namespace, then by NodePool ("<namespace>/<name>").
	machines map[string]map[string][]*Machine
	vmis     map[string][]*VirtualMachineInstance
	// publicServices by namespace, in order of name.
	publicServices map[string][]publicService
	missingKinds   []string
	unwritten      map[types.NamespacedName]Refusal
	nobodyLooks    bool
}

func newIndex(in Input) *index {
	o := &in.Objects
	w := &index{
		namespaces: make(map[string]bool, len(o.Namespaces)),
		services:   make(map[types.NamespacedName]*corev1.Service, len(o.Services)),
		endpoints:  make(map[types.NamespacedName]*Endpoints, len(o.Endpoints)),
		clusters:   make(map[types.NamespacedName]*hypershift.HostedCluster, len(o.HostedClusters)),
		nodePools:  make(map[types.NamespacedName][]*hypershift.NodePool, len(o.NodePools)),
		machines:   make(map[string]map[string][]*Machine),
		vmis:       make(map[string][]*VirtualMachineInstance),

		publicServices: make(map[string][]publicService),
		missingKinds:   o.MissingKinds,
		unwritten:      in.Unwritten,
		nobodyLooks:    in.NobodyLooks,
	}
	for _, ns := range o.Namespaces {
		w.namespaces[ns] = true
	}
	for _, s := range o.Services {
		w.services[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] = s
		if p, ok := newPublicService(s); ok {
			w.publicServices[s.Namespace] = append(w.publicServices[s.Namespace], p)
		}
	}
	for _, public := range w.publicServices {
		slices.SortFunc(public, func(a, b publicService) int { return strings.Compare(a.attachment, b.attachment) })
	}
	for _, e := range o.Endpoints {
		w.endpoints[types.NamespacedName{Namespace: e.Namespace, Name: e.Service}] = e
	}
	for _, c := range o.HostedClusters {
		w.clusters[types.NamespacedName{Namespace: c.Namespace, Name: c.Name}] = c
	}
	for _, p := range sortedByKey(o.NodePools) {
		cluster := types.NamespacedName{Namespace: p.Namespace, Name: p.Spec.ClusterName}
		w.nodePools[cluster] = append(w.nodePools[cluster], p)
	}
	for _, m := range o.Machines {
		byPool := w.machines[m.Namespace]
		if byPool == nil {
			byPool = make(map[string][]*Machine)
			w.machines[m.Namespace] = byPool
		}
		byPool[m.NodePool] = append(byPool[m.NodePool], m)
	}
	for _, v := range o.VMIs {
		w.vmis[v.Namespace] = append(w.vmis[v.Namespace], v)
	}
	w.addInfras(o)
	for _, infra := range w.infras {
		infra.byHostUnknown = in.ByHostUnknown[infra.Key()]
	}
	return w
}

func (w *index) addInfras(o *Objects) {
	byKey := make(map[types.NamespacedName]*Infra, len(o.Infras))
	for _, object := range sortedByKey(o.Infras) {
		infra := &Infra{
			Object:    object,
			Refused:   map[v1alpha1.Component]bool{},
			withdrawn: map[v1alpha1.Component]bool{},
			Disputed:  map[netip.Addr][]Claim{},
			problems:  object.Validate(),
		}
		infra.cidr, _ = netip.ParsePrefix(object.Spec.NetworkConfig.CIDR)
		refuseOwnMistakes(infra)
		w.infras = append(w.infras, infra)
		byKey[infra.Key()] = infra
	}
	for _, object := range sortedByKey(o.Attachments) {
		a := &Attachment{
			Object: object,
			Domain: object.Domain(),
			hostedCluster: types.NamespacedName{
				Namespace: object.HostedClusterNamespace(), Name: object.Spec.HostedClusterRef.Name,
			},
		}
		infra := byKey[types.NamespacedName{Namespace: object.Namespace, Name: object.Spec.InfraRef.Name}]
		if object.DeletionTimestamp != nil {
			w.deleting = append(w.deleting, a)
			if infra != nil {
				infra.deleting = append(infra.deleting, a)
			}
			continue
		}
		if problems := object.Validate(); len(problems) > 0 {
			a.LeftOut = &Refusal{v1alpha1.ReasonInvalid, joinProblems(problems)}
		}
		if infra == nil {
			w.orphans = append(w.orphans, a)
			continue
		}
		infra.Attachments = append(infra.Attachments, a)
	}
}

// refuseOwnMistakes marks the components that cannot be decided because of the Infra's own
// mistakes. DNS answers with the proxy's address and DHCP hands out the DNS server's,
// so a mistake in one holds back what depends on it.
func refuseOwnMistakes(infra *Infra) {
	for _, p := range infra.problems {
		switch p.Component {
		case v1alpha1.ComponentDHCP:
			infra.Refused[v1alpha1.ComponentDHCP] = true
		case v1alpha1.ComponentDNS:
			infra.Refused[v1alpha1.ComponentDNS] = true
			infra.Refused[v1alpha1.ComponentDHCP] = true
		case v1alpha1.ComponentProxy:
			infra.Refused[v1alpha1.ComponentProxy] = true
			infra.Refused[v1alpha1.ComponentDNS] = true
		default:
			infra.Refused[v1alpha1.ComponentDHCP] = true
			infra.Refused[v1alpha1.ComponentDNS] = true
			infra.Refused[v1alpha1.ComponentProxy] = true
		}
	}
}

// service finds a Service by a name as people write it: "name", "name.namespace",
// "name.namespace.svc" or "name.namespace.svc.cluster.local".
func (w *index) service(namespace, name string) (types.NamespacedName, *corev1.Service) {
	key := types.NamespacedName{Namespace: namespace, Name: name}
	if parts := strings.Split(strings.TrimSuffix(name, "."), "."); len(parts) > 1 {
		key = types.NamespacedName{Namespace: parts[1], Name: parts[0]}
	}
	return key, w.services[key]
}

// clusterIP is the IPv4 ClusterIP of a Service; empty: it has none.
func clusterIP(s *corev1.Service) string {
	for _, ip := range append([]string{s.Spec.ClusterIP}, s.Spec.ClusterIPs...) {
		if addr, err := netip.ParseAddr(ip); err == nil && addr.Is4() && !addr.IsUnspecified() {
			return ip
		}
	}
	return ""
}
