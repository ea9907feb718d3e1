package vlanpods

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPrivileges holds what runs to the table in docs/security.md.
func TestPrivileges(t *testing.T) {
	w.settle(t)
	holder, standby := w.pair(t)
	hubs, err := w.nodes.Pods(t.Context(), "oooi-system", "app.kubernetes.io/component=hub")
	if err != nil {
		t.Fatal(err)
	}
	if len(hubs) == 0 {
		t.Fatal("no hub runs")
	}
	const none = uint64(0)
	for _, c := range []struct {
		namespace, pod, name string
		users                string // of the process: real, effective, saved, of the file system
		capabilities         uint64
	}{
		{namespace, holder, "oooi", "0 0 0 0", 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW},
		{namespace, standby, "oooi", "0 0 0 0", 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW},
		{namespace, holder, "envoy", "65532 65532 65532 65532", none},
		{namespace, standby, "envoy", "65532 65532 65532 65532", none},
		{"oooi-system", hubs[0].Name, hubs[0].Spec.Containers[0].Name, "65532 65532 65532 65532", none},
	} {
		t.Run(c.pod+"/"+c.name, func(t *testing.T) {
			pid, err := w.nodes.PID(c.namespace, c.pod, c.name)
			if err != nil {
				t.Fatal(err)
			}
			status := procStatus(t, pid)
			if got := strings.Join(strings.Fields(status["Uid"]), " "); got != c.users {
				t.Errorf("users %s, want %s", got, c.users)
			}
			for name, want := range map[string]uint64{
				"CapEff": c.capabilities, "CapPrm": c.capabilities, "CapBnd": c.capabilities, "CapInh": none, "CapAmb": none,
			} {
				if got := status[name]; got != fmt.Sprintf("%016x", want) {
					t.Errorf("%s %s, want %016x", name, got, want)
				}
			}
			if got := status["NoNewPrivs"]; got != "1" {
				t.Errorf("NoNewPrivs %s, want 1", got)
			}
			var root unix.Statfs_t
			if err := unix.Statfs(fmt.Sprintf("/proc/%d/root", pid), &root); err != nil {
				t.Fatal(err)
			}
			if root.Flags&unix.ST_RDONLY == 0 {
				t.Error("the root file system can be written")
			}
			_, err = os.Stat(fmt.Sprintf("/proc/%d/root/var/run/secrets/kubernetes.io/serviceaccount/token", pid))
			if hasToken := err == nil; hasToken != (c.name != "envoy") {
				t.Errorf("a token is there: %t (%v)", hasToken, err)
			}
		})
	}
}

// procStatus is /proc/PID/status (proc_pid_status(5)).
func procStatus(t *testing.T, pid int) map[string]string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	return status
}
