package hosted_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/miekg/dns"

	"github.com/densityops/oooi/e2e/hosted"
)

// TestExternalDNS publishes the name of a Service at its VIP, follows the VIP, and takes the name away.
func TestExternalDNS(t *testing.T) {
	c := clusters[0]
	server, err := hosted.StartNameServer(t.Context(), "", site.Folder, "example.org", netip.MustParseAddrPort("127.0.0.53:53"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(server.Tail(20))
		}
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
	})
	kubeconfig, err := c.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	publisher, err := hosted.ExternalDNS("external-dns", site.Folder, kubeconfig, server, "--namespace="+hosted.IngressNamespace)
	if err != nil {
		t.Fatal(err)
	}
	if err := publisher.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(publisher.Tail(20))
		}
		if err := publisher.Kill(); err != nil {
			t.Error(err)
		}
	})

	first, second := netip.MustParseAddr("192.0.2.230"), netip.MustParseAddr("192.0.2.231")
	apply(t, c, string(hosted.Pool(hosted.MetalLBNamespace, "public", first, second)))
	public := func(address netip.Addr) string {
		return fmt.Sprintf(`apiVersion: v1
kind: Service
metadata:
  name: public
  namespace: %s
  annotations:
    metallb.universe.tf/address-pool: public
    metallb.universe.tf/loadBalancerIPs: %s
    external-dns.alpha.kubernetes.io/hostname: oauth.example.org
spec:
  type: LoadBalancer
  selector: {%s: default}
  ports: [{name: https, port: 443, targetPort: 443}]
`, hosted.IngressNamespace, address, hosted.RouterLabel)
	}
	published := func(want ...string) {
		t.Helper()
		eventually(t, fmt.Sprintf("oauth.example.org at %v", want), func(ctx context.Context) error {
			got, err := server.Lookup(ctx, "oauth.example.org", dns.TypeA)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("it is at %v", got)
			}
			return err
		})
	}
	apply(t, c, public(first))
	published(first.String())
	apply(t, c, public(second))
	published(second.String())
	remove(t, c, "public")
	published()
}
