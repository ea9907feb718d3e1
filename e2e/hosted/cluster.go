package hosted

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/stack"
)

// What each hosted cluster has inside. Clusters do not see one another, so they can all have the same.
const (
	// IngressNamespace is where OpenShift's default router is.
	IngressNamespace = "openshift-ingress"
	// MetalLBNamespace is where MetalLB is, unless its operator put it elsewhere.
	MetalLBNamespace = "metallb-system"
	// APIPort is where the API server of a cluster with a network is.
	APIPort = 6443

	podCIDR     = "10.132.0.0/14"
	serviceCIDR = "172.31.0.0/16"
)

// routerAddress is the router's, on the worker.
var routerAddress = netip.MustParseAddr("10.132.0.10")

// Options of a hosted cluster.
type Options struct {
	// Name of the cluster: the first label of its domain. Its worker's namespace has it, too.
	Name string
	// BaseDomain is the rest of the domain.
	BaseDomain string
	// Folder for data and logs, which must be there. The cluster makes one of its own in it.
	Folder string
	// VLAN that the worker is on. None: there is no worker, and the API server is at a free port of 127.0.0.1.
	VLAN *VLAN
	// CA signs the router's certificate, so that a stack.Call of the same CA tells who answered.
	CA *stack.CA
}

// VLAN says how a hosted cluster is connected.
type VLAN struct {
	// Network of the nodes, the management cluster's.
	Network *kubelet.Network
	// Bridge of the VLAN.
	Bridge string
	// APIServer is the address of the API server, for this cluster alone; the port is APIPort. It is made.
	APIServer netip.Addr
	// Worker is the worker's address on the VLAN.
	Worker netip.Prefix
	// MAC is the worker's hardware address on the VLAN.
	MAC string
}

// Cluster is a running hosted cluster.
type Cluster struct {
	*controlplane.ControlPlane
	// Name and Domain of the cluster.
	Name, Domain string
	// Folder of its data and logs.
	Folder string
	// Worker is the machine of the node, on the VLAN with vlan0; the Node object has its name. Empty without a VLAN.
	Worker stack.Host
	// MetalLB, once StartMetalLB was called.
	MetalLB *MetalLB

	network *kubelet.Network
	router  *router
}

// Start starts a hosted cluster without any Node and without MetalLB, and waits until it is ready; with a VLAN, with its router, whose Pod
// is ready.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	c := &Cluster{Name: o.Name, Domain: o.Name + "." + o.BaseDomain}
	if err := c.start(ctx, o); err != nil {
		err = fmt.Errorf("hosted cluster %s: %w", o.Name, err)
		if tails := c.Tails(10); tails != "" {
			err = fmt.Errorf("%w\n%s", err, tails)
		}
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, o Options) error {
	var err error
	if c.Folder, err = os.MkdirTemp(o.Folder, "hosted-"+o.Name+"-"); err != nil {
		return err
	}
	options := controlplane.Options{
		Names:   []string{"api." + c.Domain, "kubernetes", "kubernetes.default"},
		PodCIDR: podCIDR, ServiceCIDR: serviceCIDR,
		// Each costs something, and these are what is looked at.
		Controllers: []string{"garbage-collector-controller", "namespace-controller", "endpointslice-controller"},
	}
	if o.VLAN != nil {
		c.network = o.VLAN.Network
		if err := c.network.Outside(o.VLAN.APIServer); err != nil {
			return err
		}
		options.Address, options.Port = o.VLAN.APIServer.String(), APIPort
		name := stack.Host("worker-" + o.Name)
		if err := c.plug(name, o.VLAN); err != nil {
			return err
		}
		options.Node, options.ProxyHost = string(name), name
		options.Flags = []string{"--endpoint-reconciler-type=lease"} // a speaker wants the Service "kubernetes" to have an endpoint
	}
	if c.ControlPlane, err = controlplane.StartWith(ctx, c.Folder, options); err != nil {
		return err
	}
	if err := c.ControllerManager.Start(ctx); err != nil {
		return err
	}
	for _, namespace := range []string{IngressNamespace, MetalLBNamespace} {
		if err := c.namespace(ctx, namespace); err != nil {
			return err
		}
	}
	if o.VLAN == nil {
		return nil
	}
	if err := c.startRouter(ctx, o.CA); err != nil {
		return fmt.Errorf("router: %w", err)
	}
	return nil
}

// plug makes the worker: on the VLAN, on the pod network, and at the router's address.
func (c *Cluster) plug(name stack.Host, vlan *VLAN) error {
	worker, err := vlan.Network.Worker(string(name), vlan.Bridge, vlan.MAC)
	if err != nil {
		return err
	}
	c.Worker = worker
	if err := vlan.Network.Address(worker, "vlan0", vlan.Worker); err != nil {
		return err
	}
	if _, err := vlan.Network.Uplink(worker); err != nil {
		return err
	}
	return vlan.Network.Address(worker, "lo", netip.PrefixFrom(routerAddress, 32))
}

// StartMetalLB installs and starts MetalLB in the namespace MetalLBNamespace, its speaker on the worker.
func (c *Cluster) StartMetalLB(ctx context.Context, loadBalancerClass string) error {
	m, err := NewMetalLB(ctx, MetalLBConfig{
		API: c.ControlPlane, Folder: c.Folder, Namespace: MetalLBNamespace, Node: c.Node(), Host: c.Worker, Announce: c.Worker != "",
		LoadBalancerClass: loadBalancerClass,
	})
	if err != nil {
		return err
	}
	c.MetalLB = m
	return m.Start(ctx)
}

// Node is the name of the worker's Node.
func (c *Cluster) Node() string {
	if c.Worker == "" {
		return "worker-" + c.Name
	}
	return string(c.Worker)
}

// Kubeconfig is that of the cluster's administrator as HyperShift writes it: its server is https://api.<domain> at the port by which
// workers reach it, 443 or 6443. Dial whatever leads to the API server.
func (c *Cluster) Kubeconfig(ctx context.Context, port int, credentials controlplane.Credentials) ([]byte, error) {
	account := []string{}
	if credentials == controlplane.BearerToken {
		if err := c.administrator(ctx); err != nil {
			return nil, err
		}
		account = []string{"default", "administrator"}
	}
	return c.KubeconfigFor(ctx, fmt.Sprintf("https://api.%s:%d", c.Domain, port), credentials, account...)
}

// administrator makes a ServiceAccount that may do everything.
func (c *Cluster) administrator(ctx context.Context) error {
	_, err := c.Apply(ctx, "e2e-hosted", []byte(`apiVersion: v1
kind: ServiceAccount
metadata: {name: administrator, namespace: default}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: e2e-administrator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: administrator, namespace: default}]
`))
	return err
}

func (c *Cluster) namespace(ctx context.Context, name string) error {
	_, err := c.Apply(ctx, "e2e-hosted", fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", name))
	return err
}

// Stop ends everything at once. The folder stays.
func (c *Cluster) Stop() error {
	var errs []error
	if c.MetalLB != nil {
		errs = append(errs, c.MetalLB.Kill())
	}
	if c.router != nil {
		errs = append(errs, c.router.stop())
	}
	if c.ControlPlane != nil {
		errs = append(errs, c.ControlPlane.Stop())
	}
	if c.Worker != "" {
		errs = append(errs, c.network.Remove(c.Worker))
		c.Worker = ""
	}
	return errors.Join(errs...)
}

// Tails are the last lines of each part's log.
func (c *Cluster) Tails(lines int) string {
	var tails strings.Builder
	if c.ControlPlane != nil {
		tails.WriteString(c.ControlPlane.Tails(lines))
	}
	if c.MetalLB != nil {
		tails.WriteString(c.MetalLB.Tails(lines))
	}
	if tails.Len() == 0 {
		return ""
	}
	return "hosted cluster " + c.Name + ":\n" + tails.String()
}
