// Package controlplane runs a real Kubernetes control plane for tests and benchmarks: etcd, kube-apiserver with RBAC
// and, where garbage collection and the like are wanted, kube-controller-manager, on free ports of 127.0.0.1.
//
// Manifests go in by server-side apply (Apply, ApplyStatus), processes get kubeconfig files (AdminKubeconfig,
// ServiceAccountKubeconfig), and the audit log tells who asked for what (Requests), so that a test can
// hold a process to writing nothing. Each part can be killed and started again with its data (Part). There are
// no nodes: Pods are never run, only written, unless Options say otherwise. Then kube-scheduler and kube-proxy are there as well,
// and package kubelet runs the Pods.
//
// What is started ends with Stop, and by the kernel should this process die first. The package knows nothing of oooi but
// its CustomResourceDefinitions.
package controlplane
