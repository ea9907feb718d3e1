package hosted

import "testing"

// ForTest starts a hosted cluster without a VLAN for one test, and ends it after the test. When the test failed, the ends of the logs are
// printed. There is no Node and no MetalLB yet.
func ForTest(t testing.TB, name, baseDomain string) *Cluster {
	t.Helper()
	c, err := Start(t.Context(), Options{Name: name, BaseDomain: baseDomain, Folder: t.TempDir()})
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
