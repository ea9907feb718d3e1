package dhcpserver_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/densityops/oooi/dhcpserver"
)

// smallDisk tells the test binary that it is in a mount namespace of its own.
const smallDisk = "OOOI_TEST_SMALL_DISK"

func TestAFullDisk(t *testing.T) {
	if os.Getenv(smallDisk) == "" {
		inOwnMounts(t, "^TestAFullDisk$")
		return
	}
	disk := mountSmallDisk(t)
	path, filler := filepath.Join(disk, "leases.db"), filepath.Join(disk, "filler")

	fill(t, filler)
	if _, err := dhcpserver.OpenBolt(path); !errors.Is(err, syscall.ENOSPC) || errors.As(err, new(*dhcpserver.CorruptError)) {
		t.Fatalf("a new file on a full disk: %v", err)
	}
	remove(t, filler)

	ctx, cancel := context.WithCancel(context.Background())
	server, addr, wait, err := start(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	running := true
	stop := func() {
		cancel()
		if err := wait(); err != nil {
			t.Error(err)
		}
		running = false
	}
	defer func() {
		if running {
			stop()
		}
	}()
	agent := relay(t, addr)
	given := map[netip.Addr]byte{agent.lease(0): 0}
	fill(t, filler)
	client := byte(1)
	for ; ; client++ { // there are free pages in the file
		got, ok := agent.leaseOrProblem(client, server)
		if !ok {
			break
		}
		given[got] = client
	}
	if err := server.Problem(); err == nil || !errors.Is(err, syscall.ENOSPC) || !strings.HasSuffix(err.Error(), "no space left on device: free space there") {
		t.Errorf("problem %v", err)
	}

	remove(t, filler)
	for end := client + 5; client < end; client++ { // the first is the one that was not answered
		got := agent.lease(client)
		if other, twice := given[got]; twice {
			t.Errorf("%s was given to clients %d and %d", got, other, client)
		}
		given[got] = client
	}
	if err := server.Problem(); err != nil {
		t.Errorf("with space again: %v", err)
	}
	stop()

	leases, err := openBolt(t, path).Infra("clusters/tenant").Load(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	stored := map[netip.Addr]byte{}
	for _, l := range leases {
		stored[l.Address] = l.MAC[5]
	}
	for addr, client := range given {
		if got, ok := stored[addr]; !ok || got != client {
			t.Errorf("the lease of %s by client %d is not in the file", addr, client)
		}
	}
}

// leaseOrProblem is lease, but for a server that is silent because it has a problem.
func (a *agent) leaseOrProblem(client byte, server *dhcpserver.Server) (netip.Addr, bool) {
	a.t.Helper()
	discover, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, client})
	if err != nil {
		a.t.Fatal(err)
	}
	request, err := dhcpv4.NewRequestFromOffer(a.exchange(discover))
	if err != nil {
		a.t.Fatal(err)
	}
	request.GatewayIPAddr = net.IPv4(127, 0, 67, 1)
	if _, err := a.socket.WriteToUDP(request.ToBytes(), a.server); err != nil {
		a.t.Fatal(err)
	}
	buf := make([]byte, 1500)
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		if server.Problem() != nil {
			return netip.Addr{}, false
		}
		if err := a.socket.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			a.t.Fatal(err)
		}
		n, _, err := a.socket.ReadFromUDP(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			a.t.Fatal(err)
		}
		ack, err := dhcpv4.FromBytes(buf[:n])
		if err != nil || ack.MessageType() != dhcpv4.MessageTypeAck {
			a.t.Fatalf("%v, %v", ack, err)
		}
		return netip.AddrFrom4([4]byte(ack.YourIPAddr.To4())), true
	}
	a.t.Fatalf("client %d has got neither an answer nor a reason", client)
	return netip.Addr{}, false
}

// inOwnMounts runs a test again where it can mount what nobody else sees.
func inOwnMounts(t *testing.T, test string) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run="+test, "-test.v")
	cmd.Env = append(os.Environ(), smallDisk+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("in a mount namespace (needs root, or unprivileged user namespaces): %v\n%s", err, out)
	}
	if !strings.Contains(string(out), "--- PASS") {
		t.Fatalf("no test has run:\n%s", out)
	}
}

func mountSmallDisk(t *testing.T) string {
	t.Helper()
	disk := t.TempDir()
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(disk, 0); err != nil {
			t.Error(err)
		}
	})
	return disk
}

// fill writes a file until nothing more fits.
func fill(t *testing.T, path string) {
	t.Helper()
	file, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = file.Write(make([]byte, 4096))
	}
	if !errors.Is(err, syscall.ENOSPC) {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
}
