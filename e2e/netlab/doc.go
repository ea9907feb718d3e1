// Package netlab builds a small VLAN out of network namespaces, with the page's own addresses, and starts oooi
// and Envoy in it:
//
//	worker-a  worker-b  stranger        the VLAN 192.0.2.0/24, a bridge in the namespace switch
//	   └─────────┴──┬──────┴─── pod     oooi and Envoy: vlan0 on the VLAN, pod0 on the pod network
//	                               │
//	                            cluster  router of the pod network, ClusterIPs of the control planes, upstream DNS
//	                               │
//	                             client  any pod of the management cluster
//
// Namespaces are named <prefix>-<role>. Workers get their addresses from real DHCP clients. Nothing outside the
// namespaces and one temporary folder is touched, and Stop removes both.
package netlab
