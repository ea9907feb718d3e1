// Package hypershift holds the fields of hypershift.openshift.io/v1beta1 that oooi reads: a small typed subset of
// HostedCluster and NodePool, since HyperShift's own Go module cannot be depended on. Unknown fields
// are ignored when decoding, and never written.
//
// +kubebuilder:object:generate=true
// +groupName=hypershift.openshift.io
// +versionName=v1beta1
package hypershift
