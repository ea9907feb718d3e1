package hosted

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// MetalLBConfig says where MetalLB is to run: for a hosted cluster or the management cluster.
type MetalLBConfig struct {
	// API is the cluster's control plane. The speaker's host must reach it.
	API *controlplane.ControlPlane
	// Folder of kubeconfigs and logs, which must be there.
	Folder string
	// Namespace of MetalLB and its pools. It is made.
	Namespace string
	// Node that the speaker is for. It announces VIPs on all interfaces of Host, which is where kube-proxy must be, too.
	Node string
	// Host of the speaker.
	Host stack.Host
	// Announce: there is a speaker. It sends ARP on every interface that it finds, so its host must be a network namespace of the
	// test's own.
	Announce bool
	// LoadBalancerClass: none but the Services of that class are served, and with an empty one none but those without.
	LoadBalancerClass string
}

// MetalLB is MetalLB of one cluster.
type MetalLB struct {
	// Controller gives VIPs to Services. It is on the host of this process.
	Controller *controlplane.Part
	// Speaker answers ARP for them. Nil unless there is one.
	Speaker *controlplane.Part
}

// NewMetalLB installs MetalLB's definitions, its roles and ServiceAccounts, and starts nothing.
func NewMetalLB(ctx context.Context, c MetalLBConfig) (*MetalLB, error) {
	folder, err := stack.MetalLB()
	if err != nil {
		return nil, err
	}
	if err := InstallMetalLBDefinitions(ctx, c.API); err != nil {
		return nil, err
	}
	if err := c.rights(ctx, filepath.Join(folder, "rbac")); err != nil {
		return nil, err
	}
	if c.Announce {
		if err := c.endpointSlices(ctx); err != nil {
			return nil, err
		}
	}
	ports, err := controlplane.FreePorts(3)
	if err != nil {
		return nil, err
	}
	m := &MetalLB{}
	for i, part := range []struct {
		name string
		host stack.Host
		put  **controlplane.Part
		args []string
	}{
		{"controller", "", &m.Controller, []string{"--webhook-mode=disabled"}},
		{"speaker", c.Host, &m.Speaker, []string{
			"--node-name=" + c.Node, "--host=127.0.0.1",
			// A speaker announces nothing without a memberlist. It finds no Pods to join, and so is alone.
			"--ml-bindaddr=127.0.0.1", "--ml-bindport=" + ports[2], "--ml-labels=component=speaker",
		}},
	} {
		if part.name == "speaker" && !c.Announce {
			continue
		}
		kubeconfig, err := c.API.ServiceAccountKubeconfig(ctx, c.Namespace, part.name)
		if err != nil {
			return nil, err
		}
		*part.put = controlplane.NewPart(part.host, c.Folder, "metallb-"+part.name, "http://127.0.0.1:"+ports[i]+"/metrics", append([]string{
			filepath.Join(folder, part.name), "--kubeconfig=" + kubeconfig, "--namespace=" + c.Namespace, "--log-level=info",
			"--port=" + ports[i], "--lb-class=" + c.LoadBalancerClass,
		}, part.args...)...)
	}
	return m, nil
}

// endpointSlices waits for that of the API server itself: without it, a speaker that starts takes the cluster for one that has none, and
// finds no ready endpoint of any Service.
func (c MetalLBConfig) endpointSlices(ctx context.Context) error {
	slices := c.API.Dynamic.Resource(schema.GroupVersionResource{Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"})
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return stack.Until(ctx, "EndpointSlice default/kubernetes", func(ctx context.Context) error {
		_, err := slices.Namespace("default").Get(ctx, "kubernetes", metav1.GetOptions{})
		return err
	})
}

// InstallMetalLBDefinitions installs MetalLB's own definitions and waits until they are served. NewMetalLB does it as well.
func InstallMetalLBDefinitions(ctx context.Context, api *controlplane.ControlPlane) error {
	folder, err := stack.MetalLB()
	if err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(folder, "definitions", "*.yaml"))
	if err != nil {
		return err
	}
	var manifests [][]byte
	for _, file := range files {
		manifest, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		manifests = append(manifests, manifest)
	}
	return api.InstallDefinitions(ctx, manifests...)
}

// rights installs the namespace, and MetalLB's roles and ServiceAccounts in it, as its kustomization does.
func (c MetalLBConfig) rights(ctx context.Context, folder string) error {
	manifests := fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", c.Namespace)
	for _, file := range []string{"service-accounts.yaml", "role.yaml"} {
		text, err := os.ReadFile(filepath.Join(folder, file))
		if err != nil {
			return err
		}
		manifests = append(append(manifests, "---\n"...), text...)
	}
	objects, err := controlplane.Decode(manifests)
	if err != nil {
		return err
	}
	for _, object := range objects {
		switch object.GetKind() {
		case "Namespace", "ClusterRole", "ClusterRoleBinding":
		default:
			object.SetNamespace(c.Namespace)
		}
		if subjects, found, _ := unstructured.NestedSlice(object.Object, "subjects"); found {
			for _, s := range subjects {
				if subject, ok := s.(map[string]any); ok {
					subject["namespace"] = c.Namespace
				}
			}
			if err := unstructured.SetNestedSlice(object.Object, subjects, "subjects"); err != nil {
				return err
			}
		}
		if _, err := c.API.ApplyObject(ctx, "metallb", object); err != nil {
			return fmt.Errorf("%s %s of MetalLB: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// parts are the controller and, where there is one, the speaker.
func (m *MetalLB) parts() []*controlplane.Part {
	if m.Speaker == nil {
		return []*controlplane.Part{m.Controller}
	}
	return []*controlplane.Part{m.Controller, m.Speaker}
}

// Start starts all and waits until they run. They may not have read the cluster's objects yet.
func (m *MetalLB) Start(ctx context.Context) error {
	for _, part := range m.parts() {
		if err := part.Start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// Stop asks all to end.
func (m *MetalLB) Stop() error {
	var errs []error
	for _, part := range m.parts() {
		errs = append(errs, part.Stop())
	}
	return errors.Join(errs...)
}

// Kill ends all at once.
func (m *MetalLB) Kill() error {
	var errs []error
	for _, part := range m.parts() {
		errs = append(errs, part.Kill())
	}
	return errors.Join(errs...)
}

// Tails are the last lines of the logs.
func (m *MetalLB) Tails(lines int) string {
	var tails strings.Builder
	for _, part := range m.parts() {
		fmt.Fprintf(&tails, "the end of %s's log:\n%s\n", part.Name(), part.Tail(lines))
	}
	return tails.String()
}

// Pool is the manifests of an IPAddressPool that gives addresses to none but those who name it, and of the L2Advertisement that
// announces them. Without interfaces they are announced on all.
func Pool(namespace, name string, first, last netip.Addr, interfaces ...string) []byte {
	manifests := fmt.Appendf(nil, `apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: %[2]s, namespace: %[1]s}
spec: {addresses: ["%[3]s-%[4]s"], autoAssign: false}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: advertise-%[2]s, namespace: %[1]s}
spec:
  ipAddressPools: [%[2]s]
`, namespace, name, first, last)
	if len(interfaces) > 0 {
		manifests = fmt.Appendf(manifests, "  interfaces: [%s]\n", strings.Join(interfaces, ", "))
	}
	return manifests
}
