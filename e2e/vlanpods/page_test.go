package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// TestPage is the whole way: the manifests, two workers that boot by DHCP, ask for names, and reach their own API server by name,
// by alias and without a server name.
func TestPage(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	for _, worker := range []struct {
		host             stack.Host
		address, cluster string
		client           netlab.Client
	}{{w.workerA, workerA, clusterA, netlab.Udhcpc}, {w.workerB, workerB, clusterB, netlab.Dhclient}} {
		lease := w.boot(t, worker.host, worker.client, worker.address)
		if lease.Address != worker.address || lease.DNS != addressDNS || lease.Router != "192.0.2.1" || lease.Server != addressDHCP {
			t.Errorf("%s has the lease %+v", worker.host, lease)
		}
		for name, want := range map[string]string{
			"api." + domain(worker.cluster):          addressProxy,
			"kubernetes.default.svc":                 addressProxy,
			"example.org":                            stack.UpstreamAnswer,
			"unknown." + domain(worker.cluster):      stack.UpstreamAnswer,
			"konnectivity." + domain(worker.cluster): addressProxy,
		} {
			eventually(t, fmt.Sprintf("%s for %s", name, worker.host), func(ctx context.Context) error {
				if got, err := lookup(ctx, worker.host, addressDNS, name); err != nil || got != want {
					return errors.Join(fmt.Errorf("got %s, want %s", got, want), err)
				}
				return nil
			})
		}
		for _, call := range []struct {
			port      uint16
			sni, want string
		}{
			{443, "api." + domain(worker.cluster), "kube-apiserver"},
			{6443, "api-int." + domain(worker.cluster), "kube-apiserver"},
			{443, "oauth." + domain(worker.cluster), "oauth-openshift"},
			{443, "ignition." + domain(worker.cluster), "ignition-server-proxy"},
			{443, "konnectivity." + domain(worker.cluster), "konnectivity-server"},
			{6443, "kubernetes.default.svc", "kube-apiserver"},
			{6443, "", "kube-apiserver"},
			{443, "", "kube-apiserver"},
		} {
			eventually(t, fmt.Sprintf("%q on %d from %s", call.sni, call.port, worker.host), func(ctx context.Context) error {
				got, err := w.call(ctx, worker.host, call.port, call.sni)
				if want := worker.cluster + "/" + call.want; err != nil || got != want {
					return errors.Join(fmt.Errorf("got %s, want %s", got, want), err)
				}
				return nil
			})
		}
	}
	// From the pod network the names lead to the ClusterIP in front of the holder. Aliases are nobody's there.
	dnsService, err := w.clusterIP(t.Context(), v1alpha1.DNSServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	proxyService, err := w.clusterIP(t.Context(), v1alpha1.ProxyServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"api." + domain(clusterA): proxyService.String(),
		"api." + domain(clusterB): proxyService.String(),
		"kubernetes.default.svc":  stack.UpstreamAnswer,
		"example.org":             stack.UpstreamAnswer,
	} {
		eventually(t, name+" for pods", func(ctx context.Context) error {
			if got, err := lookup(ctx, "", dnsService.String(), name); err != nil || got != want {
				return errors.Join(fmt.Errorf("got %s, want %s", got, want), err)
			}
			return nil
		})
	}
	for _, call := range []struct{ sni, want string }{
		{"api." + domain(clusterA), clusterA + "/kube-apiserver"},
		{"oauth." + domain(clusterB), clusterB + "/oauth-openshift"},
		{"", "closed"},
		{"kubernetes", "closed"},
	} {
		eventually(t, fmt.Sprintf("%q from the pod network", call.sni), func(ctx context.Context) error {
			if got, err := w.callAt(ctx, "", proxyService.String(), 443, call.sni); err != nil || got != call.want {
				return errors.Join(fmt.Errorf("got %s, want %s", got, call.want), err)
			}
			return nil
		})
	}
}

// clusterIP of a Service in the example's namespace.
func (w *world) clusterIP(ctx context.Context, name string) (netip.Addr, error) {
	service, err := w.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return netip.Addr{}, err
	}
	text, _, err := unstructured.NestedString(service.Object, "spec", "clusterIP")
	if err != nil {
		return netip.Addr{}, err
	}
	address, err := netip.ParseAddr(text)
	if err != nil {
		err = fmt.Errorf("ClusterIP of Service %s: %w", name, err)
	}
	return address, err
}
