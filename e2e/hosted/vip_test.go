package hosted_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/stack"
)

var services = schema.GroupVersionResource{Version: "v1", Resource: "services"}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := stack.Until(ctx, what, condition); err != nil {
		t.Fatal(err)
	}
}

// apply applies manifests in a cluster, as a person.
func apply(t testing.TB, c *hosted.Cluster, manifests string) {
	t.Helper()
	if _, err := c.Apply(t.Context(), "a-person", []byte(manifests)); err != nil {
		t.Fatal(err)
	}
}

// ingress is a LoadBalancer Service of the router with a VIP of a pool.
func ingress(name, pool string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: %s
  namespace: %s
  annotations: {metallb.universe.tf/address-pool: %s}
spec:
  type: LoadBalancer
  selector: {%s: default}
  ports: [{name: http, port: 80, targetPort: http}, {name: https, port: 443, targetPort: https}]
`, name, hosted.IngressNamespace, pool, hosted.RouterLabel)
}

// remove deletes a Service of the ingress namespace.
func remove(t testing.TB, c *hosted.Cluster, name string) {
	t.Helper()
	if err := c.Dynamic.Resource(services).Namespace(hosted.IngressNamespace).Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// vip is the address that a Service of the ingress namespace has been given.
func vip(ctx context.Context, c *hosted.Cluster, name string) (netip.Addr, error) {
	object, err := c.Dynamic.Resource(services).Namespace(hosted.IngressNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	given, _, _ := unstructured.NestedSlice(object.Object, "status", "loadBalancer", "ingress")
	if len(given) != 1 {
		return netip.Addr{}, fmt.Errorf("status.loadBalancer.ingress is %v", given)
	}
	text, _, _ := unstructured.NestedString(given[0].(map[string]any), "ip")
	return netip.ParseAddr(text)
}

// awaitVIP waits for that address.
func awaitVIP(t testing.TB, c *hosted.Cluster, name string) netip.Addr {
	t.Helper()
	var address netip.Addr
	eventually(t, "a VIP of "+name, func(ctx context.Context) (err error) {
		address, err = vip(ctx, c, name)
		return err
	})
	return address
}

// owner is an error unless one machine answers ARP for an address, that one; or none does, when mac is empty.
func owner(ctx context.Context, address netip.Addr, mac string) error {
	answers, err := hosted.AskARP(ctx, client, "vlan0", address, 300*time.Millisecond)
	if err != nil {
		return err
	}
	var want []string
	if mac != "" {
		want = []string{mac}
	}
	if !slices.Equal(answers, want) {
		return fmt.Errorf("%s: ARP is answered by %v, want %v", address, answers, want)
	}
	return nil
}

// reached is an error unless the client gets to the router of a cluster at an address, by TLS and by HTTP.
func reached(ctx context.Context, c *hosted.Cluster, address netip.Addr) error {
	name := "console.apps." + c.Domain
	call := stack.Call{Host: client, To: netip.AddrPortFrom(address, 443), SNI: name}
	answer, err := call.Try(ctx, site.CA)
	if err != nil {
		return err
	}
	if want := (stack.Answer{Cluster: c.Name, Service: hosted.RouterService}); answer != want {
		return fmt.Errorf("%s over TLS: %s, want %s", name, answer, want)
	}
	_, text, err := hosted.Get(ctx, client, netip.AddrPortFrom(address, 80), name, "/health")
	if err != nil {
		return err
	}
	if want := fmt.Sprintf("cluster %s, service router, sni -, host %s, client 192.0.2.119, path /health\n", c.Name, name); text != want {
		return fmt.Errorf("%s over HTTP: %q, want %q", name, text, want)
	}
	return nil
}

// TestVIPs has the Services of two clusters, each with one address to give, on one VLAN.
func TestVIPs(t *testing.T) {
	var addresses [2]netip.Addr
	for i, c := range clusters {
		pool := netip.AddrFrom4([4]byte{192, 0, 2, byte(200 + 10*i)})
		apply(t, c, string(hosted.Pool(hosted.MetalLBNamespace, "apps", pool, pool)))
		apply(t, c, ingress("oooi-ingress", "apps"))
		t.Cleanup(func() {
			_ = c.Dynamic.Resource(services).Namespace(hosted.IngressNamespace).Delete(context.Background(), "oooi-ingress", metav1.DeleteOptions{})
		})
		addresses[i] = pool
	}
	for i, c := range clusters {
		if got := awaitVIP(t, c, "oooi-ingress"); got != addresses[i] {
			t.Errorf("%s has %s, not the one address of its pool", c.Name, got)
		}
		eventually(t, "ARP", func(ctx context.Context) error { return owner(ctx, addresses[i], macs[i]) })
		eventually(t, "the router of "+c.Name, func(ctx context.Context) error { return reached(ctx, c, addresses[i]) })
	}

	a, b := clusters[0], clusters[1]
	apply(t, a, ingress("another", "apps"))
	eventually(t, "a word about the full pool", func(ctx context.Context) error {
		events, err := a.Events(ctx, hosted.IngressNamespace)
		if err == nil && !slices.ContainsFunc(events, func(e string) bool { return strings.HasPrefix(e, "AllocationFailed: ") }) {
			err = fmt.Errorf("there is none: %q", events)
		}
		return err
	})
	if _, err := vip(t.Context(), a, "another"); err == nil {
		t.Error("there was a second address")
	}
	remove(t, a, "another")

	if err := a.SetRouter(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	eventually(t, "silence without a router", func(ctx context.Context) error { return owner(ctx, addresses[0], "") })
	if err := a.SetRouter(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the router again", func(ctx context.Context) error { return reached(ctx, a, addresses[0]) })

	remove(t, a, "oooi-ingress")
	eventually(t, "silence", func(ctx context.Context) error { return owner(ctx, addresses[0], "") })
	if err := reached(t.Context(), b, addresses[1]); err != nil {
		t.Error(err)
	}
}

// TestOutages breaks what is around a VIP.
func TestOutages(t *testing.T) {
	c := clusters[1]
	address := netip.MustParseAddr("192.0.2.220")
	apply(t, c, string(hosted.Pool(hosted.MetalLBNamespace, "outages", address, address, "vlan0")))
	apply(t, c, ingress("outages", "outages"))
	eventually(t, "the router", func(ctx context.Context) error { return reached(ctx, c, address) })

	if err := c.SetNode(t.Context(), false); err != nil {
		t.Fatal(err)
	}
	if ready, err := nodeReady(t.Context(), c); err != nil || ready != "False" {
		t.Errorf("Ready is %q (%v) of a node that is not", ready, err)
	}
	if err := c.SetNode(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if ready, err := nodeReady(t.Context(), c); err != nil || ready != "True" {
		t.Errorf("Ready is %q (%v) of a node that is", ready, err)
	}

	if err := c.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	short, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := nodeReady(short, c); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a frozen API server: %v", err)
	}
	if err := errors.Join(owner(t.Context(), address, macs[1]), reached(t.Context(), c, address)); err != nil {
		t.Error(err)
	}
	if err := c.APIServer.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the API server", func(ctx context.Context) error {
		_, err := nodeReady(ctx, c)
		return err
	})

	if err := c.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := reached(t.Context(), c, address); err != nil {
		t.Error(err)
	}
	if err := c.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}

	if err := c.MetalLB.Speaker.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "silence", func(ctx context.Context) error { return owner(ctx, address, "") })
	if err := c.MetalLB.Speaker.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, "ARP", func(ctx context.Context) error { return owner(ctx, address, macs[1]) })
	remove(t, c, "outages")
	eventually(t, "silence", func(ctx context.Context) error { return owner(ctx, address, "") })
}

// nodeReady is the status of the condition Ready of the worker's Node.
func nodeReady(ctx context.Context, c *hosted.Cluster) (string, error) {
	object, err := c.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "nodes"}).Get(ctx, c.Node(), metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	for _, condition := range conditions {
		if condition := condition.(map[string]any); condition["type"] == "Ready" {
			return condition["status"].(string), err
		}
	}
	return "", errors.New("no condition Ready")
}
