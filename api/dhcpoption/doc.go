// Package dhcpoption knows how the DHCP options of an Infra are written, and turns their text into bytes.
//
// The text of options, ntpServers and searchDomains is judged here and nowhere else: v1alpha1 validates with
// Encode, and the DHCP server sends what Encode gives. What one accepts the other therefore serves.
//
// It knows nothing of packets, of clients or of Kubernetes.
package dhcpoption
