package leases_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/watch/leases"
)

// BenchmarkGrants is new clients that each get an address in four messages, a hundred at a time, with the real API server.
// Its etcd does not sync to disk.
func BenchmarkGrants(b *testing.B) {
	l := &lab{ControlPlane: controlplane.ForTest(b), infra: "bench"}
	if err := l.InstallOwn(b.Context()); err != nil {
		b.Fatal(err)
	}
	if _, err := l.Apply(b.Context(), "test", []byte("{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}")); err != nil {
		b.Fatal(err)
	}
	d := child("bench")
	d.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{CIDR: "127.64.0.0/16", Gateway: "127.64.0.1", ServerIP: "127.64.0.2"}
	d.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "127.64.1.0", RangeEnd: "127.64.255.254", LeaseTime: "1h"}
	leases, err := leases.New(leases.Config{
		REST: l.AdminConfig(), Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), StateDir: b.TempDir(), Clock: time.Now,
		Infra: types.NamespacedName{Namespace: "clusters", Name: "bench"}, Child: func() *v1alpha1.DHCPServer { return d },
	})
	if err != nil {
		b.Fatal(err)
	}
	server, err := dhcpserver.NewServer(dhcpserver.Config{Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: leases})
	if err != nil {
		b.Fatal(err)
	}
	model, err := dhcpserver.Build(d)
	if err != nil {
		b.Fatal(err)
	}
	server.Apply(model)
	conn, err := dhcpserver.ListenUDP(netip.MustParseAddrPort("127.64.0.2:0"))
	if err != nil {
		b.Fatal(err)
	}
	addr, err := net.ResolveUDPAddr("udp4", strings.TrimPrefix(fmt.Sprint(conn), "udp "))
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running errgroup.Group
	running.Go(func() error { return leases.Run(ctx) })
	running.Go(func() error { return server.Run(ctx, conn) })
	b.Cleanup(func() {
		cancel()
		if err := errors.Join(running.Wait(), leases.Close()); err != nil {
			b.Error(err)
		}
	})
	var next atomic.Uint32
	grant := func(socket *net.UDPConn) error {
		n := next.Add(1)
		discover, err := dhcpv4.NewDiscovery(net.HardwareAddr{2, 0, byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
		if err != nil {
			return err
		}
		offer, err := exchange(socket, addr, discover)
		if err != nil {
			return err
		}
		request, err := dhcpv4.NewRequestFromOffer(offer)
		if err != nil {
			return err
		}
		answer, err := exchange(socket, addr, request)
		if err == nil && answer.MessageType() != dhcpv4.MessageTypeAck {
			err = fmt.Errorf("answered %s", answer.Summary())
		}
		return err
	}
	var clients errgroup.Group
	clients.SetLimit(100)
	sockets := make(chan *net.UDPConn, 100)
	for range cap(sockets) {
		socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 64, 0, 1)})
		if err != nil {
			b.Fatal(err)
		}
		sockets <- socket
		b.Cleanup(func() { _ = socket.Close() }) // nothing is lost
	}
	started := time.Now()
	n := 0
	for b.Loop() {
		n++
		clients.Go(func() error {
			socket := <-sockets
			defer func() { sockets <- socket }()
			return grant(socket)
		})
	}
	if err := clients.Wait(); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(n)/time.Since(started).Seconds(), "grants/s")
}

// exchange sends a message through a relay until there is an answer.
func exchange(socket *net.UDPConn, server *net.UDPAddr, m *dhcpv4.DHCPv4) (*dhcpv4.DHCPv4, error) {
	m.GatewayIPAddr = net.IPv4(127, 64, 0, 1)
	buf := make([]byte, 1500)
	for range 10 {
		if _, err := socket.WriteToUDP(m.ToBytes(), server); err != nil {
			return nil, err
		}
		if err := socket.SetReadDeadline(time.Now().Add(4 * time.Second)); err != nil {
			return nil, err
		}
		for {
			n, _, err := socket.ReadFromUDP(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, err
			}
			if answer, err := dhcpv4.FromBytes(buf[:n]); err == nil && answer.TransactionID == m.TransactionID {
				return answer, nil
			}
		}
	}
	return nil, fmt.Errorf("no answer to %s", m.Summary())
}
