// Package kubelet is a small kubelet for tests, with the network around it. It registers nodes with a real API server, runs
// the Pods that the real scheduler binds to them, and does to each what matters to oooi, as a kubelet, a container runtime and
// a network plugin do:
//
//	   node-1, node-2 … (the network namespace of the test: API server, kube-proxy's rules)
//	      │ a route a pod
//	┌── eth0 ──────────────────────┐
//	│ pod: a network namespace     │ vlan0 ─── a bridge for each NetworkAttachmentDefinition, in the namespace "switch",
//	│ containers: mount, PID, UTS  │           where workers are plugged in as well
//	│ and IPC namespaces each      │
//	└──────────────────────────────┘
//
// Of a container it honours the image's files, command, arguments, environment, working directory, user and groups,
// capabilities, allowPrivilegeEscalation, readOnlyRootFilesystem, volumes (emptyDir, configMap, secret, projected), probes
// (httpGet, tcpSocket), ports by name and preStop.sleep; of a Pod its sysctls, fsGroup, grace period, restarts and
// NetworkAttachmentDefinitions of type bridge. A container sees what it would see in a cluster: /proc/sys read-only, no
// capability that a runtime would not have given, nothing of the machine's files. What it does not know, a privileged
// container for one, is refused with a message in the Pod's status rather than left out.
//
// It shows nothing of: resource limits (there are no cgroups), seccomp profiles and AppArmor, NetworkPolicies, the admission
// of SecurityContextConstraints, image pulls, IPv6, changes of a ConfigMap after the Pod has started. All nodes share one
// network namespace, and with it one kube-proxy.
//
// Tests break things on purpose: Signal, Lose, LoseNode, CutAPI, Unplug, Carrier. Everything lives in the namespaces that
// InNamespaces makes, so that nothing of it outlives the test. It needs root.
package kubelet
