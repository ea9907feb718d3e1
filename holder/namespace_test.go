package holder_test

import (
	"bufio"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/densityops/oooi/holder"
)

const (
	// inside tells the test binary that it runs in its own namespaces.
	inside = "OOOI_TEST_NAMESPACE"
	// asPod tells it to be a pod with one Holder, and which.
	asPod = "OOOI_TEST_POD"
)

// TestMain runs all tests in a child process with its own network, mounts and processes: nothing
// that they do touches this host, and all of it is gone when the child is. Without root, the child
// is root of a user namespace.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(asPod) != "":
		if err := bePod(os.Getenv(asPod)); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	case slices.ContainsFunc(os.Args, func(arg string) bool {
		return strings.HasPrefix(arg, "-test.fuzz") && !strings.HasPrefix(arg, "-test.fuzzcachedir")
	}):
		// Fuzzing has its own processes, which talk over what they inherit; and what is fuzzed touches nothing.
		os.Exit(m.Run())
	case os.Getenv(inside) != "":
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "prepare the test's namespaces:", err)
			os.Exit(1)
		}
		// They wait most of the time.
		flag.Parse()
		if err := flag.Set("test.parallel", "4"); err != nil {
			fmt.Fprintln(os.Stderr, err)
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
		fmt.Fprintln(os.Stderr, "these tests need network namespaces: run them as root, or allow unprivileged user namespaces:", err)
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
	if err := syscall.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		return fmt.Errorf("mount /run: %w", err)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("ip link set lo up (package iproute2): %w: %s", err, out)
	}
	return nil
}

// podConfig is what a pod process is told.
type podConfig struct {
	Name, Socket, Folder string
	CIDR                 netip.Prefix
	Addresses            []netip.Addr
}

// bePod is a pod: its state goes to the standard output, one line of JSON a change. It is healthy unless its folder has a file
// "unhealthy", and wants the addresses of the file "addresses" if there is one.
func bePod(text string) error {
	var c podConfig
	if err := json.Unmarshal([]byte(text), &c); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	key, err := holder.LoadKey(c.Folder)
	if err != nil {
		return err
	}
	lock := newLockClient(c.Name, c.Socket)
	changed := make(chan struct{}, 1)
	h, err := holder.New(holder.Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})), Identity: c.Name, Interface: "vlan0", Lock: lock, Key: key, StateDir: c.Folder,
		Healthy: func() error {
			if _, err := os.Stat(filepath.Join(c.Folder, "unhealthy")); err == nil {
				return errors.New("the test says so")
			}
			return nil
		},
		Registerer: prometheus.NewRegistry(),
		Changed: func() {
			select {
			case changed <- struct{}{}:
			default:
			}
		},
	})
	if err != nil {
		return err
	}
	h.Apply(holder.Claim{CIDR: c.CIDR, Addresses: c.Addresses})
	var others sync.WaitGroup
	watching, stopWatching := context.WithCancel(context.Background())
	others.Go(func() { lock.watch(watching, key.Public().(ed25519.PublicKey)) })
	others.Go(func() {
		out := json.NewEncoder(os.Stdout)
		for {
			_ = out.Encode(h.State()) // who listens may be gone
			select {
			case <-changed:
			case <-watching.Done():
				_ = out.Encode(h.State())
				return
			}
		}
	})
	// New claims come by the standard input.
	go func() {
		lines := bufio.NewScanner(os.Stdin)
		for lines.Scan() {
			claim := holder.Claim{CIDR: c.CIDR}
			for word := range strings.FieldsSeq(lines.Text()) {
				claim.Addresses = append(claim.Addresses, netip.MustParseAddr(word))
			}
			h.Apply(claim)
		}
	}()
	err = h.Run(ctx)
	stopWatching()
	others.Wait()
	return err
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

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("waited 60s in vain: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// pod is a process with a Holder in a network namespace of its own, whose vlan0 is a port of the VLAN.
type pod struct {
	name, folder, mac string
	vlan              *vlan

	cmd   *exec.Cmd
	input io.WriteCloser
	ended chan struct{}

	mu     sync.Mutex
	state  holder.State
	output strings.Builder
}

func (p *pod) port() string      { return "p-" + p.namespace() }
func (p *pod) namespace() string { return p.vlan.bridge + p.name }

// start starts the process.
func (p *pod) start(t *testing.T) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	config, err := json.Marshal(podConfig{
		Name: p.name, Socket: p.vlan.lock.socket, Folder: p.folder, CIDR: netip.MustParsePrefix("192.0.2.0/24"), Addresses: p.vlan.served(),
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ip", "netns", "exec", p.namespace(), self)
	cmd.Env = append(os.Environ(), asPod+"="+string(config))
	cmd.Stderr = (*podLog)(p)
	out, err := cmd.StdoutPipe()
	if err == nil {
		p.input, err = cmd.StdinPipe()
	}
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	p.cmd, p.ended = cmd, ended
	p.set(holder.State{})
	go func() {
		defer close(ended)
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var s holder.State
			if json.Unmarshal(lines.Bytes(), &s) == nil {
				p.set(s)
			}
		}
		_ = cmd.Wait() // how it ends is the test's doing
		p.set(holder.State{})
	}()
}

func (p *pod) set(s holder.State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.state = s
}

func (p *pod) State() holder.State {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.state
}

// signal signals the process, and waits for its end if that is what the signal means.
func (p *pod) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	p.vlan.struck = time.Now()
	if err := p.cmd.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
	if s == syscall.SIGTERM || s == syscall.SIGKILL {
		<-p.ended
	}
}

// want changes the addresses that the pod wants.
func (p *pod) want(t *testing.T, addresses ...string) {
	t.Helper()
	if _, err := fmt.Fprintln(p.input, strings.Join(addresses, " ")); err != nil {
		t.Fatal(err)
	}
}

// healthy says whether the pod is.
func (p *pod) healthy(t *testing.T, is bool) {
	t.Helper()
	path := filepath.Join(p.folder, "unhealthy")
	err := os.WriteFile(path, nil, 0o600)
	if is {
		err = os.Remove(path)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// addresses are those on vlan0.
func (p *pod) addresses(t *testing.T) string {
	t.Helper()
	var found []string
	for line := range strings.Lines(run(t, "ip -n "+p.namespace()+" -4 -o addr show dev vlan0")) {
		found = append(found, strings.Fields(line)[3])
	}
	return strings.Join(found, " ")
}

// problem waits until the pod has, or has not, a problem with that reason, and returns its text.
func (p *pod) problem(t *testing.T, reason string, there bool) string {
	t.Helper()
	var message string
	eventually(t, fmt.Sprintf("pod %s has problem %s: %v", p.name, reason, there), func() bool {
		found := false
		for _, problem := range p.State().Problems {
			if problem.Reason == reason {
				found, message = true, problem.Message
			}
		}
		return found == there
	})
	return message
}

// podLog collects what a pod logs.
type podLog pod

func (l *podLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.output.Write(b)
}

// vlan is a bridge, the pods on it, their lock, and a capture of what they send.
type vlan struct {
	bridge  string
	lock    *lockServer
	pods    []*pod
	capture *capture
	// struck is when the test did something that it wants to know the consequence of.
	struck time.Time

	mu        sync.Mutex
	addresses []netip.Addr
}

// serve says which addresses are to be there.
func (v *vlan) serve(addresses ...string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.addresses = nil
	for _, a := range addresses {
		v.addresses = append(v.addresses, netip.MustParseAddr(a))
	}
}

// served are the addresses that are to be there.
func (v *vlan) served() []netip.Addr {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.addresses
}

var bridges struct {
	sync.Mutex
	made int
}

// makeVLAN makes a VLAN with two pods that do not run yet.
func makeVLAN(t *testing.T, initial holder.Record, addresses ...string) (*vlan, *pod, *pod) {
	t.Helper()
	if os.Getenv(inside) == "" {
		t.Fatal("network tests run in namespaces of their own only: not while fuzzing")
	}
	bridges.Lock()
	bridges.made++
	v := &vlan{bridge: fmt.Sprintf("v%d", bridges.made)}
	bridges.Unlock()
	v.serve(addresses...)
	v.lock = serveLock(t, initial)
	run(t, "ip link add "+v.bridge+" type bridge")
	t.Cleanup(func() { run(t, "ip link del "+v.bridge) })
	run(t, "ip link set "+v.bridge+" up")
	a, b := v.add(t, "a", "52:54:00:00:00:0a"), v.add(t, "b", "52:54:00:00:00:0b")
	v.capture = startCapture(t, v)
	return v, a, b
}

// add makes the namespace of a pod.
func (v *vlan) add(t *testing.T, name, mac string) *pod {
	t.Helper()
	p := &pod{name: name, vlan: v, mac: mac, folder: t.TempDir()}
	run(t, "ip netns add "+p.namespace())
	t.Cleanup(func() {
		if p.cmd != nil {
			_ = p.cmd.Process.Kill() // it may have ended
			<-p.ended
		}
		_ = exec.Command("ip", "link", "del", p.port()).Run() // the test may have done it
		run(t, "ip netns del "+p.namespace())
		if t.Failed() || testing.Verbose() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("pod %s:\n%s", p.name, p.output.String())
		}
	})
	v.plug(t, p)
	v.pods = append(v.pods, p)
	return p
}

// plug gives a pod its VLAN interface.
func (v *vlan) plug(t *testing.T, p *pod) {
	t.Helper()
	run(t, fmt.Sprintf("ip link add %s type veth peer name vlan0 address %s netns %s", p.port(), p.mac, p.namespace()))
	run(t, fmt.Sprintf("ip link set %s master %s up", p.port(), v.bridge))
	run(t, fmt.Sprintf("ip -n %s link set lo up", p.namespace()))
	run(t, fmt.Sprintf("ip -n %s link set vlan0 up", p.namespace()))
}

// settled waits until exactly one of the pods is the holder with all addresses, and returns it.
func (v *vlan) settled(t *testing.T, pods ...*pod) *pod {
	t.Helper()
	var is *pod
	eventually(t, "exactly one holder", func() bool {
		is = nil
		for _, p := range pods {
			if s := p.State(); s.Holding {
				if is != nil || len(s.HeldAddresses) != len(v.served()) {
					return false
				}
				is = p
			}
		}
		return is != nil
	})
	return is
}
