package dhcpserver_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// leaseFile tells the test binary to be a DHCP server on that lease file until it is killed.
const leaseFile = "OOOI_TEST_LEASE_FILE"

func TestMain(m *testing.M) {
	if path := os.Getenv(leaseFile); path != "" {
		fmt.Fprintln(os.Stderr, serveUntilKilled(path))
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}

func loopbackModel() (*dhcpserver.Model, error) {
	d := &v1alpha1.DHCPServer{}
	d.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{CIDR: "127.0.67.0/24", Gateway: "127.0.67.1", ServerIP: "127.0.67.2"}
	d.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "127.0.67.100", RangeEnd: "127.0.67.199"}
	return dhcpserver.Build(d)
}

// start starts a server on a free port of 127.0.67.2.
func start(ctx context.Context, path string) (server *dhcpserver.Server, addr string, wait func() error, err error) {
	model, err := loopbackModel()
	if err != nil {
		return nil, "", nil, err
	}
	file, err := dhcpserver.OpenBolt(path)
	if err != nil {
		return nil, "", nil, err
	}
	server, err = dhcpserver.NewServer(dhcpserver.Config{
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: file.Infra("clusters/tenant"),
	})
	if err != nil {
		return nil, "", nil, errors.Join(err, file.Close())
	}
	server.Apply(model)
	conn, err := dhcpserver.ListenUDP(netip.MustParseAddrPort("127.0.67.2:0"))
	if err != nil {
		return nil, "", nil, errors.Join(err, file.Close())
	}
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, conn) }()
	wait = func() error { return errors.Join(<-done, file.Close()) }
	return server, strings.TrimPrefix(fmt.Sprint(conn), "udp "), wait, nil
}

func serveUntilKilled(path string) error {
	_, addr, wait, err := start(context.Background(), path)
	if err != nil {
		return err
	}
	fmt.Println(addr)
	return wait()
}

// agent is a relay agent on an unprivileged port, and the clients behind it.
type agent struct {
	t      *testing.T
	socket *net.UDPConn
	server *net.UDPAddr
}

func relay(t *testing.T, server string) *agent {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp4", server)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 67, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	})
	return &agent{t: t, socket: socket, server: addr}
}

func (a *agent) exchange(m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	a.t.Helper()
	m.GatewayIPAddr = net.IPv4(127, 0, 67, 1)
	if err := a.socket.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		a.t.Fatal(err)
	}
	if _, err := a.socket.WriteToUDP(m.ToBytes(), a.server); err != nil {
		a.t.Fatal(err)
	}
	buf := make([]byte, 1500)
	n, from, err := a.socket.ReadFromUDP(buf)
	if err != nil {
		a.t.Fatal(err)
	}
	answer, err := dhcpv4.FromBytes(buf[:n])
	if err != nil || from.String() != a.server.String() || answer.TransactionID != m.TransactionID {
		a.t.Fatalf("from %s: %v, %v", from, answer, err)
	}
	return answer
}

// lease gets an address for the client with that number.
func (a *agent) lease(client byte) netip.Addr {
	a.t.Helper()
	discover, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, 0, 0, 0, client})
	if err != nil {
		a.t.Fatal(err)
	}
	request, err := dhcpv4.NewRequestFromOffer(a.exchange(discover))
	if err != nil {
		a.t.Fatal(err)
	}
	ack := a.exchange(request)
	if ack.MessageType() != dhcpv4.MessageTypeAck {
		a.t.Fatalf("the server answered %s", ack.Summary())
	}
	return netip.AddrFrom4([4]byte(ack.YourIPAddr.To4()))
}

func TestALeaseOutlivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	given := map[netip.Addr]byte{}
	for life := range byte(3) {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = append(os.Environ(), leaseFile+"="+path)
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		line := make([]byte, 100)
		n, err := out.Read(line)
		if err != nil {
			t.Fatal(errors.Join(err, cmd.Wait()))
		}
		agent := relay(t, strings.TrimSpace(string(line[:n])))
		for client := range byte(5) {
			addr := agent.lease(life*5 + client)
			if other, twice := given[addr]; twice {
				t.Errorf("%s was given to clients %d and %d", addr, other, life*5+client)
			}
			given[addr] = life*5 + client
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(io.Discard, out); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // it was killed

		file, err := dhcpserver.OpenBolt(path)
		if err != nil {
			t.Fatal(err)
		}
		leases, err := file.Infra("clusters/tenant").Load(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if err := file.Close(); err != nil {
			t.Fatal(err)
		}
		found := map[netip.Addr]byte{}
		for _, l := range leases {
			found[l.Address] = l.MAC[5]
		}
		for addr, client := range given {
			if got, ok := found[addr]; !ok || got != client {
				t.Errorf("after kill %d the lease of %s by client %d is not in the file", life, addr, client)
			}
		}
	}
}

func TestARelayWithoutPrivileges(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	_, addr, wait, err := start(ctx, filepath.Join(t.TempDir(), "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		cancel()
		if err := wait(); err != nil {
			t.Error(err)
		}
	}()
	if got := relay(t, addr).lease(1).String(); got != "127.0.67.100" {
		t.Errorf("the client got %s", got)
	}
	if got := relay(t, addr).lease(2).String(); got != "127.0.67.101" {
		t.Errorf("the second client got %s", got)
	}
}

func TestListenUDPRefuses(t *testing.T) {
	for addr, want := range map[string]string{
		"0.0.0.0:10067":   "listen for DHCP on 0.0.0.0:10067: needs one IPv4 address",
		"[::1]:10067":     "listen for DHCP on [::1]:10067: needs one IPv4 address",
		"192.0.2.1:10067": "listen for DHCP: ",
	} {
		if _, err := dhcpserver.ListenUDP(netip.MustParseAddrPort(addr)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", addr, err, want)
		}
	}
}
