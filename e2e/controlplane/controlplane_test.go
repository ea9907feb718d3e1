package controlplane

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/densityops/oooi/e2e/stack"
	"github.com/densityops/oooi/examples"
)

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

// until waits for a condition for as long as a busy machine may need.
func until(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	if err := stack.Until(ctx, what, condition); err != nil {
		t.Fatal(err)
	}
}

// clientOf is a client from a kubeconfig file. Its connections end with the test.
func clientOf(t *testing.T, kubeconfig string) dynamic.Interface {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

const neighbour = `
apiVersion: v1
kind: Namespace
metadata: {name: clusters}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: clusters}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: reader, namespace: clusters}
rules:
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: clusters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: reader}
subjects: [{kind: ServiceAccount, name: reader}]
---
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: worker-0, namespace: clusters}
spec:
  clusterName: a
  bootstrap: {dataSecretName: worker-0}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KubevirtMachine, name: worker-0}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, namespace: clusters}
data: {a: b}
`

const machineStatus = `
apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata: {name: worker-0, namespace: clusters}
status:
  addresses: [{type: InternalIP, address: 192.0.2.101}]
`

// TestControlPlane holds the harness to what other tests build on.
func TestControlPlane(t *testing.T) {
	t.Parallel()
	c := ForTest(t)
	if err := errors.Join(c.InstallOwn(t.Context()), c.InstallNeighbours(t.Context())); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Apply(t.Context(), "test", []byte(neighbour)); err != nil {
		t.Fatal(err)
	}

	t.Run("unknown fields are refused", func(t *testing.T) {
		_, err := c.Apply(t.Context(), "test", []byte("{apiVersion: v1, kind: ConfigMap, metadata: {name: odd}, dta: {a: b}}"))
		if err == nil || !strings.Contains(err.Error(), "dta") {
			t.Errorf("got %v", err)
		}
	})

	t.Run("status", func(t *testing.T) {
		machines, err := c.ApplyStatus(t.Context(), "capi", []byte(machineStatus))
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(machines[0].Object["status"]); !strings.Contains(got, "192.0.2.101") {
			t.Errorf("status is %s", got)
		}
	})

	t.Run("roles count, and the audit log tells", func(t *testing.T) {
		mark, err := c.Mark()
		if err != nil {
			t.Fatal(err)
		}
		kubeconfig, err := c.ServiceAccountKubeconfig(t.Context(), "clusters", "reader")
		if err != nil {
			t.Fatal(err)
		}
		maps := clientOf(t, kubeconfig).Resource(configMaps).Namespace("clusters")
		settings, err := maps.Get(t.Context(), "settings", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Update(t.Context(), settings, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a reader's update: %v", err)
		}
		until(t, "two requests in the audit log", func(context.Context) error {
			requests, err := c.Requests(mark)
			if err != nil {
				return err
			}
			var got []string
			for _, r := range requests {
				if r.User == "system:serviceaccount:clusters:reader" {
					got = append(got, fmt.Sprint(r.Verb, " ", r.Resource, " ", r.Name, " ", r.Code, " ", r.Write()))
				}
			}
			if want := []string{"get configmaps settings 200 false", "update configmaps settings 403 true"}; !slices.Equal(got, want) {
				return fmt.Errorf("got %q, want %q", got, want)
			}
			return nil
		})
	})

	t.Run("objects outlive a killed API server", func(t *testing.T) {
		kubeconfig, err := c.AdminKubeconfig()
		if err != nil {
			t.Fatal(err)
		}
		maps := clientOf(t, kubeconfig).Resource(configMaps).Namespace("clusters")
		if err := c.APIServer.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := maps.Get(t.Context(), "settings", metav1.GetOptions{}); err == nil {
			t.Error("a killed API server answers")
		}
		if err := c.Etcd.Kill(); err != nil {
			t.Fatal(err)
		}
		for _, part := range []*Part{c.Etcd, c.APIServer} {
			if err := part.Start(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := maps.Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
	})

	t.Run("garbage goes with its owner", func(t *testing.T) {
		if err := c.ControllerManager.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		infras, err := c.Apply(t.Context(), "test", []byte(bareInfra))
		if err != nil {
			t.Fatal(err)
		}
		owned := fmt.Sprintf(`
apiVersion: v1
kind: ConfigMap
metadata:
  name: owned
  namespace: clusters
  ownerReferences: [{apiVersion: hostedcluster.densityops.com/v1alpha1, kind: Infra, name: bare, uid: %s}]
`, infras[0].GetUID())
		if _, err := c.Apply(t.Context(), "test", []byte(owned)); err != nil {
			t.Fatal(err)
		}
		client, err := c.Resource(infras[0])
		if err != nil {
			t.Fatal(err)
		}
		if err := client.Delete(t.Context(), "bare", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		until(t, "the end of the owned object", func(ctx context.Context) error {
			_, err := c.Dynamic.Resource(configMaps).Namespace("clusters").Get(ctx, "owned", metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(err, errors.New("it is still there"))
		})
	})

	t.Run("the example's neighbours", func(t *testing.T) {
		example, err := examples.TwoClusters.ReadFile("two-clusters/neighbours.yaml")
		if err != nil {
			t.Fatal(err)
		}
		c.neighboursApply(t, example)
	})

	t.Run("definitions come and go", func(t *testing.T) {
		if err := c.RemoveDefinition(t.Context(), "virtualmachineinstances.kubevirt.io"); err != nil {
			t.Fatal(err)
		}
		const vmi = "{apiVersion: kubevirt.io/v1, kind: VirtualMachineInstance, metadata: {name: a, namespace: clusters}}"
		if _, err := c.Apply(t.Context(), "test", []byte(vmi)); err == nil {
			t.Error("an object of a kind that was removed is accepted")
		}
		if err := c.InstallNeighbours(t.Context(), "kubevirt.io_virtualmachineinstances"); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Apply(t.Context(), "test", []byte(vmi)); err != nil {
			t.Error(err)
		}
	})
}

// TestOwnNeighbours takes this package's own definitions, which a checkout alone has, and the example's objects.
func TestOwnNeighbours(t *testing.T) {
	t.Parallel()
	c := ForTest(t)
	for _, name := range Neighbours() {
		raw, err := neighbours.ReadFile("neighbours/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		if err := c.InstallDefinitions(t.Context(), raw); err != nil {
			t.Fatal(err)
		}
	}
	example, err := examples.TwoClusters.ReadFile("two-clusters/neighbours.yaml")
	if err != nil {
		t.Fatal(err)
	}
	c.neighboursApply(t, example)
}

// neighboursApply puts the example's neighbours there and looks for what oooi reads of them.
func (c *ControlPlane) neighboursApply(t *testing.T, example []byte) {
	t.Helper()
	if err := c.ApplyWithStatus(t.Context(), "their-controllers", example); err != nil {
		t.Fatal(err)
	}
	for _, version := range []string{"v1beta1", "v1beta2"} {
		machines, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: version, Resource: "machines"}).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, machine := range machines.Items {
			if addresses, _, _ := unstructured.NestedSlice(machine.Object, "status", "addresses"); len(addresses) == 0 {
				t.Errorf("%s Machine %s shows no address", version, machine.GetName())
			}
		}
	}
	clusters, err := c.Dynamic.Resource(schema.GroupVersionResource{Group: "hypershift.openshift.io", Version: "v1beta1", Resource: "hostedclusters"}).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, cluster := range clusters.Items {
		if host, _, _ := unstructured.NestedString(cluster.Object, "status", "controlPlaneEndpoint", "host"); host == "" {
			t.Errorf("HostedCluster %s has no endpoint", cluster.GetName())
		}
	}
}

const bareInfra = `
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: bare, namespace: clusters}
spec:
  networkConfig: {cidr: 192.0.2.0/24, gateway: 192.0.2.1, networkAttachmentDefinition: vlan100}
  infraComponents:
    dhcp: {enabled: false}
    dns: {enabled: false}
    proxy: {serverIP: 192.0.2.4}
`
