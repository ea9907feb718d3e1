package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// TestVIPsOfAFolder: a person writes the VIPs of apps ingress into the statuses of attachments. A slip in one file takes nothing from
// another tenant, and nothing from this one before it can be read.
func TestVIPsOfAFolder(t *testing.T) {
	t.Parallel()
	host := newHost(t, "vips")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, local := range []string{"192.0.2.0/24", "198.51.100.53/32"} {
		ip(ctx, t, "-n "+string(host)+" route add local "+local+" dev lo")
	}
	site := newSite(t)
	if _, err := site.StartUpstream(host, "198.51.100.53:53"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"example-hcp-a", "example-hcp-b"} {
		domain := "    clusterName: " + name + "\n    baseDomain: clusters.example.com\n"
		apps := "  appsIngress: {enabled: true, metallb: {addressPoolName: apps}}\nstatus: {appsIngressStatus: {}} # of " + name + "\n"
		if err := site.Manifests.Replace("infra.yaml", domain, domain+apps); err != nil {
			t.Fatal(err)
		}
	}
	status := func(name, before, after string) {
		t.Helper()
		if err := site.Manifests.Replace("infra.yaml", "{"+before+"}} # of "+name, "{"+after+"}} # of "+name); err != nil {
			t.Fatal(err)
		}
	}
	oooi := startOooi(ctx, t, site, host)
	// says waits for words in /status, and for the VIPs of both tenants; "": its apps are not published.
	says := func(what, words, a, b string) {
		t.Helper()
		within(t, what, func(ctx context.Context) error {
			text, err := oooi.Get(ctx, "/status")
			if err == nil && !strings.Contains(text, words) {
				err = fmt.Errorf("/status does not say %q", words)
			}
			if err != nil {
				return err
			}
			for name, want := range map[string]string{"example-hcp-a": a, "example-hcp-b": b} {
				if want == "" {
					want = stack.UpstreamAnswer
				}
				got, err := dig(ctx, host, "192.0.2.3", "-b", "192.0.2.117", "console.apps."+name+".clusters.example.com")
				if err != nil {
					return err
				}
				if got != want {
					return fmt.Errorf("the apps of %s are at %s, want %s", name, got, want)
				}
			}
			return nil
		})
	}

	const a, b = "192.0.2.210", "192.0.2.220"
	says("no VIPs", "no VIP is known, and nobody looks into the hosted cluster: write it into status.appsIngressStatus.externalIP", "", "")
	status("example-hcp-a", "", "externalIP: "+a)
	status("example-hcp-b", "", "externalIP: "+b)
	says("the VIPs", "", a, b)
	status("example-hcp-b", "externalIP: "+b, "externalIp: "+b)
	says("a misspelt VIP", "is not a field of status.appsIngressStatus: did you mean externalIP?", a, b)
	status("example-hcp-b", "externalIp: "+b, "externalIP: "+a)
	const refused = a + " is not published: attachment clusters/example-hcp-a has it as well"
	says("the VIP of another", refused, a, "")
	if err := oooi.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	if err := oooi.Start(ctx); err != nil {
		t.Fatal(err)
	}
	says("the same after a restart", refused, a, "")
	status("example-hcp-b", "externalIP: "+a, "externalIP: "+b)
	says("the VIPs again", "", a, b)
}
