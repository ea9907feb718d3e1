// Package v1alpha1 holds the kinds of hostedcluster.densityops.com/v1alpha1.
//
// A person writes two of them: Infra (one VLAN) and InfraClusterAttachment
// (one hosted cluster on that VLAN). The plan turns them into the children
// DHCPServer, DNSServer and ProxyServer, which are the only thing that the
// DHCP, DNS and xDS servers read. The DHCP server keeps its leases as
// DHCPLeases.
//
// The package holds types, their defaults (as markers, enforced by the
// generated CRDs) and the checks that one object alone can answer
// (Infra.Validate, InfraClusterAttachment.Validate). Whatever needs two objects
// belongs to watch/plan.
//
// The CEL rules of the generated CRDs refuse much of that before it is stored. They refuse what is wrong, never what is
// missing, and nothing that Validate takes (e2e/controlplane holds them to it): Validate alone is complete, since
// a folder of manifests knows no API server and old objects are older than the rules.
//
// +kubebuilder:object:generate=true
// +groupName=hostedcluster.densityops.com
package v1alpha1
