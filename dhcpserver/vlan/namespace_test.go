package vlan_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// inside tells the test binary that it runs in its own namespaces.
const inside = "OOOI_TEST_NAMESPACE"

// TestMain runs all tests in a child process with its own network, mounts and processes: nothing
// that they do touches this host, and all of it is gone when the child is. Without root, the child
// is root of a user namespace.
func TestMain(m *testing.M) {
	if addr := os.Getenv(informTo); addr != "" {
		if err := inform(addr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(inside) != "" {
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the test's namespaces:", err)
			os.Exit(1)
		}
		goleak.VerifyTestMain(m)
		return
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		os.Exit(max(exit.ExitCode(), 1))
	case err != nil:
		fmt.Fprintln(os.Stderr, "these tests need network namespaces: run them as root, or allow unprivileged user namespaces (sysctl user.max_user_namespaces, kernel.unprivileged_userns_clone, kernel.apparmor_restrict_unprivileged_userns):", err)
		os.Exit(1)
	}
}

// enter makes the namespaces fit to be lived in.
func enter() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, folder := range []string{"/run", "/var/lib/dhcpcd"} {
		if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, ""); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up (package iproute2): %w: %s", err, out)
	}
	return nil
}

// tool returns where a program is, and fails the test if it is not.
func tool(t *testing.T, name, pkg string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s is missing: install the package %s", name, pkg)
	}
	return path
}

// run runs a command line and fails the test if the command does.
func run(t *testing.T, line string) string {
	t.Helper()
	words := strings.Fields(line)
	out, err := exec.Command(words[0], words[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", line, err, out)
	}
	return string(out)
}

// bridge makes a VLAN: a bridge on which this namespace has an address.
func bridge(t *testing.T, name, cidr string) {
	t.Helper()
	run(t, "ip link add "+name+" type bridge")
	t.Cleanup(func() { run(t, "ip link del "+name) })
	if cidr != "" {
		run(t, "ip addr add "+cidr+" dev "+name)
	}
	run(t, "ip link set "+name+" up")
}

// worker makes a network namespace whose eth0 is on the bridge, with that hardware address.
func worker(t *testing.T, name, bridge, mac string) {
	t.Helper()
	run(t, "ip netns add "+name)
	t.Cleanup(func() {
		// Now, and not when the kernel gets round to it after the end of the namespace.
		_ = exec.Command("ip", "link", "del", "p-"+name).Run() // the test may have done it
		run(t, "ip netns del "+name)
	})
	run(t, fmt.Sprintf("ip link add p-%s type veth peer name eth0 address %s netns %s", name, mac, name))
	run(t, fmt.Sprintf("ip link set p-%s master %s up", name, bridge))
	run(t, fmt.Sprintf("ip -n %s link set lo up", name))
	run(t, fmt.Sprintf("ip -n %s link set eth0 up", name))
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 30s in vain: %s", what)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// process is a program that runs in a worker's namespace until it is stopped.
type process struct {
	cmd    *exec.Cmd
	output *output
	ended  chan struct{}
}

// output collects what a process prints.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

var _ io.Writer = (*output)(nil)

// start starts a program in a worker's namespace. What is still running at the end of the test is killed.
func start(t *testing.T, worker string, args ...string) *process {
	t.Helper()
	p := &process{output: &output{}, ended: make(chan struct{})}
	p.cmd = exec.Command("ip", append([]string{"netns", "exec", worker}, args...)...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A grandchild may keep the pipes open.
	p.cmd.WaitDelay = time.Second
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // how a client ends when it is killed does not matter
	}()
	t.Cleanup(func() {
		_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // it may have ended
		<-p.ended
		if t.Failed() {
			t.Logf("output of %s:\n%s", strings.Join(args, " "), p.output)
		}
	})
	return p
}

// signal signals the program and waits for its end if that is what the signal means.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	if s == syscall.SIGTERM || s == syscall.SIGKILL {
		select {
		case <-p.ended:
		case <-time.After(10 * time.Second):
			t.Fatalf("%s does not end", p.cmd)
		}
	}
}

// hook writes a script for a DHCP client that appends one line an event to a file and, where
// the client leaves that to its script, puts the address on eth0. It returns both paths.
func hook(t *testing.T, script string) (path, events string) {
	t.Helper()
	dir := t.TempDir()
	path, events = filepath.Join(dir, "hook"), filepath.Join(dir, "events")
	content := "#!/bin/sh\nexec 2>>" + events + ".errors\n" + strings.ReplaceAll(script, "EVENTS", events)
	if err := os.WriteFile(path, []byte(content), 0o700); err != nil {
		t.Fatal(err)
	}
	return path, events
}

// awaitEvent waits for the n-th line of the event file that starts with a prefix and returns the line.
func awaitEvent(t *testing.T, events, prefix string, n int) string {
	t.Helper()
	var found string
	eventually(t, fmt.Sprintf("event %d %q in %s", n, prefix, events), func() bool {
		content, err := os.ReadFile(events)
		if err != nil {
			return false
		}
		left := n
		for line := range strings.Lines(string(content)) {
			if strings.HasPrefix(line, prefix) && strings.HasSuffix(line, "\n") {
				if left--; left == 0 {
					found = strings.TrimSpace(line)
					return true
				}
			}
		}
		return false
	})
	return found
}
