package hypershift

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the API group and version of HostedCluster and NodePool.
var GroupVersion = schema.GroupVersion{Group: "hypershift.openshift.io", Version: "v1beta1"}

// NodePoolAnnotation is on each Machine: "<namespace>/<name>" of its NodePool.
const NodePoolAnnotation = "hypershift.openshift.io/nodePool"

// KubeVirtPlatform is the platform type of NodePools whose workers are virtual machines of this cluster.
const KubeVirtPlatform = "KubeVirt"

// AddToScheme adds the kinds of this package to a scheme.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion, &HostedCluster{}, &HostedClusterList{}, &NodePool{}, &NodePoolList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}

// HostedCluster is one hosted control plane.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=hostedclusters,singular=hostedcluster,shortName=hc;hcs
type HostedCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	Spec HostedClusterSpec `json:"spec,omitempty"`
	// +kubebuilder:pruning:PreserveUnknownFields
	Status HostedClusterStatus `json:"status,omitempty"`
}

// HostedClusterList is a list of HostedClusters.
//
// +kubebuilder:object:root=true
type HostedClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []HostedCluster `json:"items"`
}

// HostedClusterSpec is what oooi reads of a HostedCluster's spec.
type HostedClusterSpec struct {
	// DNS of the cluster.
	DNS DNSSpec `json:"dns,omitempty"`
	// Services says how each service of the control plane is published.
	// +listType=atomic
	Services []ServicePublishingStrategyMapping `json:"services,omitempty"`
	// Networking of the cluster.
	Networking ClusterNetworking `json:"networking,omitempty"`
	// Platform of the cluster.
	Platform PlatformSpec `json:"platform,omitempty"`
	// KubeAPIServerDNSName is a further name of the API server, used in kubeconfigs.
	KubeAPIServerDNSName string `json:"kubeAPIServerDNSName,omitempty"`
}

// DNSSpec is the DNS configuration of a HostedCluster.
type DNSSpec struct {
	// BaseDomain of the cluster.
	BaseDomain string `json:"baseDomain,omitempty"`
	// BaseDomainPrefix goes before BaseDomain; empty string: no prefix; unset: the cluster's name.
	BaseDomainPrefix *string `json:"baseDomainPrefix,omitempty"`
}

// ServicePublishingStrategyMapping says how one service is published.
type ServicePublishingStrategyMapping struct {
	// Service: APIServer, OAuthServer, Ignition, Konnectivity.
	Service string `json:"service"`
	// ServicePublishingStrategy of the service.
	ServicePublishingStrategy ServicePublishingStrategy `json:"servicePublishingStrategy"`
}

// ServicePublishingStrategy is a way of publishing.
type ServicePublishingStrategy struct {
	// Type: Route, LoadBalancer, NodePort, None, S3.
	Type string `json:"type"`
	// Route details.
	Route *RoutePublishingStrategy `json:"route,omitempty"`
	// LoadBalancer details.
	LoadBalancer *LoadBalancerPublishingStrategy `json:"loadBalancer,omitempty"`
	// NodePort details.
	NodePort *NodePortPublishingStrategy `json:"nodePort,omitempty"`
}

// RoutePublishingStrategy publishes by an OpenShift Route.
type RoutePublishingStrategy struct {
	// Hostname of the Route.
	Hostname string `json:"hostname,omitempty"`
}

// LoadBalancerPublishingStrategy publishes by a LoadBalancer Service.
type LoadBalancerPublishingStrategy struct {
	// Hostname that leads to the load balancer.
	Hostname string `json:"hostname,omitempty"`
}

// NodePortPublishingStrategy publishes by a node port.
type NodePortPublishingStrategy struct {
	// Address that clients dial.
	Address string `json:"address,omitempty"`
	// Port that clients dial.
	Port int32 `json:"port,omitempty"`
}

// ClusterNetworking is what oooi reads of a HostedCluster's networking.
type ClusterNetworking struct {
	// APIServer as nodes see it.
	APIServer *APIServerNetworking `json:"apiServer,omitempty"`
}

// APIServerNetworking is the API server as nodes see it.
type APIServerNetworking struct {
	// AdvertiseAddress inside the hosted cluster.
	AdvertiseAddress *string `json:"advertiseAddress,omitempty"`
	// Port inside the hosted cluster.
	Port *int32 `json:"port,omitempty"`
}

// PlatformSpec names a platform.
type PlatformSpec struct {
	// Type: KubeVirt, Agent, AWS, None, …
	Type string `json:"type,omitempty"`
}

// HostedClusterStatus is what oooi reads of a HostedCluster's status.
type HostedClusterStatus struct {
	// KubeConfig names the Secret with the admin kubeconfig, key "kubeconfig".
	KubeConfig *LocalObjectReference `json:"kubeconfig,omitempty"`
	// ControlPlaneEndpoint that workers dial.
	ControlPlaneEndpoint APIEndpoint `json:"controlPlaneEndpoint,omitempty"`
	// IgnitionEndpoint that workers dial at their first boot.
	IgnitionEndpoint string `json:"ignitionEndpoint,omitempty"`
	// OAuthCallbackURLTemplate holds the name of the OAuth server.
	OAuthCallbackURLTemplate string `json:"oauthCallbackURLTemplate,omitempty"`
}

// LocalObjectReference names an object of the same namespace.
type LocalObjectReference struct {
	// Name of the object.
	Name string `json:"name,omitempty"`
}

// APIEndpoint is a host and a port.
type APIEndpoint struct {
	// Host name or address.
	Host string `json:"host,omitempty"`
	// Port number.
	Port int32 `json:"port,omitempty"`
}

// NodePool is a set of worker Machines of one HostedCluster.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=nodepools,singular=nodepool,shortName=np;nps
type NodePool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	Spec NodePoolSpec `json:"spec,omitempty"`
}

// NodePoolList is a list of NodePools.
//
// +kubebuilder:object:root=true
type NodePoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []NodePool `json:"items"`
}

// NodePoolSpec is what oooi reads of a NodePool's spec.
type NodePoolSpec struct {
	// ClusterName is the HostedCluster in the NodePool's namespace.
	ClusterName string `json:"clusterName,omitempty"`
	// Platform of the workers.
	Platform PlatformSpec `json:"platform,omitempty"`
}
