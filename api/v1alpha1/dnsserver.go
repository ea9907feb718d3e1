package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// DNSServer is all that the DNS server of one VLAN needs to know. Written by oooi, not by people.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=dnsservers,singular=dnsserver,shortName=dns
// +kubebuilder:printcolumn:name="VLAN",type=string,JSONPath=`.spec.networkConfig.networkAttachmentName`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.spec.networkConfig.serverIP`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.networkConfig.secondaryNetworkCIDR`
// +kubebuilder:printcolumn:name="Proxy",type=string,JSONPath=`.spec.networkConfig.proxyIP`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type DNSServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DNSServerSpec `json:"spec"`
	// +optional
	Status DNSServerStatus `json:"status,omitempty"`
}

// DNSServerList is a list of DNSServers.
//
// +kubebuilder:object:root=true
type DNSServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []DNSServer `json:"items"`
}

// DNSServerSpec is the names of one VLAN and where every other name is asked for.
type DNSServerSpec struct {
	// NetworkConfig says where the server listens and who its clients are.
	NetworkConfig DNSNetworkConfig `json:"networkConfig"`
	// StaticEntries are the names that this server owns.
	// +listType=atomic
	// +optional
	StaticEntries []StaticEntry `json:"staticEntries,omitempty"`
	// UpstreamDNS are the resolvers of every other name: "ip", "ip:port" or "resolv.conf".
	// None: every other name is refused.
	// +listType=atomic
	// +optional
	UpstreamDNS []string `json:"upstreamDNS,omitempty"`
	// CacheTTL is the longest time a forwarded answer is kept, as a Go duration. 0s: no cache.
	// +kubebuilder:default="30s"
	// +optional
	CacheTTL string `json:"cacheTTL,omitempty"`
}

// DNSNetworkConfig says where the DNS server listens and how it tells its views apart.
type DNSNetworkConfig struct {
	// ServerIP is the address of the server on the VLAN.
	ServerIP string `json:"serverIP"`
	// ProxyIP is the address of Envoy on the VLAN.
	// +optional
	ProxyIP string `json:"proxyIP,omitempty"`
	// InternalProxyIP is the address of Envoy for clients outside the VLAN, as resolved from
	// the Infra's internalProxyService. Empty while that Service has no ClusterIP.
	// +optional
	InternalProxyIP string `json:"internalProxyIP,omitempty"`
	// SecondaryNetworkCIDR is the VLAN: a client inside it gets view vlan.
	SecondaryNetworkCIDR string `json:"secondaryNetworkCIDR"`
	// DNSPort that the server listens on.
	// +kubebuilder:default=53
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	DNSPort int32 `json:"dnsPort,omitempty"`
	// NetworkAttachmentName is the NAD of the VLAN.
	// +optional
	NetworkAttachmentName string `json:"networkAttachmentName,omitempty"`
	// NetworkAttachmentNamespace is where the NAD is.
	// +optional
	NetworkAttachmentNamespace string `json:"networkAttachmentNamespace,omitempty"`
}

// StaticEntry is one name that the DNS server owns, and its answer in each view.
type StaticEntry struct {
	// Hostname in lower case without a trailing dot; "*.apps.example.com" is a wildcard (RFC 4592).
	Hostname string `json:"hostname"`
	// IP is the answer in view vlan. Empty: the name does not exist there yet (NXDOMAIN with a
	// negative TTL of 5 s), and is not forwarded either.
	// +optional
	IP string `json:"ip,omitempty"`
	// PodView is the answer in view pods. Default: Same.
	// +optional
	PodView PodView `json:"podView,omitempty"`
}

// PodView is what a client outside the VLAN is told about a name.
//
// +kubebuilder:validation:Enum=Same;InternalProxy;Hidden;Forwarded
type PodView string

const (
	// PodViewSame answers as in view vlan. The empty PodView means the same.
	PodViewSame PodView = "Same"
	// PodViewInternalProxy answers networkConfig.internalProxyIP, and SERVFAIL while that is empty.
	PodViewInternalProxy PodView = "InternalProxy"
	// PodViewHidden answers NXDOMAIN.
	PodViewHidden PodView = "Hidden"
	// PodViewForwarded treats the name as any other: it goes to the upstream resolvers.
	PodViewForwarded PodView = "Forwarded"
)

// DNSServerStatus is the state of the DNS server of one VLAN.
type DNSServerStatus struct {
	// Conditions of the server.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
