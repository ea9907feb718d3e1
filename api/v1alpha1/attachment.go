package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// InfraClusterAttachment puts one hosted cluster on the VLAN of an Infra of the same namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=infraclusterattachments,singular=infraclusterattachment,shortName=infraattachment;ica
// +kubebuilder:printcolumn:name="Infra",type=string,JSONPath=`.spec.infraRef.name`
// +kubebuilder:printcolumn:name="HostedCluster",type=string,JSONPath=`.spec.hostedClusterRef.name`
// +kubebuilder:printcolumn:name="Domain",type=string,JSONPath=`.status.domain`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Reason",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].reason`
// +kubebuilder:printcolumn:name="Sources",type=string,JSONPath=`.status.conditions[?(@.type=="SourcesDiscovered")].status`,priority=1
// +kubebuilder:printcolumn:name="Apps",type=string,JSONPath=`.status.appsIngressStatus.phase`,priority=1
// +kubebuilder:printcolumn:name="AppsVIP",type=string,JSONPath=`.status.appsIngressStatus.externalIP`,priority=1
// +kubebuilder:printcolumn:name="PublicVIP",type=string,JSONPath=`.status.externalService.ip`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule=`!self.spec.?externalService.?enabled.orValue(false) || !format.dns1035Label().validate(self.metadata.name + "-proxy-external").hasValue()`,fieldPath=".spec.externalService.enabled",messageExpression=`"the Service would be named " + self.metadata.name + "-proxy-external, which Kubernetes refuses: name the attachment with at most 48 lower-case letters, digits and dashes, a letter first"`
type InfraClusterAttachment struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec InfraClusterAttachmentSpec `json:"spec"`
	// +optional
	Status InfraClusterAttachmentStatus `json:"status,omitempty"`
}

// InfraClusterAttachmentList is a list of attachments.
//
// +kubebuilder:object:root=true
type InfraClusterAttachmentList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []InfraClusterAttachment `json:"items"`
}

// InfraClusterAttachmentSpec says which hosted cluster goes on which VLAN under which domain.
//
// +kubebuilder:validation:XValidation:rule=`self.?controlPlaneNamespace.orValue("") != "" || size(self.hostedClusterRef.name) + size(self.hostedClusterRef.namespace) < 63`,fieldPath=".controlPlaneNamespace",message="is derived as <hostedClusterRef.namespace>-<hostedClusterRef.name>, which has more than 63 characters here: HyperShift cannot have made that namespace, so give the real one"
// +kubebuilder:validation:XValidation:rule=`!self.?appsIngress.?enabled.orValue(false) || !(self.appsIngress.?service.?name.orValue("oooi-ingress") in ["oauth-openshift", "ignition-server-proxy", "konnectivity-server", self.?apiServerService.orValue("kube-apiserver")])`,fieldPath=".appsIngress.service.name",message="is the name of a target of the control plane: choose another"
type InfraClusterAttachmentSpec struct {
	// InfraRef names the Infra. It may change: the cluster moves to the other VLAN.
	InfraRef InfraReference `json:"infraRef"`
	// HostedClusterRef names the HostedCluster. It cannot be changed.
	// +kubebuilder:validation:XValidation:rule=`self == oldSelf`,message="cannot be changed, because an attachment stands for one hosted cluster: delete it and create one for the other cluster"
	HostedClusterRef HostedClusterReference `json:"hostedClusterRef"`
	// DNS is the domain of the cluster.
	DNS AttachmentDNS `json:"dns"`
	// ControlPlaneNamespace is where the control-plane pods are.
	// Default: <hostedClusterRef.namespace>-<hostedClusterRef.name>, dots of the name turned into dashes.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	ControlPlaneNamespace string `json:"controlPlaneNamespace,omitempty"`
	// APIServerService is the Service of the API server in the control-plane namespace.
	// +kubebuilder:default=kube-apiserver
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	// +kubebuilder:validation:XValidation:rule=`!(self in ["oauth-openshift", "ignition-server-proxy", "konnectivity-server"])`,message="is not an API server but another target of the control plane: give the API server's Service, or leave the field out for kube-apiserver"
	APIServerService string `json:"apiServerService,omitempty"`
	// ExternalService publishes names of this cluster through a LoadBalancer Service of its own.
	// +optional
	ExternalService *ExternalService `json:"externalService,omitempty"`
	// AppsIngress publishes *.apps of this cluster through MetalLB inside the hosted cluster.
	// +optional
	AppsIngress *AppsIngress `json:"appsIngress,omitempty"`
}

// InfraReference names an Infra in the attachment's namespace.
type InfraReference struct {
	// Name of the Infra.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	Name string `json:"name"`
}

// HostedClusterReference names a HostedCluster.
type HostedClusterReference struct {
	// Name of the HostedCluster.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	Name string `json:"name"`
	// Namespace of the HostedCluster.
	// +kubebuilder:default=clusters
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	Namespace string `json:"namespace,omitempty"`
}

// AttachmentDNS is the domain of one cluster: <clusterName>.<baseDomain>. Any case, a trailing dot is allowed.
//
// +kubebuilder:validation:XValidation:rule=`size((self.clusterName.trim() + "." + self.baseDomain.trim() + ".").lowerAscii().replace("..", ".")) <= 241`,fieldPath=".baseDomain",message="is too long: konnectivity.<clusterName>.<baseDomain> must fit in 253 characters"
// +kubebuilder:validation:XValidation:rule=`!(self.clusterName.trim() + "." + self.baseDomain.trim() + ".").lowerAscii().replace("..", ".").matches("(^|[.])kubernetes([.]default([.]svc([.]cluster[.]local)?)?)?[.]$")`,fieldPath=".clusterName",message="is, or is below, one of the names kubernetes, kubernetes.default, kubernetes.default.svc and kubernetes.default.svc.cluster.local that every cluster has: choose another domain"
type AttachmentDNS struct {
	// ClusterName is the first part of the domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self.trim().matches("^([A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.])*[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.]?$")`,message="is not a DNS name: write parts of 1 to 63 letters, digits and dashes with dots between them, no dash at either end of a part"
	ClusterName string `json:"clusterName"`
	// BaseDomain is the rest of the domain.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self.trim().matches("^([A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.])*[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?[.]?$")`,message="is not a DNS name: write parts of 1 to 63 letters, digits and dashes with dots between them, no dash at either end of a part"
	BaseDomain string `json:"baseDomain"`
}

// ExternalService is a public LoadBalancer Service of one attachment, port 443 only.
//
// +kubebuilder:validation:XValidation:rule=`!self.?enabled.orValue(false) || size(self.?services.orValue(["oauth"])) > 0`,fieldPath=".services",message="is empty, so nothing could be reached: list names, or leave the field out for oauth"
type ExternalService struct {
	// Enabled switches it.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// AddressPoolName is the MetalLB pool that the address comes from.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	AddressPoolName string `json:"addressPoolName,omitempty"`
	// Labels added to the Service.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())`,message="has a key that is not valid: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations added to the Service.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())`,message="has a key that is not valid: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	Annotations map[string]string `json:"annotations,omitempty"`
	// Services are the names that can be reached through it.
	// +kubebuilder:default={oauth}
	// +listType=set
	// +optional
	// +kubebuilder:validation:MaxItems=5
	Services []PublicName `json:"services,omitempty"`
}

// PublicName is one of the five names of a hosted cluster.
//
// +kubebuilder:validation:Enum=api;api-int;oauth;ignition;konnectivity
type PublicName string

// AppsIngress publishes *.apps of one hosted cluster at a VIP of its own.
//
// +kubebuilder:validation:XValidation:rule=`!self.?enabled.orValue(false) || self.?metallb.?addressPoolName.orValue("") != ""`,fieldPath=".metallb.addressPoolName",message="is empty, and apps ingress is enabled: name the IPAddressPool, or set enabled: false"
type AppsIngress struct {
	// Enabled switches it.
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// MetalLB says where the VIP comes from.
	// +optional
	MetalLB AppsMetalLB `json:"metallb,omitempty"`
	// Service is the LoadBalancer Service of the default ingress controller.
	// +kubebuilder:default={}
	// +optional
	Service AppsService `json:"service,omitempty"`
	// Ports that the VIP listens on.
	// +kubebuilder:default={}
	// +optional
	Ports AppsPorts `json:"ports,omitempty"`
}

// AppsMetalLB says which addresses MetalLB in the hosted cluster may give.
type AppsMetalLB struct {
	// AddressPoolName is the name of the IPAddressPool.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	AddressPoolName string `json:"addressPoolName,omitempty"`
	// IPAddressPoolRange is "first-last" or a CIDR, inside the Infra's CIDR and disjoint from every other range.
	// +optional
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule=`self == "" || isCIDR(self.trim()) && cidr(self.trim()).ip().family() == 4 || size(self.split("-")) == 2 && self.split("-").all(a, isIP(a.trim()) && ip(a.trim()).family() == 4)`,message="is not a range: write first-last or a CIDR, for example 192.0.2.200-192.0.2.209; IPv6 is not supported"
	// +kubebuilder:validation:XValidation:rule=`!isCIDR(self.trim()) || cidr(self.trim()) == cidr(self.trim()).masked()`,message="has host bits set: write the first address of the network before the slash"
	IPAddressPoolRange string `json:"ipAddressPoolRange,omitempty"`
	// L2AdvertisementName is the name of the L2Advertisement. Default: advertise-<addressPoolName>.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Subdomain().validate(self).hasValue()`,message="is not a valid name: use up to 253 lower-case letters, digits, dashes and dots, with a letter or digit at both ends of each part"
	L2AdvertisementName string `json:"l2AdvertisementName,omitempty"`
	// Namespace of MetalLB. Default: metallb-system or openshift-operators, whichever has it.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	Namespace string `json:"namespace,omitempty"`
	// LoadBalancerClass of the Service.
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.qualifiedName().validate(self.lowerAscii()).hasValue()`,message="is not a valid name: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	LoadBalancerClass string `json:"loadBalancerClass,omitempty"`
	// Install lets oooi install MetalLB by OLM when it is missing.
	// +optional
	Install bool `json:"install,omitempty"`
}

// AppsService is the LoadBalancer Service in the hosted cluster.
type AppsService struct {
	// Name of the Service.
	// +kubebuilder:default=oooi-ingress
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1035Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter first and no dash last"
	Name string `json:"name,omitempty"`
	// Namespace of the Service.
	// +kubebuilder:default=openshift-ingress
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:XValidation:rule=`self == "" || !format.dns1123Label().validate(self).hasValue()`,message="is not a valid name: use up to 63 lower-case letters, digits and dashes, with a letter or digit at both ends"
	Namespace string `json:"namespace,omitempty"`
	// Labels added to the Service.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())`,message="has a key that is not valid: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	Labels map[string]string `json:"labels,omitempty"`
	// Annotations added to the Service.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())`,message="has a key that is not valid: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	Annotations map[string]string `json:"annotations,omitempty"`
	// Selector of the router pods. Default: the default router's.
	// +optional
	// +kubebuilder:validation:MaxProperties=128
	// +kubebuilder:validation:XValidation:rule=`self.all(k, !format.qualifiedName().validate(k.lowerAscii()).hasValue())`,message="has a key that is not valid: use up to 63 letters, digits, dashes, underscores and dots, with a letter or digit at both ends, and a DNS name and / before it if need be"
	Selector map[string]string `json:"selector,omitempty"`
}

// AppsPorts are the ports of the VIP.
//
// +kubebuilder:validation:XValidation:rule=`self.?http.orValue(80) != self.?https.orValue(443)`,fieldPath=".https",message="is the port of http as well: choose another"
type AppsPorts struct {
	// HTTP port.
	// +kubebuilder:default=80
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HTTP int32 `json:"http,omitempty"`
	// HTTPS port.
	// +kubebuilder:default=443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	// +optional
	HTTPS int32 `json:"https,omitempty"`
}

// InfraClusterAttachmentStatus is what oooi made of an attachment.
type InfraClusterAttachmentStatus struct {
	// Conditions of the attachment; Ready sums them up.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
	// ObservedGeneration is the generation that the conditions speak of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Domain is the normalised domain of the cluster.
	// +optional
	Domain string `json:"domain,omitempty"`
	// ControlPlaneNamespace in use.
	// +optional
	ControlPlaneNamespace string `json:"controlPlaneNamespace,omitempty"`
	// Sources are the worker addresses that lead to this cluster, and the memory of those that their
	// Machines do not show at the moment.
	// +listType=atomic
	// +optional
	Sources []Source `json:"sources,omitempty"`
	// ExternalService is the public VIP.
	// +optional
	ExternalService *ExternalServiceStatus `json:"externalService,omitempty"`
	// AppsIngressStatus is the state of apps ingress in the hosted cluster.
	// +optional
	AppsIngressStatus *AppsIngressStatus `json:"appsIngressStatus,omitempty"`
}

// Source is one worker address and the Machine that shows or showed it.
type Source struct {
	// Machine is the name of the Machine, in the control-plane namespace.
	Machine string `json:"machine"`
	// UID of the Machine: another Machine of the same name inherits nothing.
	// +optional
	UID string `json:"uid,omitempty"`
	// Address on the VLAN.
	Address string `json:"address"`
	// MAC that held the address when the Machine last showed it, if known. A live lease of
	// another MAC takes the address away from a Machine that no longer shows it.
	// +optional
	MAC string `json:"mac,omitempty"`
}

// ExternalServiceStatus is the public VIP of an attachment.
type ExternalServiceStatus struct {
	// IP that the load balancer of this cluster gave the Service <attachment>-proxy-external.
	// +optional
	IP string `json:"ip,omitempty"`
	// Hostname that the load balancer gave.
	// +optional
	Hostname string `json:"hostname,omitempty"`
	// Port of this attachment's own Envoy listener on the VLAN pods, 20000-29999. It stays the same as long as externalService is
	// enabled.
	// +optional
	Port int32 `json:"port,omitempty"`
}

// AppsIngressStatus is the state of apps ingress in one hosted cluster.
type AppsIngressStatus struct {
	// Phase: Pending (wait), Ready (*.apps resolves and is routed) or Degraded (somebody has to do something; the VIP that
	// was known last is served on where it can be).
	// +optional
	Phase string `json:"phase,omitempty"`
	// Reason of the phase: WaitingForHostedClusterNodes, WaitingForMetalLBCRDs or WaitingForExternalIP (Pending),
	// ReconciliationSucceeded (Ready), HostedClusterAccessFailed, MetalLBInstallFailed, IngressServiceFailed or
	// ExternalIPDiscoveryFailed (Degraded); Removing while what was made is taken away.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Message for a person.
	// +optional
	Message string `json:"message,omitempty"`
	// ExternalIP is the VIP: the address that the Service in the hosted cluster has, published or not. Where objects come
	// from files nobody looks into hosted clusters, and the VIP that is written here is taken for what would be seen there.
	// +optional
	ExternalIP string `json:"externalIP,omitempty"`
	// ExternalHostname is the VIP as a name, which nothing can be published at.
	// +optional
	ExternalHostname string `json:"externalHostname,omitempty"`
}
