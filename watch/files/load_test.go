package files

import (
	"os"
	"path/filepath"
	"testing"
)

// write puts files into a folder: name, content, name, content…
func write(t testing.TB, dir string, pairs ...string) {
	t.Helper()
	for i := 0; i < len(pairs); i += 2 {
		if err := os.WriteFile(filepath.Join(dir, pairs[i]), []byte(pairs[i+1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func TestLoadPage(t *testing.T) {
	r, err := Load("testdata/page")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range append(r.Problems, r.Warnings...) {
		t.Error(p.Error())
	}
	if len(r.Objects.Infras) != 1 || len(r.Objects.Attachments) != 2 {
		t.Fatalf("%d Infras, %d attachments", len(r.Objects.Infras), len(r.Objects.Attachments))
	}
	i := r.Objects.Infras[0]
	if i.Spec.InfraComponents.DHCP.LeaseTime != "1h" || i.Spec.InfraComponents.Proxy.LogLevel != "info" {
		t.Errorf("defaults are missing: %+v", i.Spec.InfraComponents)
	}
	if got := r.Objects.Attachments[1].Domain(); got != "example-hcp-b.clusters.example.com" {
		t.Errorf("domain %s", got)
	}
	if len(r.Objects.Namespaces) != 1 || r.Objects.Namespaces[0] != "clusters" {
		t.Errorf("namespaces %v", r.Objects.Namespaces)
	}
}
