package vlan_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

func TestIsolate(t *testing.T) {
	filters(t)
	bridge(t, "vlan100", "192.0.2.2/24")
	bridge(t, "pods", "198.51.100.1/24")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	worker(t, "pod", "pods", "52:54:00:00:00:02")
	run(t, "ip -n one addr add 192.0.2.77/24 dev eth0")
	run(t, "ip -n one route add default via 192.0.2.2")
	run(t, "ip -n pod addr add 198.51.100.7/24 dev eth0")
	run(t, "ip -n pod route add default via 198.51.100.1")
	if err := os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644); err != nil {
		t.Fatal(err)
	}
	// Who is reached says that nothing listens there.
	reaches := func(address string) bool {
		out, err := exec.Command("ip", "netns", "exec", "one", "timeout", "2", "bash", "-c", "exec 3<>/dev/tcp/"+address+"/9").CombinedOutput()
		return err != nil && strings.Contains(string(out), "refused")
	}
	if !reaches("198.51.100.7") {
		t.Fatal("the test proves nothing: a worker does not reach a pod even before")
	}
	if err := vlan.Isolate("vlan100"); err != nil {
		t.Fatal(err)
	}
	if reaches("198.51.100.7") {
		t.Error("a worker reaches a pod through this host")
	}
	if !reaches("192.0.2.2") {
		t.Error("a worker does not reach this host")
	}
	for setting, want := range map[string]string{"forwarding": "0", "rp_filter": "1", "arp_ignore": "1", "arp_announce": "2", "accept_redirects": "0"} {
		got, err := os.ReadFile(filepath.Join("/proc/sys/net/ipv4/conf/vlan100", setting))
		if err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %s, want %s (%v)", setting, got, want, err)
		}
	}
	if err := vlan.Isolate("nowhere"); err == nil || !strings.Contains(err.Error(), "interface nowhere: not found") {
		t.Errorf("error %v", err)
	}
}
