package plan

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// Input is all that a plan depends on.
type Input struct {
	// Objects as they are now. The sources in an attachment's last status are the memory of its
	// workers' addresses (product rule 10).
	Objects Objects
	// Leases are the live DHCP leases of each Infra.
	Leases map[types.NamespacedName][]Lease
	// Limits of one Infra; zero: none.
	Limits Limits
	// Published are the VIPs that the plan before this one published, by attachment: of two that show one address, the one that has it
	// keeps it.
	Published map[types.NamespacedName]netip.Addr
	// NobodyLooks into hosted clusters: a person writes the VIP into the status of the attachment.
	NobodyLooks bool
	// ByHostUnknown are the Infras with a server that knows no routes by Host yet: port 80 waits for its upgrade.
	ByHostUnknown map[types.NamespacedName]bool
	// Unwritten are the public Services that cannot be written, and why.
	Unwritten map[types.NamespacedName]Refusal
}

// Limits bound what one Infra may ask for, so that its children fit into objects of a cluster (1.5 MiB each).
type Limits struct {
	Attachments, Sources int
	// Bytes of a child.
	Bytes int
}

// ClusterLimits are the limits where children are objects of a cluster.
var ClusterLimits = Limits{Attachments: 300, Sources: 10_000, Bytes: clusterBytes}

// Result is what the objects ask for. Everything in it is sorted by namespace and name.
type Result struct {
	// Infras, one for each Infra object.
	Infras []*Infra
	// Orphans are attachments whose Infra does not exist.
	Orphans []*Attachment
	// Deleting are attachments that are being deleted: they have no names, no routes and no part in any conflict, and are no
	// Infra's any more.
	Deleting []*Attachment
}

// Infra is what one Infra asks for.
type Infra struct {
	Object *v1alpha1.Infra
	// Children to be served; nil: there is none to serve, unless Refused says otherwise.
	DHCP  *v1alpha1.DHCPServer
	DNS   *v1alpha1.DNSServer
	Proxy *v1alpha1.ProxyServer
	// Refused are components that cannot be decided because of a mistake in this Infra alone:
	// the child that is there, if any, stays as it is.
	Refused map[v1alpha1.Component]bool
	// Status by configuration: conditions without times, and without what only the servers know.
	Status v1alpha1.InfraStatus
	// Attachments that name this Infra.
	Attachments []*Attachment
	// Disputed are the addresses that Machines of two attachments show, with their claimants (rule 11).
	Disputed map[netip.Addr][]Claim

	cidr          netip.Prefix
	byHostUnknown bool
	// deleting are the attachments that named this Infra, as long as something of theirs is there: a VIP, a port.
	deleting []*Attachment
	// withdrawn are components taken out of service by a conflict with another Infra.
	withdrawn map[v1alpha1.Component]bool
	problems  []v1alpha1.Problem
	// neighbours are the other Infras on the same NAD.
	neighbours []*Infra
	// unfreeAddresses is what unfree has found.
	unfreeAddresses []reservedAddress
}

// Key is the namespace and name of the Infra.
func (i *Infra) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: i.Object.Namespace, Name: i.Object.Name}
}

// Attachment is what one attachment asks for.
type Attachment struct {
	Object *v1alpha1.InfraClusterAttachment
	// Domain is the normalised domain.
	Domain string
	// LeftOut is why the attachment has no names and no routes; nil: it has them.
	LeftOut *Refusal
	// Sources that lead to this cluster, in order of address.
	Sources []Source
	// Status by configuration: conditions without times.
	Status v1alpha1.InfraClusterAttachmentStatus
	// Apps is what is to be done inside the hosted cluster; nil: nothing.
	Apps *AppsWork
	// External is the public Service that is wanted; nil: none.
	External *External

	targets       []target
	appsRange     addressRange
	appsProblem   *Refusal
	appsServed    bool       // a VIP is published when it is good
	appsForgotten bool       // the HostedCluster is gone or going, and its VIP with it
	vip           netip.Addr // what is published
	vipProblem    string     // why the VIP that was seen is not
	externalPort  int32      // of its own listener; 0: none
	kubeVirt      bool       // a source comes from a NodePool of platform KubeVirt
	hostedCluster types.NamespacedName
}

// Key is the namespace and name of the attachment.
func (a *Attachment) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: a.Object.Namespace, Name: a.Object.Name}
}

// VIP is the address at which the apps of the attachment are published; the zero Addr: they are not.
func (a *Attachment) VIP() netip.Addr { return a.vip }

// Refusal is why something is not served: a condition reason and a message for a person.
type Refusal struct {
	Reason, Message string
}

// Source is one worker address of an attachment.
type Source struct {
	Claim
	// MAC that held the address when the Machine last showed it, if known.
	MAC string
	// Remembered: the Machine does not show the address at the moment.
	Remembered bool
}

// Claim is one Machine's claim on an address.
type Claim struct {
	Address    netip.Addr
	Attachment types.NamespacedName
	// The Machine: its namespace, name and UID.
	Namespace, Machine, UID string
}

// Plan decides what is served and why the rest is not.
func Plan(in Input) *Result {
	w := newIndex(in)
	res := &Result{Infras: w.infras, Orphans: w.orphans, Deleting: w.deleting}

	for _, infra := range w.infras {
		refuseTooMany(infra, in.Limits.Attachments, len(infra.Attachments), "attachments")
	}
	networks := findNetworks(w.infras)
	refuseSharedAddresses(w.infras)
	for _, infra := range w.infras {
		leaveOutConflicts(infra)
	}
	refuseAppsRanges(w.infras)
	for _, a := range w.deleting {
		decideApps(a, w)
	}
	for _, network := range networks {
		discoverSources(network, w, in.Leases)
		for _, infra := range network {
			for _, a := range infra.Attachments {
				resolveTargets(a, w)
				decideApps(a, w)
			}
		}
		publishVIPs(network, in.Published)
	}
	for _, infra := range w.infras {
		refuseTooMany(infra, in.Limits.Sources, countSources(infra), "sources")
		assignPorts(infra, w)
		buildChildren(infra, w)
		refuseTooLarge(infra, in.Limits.Bytes)
		wantExternal(infra)
		for _, a := range infra.Attachments {
			reportAttachment(infra, a, w)
		}
		reportInfra(infra, in.Objects.MissingKinds)
	}
	for _, a := range w.orphans {
		reportOrphan(a, w)
	}
	for _, a := range w.deleting {
		reportDeleting(a)
	}
	return res
}

// refuseTooMany refuses an Infra that is too large: what is served stays as it is.
func refuseTooMany(infra *Infra, limit, n int, what string) {
	if limit == 0 || n <= limit {
		return
	}
	problem := v1alpha1.Problem{
		Reason:  v1alpha1.ReasonTooLarge,
		Field:   "metadata.name",
		Message: fmt.Sprintf("%d %s, the limit of one Infra in a cluster is %d: nothing is written; use a second Infra", n, what, limit),
	}
	infra.problems = append(infra.problems, problem)
	refuseOwnMistakes(infra)
}

func countSources(infra *Infra) int {
	n := 0
	for _, a := range infra.Attachments {
		n += len(a.Sources)
	}
	return n
}

func compareKeys(a, b metav1.Object) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// sortedByKey gives the objects in order of namespace and name without touching the slice given.
func sortedByKey[T metav1.Object](objects []T) []T {
	sorted := slices.Clone(objects)
	slices.SortFunc(sorted, func(a, b T) int { return compareKeys(a, b) })
	return sorted
}
