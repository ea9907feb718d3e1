package plan

import (
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// Objects is everything that the plan reads, whichever source it came from. The plan never changes them.
type Objects struct {
	Infras         []*v1alpha1.Infra
	Attachments    []*v1alpha1.InfraClusterAttachment
	HostedClusters []*hypershift.HostedCluster
	NodePools      []*hypershift.NodePool
	Machines       []*Machine
	VMIs           []*VirtualMachineInstance
	Services       []*corev1.Service
	// Endpoints are the ready addresses behind headless Services, by Service.
	Endpoints []*Endpoints
	// Namespaces that exist.
	Namespaces []string
	// MissingKinds are kinds of neighbours that the cluster does not serve yet, as "Kind.group".
	MissingKinds []string
}

// Machine is what the plan reads of a Cluster API Machine, in whichever version it is served.
type Machine struct {
	Namespace, Name, UID string
	// NodePool is the annotation hypershift.openshift.io/nodePool: "<namespace>/<name>".
	NodePool string
	// Addresses of status.addresses, as written there: names and addresses of any kind.
	Addresses []string
}

// VirtualMachineInstance is what the plan reads of a KubeVirt VirtualMachineInstance.
type VirtualMachineInstance struct {
	Namespace, Name string
	Interfaces      []VMInterface
}

// VMInterface is one network interface of a virtual machine.
type VMInterface struct {
	// MAC in any notation that net.ParseMAC reads.
	MAC string
	// Addresses on that interface.
	Addresses []string
}

// Endpoints are the ready addresses of one Service.
type Endpoints struct {
	Namespace, Service string
	Addresses          []string
}

// Lease is a live DHCP lease: this MAC holds this address.
type Lease struct {
	Address netip.Addr
	MAC     string
}
