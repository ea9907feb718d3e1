package kubelet

import (
	"context"
	"fmt"
	"maps"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// leaseSeconds is how long a node is taken for alive after its last word, as a kubelet has it; it is renewed at a quarter of that.
const leaseSeconds = 40

// register makes a Node that is ready.
func (k *Kubelet) register(ctx context.Context, name string) error {
	capacity := corev1.ResourceList{
		corev1.ResourceCPU: resource.MustParse("16"), corev1.ResourceMemory: resource.MustParse("64Gi"),
		corev1.ResourcePods: resource.MustParse("110"), corev1.ResourceEphemeralStorage: resource.MustParse("100Gi"),
	}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
			corev1.LabelHostname: name, corev1.LabelOSStable: "linux", corev1.LabelArchStable: "amd64",
		}},
	}
	maps.Copy(node.Labels, k.config.Labels)
	nodes := k.client.CoreV1().Nodes()
	if _, err := nodes.Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("node %s: %w", name, err)
	}
	now := metav1.Now()
	status := corev1.NodeStatus{
		Capacity: capacity, Allocatable: capacity,
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: name}, {Type: corev1.NodeInternalIP, Address: NodeAddress.String()},
		},
		NodeInfo: corev1.NodeSystemInfo{OperatingSystem: "linux", Architecture: "amd64", KubeletVersion: "v1.37.2", ContainerRuntimeVersion: "test://1"},
	}
	for _, c := range []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"},
		{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientMemory"},
		{Type: corev1.NodeDiskPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasNoDiskPressure"},
		{Type: corev1.NodePIDPressure, Status: corev1.ConditionFalse, Reason: "KubeletHasSufficientPID"},
	} {
		c.LastHeartbeatTime, c.LastTransitionTime = now, now
		status.Conditions = append(status.Conditions, c)
	}
	// Controllers write to a new node as well.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		made, err := nodes.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		made.Status = status
		_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("status of node %s: %w", name, err)
	}
	return k.renew(ctx, name)
}

// keepAlive renews the Leases of the nodes that are not lost, until ctx ends.
func (k *Kubelet) keepAlive(ctx context.Context) {
	ticker := time.NewTicker(leaseSeconds / 4 * time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		for _, node := range k.config.Nodes {
			if k.isLost(node) {
				continue
			}
			if err := k.renew(ctx, node); err != nil && ctx.Err() == nil {
				k.config.Log.Warn("renewing a node's Lease", "node", node, "error", err)
			}
		}
	}
}

// renew writes a node's Lease.
func (k *Kubelet) renew(ctx context.Context, node string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	lease, err := leases.Get(ctx, node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: corev1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		return err
	}
	if err != nil {
		return err
	}
	lease.Spec.RenewTime = &now
	_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	return err
}
