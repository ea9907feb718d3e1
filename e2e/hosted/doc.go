// Package hosted runs hosted clusters for tests, with what oooi meets in them and around them:
//
//	etcd, kube-apiserver, kube-controller-manager      the control plane, where HyperShift runs it
//	     │ pod network
//	┌── eth0 ─────────────────────────────────────┐
//	│ worker, a network namespace                 │
//	│   kube-proxy (nftables), MetalLB's speaker   ├─ vlan0 ── the bridge of the VLAN
//	│   the router: TLS and HTTP servers           │
//	└─────────────────────────────────────────────┘
//
// The control plane, kube-proxy, MetalLB (controller and speaker, with its own definitions and roles, by its ServiceAccounts) and
// ExternalDNS are the real ones. The router stands in for OpenShift's: a Pod object with its labels and named ports, so that
// EndpointSlices come from the real controller, and servers at that Pod's address which say what they saw. Nobody runs Pods, and a Node
// is as ready as the test says.
//
// A Cluster without a network is a control plane on 127.0.0.1 and needs no privileges: MetalLB's controller runs beside it, and VIPs are
// given but not announced. With one, everything is in the namespaces that kubelet.InNamespaces made, and ends with them.
//
// Not shown: OLM, the ingress operator and its IngressController, OVN-Kubernetes, cloud controllers, MetalLB's webhooks, BGP, several
// speakers (each is alone in its memberlist).
package hosted
