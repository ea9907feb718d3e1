package main

import (
	"context"
	"fmt"
	"strings"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// The size of the world.
const (
	attachments = 100
	perCluster  = 50 // Machines of each
	clients     = 8  // that write at once
)

// infraKey is the one Infra; its VLAN is a network of the loopback interface, where Envoy can listen.
const infraKey = "clusters/tenant-vlan100"

// The proxy's address in the manifest, and where the Envoy of the floor listens instead.
const proxyAddress, floorAddress = "127.40.0.4", "127.40.0.5"

const infraManifest = `apiVersion: v1
kind: Namespace
metadata:
  name: clusters
---
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata:
  name: tenant-vlan100
  namespace: clusters
spec:
  networkConfig:
    cidr: 127.40.0.0/16
    gateway: 127.40.0.1
    networkAttachmentDefinition: vlan100
    networkAttachmentNamespace: default
    dnsServers: [127.40.0.53]
  infraComponents:
    dhcp:
      serverIP: 127.40.0.2
      rangeStart: 127.40.16.0
      rangeEnd: 127.40.250.255
    dns:
      serverIP: 127.40.0.3
    proxy:
      serverIP: 127.40.0.4
`

var machines = schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}

func clusterName(i int) string { return fmt.Sprintf("cluster-%03d", i) }

func machineName(i int) string { return fmt.Sprintf("worker-%02d", i) }

// address numbers the workers' addresses: 127.40.16.0 and on.
func address(n int) string { return fmt.Sprintf("127.40.%d.%d", 16+n/256, n%256) }

// spare are addresses that no Machine has at first, from here on.
const spare = attachments * perCluster

// fill writes the whole world, as people, HyperShift and Cluster API would.
func fill(ctx context.Context, cp *controlplane.ControlPlane) error {
	if _, err := cp.Apply(ctx, "bench", []byte(infraManifest)); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(clients)
	for i := range attachments {
		group.Go(func() error {
			// The Services' cluster IPs are given by the API server.
			text, err := stack.AnotherCluster(clusterName(i), i+1, address(i*perCluster))
			if err != nil {
				return err
			}
			objects, err := controlplane.Decode([]byte(text))
			if err != nil {
				return err
			}
			for _, object := range objects {
				if object.GetKind() == "Machine" {
					continue
				}
				if object.GetKind() == "Service" {
					unstructured.RemoveNestedField(object.Object, "spec", "clusterIP")
				}
				if _, err := cp.ApplyObject(ctx, "bench", object); err != nil {
					return fmt.Errorf("%s %s: %w", object.GetKind(), object.GetName(), err)
				}
				if object.GetKind() == "HostedCluster" {
					status := &unstructured.Unstructured{Object: map[string]any{
						"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "status": object.Object["status"],
						"metadata": map[string]any{"name": object.GetName(), "namespace": object.GetNamespace()},
					}}
					if _, err := cp.ApplyObject(ctx, "bench", status, "status"); err != nil {
						return fmt.Errorf("status of %s: %w", object.GetName(), err)
					}
				}
			}
			for m := range perCluster {
				if err := createMachine(ctx, cp.Dynamic, i, m); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func createMachine(ctx context.Context, client dynamic.Interface, cluster, machine int) error {
	name := clusterName(cluster)
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "cluster.x-k8s.io/v1beta2", "kind": "Machine",
		"metadata": map[string]any{
			"name": machineName(machine), "namespace": "clusters-" + name,
			"annotations": map[string]any{"hypershift.openshift.io/nodePool": "clusters/" + name},
		},
		"spec": map[string]any{
			"clusterName": name, "bootstrap": map[string]any{"dataSecretName": "user-data"},
			"infrastructureRef": map[string]any{"apiGroup": "infrastructure.cluster.x-k8s.io", "kind": "KubevirtMachine", "name": machineName(machine)},
		},
	}}
	created, err := client.Resource(machines).Namespace(object.GetNamespace()).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("Machine %s of %s: %w", machineName(machine), name, err)
	}
	return writeAddress(ctx, client, created, address(cluster*perCluster+machine))
}

// writeAddress writes a Machine's status, as its controller would.
func writeAddress(ctx context.Context, client dynamic.Interface, machine *unstructured.Unstructured, address string) error {
	host := strings.ToLower(machine.GetName())
	machine.Object["status"] = map[string]any{"addresses": []any{
		map[string]any{"type": "Hostname", "address": host},
		map[string]any{"type": "InternalDNS", "address": host},
		map[string]any{"type": "InternalIP", "address": address},
		map[string]any{"type": "ExternalIP", "address": address},
		map[string]any{"type": "InternalIP", "address": "10.132.0.2"},
		map[string]any{"type": "InternalIP", "address": "fe80::5054:ff:fe00:117"},
	}}
	written, err := client.Resource(machines).Namespace(machine.GetNamespace()).UpdateStatus(ctx, machine, metav1.UpdateOptions{})
	if err != nil {
		return fmt.Errorf("status of Machine %s/%s: %w", machine.GetNamespace(), machine.GetName(), err)
	}
	machine.Object = written.Object
	return nil
}
