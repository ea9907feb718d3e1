package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// ProxyServer is all that Envoy of one VLAN is told. Written by oooi, not by people.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=proxyservers,singular=proxyserver,shortName=proxy
// +kubebuilder:printcolumn:name="VLAN",type=string,JSONPath=`.spec.networkConfig.networkAttachmentName`
// +kubebuilder:printcolumn:name="Server",type=string,JSONPath=`.spec.networkConfig.serverIP`
// +kubebuilder:printcolumn:name="Backends",type=integer,JSONPath=`.status.backendCount`
// +kubebuilder:printcolumn:name="Programmed",type=string,JSONPath=`.status.conditions[?(@.type=="Programmed")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ProxyServer struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec ProxyServerSpec `json:"spec"`
	// +optional
	Status ProxyServerStatus `json:"status,omitempty"`
}

// ProxyServerList is a list of ProxyServers.
//
// +kubebuilder:object:root=true
type ProxyServerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProxyServer `json:"items"`
}

// ProxyServerSpec is the routes of one VLAN.
type ProxyServerSpec struct {
	// NetworkConfig says where Envoy listens.
	NetworkConfig ProxyNetworkConfig `json:"networkConfig"`
	// Backends are the routes. None: no listener, nothing is served.
	// +listType=atomic
	// +optional
	Backends []Backend `json:"backends,omitempty"`
	// XDSPort is where Envoy finds its control plane.
	// +kubebuilder:default=18000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	XDSPort int32 `json:"xdsPort,omitempty"`
	// LogLevel of Envoy.
	// +optional
	LogLevel string `json:"logLevel,omitempty"`
	// ProxyImage is the Envoy image.
	// +optional
	ProxyImage string `json:"proxyImage,omitempty"`
	// ManagerImage is the oooi image.
	// +optional
	ManagerImage string `json:"managerImage,omitempty"`
}

// ProxyNetworkConfig says where Envoy listens on the VLAN.
type ProxyNetworkConfig struct {
	// ServerIP is the address of Envoy on the VLAN.
	ServerIP string `json:"serverIP"`
	// CIDR of the VLAN, to which the pod that has the address leads a route.
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// NetworkAttachmentName is the NAD of the VLAN.
	// +optional
	NetworkAttachmentName string `json:"networkAttachmentName,omitempty"`
	// NetworkAttachmentNamespace is where the NAD is.
	// +optional
	NetworkAttachmentNamespace string `json:"networkAttachmentNamespace,omitempty"`
}

// Backend is where a name goes: one route of Envoy.
//
// A backend with hostnames matches TLS by server name; with sourcePrefixRanges as well, only
// from those sources. A backend without a hostname matches TLS without a server name, from its
// sources only. On port 80 a backend matches HTTP requests by Host, from any source.
type Backend struct {
	// Name is unique in the ProxyServer: <attachment>-<role>, at most 63 characters.
	Name string `json:"name"`
	// Attachment that the backend belongs to.
	Attachment string `json:"attachment"`
	// Hostname matched as server name or Host, in lower case without a trailing dot. "*.apps.example.com" matches
	// every name below, but for those that are closer to another name (RFC 4592). Empty: TLS without a server name.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// AlternateHostnames are matched the same way.
	// +listType=atomic
	// +optional
	AlternateHostnames []string `json:"alternateHostnames,omitempty"`
	// Ports of Envoy that the backend is reached on.
	// +listType=atomic
	Ports []int32 `json:"ports"`
	// Listener names the attachment's own listener, which is public and takes whole hostnames only. Empty: the shared one of each port.
	// +optional
	Listener string `json:"listener,omitempty"`
	// TargetService is the Service in the control-plane namespace, or of the hosted cluster's ingress.
	TargetService string `json:"targetService"`
	// TargetNamespace is the control-plane namespace, which tells the owner, wherever the target is.
	TargetNamespace string `json:"targetNamespace"`
	// TargetPort is the port of the Service.
	TargetPort int32 `json:"targetPort"`
	// Addresses are the target as resolved: one ClusterIP, the endpoints of a headless Service, or
	// one DNS name. None while the Service does not exist: such a backend has no route.
	// +listType=atomic
	// +optional
	Addresses []string `json:"addresses,omitempty"`
	// Headless tells that the addresses are endpoints of a headless Service, which move.
	// +optional
	Headless bool `json:"headless,omitempty"`
	// SourcePrefixRanges are the sources of the attachment, as /32s.
	// +listType=atomic
	// +optional
	SourcePrefixRanges []string `json:"sourcePrefixRanges,omitempty"`
	// TimeoutSeconds is how long Envoy tries to connect to the target.
	// +kubebuilder:default=30
	// +kubebuilder:validation:Minimum=1
	// +optional
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
}

// ProxyServerStatus is the state of the routes of one VLAN.
type ProxyServerStatus struct {
	// Conditions: Programmed (every Envoy acknowledged the current routes) and Ready.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// Envoys are the Envoys that serve this VLAN; each VLAN pod writes its own entry.
	// +listType=map
	// +listMapKey=name
	// +optional
	Envoys []EnvoyStatus `json:"envoys,omitempty"`
	// BackendCount is the number of backends.
	// +optional
	BackendCount int32 `json:"backendCount"`
	// ServiceIP is the ClusterIP in front of Envoy.
	// +optional
	ServiceIP string `json:"serviceIP,omitempty"`
}

// EnvoyStatus is what one Envoy was sent, has acknowledged, and refused.
type EnvoyStatus struct {
	// Name is Envoy's node id.
	Name string `json:"name"`
	// Process is the serving process that Envoy is connected to: the name of its pod.
	// +optional
	Process string `json:"process,omitempty"`
	// Generation of the ProxyServer that Envoy serves.
	// +optional
	Generation int64 `json:"generation,omitempty"`
	// Sent is the version of the routes that was sent last.
	// +optional
	Sent string `json:"sent,omitempty"`
	// Acknowledged is the version of the routes that Envoy serves.
	// +optional
	Acknowledged string `json:"acknowledged,omitempty"`
	// Error is Envoy's own words when it refused the last version.
	// +optional
	Error string `json:"error,omitempty"`
}
