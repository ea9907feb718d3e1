package leases_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if kubeconfig := os.Getenv(leaseProcess); kubeconfig != "" {
		fmt.Fprintln(os.Stderr, putUntilKilled(kubeconfig))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
