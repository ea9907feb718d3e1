package controlplane

import "testing"

// ForTest starts a control plane for one test, with no definitions yet, and ends it after the test. When the test failed, the
// ends of the logs are printed.
func ForTest(t testing.TB, flags ...string) *ControlPlane {
	t.Helper()
	c, err := Start(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(c.Tails(20))
		}
		if err := c.Stop(); err != nil {
			t.Error(err)
		}
	})
	return c
}
