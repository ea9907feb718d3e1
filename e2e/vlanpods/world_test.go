package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
	"github.com/densityops/oooi/examples"
)

// What the example says, and where the world around it is.
const (
	namespace = "clusters"
	infra     = "tenant-vlan100"
	pods      = "app.kubernetes.io/component=vlan,hostedcluster.densityops.com/infra=" + infra
	holding   = pods + ",hostedcluster.densityops.com/holder=true"
	bridge    = "br0.100"
	upstream  = "198.51.100.53"

	addressDHCP, addressDNS, addressProxy = "192.0.2.2", "192.0.2.3", "192.0.2.4"
	workerA, workerB, stranger            = "192.0.2.117", "192.0.2.118", "192.0.2.119"
	clusterA, clusterB                    = "example-hcp-a", "example-hcp-b"

	oooiName  = "oooi:latest"
	envoyName = "envoyproxy/envoy:distroless-v1.40.0"
)

// backends are where the first of the TLS servers of each cluster is, its API server; backendA is that of cluster A.
var (
	backends = [2]netip.Addr{netip.MustParseAddr("10.200.1.1"), netip.MustParseAddr("10.200.2.1")}
	backendA = netip.AddrPortFrom(backends[0], 6443)
)

// world is a management cluster of two nodes with a VLAN, and oooi installed by its manifests.
type world struct {
	*controlplane.ControlPlane
	site     *stack.Site
	lab      *netlab.Lab
	network  *kubelet.Network
	nodes    *kubelet.Kubelet
	upstream *stack.Upstream
	images   struct{ oooi, envoy kubelet.Image }

	// pace is how often services are asked while something is done to them. A handshake costs both of its ends, which are in this
	// process, more with the race detector than without.
	pace time.Duration

	// Machines on the VLAN, without addresses at first. The workers have those of the example's Machines when they have booted.
	workerA, workerB, stranger, prober stack.Host
}

// newWorld sets everything up but the Infra. What it returns can be stopped, also with an error.
func newWorld(ctx context.Context) (*world, error) {
	w := &world{pace: 100 * time.Millisecond}
	for _, step := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"the network", w.startNetwork},
		{"the control plane", w.startControlPlane},
		{"the neighbours", w.startNeighbours},
		{"the nodes", w.startNodes},
		{"oooi's manifests", w.install},
	} {
		if err := step.do(ctx); err != nil {
			return w, fmt.Errorf("%s: %w", step.what, err)
		}
	}
	return w, nil
}

// startNetwork starts the network, the machines on the VLAN and the upstream DNS server.
func (w *world) startNetwork(context.Context) error {
	var err error
	if w.network, err = kubelet.NewNetwork(); err != nil {
		return err
	}
	if w.site, err = stack.NewSite(); err != nil {
		return err
	}
	w.lab = &netlab.Lab{Site: w.site}
	for i, machine := range []struct {
		name string
		host *stack.Host
	}{{"worker-a", &w.workerA}, {"worker-b", &w.workerB}, {"stranger", &w.stranger}, {"prober", &w.prober}} {
		if *machine.host, err = w.network.Worker(machine.name, bridge, fmt.Sprintf("52:54:00:00:02:%02x", 10+i)); err != nil {
			return err
		}
	}
	if err := w.network.Outside(netip.MustParseAddr(upstream)); err != nil {
		return err
	}
	w.upstream, err = w.site.StartUpstream("", upstream+":53")
	return err
}

func (w *world) startControlPlane(ctx context.Context) error {
	var err error
	w.ControlPlane, err = controlplane.StartWith(ctx, w.site.Folder, controlplane.Options{
		Nodes: true, Node: "node-1", Address: kubelet.NodeAddress.String(),
		PodCIDR: kubelet.PodCIDR.String(), ServiceCIDR: kubelet.ServiceCIDR.String(),
	})
	return err
}

// startNeighbours makes what HyperShift, Cluster API and Multus bring: definitions, two hosted clusters with their Services,
// and TLS servers behind these.
func (w *world) startNeighbours(ctx context.Context) error {
	if err := w.InstallNeighbours(ctx, append(controlplane.Neighbours(), controlplane.AttachmentDefinitions)...); err != nil {
		return err
	}
	for _, part := range []*controlplane.Part{w.ControllerManager, w.Scheduler} {
		if err := part.Start(ctx); err != nil {
			return err
		}
	}
	documents, err := neighbours()
	if err != nil {
		return err
	}
	for _, document := range documents {
		if err := w.ApplyWithStatus(ctx, "neighbours", []byte(document)); err != nil {
			return err
		}
	}
	for i, cluster := range []string{clusterA, clusterB} {
		if err := w.startBackends(ctx, cluster, backends[i]); err != nil {
			return err
		}
	}
	return nil
}

// neighbours are the manifests of what HyperShift and Cluster API bring.
func neighbours() ([]string, error) {
	text, err := examples.TwoClusters.ReadFile("two-clusters/neighbours.yaml")
	return slices.DeleteFunc(strings.Split(string(text), "\n---\n"), func(document string) bool {
		// That Service is the hub's to make.
		return strings.Contains(document, "kind: Service\n") && strings.Contains(document, "name: tenant-vlan100-proxy\n")
	}), err
}

// startBackends starts the TLS servers of a hosted cluster where its pods would be, at four addresses from first on, and makes
// them the endpoints of its Services.
func (w *world) startBackends(ctx context.Context, cluster string, first netip.Addr) error {
	services := stack.Services(first)
	for i, s := range services {
		port := s.Address.Port()
		if s.Name == "ignition-server-proxy" {
			port = 8443
		}
		services[i].Address = netip.AddrPortFrom(s.Address.Addr(), port)
		if err := w.network.Outside(s.Address.Addr()); err != nil {
			return err
		}
		if _, err := w.Apply(ctx, "neighbours", endpoint(cluster, s.Name, netip.AddrPortFrom(s.Address.Addr(), port))); err != nil {
			return err
		}
	}
	return w.site.StartControlPlane("", cluster, services)
}

// endpoint is the manifest of the one endpoint of a Service of a control plane.
func endpoint(cluster, service string, at netip.AddrPort) []byte {
	return fmt.Appendf(nil, `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: %[1]s-1
  namespace: clusters-%[2]s
  labels: {kubernetes.io/service-name: %[1]s}
addressType: IPv4
ports: [{name: "", port: %[3]d, protocol: TCP}]
endpoints: [{addresses: ["%[4]s"], conditions: {ready: true}}]
`, service, cluster, at.Port(), at.Addr())
}

func (w *world) startNodes(ctx context.Context) error {
	var err error
	if w.images.oooi, err = oooiImage(); err != nil {
		return err
	}
	if w.images.envoy, err = envoyImage(); err != nil {
		return err
	}
	if w.nodes, err = kubelet.Start(ctx, kubelet.Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		API: w.AdminConfig(), Network: w.network, Nodes: []string{"node-1", "node-2"}, Folder: w.site.Folder,
		Labels: map[string]string{"example.com/vlan100": "true"}, Resolver: netip.MustParseAddr(upstream),
		Images: map[string]kubelet.Image{oooiName: w.images.oooi, envoyName: w.images.envoy},
	}); err != nil {
		return err
	}
	return w.Proxy.Start(ctx)
}

// install does what the README says: `kubectl apply -k deploy`.
func (w *world) install(ctx context.Context) error {
	manifests, err := kustomize(ctx, "deploy")
	if err != nil {
		return err
	}
	if _, err := w.Apply(ctx, "kubectl", manifests); err != nil {
		return err
	}
	return w.available(ctx, "oooi-system", "oooi")
}

// available waits until all replicas of a Deployment are available, and none is an older one.
func (w *world) available(ctx context.Context, namespace, name string) error {
	client := w.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(namespace)
	return stack.Until(ctx, "Deployment "+namespace+"/"+name, func(ctx context.Context) error {
		object, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
			return err
		}
		s := d.Status
		if want := *d.Spec.Replicas; s.ObservedGeneration != d.Generation || s.Replicas != want || s.UpdatedReplicas != want || s.AvailableReplicas != want {
			return fmt.Errorf("of %d replicas there are %d, %d of them updated, %d available", want, s.Replicas, s.UpdatedReplicas, s.AvailableReplicas)
		}
		return nil
	})
}

// stop ends everything.
func (w *world) stop() error {
	var errs []error
	if w.nodes != nil {
		errs = append(errs, w.nodes.Stop())
	}
	if w.ControlPlane != nil {
		errs = append(errs, w.Stop()) // of the control plane
	}
	if w.site != nil {
		errs = append(errs, w.site.Stop())
	}
	return errors.Join(errs...)
}

// tails are the last lines of all logs.
func (w *world) tails() string {
	var tails strings.Builder
	if w.ControlPlane != nil {
		tails.WriteString(w.Tails(10))
	}
	if w.nodes != nil {
		tails.WriteString(w.nodes.Tails(30))
	}
	return tails.String()
}

// conditions are those of an object, one a line.
func conditions(object *unstructured.Unstructured) string {
	list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
	var lines []string
	for _, c := range list {
		if c, ok := c.(map[string]any); ok {
			lines = append(lines, fmt.Sprintf("%v=%v %v: %v", c["type"], c["status"], c["reason"], c["message"]))
		}
	}
	return strings.Join(lines, "\n")
}
