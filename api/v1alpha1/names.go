package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// maxNameLength is the longest label value, Service name and Envoy-friendly name: a DNS label (RFC 1123).
const maxNameLength = 63

// DHCPServerName is the name of the DHCPServer of an Infra.
func DHCPServerName(infra string) string { return infra + "-dhcp" }

// DNSServerName is the name of the DNSServer of an Infra.
func DNSServerName(infra string) string { return infra + "-dns" }

// ProxyServerName is the name of the ProxyServer of an Infra.
func ProxyServerName(infra string) string { return infra + "-proxy" }

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

// NormalizeDomain brings a DNS name to the form that names are compared in: lower case, no trailing
// dot (RFC 4343).
func NormalizeDomain(name string) string {
	return strings.ToLower(strings.TrimSuffix(strings.TrimSpace(name), "."))
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

// On tells whether an optional switch that defaults to true is on.
func On(enabled *bool) bool { return enabled == nil || *enabled }
