package hosted_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/stack"
)

// TestManagementCluster has MetalLB of the management cluster announce VIPs on a network of the nodes that is no VLAN.
func TestManagementCluster(t *testing.T) {
	folder := filepath.Join(site.Folder, "management")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	c, err := controlplane.StartWith(t.Context(), folder, controlplane.Options{
		Nodes: true, Node: "node-1", Address: kubelet.NodeAddress.String(), PodCIDR: kubelet.PodCIDR.String(), ServiceCIDR: kubelet.ServiceCIDR.String(),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Tails(20))
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	backend := netip.MustParseAddr("10.200.9.1")
	if err := network.Outside(backend); err != nil {
		t.Fatal(err)
	}
	if err := site.StartControlPlane("", "example-hcp-c", stack.Services(backend)[:1]); err != nil {
		t.Fatal(err)
	}
	if err := network.Join("public0", "public", netip.MustParsePrefix("198.51.100.2/24")); err != nil {
		t.Fatal(err)
	}
	outsider, err := network.Worker("outsider", "public", "52:54:00:00:04:0b")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := network.Remove(outsider); err != nil {
			t.Error(err)
		}
	})
	if err := network.Address(outsider, "vlan0", netip.MustParsePrefix("198.51.100.9/24")); err != nil {
		t.Fatal(err)
	}

	if _, err := c.Apply(t.Context(), "kubelet", []byte(`apiVersion: v1
kind: Node
metadata: {name: node-1}
`)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.ApplyStatus(t.Context(), "kubelet", fmt.Appendf(nil, `apiVersion: v1
kind: Node
metadata: {name: node-1}
status: {addresses: [{type: InternalIP, address: %s}]}
`, kubelet.NodeAddress)); err != nil {
		t.Fatal(err)
	}
	if err := c.Proxy.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	metallb, err := hosted.NewMetalLB(t.Context(), hosted.MetalLBConfig{API: c, Folder: folder, Namespace: "metallb", Node: "node-1", Announce: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(metallb.Tails(20))
		}
		if err := metallb.Kill(); err != nil {
			t.Error(err)
		}
	})
	if err := metallb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	vip := netip.MustParseAddr("198.51.100.200")
	if _, err := c.Apply(t.Context(), "a-person", append(hosted.Pool("metallb", "public", vip, vip, "public0"), fmt.Appendf(nil, `---
apiVersion: v1
kind: Service
metadata:
  name: public
  namespace: default
  annotations: {metallb.universe.tf/address-pool: public}
spec:
  type: LoadBalancer
  ports: [{name: https, port: 443, targetPort: 6443}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: public-1
  namespace: default
  labels: {kubernetes.io/service-name: public}
addressType: IPv4
ports: [{name: https, port: 6443, protocol: TCP}]
endpoints: [{addresses: [%q], conditions: {ready: true}}]
`, backend)...)); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the VIP", func(ctx context.Context) error {
		answer, err := (stack.Call{Host: outsider, To: netip.AddrPortFrom(vip, 443), SNI: "api.example.org"}).Try(ctx, site.CA)
		if want := (stack.Answer{Cluster: "example-hcp-c", Service: "kube-apiserver"}); err == nil && answer != want {
			err = fmt.Errorf("%s answers, want %s", answer, want)
		}
		return err
	})
}
