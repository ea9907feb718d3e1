package hosted

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var nodes = schema.GroupVersionResource{Version: "v1", Resource: "nodes"}

// SetNode makes the worker's Node unless it is there, ready or not, as its kubelet would say. kube-proxy runs from then on.
func (c *Cluster) SetNode(ctx context.Context, ready bool) error {
	if _, err := c.Apply(ctx, "kubelet", fmt.Appendf(nil, `apiVersion: v1
kind: Node
metadata:
  name: %[1]s
  labels: {kubernetes.io/hostname: %[1]s, kubernetes.io/os: linux, node-role.kubernetes.io/worker: ""}
`, c.Node())); err != nil {
		return err
	}
	status, reason := metav1.ConditionFalse, "KubeletNotReady"
	if ready {
		status, reason = metav1.ConditionTrue, "KubeletReady"
	}
	address := "192.0.2.1"
	if c.router != nil {
		address = routerAddress.String()
	}
	if _, err := c.ApplyStatus(ctx, "kubelet", fmt.Appendf(nil, `apiVersion: v1
kind: Node
metadata: {name: %[1]s}
status:
  addresses: [{type: InternalIP, address: %[2]s}, {type: Hostname, address: %[1]s}]
  conditions:
  - {type: Ready, status: %[3]q, reason: %[4]s, message: "as the test says", lastHeartbeatTime: %[5]q, lastTransitionTime: %[5]q}
  nodeInfo:
    {operatingSystem: linux, architecture: amd64, kubeletVersion: v1.37.2, kubeProxyVersion: "", containerRuntimeVersion: test://1, machineID: "",
     systemUUID: "", bootID: "", kernelVersion: "", osImage: ""}
`, c.Node(), address, status, reason, metav1.Now().UTC().Format("2006-01-02T15:04:05Z"))); err != nil {
		return err
	}
	if c.Worker == "" || c.Proxy.Running() {
		return nil
	}
	return c.Proxy.Start(ctx)
}

// RemoveNode ends kube-proxy and deletes the worker's Node.
func (c *Cluster) RemoveNode(ctx context.Context) error {
	if err := c.Proxy.Kill(); err != nil {
		return err
	}
	return c.Dynamic.Resource(nodes).Delete(ctx, c.Node(), metav1.DeleteOptions{})
}

// Events of a namespace, each as "reason: message".
func (c *Cluster) Events(ctx context.Context, namespace string) ([]string, error) {
	list, err := c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var events []string
	for _, e := range list.Items {
		reason, _, _ := unstructured.NestedString(e.Object, "reason")
		message, _, _ := unstructured.NestedString(e.Object, "message")
		events = append(events, reason+": "+message)
	}
	return events, nil
}
