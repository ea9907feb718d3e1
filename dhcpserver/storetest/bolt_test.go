package storetest

import (
	"path/filepath"
	"testing"

	"github.com/densityops/oooi/dhcpserver"
)

func TestBolt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	Run(t, func(t *testing.T) dhcpserver.Store {
		file, err := dhcpserver.OpenBolt(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := file.Close(); err != nil {
				t.Error(err)
			}
		})
		return file.Infra("clusters/tenant")
	})
}
