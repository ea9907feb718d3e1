package hosted_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/densityops/oooi/e2e/hosted"
)

// TestWithoutVLAN has a cluster on 127.0.0.1, where MetalLB's controller serves one load balancer class.
func TestWithoutVLAN(t *testing.T) {
	c := hosted.ForTest(t, "alone", baseDomain)
	if !strings.HasPrefix(c.URL(), "https://127.0.0.1:") {
		t.Errorf("it is at %s", c.URL())
	}
	if err := c.SetNode(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if ready, err := nodeReady(t.Context(), c); err != nil || ready != "True" {
		t.Errorf("Ready is %q (%v)", ready, err)
	}
	if err := c.StartMetalLB(t.Context(), "example.com/metallb"); err != nil {
		t.Fatal(err)
	}
	if c.MetalLB.Speaker != nil {
		t.Error("there is a speaker on this machine's own network")
	}
	first, last := netip.MustParseAddr("192.0.2.200"), netip.MustParseAddr("192.0.2.201")
	apply(t, c, string(hosted.Pool(hosted.MetalLBNamespace, "apps", first, last)))
	apply(t, c, ingress("without-class", "apps"))
	apply(t, c, ingress("with-class", "apps")+"  loadBalancerClass: example.com/metallb\n")
	if address := awaitVIP(t, c, "with-class"); address != first && address != last {
		t.Errorf("%s is none of the pool", address)
	}
	if address, err := vip(t.Context(), c, "without-class"); err == nil {
		t.Errorf("the Service without the class has %s", address)
	}
	if err := c.MetalLB.Stop(); err != nil {
		t.Error(err)
	}
}
