package dnsserver

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestResolvConf: the machine's resolvers are read when they are needed, again after a change, and
// never lead to this server itself.
func TestResolvConf(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var log strings.Builder
	f := newForwarder(Config{ResolvConf: path, Log: slog.New(slog.NewTextHandler(&log, nil))}, nil)
	m := loopbackModel(t, upstreams("198.51.100.1", "resolv.conf"))
	expand := func() string {
		addrs, err := f.expand(m)
		if err != nil {
			return err.Error()
		}
		return join(addrs)
	}
	if got := expand(); got != "198.51.100.1:53" {
		t.Errorf("no file: %s", got)
	}
	write("search example.org\nnameserver 198.51.100.2\nnameserver fe80::1%eth0\nnameserver " + serverIP + "\nnameserver nonsense\n")
	if got := expand(); got != "198.51.100.1:53, 198.51.100.2:53, [fe80::1%eth0]:53" {
		t.Errorf("file: %s", got)
	}
	write("nameserver 198.51.100.3\n")
	if got := expand(); got != "198.51.100.1:53, 198.51.100.3:53" {
		t.Errorf("changed file: %s", got)
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if got := expand(); got != "198.51.100.1:53, 198.51.100.3:53" {
		t.Errorf("file gone: %s, want those of before", got)
	}
	m = loopbackModel(t, upstreams("resolv.conf"))
	write("nameserver " + serverIP + "\n")
	for range 3 {
		if got := expand(); got != errNobody.Error() {
			t.Errorf("only this server: %s", got)
		}
	}
	// Gone at first, there, gone, there again: each is said once.
	if said := strings.Count(log.String(), "\n"); said != 4 || strings.Count(log.String(), "WARN") != 2 {
		t.Errorf("the log says:\n%s", log.String())
	}
}
