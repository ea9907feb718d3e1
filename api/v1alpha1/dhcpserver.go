package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DHCPServer is all that the DHCP server of one VLAN needs to know. Written by oooi, not by people.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=dhcpservers,singular=dhcpserver,shortName=dhcpserver
// +kubebuilder:printcolumn:name="VLAN",type=string,JSONPath=`.spec.networkConfig.networkAttachmentName`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.spec.networkConfig.serverIP`
// +kubebuilder:printcolumn:name="First",type=string,JSONPath=`.spec.leaseConfig.rangeStart`
// +kubebuilder:printcolumn:name="Last",type=string,JSONPath=`.spec.leaseConfig.rangeEnd`
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.activeLeases`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DHCPServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DHCPServerSpec `json:"spec"`
	// +optional
	Status DHCPServerStatus `json:"status,omitempty"`
}

// DHCPServerList is a list of DHCPServers.
//
// +kubebuilder:object:root=true
type DHCPServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DHCPServer `json:"items"`
}

// DHCPServerSpec is the pool of one VLAN and what its clients are told.
type DHCPServerSpec struct {
	// NetworkConfig is the VLAN as its clients see it.
	NetworkConfig DHCPNetworkConfig `json:"networkConfig"`
	// LeaseConfig is the pool.
	LeaseConfig LeaseConfig `json:"leaseConfig"`
	// Options sent to every client besides router, mask, DNS servers and times.
	// +listType=atomic
	// +optional
	Options []DHCPOption `json:"options,omitempty"`
	// Reservations bind hardware addresses to addresses and host names.
	// +listType=atomic
	// +optional
	Reservations []DHCPReservation `json:"reservations,omitempty"`
}

// DHCPNetworkConfig is the VLAN as DHCP clients see it.
type DHCPNetworkConfig struct {
	// CIDR of the VLAN; its mask goes to clients (option 1).
	CIDR string `json:"cidr"`
	// Gateway goes to clients as router (option 3).
	Gateway string `json:"gateway"`
	// ServerIP is the server identifier (option 54).
	ServerIP string `json:"serverIP"`
	// DNSServers go to clients (option 6), IPv4 addresses.
	// +listType=atomic
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`
	// NetworkAttachmentName is the NAD of the VLAN.
	// +optional
	NetworkAttachmentName string `json:"networkAttachmentName,omitempty"`
	// NetworkAttachmentNamespace is where the NAD is.
	// +optional
	NetworkAttachmentNamespace string `json:"networkAttachmentNamespace,omitempty"`
}

// LeaseConfig is the pool of one VLAN.
type LeaseConfig struct {
	// RangeStart is the first address of the pool.
	RangeStart string `json:"rangeStart"`
	// RangeEnd is the last address of the pool, included.
	RangeEnd string `json:"rangeEnd"`
	// LeaseTime is how long a lease lasts, as a Go duration.
	// +kubebuilder:default="1h"
	// +optional
	LeaseTime string `json:"leaseTime,omitempty"`
	// Excluded are addresses ("ip") and ranges ("first-last") that are never handed out even
	// though they lie in the pool: server addresses and the apps ranges of attachments.
	// +listType=atomic
	// +optional
	Excluded []string `json:"excluded,omitempty"`
	// Machines are the workers of this VLAN that the hub knows. Their addresses are withheld from the pool: only a client
	// with a MAC of that machine gets one. All MACs of one machine are one client.
	// +listType=atomic
	// +optional
	Machines []KnownMachine `json:"machines,omitempty"`
}

// KnownMachine is a worker that a Machine or a VirtualMachineInstance shows.
type KnownMachine struct {
	// Name is "<namespace>/<name>" of the VirtualMachine, or of the Machine where no VirtualMachine is known.
	Name string `json:"name"`
	// MACs of its interfaces on the VLAN, in the form that net.HardwareAddr prints. None: nobody knows them, and no client
	// gets the addresses.
	// +listType=atomic
	// +optional
	MACs []string `json:"macs,omitempty"`
	// Addresses of the VLAN that it shows.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
}

// DHCPServerStatus is the state of the DHCP server of one VLAN.
type DHCPServerStatus struct {
	// Conditions of the server.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ActiveLeases is the number of leases that have not expired.
	// +optional
	ActiveLeases int32 `json:"activeLeases"`
	// TotalLeases is the number of leases known, expired ones included.
	// +optional
	TotalLeases int32 `json:"totalLeases"`
}
