package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DHCPLease is one address of an Infra's pool and the client that has or had it. It is written by the VLAN pod that answers
// DHCP, before the client is told, and goes with the Infra. Its name is <infra>-<address with dashes>, so that no
// address can be given twice. Delete one to forget a client that is gone for good; that of a client which is still there
// comes back when the client renews.
//
// All that is known of a lease is in its spec, which is written in one request: a client waits for it, and a lease of
// which only a part is stored would be worse than none.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=dhcpleases,singular=dhcplease,shortName=dhcplease
// +kubebuilder:printcolumn:name="Address",type=string,JSONPath=`.spec.address`
// +kubebuilder:printcolumn:name="MAC",type=string,JSONPath=`.spec.mac`
// +kubebuilder:printcolumn:name="Hostname",type=string,JSONPath=`.spec.hostname`
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.spec.state`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.spec.expires`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`self.metadata.name.endsWith("-" + self.spec.address.replace(".", "-"))`,fieldPath=".spec.address",message="is not the address in the object's name, which is <infra>-<address with dashes>"
type DHCPLease struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DHCPLeaseSpec `json:"spec"`
	// +optional
	Status DHCPLeaseStatus `json:"status,omitempty"`
}

// DHCPLeaseList is a list of DHCPLeases.
//
// +kubebuilder:object:root=true
type DHCPLeaseList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DHCPLease `json:"items"`
}

// DHCPLeaseState says what became of a lease.
//
// +kubebuilder:validation:Enum=active;released;declined
type DHCPLeaseState string

// The states of a lease. One whose time ran out is still active: it is over when expires has passed.
const (
	DHCPLeaseActive   DHCPLeaseState = "active"
	DHCPLeaseReleased DHCPLeaseState = "released"
	DHCPLeaseDeclined DHCPLeaseState = "declined"
)

// DHCPLeaseSpec is the last thing that happened to one address.
//
// Times are texts (RFC 3339) so that they keep their nanoseconds, and so that one that cannot be read spoils its own lease and
// not the whole list.
type DHCPLeaseSpec struct {
	// Address is the IPv4 address. It never changes.
	// +kubebuilder:validation:MaxLength=15
	// +kubebuilder:validation:XValidation:rule=`isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address"
	// +kubebuilder:validation:XValidation:rule=`self == oldSelf`,message="cannot be changed: a lease is of one address"
	Address string `json:"address"`
	// MAC is the hardware address of the client: six pairs of lower-case hexadecimal digits with colons. Of a declined
	// address it is the client that found it in use.
	// +kubebuilder:validation:MaxLength=17
	// +kubebuilder:validation:XValidation:rule=`self.matches("^([0-9a-f]{2}:){5}[0-9a-f]{2}$")`,message="is not a hardware address: write six pairs of lower-case hexadecimal digits, for example 52:54:00:12:34:56"
	MAC string `json:"mac"`
	// ClientID is the client identifier (DHCP option 61) as the client sent it, in hexadecimal. It decides nothing.
	// +kubebuilder:validation:MaxLength=510
	// +kubebuilder:validation:XValidation:rule=`self.matches("^([0-9a-f]{2})*$")`,message="is not lower-case hexadecimal"
	// +optional
	ClientID string `json:"clientID,omitempty"`
	// Hostname that the client called itself, or that its reservation gives it.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Start is when the client first got the address in this unbroken run of leases, as RFC 3339 has it.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$")`,message="is not a time such as 2026-03-01T12:00:00Z"
	Start string `json:"start"`
	// Expires is when the address is free again: the end of an active lease, the time of a release, the end of the
	// quarantine of a declined address. As RFC 3339 has it.
	// +kubebuilder:validation:MaxLength=40
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]{1,9})?(Z|[+-][0-9]{2}:[0-9]{2})$")`,message="is not a time such as 2026-03-01T12:00:00Z"
	Expires string `json:"expires"`
	// State is what the client did last: it got or renewed the lease (active), gave it back (released), or found the address
	// in use by somebody else (declined).
	State DHCPLeaseState `json:"state"`
}

// DHCPLeaseStatus is what others have to say about a lease. oooi writes none.
type DHCPLeaseStatus struct {
	// Conditions of the lease.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
