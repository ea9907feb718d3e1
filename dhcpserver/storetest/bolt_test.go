package storetest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/densityops/oooi/dhcpserver"
)

// leaseFile tells the test binary to be a process that puts leases into that file until it is killed.
const leaseFile = "OOOI_TEST_LEASE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(leaseFile); path != "" {
		file, err := dhcpserver.OpenBolt(path)
		if err == nil {
			err = PutUntilKilled(context.Background(), file.Infra("clusters/tenant"), os.Stdout)
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func TestBolt(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	Run(t, Medium{
		Open: func(t *testing.T) dhcpserver.Store {
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
		},
		Process: func(*testing.T) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), leaseFile+"="+path)
			return cmd
		},
	})
}
