package dhcpserver_test

import (
	"context"
	"errors"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	"github.com/densityops/oooi/dhcpserver"
)

func openBolt(t *testing.T, path string) *dhcpserver.Bolt {
	t.Helper()
	file, err := dhcpserver.OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	return file
}

func TestInfrasOfOneFileAreApart(t *testing.T) {
	file := openBolt(t, filepath.Join(t.TempDir(), "leases.db"))
	lease := dhcpserver.Lease{Address: netip.MustParseAddr("192.0.2.100"), State: dhcpserver.StateActive}
	if errs := file.Infra("clusters/a").Put(context.Background(), []dhcpserver.Lease{lease}); errs != nil {
		t.Fatal(errs)
	}
	leases, err := file.Infra("clusters/b").Load(context.Background())
	if err != nil || len(leases) != 0 {
		t.Errorf("Infra b has leases %v, %v", leases, err)
	}
}

func TestSecondProcessIsToldThatTheFileIsInUse(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	openBolt(t, path)
	_, err := dhcpserver.OpenBolt(path)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("error %v", err)
	}
}

func TestOtherErrorsDoNotPassForDamage(t *testing.T) {
	file := filepath.Join(t.TempDir(), "leases.db")
	openBolt(t, file)
	for _, path := range []string{file, filepath.Join(file, "below"), t.TempDir()} {
		_, err := dhcpserver.OpenBolt(path)
		if err == nil || !strings.Contains(err.Error(), path) || errors.As(err, new(*dhcpserver.CorruptError)) {
			t.Errorf("error %v", err)
		}
	}
}

func TestPutAfterCloseFails(t *testing.T) {
	file, err := dhcpserver.OpenBolt(filepath.Join(t.TempDir(), "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	store := file.Infra("clusters/tenant")
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	leases := []dhcpserver.Lease{{Address: netip.MustParseAddr("192.0.2.100")}, {Address: netip.MustParseAddr("192.0.2.101")}}
	if errs := store.Put(context.Background(), leases); len(errs) != 2 || errs[0] == nil || errs[1] == nil {
		t.Errorf("errors %v", errs)
	}
	if _, err := store.Load(context.Background()); err == nil {
		t.Error("no error of Load")
	}
}
