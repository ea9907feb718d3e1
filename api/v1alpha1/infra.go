package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
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
// +kubebuilder:printcolumn:name="VLAN",type=string,JSONPath=`.spec.networkConfig.networkAttachmentDefinition`
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
//
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !isIP(self.networkConfig.gateway) || cidr(self.networkConfig.cidr).containsIP(self.networkConfig.gateway) && !(ip(self.networkConfig.gateway) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".networkConfig.gateway",messageExpression=`self.networkConfig.gateway + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.serverIP) || !isIP(self.infraComponents.dhcp.serverIP) || cidr(self.networkConfig.cidr).containsIP(self.infraComponents.dhcp.serverIP) && !(ip(self.infraComponents.dhcp.serverIP) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".infraComponents.dhcp.serverIP",messageExpression=`self.infraComponents.dhcp.serverIP + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !self.infraComponents.dns.enabled || !has(self.infraComponents.dns.serverIP) || !isIP(self.infraComponents.dns.serverIP) || cidr(self.networkConfig.cidr).containsIP(self.infraComponents.dns.serverIP) && !(ip(self.infraComponents.dns.serverIP) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".infraComponents.dns.serverIP",messageExpression=`self.infraComponents.dns.serverIP + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !self.infraComponents.proxy.enabled || !has(self.infraComponents.proxy.serverIP) || !isIP(self.infraComponents.proxy.serverIP) || cidr(self.networkConfig.cidr).containsIP(self.infraComponents.proxy.serverIP) && !(ip(self.infraComponents.proxy.serverIP) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".infraComponents.proxy.serverIP",messageExpression=`self.infraComponents.proxy.serverIP + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.rangeStart) || !isIP(self.infraComponents.dhcp.rangeStart) || cidr(self.networkConfig.cidr).containsIP(self.infraComponents.dhcp.rangeStart) && !(ip(self.infraComponents.dhcp.rangeStart) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".infraComponents.dhcp.rangeStart",messageExpression=`self.infraComponents.dhcp.rangeStart + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.rangeEnd) || !isIP(self.infraComponents.dhcp.rangeEnd) || cidr(self.networkConfig.cidr).containsIP(self.infraComponents.dhcp.rangeEnd) && !(ip(self.infraComponents.dhcp.rangeEnd) == cidr(self.networkConfig.cidr).ip())`,fieldPath=".infraComponents.dhcp.rangeEnd",messageExpression=`self.infraComponents.dhcp.rangeEnd + " is not the address of a host in the CIDR " + self.networkConfig.cidr + ": choose another"`
// +kubebuilder:validation:XValidation:rule=`!self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.serverIP) || self.infraComponents.dhcp.serverIP == "" || self.infraComponents.dhcp.serverIP != self.networkConfig.gateway`,fieldPath=".infraComponents.dhcp.serverIP",messageExpression=`self.infraComponents.dhcp.serverIP + " is networkConfig.gateway as well: give the server an address of its own"`
// +kubebuilder:validation:XValidation:rule=`!self.infraComponents.dns.enabled || !has(self.infraComponents.dns.serverIP) || self.infraComponents.dns.serverIP == "" || self.infraComponents.dns.serverIP != self.networkConfig.gateway && (!self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.serverIP) || self.infraComponents.dns.serverIP != self.infraComponents.dhcp.serverIP)`,fieldPath=".infraComponents.dns.serverIP",messageExpression=`self.infraComponents.dns.serverIP + " is " + (self.infraComponents.dns.serverIP == self.networkConfig.gateway ? "networkConfig.gateway" : "infraComponents.dhcp.serverIP") + " as well: give the server an address of its own"`
// +kubebuilder:validation:XValidation:rule=`!self.infraComponents.proxy.enabled || !has(self.infraComponents.proxy.serverIP) || self.infraComponents.proxy.serverIP == "" || self.infraComponents.proxy.serverIP != self.networkConfig.gateway && (!self.infraComponents.dhcp.enabled || !has(self.infraComponents.dhcp.serverIP) || self.infraComponents.proxy.serverIP != self.infraComponents.dhcp.serverIP) && (!self.infraComponents.dns.enabled || !has(self.infraComponents.dns.serverIP) || self.infraComponents.proxy.serverIP != self.infraComponents.dns.serverIP)`,fieldPath=".infraComponents.proxy.serverIP",messageExpression=`self.infraComponents.proxy.serverIP + " is " + (self.infraComponents.proxy.serverIP == self.networkConfig.gateway ? "networkConfig.gateway" : has(self.infraComponents.dns.serverIP) && self.infraComponents.proxy.serverIP == self.infraComponents.dns.serverIP ? "infraComponents.dns.serverIP" : "infraComponents.dhcp.serverIP") + " as well: give the server an address of its own"`
// +kubebuilder:validation:XValidation:rule=`!self.infraComponents.dns.enabled || !has(self.infraComponents.dns.serverIP) || !has(self.networkConfig.dnsServers) || !(self.infraComponents.dns.serverIP in self.networkConfig.dnsServers)`,fieldPath=".networkConfig.dnsServers",messageExpression=`self.infraComponents.dns.serverIP + " is this Infra's own DNS server, so queries would run in circles: give the resolver above it"`
// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.networkConfig.cidr) || !has(self.infraComponents.dhcp.reservations) || self.infraComponents.dhcp.reservations.all(r, !has(r.ip) || !isIP(r.ip) || cidr(self.networkConfig.cidr).containsIP(r.ip))`,fieldPath=".infraComponents.dhcp.reservations",message="reserves an address outside the CIDR: choose one inside it"
type InfraSpec struct {
	// NetworkConfig describes the VLAN.
	NetworkConfig NetworkConfig `json:"networkConfig"`
	// InfraComponents configures the three servers of the VLAN.
	// +kubebuilder:default={}
	// +optional
	InfraComponents InfraComponents `json:"infraComponents"`
	// VLANPods says how the pods that serve the VLAN are run in the cluster, where this Infra needs it otherwise than the
	// installation. Changing it starts them anew, one after the other, the standby first.
	// +optional
	VLANPods *VLANPods `json:"vlanPods,omitempty"`

	// AppsIngress belonged to the single-cluster model. It is accepted so that
	// old manifests apply, and ignored (condition DeprecatedField): apps ingress
	// is set on each InfraClusterAttachment.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +optional
	AppsIngress *runtime.RawExtension `json:"appsIngress,omitempty"`
}

// VLANPods says how the two pods that serve one VLAN are run. Their images are infraComponents.proxy.managerImage and
// infraComponents.proxy.proxyImage.
type VLANPods struct {
	// ImagePullPolicy of both containers. Default: that of the installation.
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	// +optional
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`
	// ImagePullSecrets in the Infra's namespace, instead of those that the installation names.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +optional
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`
	// NodeSelector restricts the nodes: those that the VLAN reaches, when not all do.
	// +kubebuilder:validation:MaxProperties=32
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Tolerations of taints on those nodes.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// PriorityClassName of the pods. Default: that of the cluster.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
	// Resources of the container oooi (DHCP, DNS, xDS), instead of the built-in ones.
	// +optional
	Resources *PodResources `json:"resources,omitempty"`
	// EnvoyResources are those of the container envoy, instead of the built-in ones.
	// +optional
	EnvoyResources *PodResources `json:"envoyResources,omitempty"`
}

// PodResources are what a container asks for and what it may take.
type PodResources struct {
	// Requests that the scheduler keeps free for the container.
	// +optional
	Requests corev1.ResourceList `json:"requests,omitempty"`
	// Limits that the container cannot go beyond. One on the memory of Envoy ends every connection of the VLAN when it is
	// reached.
	// +optional
	Limits corev1.ResourceList `json:"limits,omitempty"`
}

// NetworkConfig is the VLAN as the network team gave it.
type NetworkConfig struct {
	// CIDR of the VLAN in IPv4, for example 192.0.2.0/24. It may change, when the VLAN grows or is renumbered: all
	// addresses of this object then have to lie in the new one, in the same change.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`isCIDR(self) && cidr(self).ip().family() == 4`,message="is not an IPv4 network: write network/length, for example 192.0.2.0/24; IPv6 is not supported"
	// +kubebuilder:validation:XValidation:rule=`!isCIDR(self) || cidr(self).ip().family() == 6 || cidr(self).prefixLength() >= 8 && cidr(self).prefixLength() <= 30`,message="has a prefix length that no VLAN has: use one of 8 to 30"
	// +kubebuilder:validation:XValidation:rule=`!isCIDR(self) || cidr(self) == cidr(self).masked()`,message="has host bits set: write the first address of the network before the slash, for example 192.0.2.0/24"
	// +kubebuilder:validation:XValidation:rule=`!isCIDR(self) || !cidr("224.0.0.0/4").containsCIDR(self) && !cidr(self).masked().ip().isUnspecified()`,message="holds no addresses of hosts: give the network of the VLAN"
	CIDR string `json:"cidr"`
	// Gateway is the default router handed to workers, an address of the CIDR.
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	Gateway string `json:"gateway"`
	// NetworkAttachmentDefinition is the name of the NAD that leads to the VLAN. It may change: a NAD made anew
	// under another name leads to the same VLAN.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	NetworkAttachmentDefinition string `json:"networkAttachmentDefinition"`
	// NetworkAttachmentNamespace is where the NAD is. Default: the Infra's own namespace.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	NetworkAttachmentNamespace string `json:"networkAttachmentNamespace,omitempty"`
	// DNSServers are the upstream resolvers for every name that is not ours: addresses
	// ("ip" or "ip:port"), or the word "resolv.conf" for those of the serving host.
	// None: other names are refused.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:XValidation:rule=`self == "resolv.conf" || isIP(self) || self.matches("^[0-9.]+:[0-9]{1,5}$") && isIP(self.split(":")[0]) && int(self.split(":")[1]) <= 65535 || self.matches(":.*:")`,message="is not a resolver: write an address (192.0.2.53), an address and a port (192.0.2.53:5353) or resolv.conf"
	// +kubebuilder:validation:XValidation:rule=`self.all(a, self.exists_one(b, a == b))`,message="holds the same resolver twice: remove one"
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
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	ServerIP string `json:"serverIP,omitempty"`
	// RangeStart is the first address of the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	RangeStart string `json:"rangeStart,omitempty"`
	// RangeEnd is the last address of the pool, included.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	RangeEnd string `json:"rangeEnd,omitempty"`
	// LeaseTime is how long a lease lasts, as a Go duration ("1h", "30m"), 1 minute to 1 year.
	// +kubebuilder:default="1h"
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || self.matches("^[-+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$")`,message="is not a duration: write a number and a unit, for example 1h or 30m"
	// +kubebuilder:validation:XValidation:rule=`!self.matches("^[-+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$") || size(self) > 14 || self.matches("[0-9]{7}") || duration(self) >= duration("1m") && duration(self) <= duration("8760h")`,message="is not between 1m and 8760h (one year): choose a lease time in between"
	LeaseTime string `json:"leaseTime,omitempty"`
	// Image must agree with infraComponents.proxy.managerImage: oooi is one image.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[!-~]*$")`,message="is not an image reference: write registry/name:tag without spaces"
	Image string `json:"image,omitempty"`
	// Options are further DHCP options sent to every client.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=254
	// +kubebuilder:validation:XValidation:rule=`self.all(a, self.exists_one(b, a.code == b.code))`,message="holds the same option twice: remove one"
	// +kubebuilder:validation:items:XValidation:rule=`!(self.code in [1, 3, 6, 12, 51])`,fieldPath=".code",message="cannot be set here: it comes from networkConfig, dns.serverIP, reservations or leaseTime"
	// +kubebuilder:validation:items:XValidation:rule=`!(self.code in [50, 52, 53, 54, 55, 56, 57, 58, 59, 61, 80, 81, 82, 90, 108, 116, 118])`,fieldPath=".code",message="cannot be set here: it belongs to the protocol itself"
	Options []DHCPOption `json:"options,omitempty"`
	// MTU advertised to workers (option 26). 0: not advertised.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=65535
	// +optional
	// +kubebuilder:validation:XValidation:rule=`self == 0 || self >= 68`,message="is not an MTU: use 68 to 65535, or 0 to advertise none"
	MTU int32 `json:"mtu,omitempty"`
	// NTPServers advertised to workers (option 42), IPv4 addresses.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=64
	// +kubebuilder:validation:items:XValidation:rule=`isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	// +kubebuilder:validation:XValidation:rule=`self.all(a, self.exists_one(b, a == b))`,message="holds the same server twice: remove one"
	// +kubebuilder:validation:XValidation:rule=`size(self) <= 63`,message="has more than the 63 entries that a DHCP option holds: remove some"
	NTPServers []string `json:"ntpServers,omitempty"`
	// SearchDomains advertised to workers (option 119).
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:XValidation:rule=`self.trim().matches("^([A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.])*[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.]?$")`,message="is not a DNS name: write parts of 1 to 63 letters, digits and dashes with dots between them, no dash at either end of a part"
	SearchDomains []string `json:"searchDomains,omitempty"`
	// Reservations bind hardware addresses to fixed addresses and host names.
	// +listType=atomic
	// +optional
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:XValidation:rule=`self.?ip.orValue("") != "" || self.?hostname.orValue("") != ""`,message="has neither ip nor hostname: give one, or remove the reservation"
	// +kubebuilder:validation:items:XValidation:rule=`self.mac.matches("^(([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{2}-){5}[0-9a-fA-F]{2}|([0-9a-fA-F]{4}[.]){2}[0-9a-fA-F]{4})$")`,fieldPath=".mac",messageExpression=`self.mac + " is not a hardware address: write six pairs of hexadecimal digits, for example 52:54:00:12:34:56"`
	// +kubebuilder:validation:items:XValidation:rule=`!self.mac.matches("^([0-9a-fA-F][13579bdfBDF]|[-0:.]+$)")`,fieldPath=".mac",messageExpression=`self.mac + " cannot be the address of one network card: write the card's own"`
	// +kubebuilder:validation:items:XValidation:rule=`!has(self.ip) || self.ip == "" || isIP(self.ip) && ip(self.ip).family() == 4`,fieldPath=".ip",messageExpression=`self.ip + " is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"`
	// +kubebuilder:validation:items:XValidation:rule=`!has(self.hostname) || self.hostname == "" || self.hostname.trim().matches("^([A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.])*[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.]?$")`,fieldPath=".hostname",messageExpression=`self.hostname + " is not a host name: write parts of 1 to 63 letters, digits and dashes with dots between them, no dash at either end of a part"`
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
	// +kubebuilder:validation:MaxLength=64
	MAC string `json:"mac"`
	// IP is the address kept for that client, inside the CIDR. Empty: any address of the pool.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	IP string `json:"ip,omitempty"`
	// Hostname sent to that client (option 12).
	// +optional
	// +kubebuilder:validation:MaxLength=512
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
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	ServerIP string `json:"serverIP,omitempty"`
	// Image must agree with infraComponents.proxy.managerImage: oooi is one image.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[!-~]*$")`,message="is not an image reference: write registry/name:tag without spaces"
	Image string `json:"image,omitempty"`
	// CacheTTL is the longest time a forwarded answer is kept, as a Go duration. 0s: no cache.
	// +kubebuilder:default="30s"
	// +optional
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || self.matches("^[-+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$")`,message="is not a duration: write a number and a unit, for example 30s, or 0s for no cache"
	// +kubebuilder:validation:XValidation:rule=`!self.matches("^[-+]?(0|(([0-9]+[.]?[0-9]*|[.][0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$") || size(self) > 14 || self.matches("[0-9]{7}") || duration(self) >= duration("0s")`,message="is negative: write 0s for no cache"
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
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4`,message="is not an IPv4 address: write four numbers of 0 to 255 with dots, without leading zeros; IPv6 is not supported"
	ServerIP string `json:"serverIP,omitempty"`
	// InternalProxyService is what the cluster names resolve to for clients outside the VLAN: the name of
	// a Service ("name", "name.namespace" or "name.namespace.svc.cluster.local") whose ClusterIP is
	// used, or an IPv4 address. Empty: those names do not exist outside the VLAN.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || isIP(self) && ip(self).family() == 4 && !ip(self).isUnspecified() && !cidr("224.0.0.0/4").containsIP(self) || !isIP(self) && self.matches("^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?([.]svc([.][a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?)*[.]?)?)?$")`,message="is neither an IPv4 address nor the name of a Service: write its ClusterIP, or name, name.namespace or name.namespace.svc.cluster.local"
	InternalProxyService string `json:"internalProxyService,omitempty"`
	// ProxyImage is the Envoy image.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[!-~]*$")`,message="is not an image reference: write registry/name:tag without spaces"
	ProxyImage string `json:"proxyImage,omitempty"`
	// ManagerImage is the oooi image.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule=`self.matches("^[!-~]*$")`,message="is not an image reference: write registry/name:tag without spaces"
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
