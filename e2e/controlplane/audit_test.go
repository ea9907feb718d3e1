package controlplane

import (
	"os"
	"slices"
	"testing"
)

// TestMarkWhileARequestIsWritten sets a mark while the API server is in the middle of a line of its audit log.
func TestMarkWhileARequestIsWritten(t *testing.T) {
	c := &ControlPlane{folder: t.TempDir()}
	write := func(text string) {
		t.Helper()
		log, err := os.OpenFile(c.auditLog(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := log.Close(); err != nil {
			t.Fatal(err)
		}
	}
	verbs := func(since Mark) (verbs []string) {
		t.Helper()
		requests, err := c.Requests(since)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			verbs = append(verbs, r.Verb)
		}
		return verbs
	}

	write("{\"verb\":\"get\"}\n{\"ver")
	mark, err := c.Mark()
	if err != nil {
		t.Fatal(err)
	}
	if got := verbs(0); !slices.Equal(got, []string{"get"}) {
		t.Errorf("while a request is written, the log has %q", got)
	}
	if got := verbs(mark); got != nil {
		t.Errorf("while it is written, there is %q after the mark", got)
	}
	write("b\":\"update\"}\n")
	if got := verbs(mark); !slices.Equal(got, []string{"update"}) {
		t.Errorf("after the mark there is %q, want the request that was being written", got)
	}
}
