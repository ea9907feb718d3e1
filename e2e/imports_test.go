package e2e

import (
	"context"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"
)

const module = "github.com/densityops/oooi/"

// TestImports holds the import graph to the design: only main packages wire. Indirect imports count.
func TestImports(t *testing.T) {
	t.Parallel()
	for _, rule := range []struct {
		packages string
		// may lists the packages of this module, each with those below it ("/..." added), that may be imported.
		may []string
		// cluster: Kubernetes clients are allowed.
		cluster bool
	}{
		{packages: "./api/...", may: []string{"api/..."}},
		{packages: "./xds/...", may: []string{"api/...", "xds/..."}},
		{packages: "./dnsserver/...", may: []string{"api/...", "dnsserver/..."}},
		{packages: "./dhcpserver/...", may: []string{"api/...", "dhcpserver/..."}},
		{packages: "./dhcpserver", may: []string{"api/...", "dhcpserver"}},
		{packages: "./holder/...", may: []string{"api/...", "dhcpserver/...", "holder/..."}},
		{packages: "./watch/plan/...", may: []string{"api/...", "watch/plan/..."}},
		{packages: "./watch/leases", may: []string{"api/...", "dhcpserver/...", "watch/informer", "watch/leases"}, cluster: true},
		{packages: "./watch/appsingress/...", may: []string{"api/...", "watch/appsingress/..."}, cluster: true},
		{packages: "./watch/workloads", may: []string{"api/...", "xds/...", "deploy/workload", "watch/informer", "watch/plan", "watch/workloads"}, cluster: true},
		// What the hub knows of the servers it reads from the cluster; xds is for Envoy's bootstrap, dhcpserver for the form of leases.
		{packages: "./watch/hub", may: []string{
			"api/...", "deploy/workload", "dhcpserver", "watch", "watch/appsingress", "watch/hub", "watch/informer", "watch/leases", "watch/plan", "watch/process",
			"watch/workloads", "xds/...",
		}, cluster: true},
		// A process that serves reads the children and Leases, and can do without the hub.
		{packages: "./watch/serving", may: []string{"api/...", "dhcpserver/...", "holder", "watch/informer", "watch/process", "watch/serving"}, cluster: true},
		{packages: "./watch/process", may: []string{"api/...", "watch/process"}, cluster: true},
		{packages: "./watch/informer", may: []string{"watch/informer"}, cluster: true},
		{packages: "./watch/files/...", may: []string{"api/...", "watch/plan/...", "watch/files/..."}},
		{packages: "./serve/...", may: []string{"api/...", "xds/...", "dnsserver/...", "dhcpserver/...", "holder/...", "serve/..."}},
		{packages: "./deploy/workload/...", may: []string{"api/...", "xds/...", "deploy/workload/..."}},
		{packages: "./e2e/...", may: []string{"api/...", "e2e/...", "examples"}, cluster: true},
	} {
		for _, imported := range dependencies(t, rule.packages) {
			if path, ours := strings.CutPrefix(imported, module); ours {
				if !slices.ContainsFunc(rule.may, func(may string) bool { return matches(path, may) }) {
					t.Errorf("%s imports %s, which the design does not allow: only %v", rule.packages, path, rule.may)
				}
			}
			if !rule.cluster && (strings.HasPrefix(imported, "k8s.io/client-go/") || strings.HasPrefix(imported, "sigs.k8s.io/controller-runtime/")) {
				t.Errorf("%s imports %s: only watch and the tests talk to a cluster", rule.packages, imported)
			}
		}
	}
}

// matches tells whether a package is the one that a pattern names, or below it when the pattern ends in "/...".
func matches(path, pattern string) bool {
	parent, below := strings.CutSuffix(pattern, "/...")
	return path == parent || below && strings.HasPrefix(path, parent+"/")
}

// dependencies lists all that the packages import, directly or not.
func dependencies(t *testing.T, packages string) []string {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "list", "-deps", packages)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list -deps %s: %v", packages, err)
	}
	return strings.Fields(string(out))
}
