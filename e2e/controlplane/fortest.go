package controlplane

import (
	"context"
	"testing"
)

// ForTest starts a control plane for one test, with the definitions of this API and of all neighbours, and ends it after the
// test. When the test failed, the ends of the logs are printed.
func ForTest(t testing.TB, flags ...string) *ControlPlane {
	t.Helper()
	c, err := Start(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, part := range []*Part{c.Etcd, c.APIServer, c.ControllerManager} {
				if tail := part.Tail(20); tail != "" {
					t.Logf("the end of %s's log:\n%s", part.name, tail)
				}
			}
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	for _, install := range []func(context.Context) error{c.InstallOwn, func(ctx context.Context) error { return c.InstallNeighbours(ctx) }} {
		if err := install(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	return c
}
