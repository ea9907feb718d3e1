package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// Infra is one isolated VLAN and what oooi serves on it: a DHCP pool, a DNS
// address and a proxy address, shared by every attachment that names it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=infras,singular=infra,shortName=infra
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.networkConfig.cidr`
// +kubebuilder:printcolumn:name="NAD",type=string,JSONPath=`.spec.networkConfig.networkAttachmentDefinition`
// +kubebuilder:printcolumn:name="DHCP",type=string,JSONPath=`.spec.infraComponents.dhcp.serverIP`
// +kubebuilder:printcolumn:name="DNS",type=string,JSONPath=`.spec.infraComponents.dns.serverIP`
// +kubebuilder:printcolumn:name="Proxy",type=string,JSONPath=`.spec.infraComponents.proxy.serverIP`
// +kubebuilder:printcolumn:name="Attachments",type=integer,JSONPath=`.status.attachments.total`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Infra struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec InfraSpec `json:"spec"`
	// +optional
	Status InfraStatus `json:"status,omitempty"`
}

// InfraList is a list of Infras.
//
// +kubebuilder:object:root=true
type InfraList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Infra `json:"items"`
}

// InfraSpec says which VLAN to serve and with which addresses.
type InfraSpec struct {
	// NetworkConfig describes the VLAN.
	NetworkConfig NetworkConfig `json:"networkConfig"`
	// InfraComponents configures the three servers of the VLAN.
	// +kubebuilder:default={}
	// +optional
	InfraComponents InfraComponents `json:"infraComponents"`

	// AppsIngress belonged to the single-cluster model. It is accepted so that
	// old manifests apply, and ignored (condition DeprecatedField): apps ingress
	// is set on each InfraClusterAttachment.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	AppsIngress *runtime.RawExtension `json:"appsIngress,omitempty"`
}

// NetworkConfig is the VLAN as the network team gave it.
type NetworkConfig struct {
	// CIDR of the VLAN in IPv4, for example 192.0.2.0/24.
	CIDR string `json:"cidr"`
	// Gateway is the default router handed to workers, an address of the CIDR.
	Gateway string `json:"gateway"`
	// NetworkAttachmentDefinition is the name of the NAD that leads to the VLAN.
	// +kubebuilder:validation:MinLength=1
	NetworkAttachmentDefinition string `json:"networkAttachmentDefinition"`
	// NetworkAttachmentNamespace is where the NAD is. Default: the Infra's own namespace.
	// +optional
	NetworkAttachmentNamespace string `json:"networkAttachmentNamespace,omitempty"`
	// DNSServers are the upstream resolvers for every name that is not ours: addresses
	// ("ip" or "ip:port"), or the word "resolv.conf" for those of the serving host.
	// None: other names are refused.
	// +listType=atomic
	// +optional
	DNSServers []string `json:"dnsServers,omitempty"`
}

// InfraComponents configures the servers of one VLAN. Each can be disabled.
type InfraComponents struct {
	// DHCP is the DHCP pool of the VLAN.
	// +kubebuilder:default={}
	// +optional
	DHCP DHCPComponent `json:"dhcp"`
	// DNS is the split-horizon DNS server of the VLAN.
	// +kubebuilder:default={}
	// +optional
	DNS DNSComponent `json:"dns"`
	// Proxy is the shared Envoy of the VLAN.
	// +kubebuilder:default={}
	// +optional
	Proxy ProxyComponent `json:"proxy"`
}

// DHCPComponent is the DHCP pool of the VLAN.
type DHCPComponent struct {
	// Enabled switches the component. Disabling it never deletes leases.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// ServerIP is the address of the DHCP server on the VLAN.
	// +optional
	ServerIP string `json:"serverIP,omitempty"`
	// RangeStart is the first address of the pool.
	// +optional
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd is the last address of the pool, included.
	// +optional
	RangeEnd string `json:"rangeEnd,omitempty"`
	// LeaseTime is how long a lease lasts, as a Go duration ("1h", "30m"), 1 minute to 1 year.
	// +kubebuilder:default="1h"
	// +optional
	LeaseTime string `json:"leaseTime,omitempty"`
	// Image must agree with infraComponents.proxy.managerImage: oooi is one image.
	// +optional
	Image string `json:"image,omitempty"`
	// Options are further DHCP options sent to every client.
	// +listType=atomic
	// +optional
	Options []DHCPOption `json:"options,omitempty"`
	// MTU advertised to workers (option 26). 0: not advertised.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	MTU int32 `json:"mtu,omitempty"`
	// NTPServers advertised to workers (option 42), IPv4 addresses.
	// +listType=atomic
	// +optional
	NTPServers []string `json:"ntpServers,omitempty"`
	// SearchDomains advertised to workers (option 119).
	// +listType=atomic
	// +optional
	SearchDomains []string `json:"searchDomains,omitempty"`
	// Reservations bind hardware addresses to fixed addresses and host names.
	// +listType=atomic
	// +optional
	Reservations []DHCPReservation `json:"reservations,omitempty"`
}

// DHCPOption is one DHCP option as a number and a text.
type DHCPOption struct {
	// Code of the option, 1 to 254 (RFC 2132).
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=254
	Code int32 `json:"code"`
	// Value of the option: IPv4 addresses separated by commas, a number or a text,
	// whichever the option takes; or bytes in hexadecimal after "0x".
	Value string `json:"value"`
}

// DHCPReservation binds a hardware address to an address, a host name, or both.
type DHCPReservation struct {
	// MAC is the hardware address, for example 52:54:00:12:34:56.
	MAC string `json:"mac"`
	// IP is the address kept for that client, inside the CIDR. Empty: any address of the pool.
	// +optional
	IP string `json:"ip,omitempty"`
	// Hostname sent to that client (option 12).
	// +optional
	Hostname string `json:"hostname,omitempty"`
}

// DNSComponent is the split-horizon DNS server of the VLAN.
type DNSComponent struct {
	// Enabled switches the component.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// ServerIP is the address of the DNS server on the VLAN.
	// +optional
	ServerIP string `json:"serverIP,omitempty"`
	// Image must agree with infraComponents.proxy.managerImage: oooi is one image.
	// +optional
	Image string `json:"image,omitempty"`
	// CacheTTL is the longest time a forwarded answer is kept, as a Go duration. 0s: no cache.
	// +kubebuilder:default="30s"
	// +optional
	CacheTTL string `json:"cacheTTL,omitempty"`

	// ClusterName belonged to the single-cluster model: accepted, ignored, reported (DeprecatedField).
	// +optional
	ClusterName string `json:"clusterName,omitempty"`
	// BaseDomain belonged to the single-cluster model: accepted, ignored, reported (DeprecatedField).
	// +optional
	BaseDomain string `json:"baseDomain,omitempty"`
}

// ProxyComponent is the shared Envoy of the VLAN.
type ProxyComponent struct {
	// Enabled switches the component. Without a proxy no cluster name is published.
	// +kubebuilder:default=true
	// +optional
	Enabled *bool `json:"enabled,omitempty"`
	// ServerIP is the address of Envoy on the VLAN: what every cluster name resolves to there.
	// +optional
	ServerIP string `json:"serverIP,omitempty"`
	// InternalProxyService is what the cluster names resolve to for clients outside the VLAN: the name of
	// a Service ("name", "name.namespace" or "name.namespace.svc.cluster.local") whose ClusterIP is
	// used, or an IPv4 address. Empty: those names do not exist outside the VLAN.
	// +optional
	InternalProxyService string `json:"internalProxyService,omitempty"`
	// ProxyImage is the Envoy image.
	// +optional
	ProxyImage string `json:"proxyImage,omitempty"`
	// ManagerImage is the oooi image.
	// +optional
	ManagerImage string `json:"managerImage,omitempty"`
	// LogLevel of Envoy.
	// +kubebuilder:validation:Enum=trace;debug;info;warning;error;critical;off
	// +kubebuilder:default=info
	// +optional
	LogLevel string `json:"logLevel,omitempty"`

	// ControlPlaneNamespace belonged to the single-cluster model: accepted, ignored, reported (DeprecatedField).
	// +optional
	ControlPlaneNamespace string `json:"controlPlaneNamespace,omitempty"`
	// APIServerService belonged to the single-cluster model: accepted, ignored, reported (DeprecatedField).
	// +optional
	APIServerService string `json:"apiServerService,omitempty"`
	// ExternalService belonged to the single-cluster model: accepted, ignored, reported (DeprecatedField).
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	ExternalService *runtime.RawExtension `json:"externalService,omitempty"`
}

// InfraStatus is what oooi made of an Infra.
type InfraStatus struct {
	// Conditions of the Infra; Ready sums them up.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation that the conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// ComponentStatus says which servers really serve.
	// +optional
	ComponentStatus ComponentStatus `json:"componentStatus,omitempty"`
	// Attachments counts the attachments that name this Infra.
	// +optional
	Attachments AttachmentCount `json:"attachments,omitempty"`
}

// ComponentStatus says of each server whether it really serves now.
type ComponentStatus struct {
	// DHCPReady is true while the DHCP server answers on the VLAN.
	// +optional
	DHCPReady bool `json:"dhcpReady"`
	// DNSReady is true while the DNS server answers with the current names.
	// +optional
	DNSReady bool `json:"dnsReady"`
	// ProxyReady is true while an Envoy has acknowledged the current routes.
	// +optional
	ProxyReady bool `json:"proxyReady"`
}

// AttachmentCount counts attachments.
type AttachmentCount struct {
	// Total number of attachments that name the Infra.
	// +optional
	Total int32 `json:"total"`
	// Ready is how many of them are Ready.
	// +optional
	Ready int32 `json:"ready"`
}
