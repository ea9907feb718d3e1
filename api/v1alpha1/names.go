package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// maxNameLength is the longest label value, Service name and Envoy-friendly name: a DNS label (RFC 1123).
const maxNameLength = 63

// DHCPServerName is the name of the DHCPServer of an Infra.
func DHCPServerName(infra string) string { return infra + "-dhcp" }

// DNSServerName is the name of the DNSServer of an Infra.
func DNSServerName(infra string) string { return infra + "-dns" }

// ProxyServerName is the name of the ProxyServer of an Infra.
func ProxyServerName(infra string) string { return infra + "-proxy" }

// VLANName is the name of the Deployment of an Infra's VLAN pods, of the Lease that says which one of them is the holder, and of
// their PodDisruptionBudget.
func VLANName(infra string) string { return infra + "-vlan" }

// ProxyServiceName is the name of the Service in front of an Infra's Envoy.
func ProxyServiceName(infra string) string { return infra + "-proxy" }

// DNSServiceName is the name of the Service in front of an Infra's DNS server.
func DNSServiceName(infra string) string { return infra + "-dns" }

// BootstrapName is the name of the ConfigMap with the bootstrap of an Infra's Envoys.
func BootstrapName(infra string) string { return infra + "-envoy" }

// ExternalServiceName is the name of the public LoadBalancer Service of an attachment, and the end of all such names.
func ExternalServiceName(attachment string) string { return attachment + ExternalServiceSuffix }

// DHCPLeaseName is the name of the DHCPLease of one address: one name an address, so that the API server itself forbids a
// second grant of it.
func DHCPLeaseName(infra, address string) string {
	return infra + "-" + strings.ReplaceAll(address, ".", "-")
}

const (
	// LabelInfra is on everything that belongs to the VLAN pods of an Infra, the pods included; its value is LabelValue of
	// the Infra's name.
	LabelInfra = "hostedcluster.densityops.com/infra"
	// LabelInfraNamespace is beside LabelInfra on objects that are not in the Infra's namespace.
	LabelInfraNamespace = "hostedcluster.densityops.com/infra-namespace"
	// LabelHolder is "true" on the VLAN pod that has the addresses. The pod sets it, and the Services select it.
	LabelHolder = "hostedcluster.densityops.com/holder"
	// VLANInterface is the name of the VLAN interface in a VLAN pod.
	VLANInterface = "vlan0"
	// LabelAttachment is on everything that was made for one attachment; its value is LabelValue of the attachment's name.
	LabelAttachment = "hostedcluster.densityops.com/attachment"
	// LabelAttachmentNamespace is beside LabelAttachment on objects of a hosted cluster; its value is the attachment's
	// namespace in the management cluster.
	LabelAttachmentNamespace = "hostedcluster.densityops.com/attachment-namespace"
	// FinalizerAppsIngress is on an attachment while something may be in its hosted cluster that was made for it.
	FinalizerAppsIngress = "hostedcluster.densityops.com/apps-ingress"
	// AppsServiceName is the name of the Service in the hosted cluster, unless the attachment names another.
	AppsServiceName = "oooi-ingress"
	// ExternalServiceSuffix is the end of the name of each public Service.
	ExternalServiceSuffix = "-proxy-external"
	// VLANAccount is the name of the ServiceAccount of VLAN pods, of its RoleBinding and of the ClusterRole that it is
	// bound to.
	VLANAccount = "oooi-vlan"
)

// Envoy's own listener of an attachment with a public Service has a port between these two, on the pod. Nothing else in a VLAN pod
// listens there, and Linux gives none of them to outgoing connections.
const (
	ExternalPortFirst = 20000
	ExternalPortLast  = 29999
)

// BackendName is the name of one backend of an attachment: <attachment>-<role>. A longer name than 63
// characters is cut and made unique by a hash of the whole.
func BackendName(attachment, role string) string { return LabelValue(attachment + "-" + role) }

// LabelValue is a name as it fits into a label or a DNS label: one longer than 63 characters is cut and made unique
// by a hash of the whole.
func LabelValue(name string) string {
	if len(name) <= maxNameLength {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	suffix := "-" + hex.EncodeToString(sum[:4])
	return strings.TrimRight(name[:maxNameLength-len(suffix)], "-.") + suffix
}

// NormalizeDomain brings a DNS name to the form that names are compared in: no spaces around it, lower case, no trailing
// dot (RFC 4343).
func NormalizeDomain(name string) string {
	return LowerASCII(strings.TrimSuffix(strings.Trim(name, " \t\r\n"), "."))
}

// LowerASCII folds the case of ASCII letters, as DNS (RFC 4343) and Envoy do. Other letters stay as they are: strings.ToLower
// makes a "k" of the Kelvin sign (U+212A), which is another name to everybody else.
func LowerASCII(s string) string {
	isUpper := func(b byte) bool { return 'A' <= b && b <= 'Z' }
	lower := []byte(s)
	if !slices.ContainsFunc(lower, isUpper) {
		return s
	}
	for i, b := range lower {
		if isUpper(b) {
			lower[i] = b + 'a' - 'A'
		}
	}
	return string(lower)
}

// Domain is the normalised domain of the attachment: <clusterName>.<baseDomain>.
func (a *InfraClusterAttachment) Domain() string {
	return NormalizeDomain(a.Spec.DNS.ClusterName) + "." + NormalizeDomain(a.Spec.DNS.BaseDomain)
}

// HostedClusterNamespace is the namespace of the HostedCluster, "clusters" unless said otherwise.
func (a *InfraClusterAttachment) HostedClusterNamespace() string {
	if ns := a.Spec.HostedClusterRef.Namespace; ns != "" {
		return ns
	}
	return "clusters"
}

// ControlPlaneNamespace is where the control-plane pods of the attachment are: the override, or the
// name that HyperShift gives (<namespace>-<name>, dots of the name turned into dashes).
func (a *InfraClusterAttachment) ControlPlaneNamespace() string {
	if ns := a.Spec.ControlPlaneNamespace; ns != "" {
		return ns
	}
	return a.HostedClusterNamespace() + "-" + strings.ReplaceAll(a.Spec.HostedClusterRef.Name, ".", "-")
}

// NADNamespace is where the NetworkAttachmentDefinition of the Infra is.
func (i *Infra) NADNamespace() string {
	if ns := i.Spec.NetworkConfig.NetworkAttachmentNamespace; ns != "" {
		return ns
	}
	return i.Namespace
}

// AppsEnabled tells whether the attachment asks for apps ingress.
func (a *InfraClusterAttachment) AppsEnabled() bool {
	return a.Spec.AppsIngress != nil && a.Spec.AppsIngress.Enabled
}

// On tells whether an optional switch that defaults to true is on.
func On(enabled *bool) bool { return enabled == nil || *enabled }

// OwnerOf is the Infra that controls a child, as the owner of something else; nil: none does. It is no controller, and nothing waits
// for that object: the account that writes it has no rights on the Infra.
func OwnerOf(child metav1.Object) *metav1.OwnerReference {
	controller := metav1.GetControllerOf(child)
	if controller == nil {
		return nil
	}
	return &metav1.OwnerReference{APIVersion: controller.APIVersion, Kind: controller.Kind, Name: controller.Name, UID: controller.UID}
}
