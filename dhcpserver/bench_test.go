package dhcpserver_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"sync"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// crowd is a Conn with many clients behind it, each of which gets an address once.
type crowd struct {
	messages chan []byte
	closed   chan struct{}
	once     sync.Once
	acks     sync.WaitGroup
	next     func()
}

func (c *crowd) Receive(buf []byte) (dhcpserver.Packet, error) {
	select {
	case m := <-c.messages:
		return dhcpserver.Packet{
			Payload: buf[:copy(buf, m)], Source: netip.MustParseAddrPort("0.0.0.0:68"), Destination: netip.MustParseAddrPort("255.255.255.255:67"),
		}, nil
	case <-c.closed:
		return dhcpserver.Packet{}, net.ErrClosed
	}
}

// Send takes the offer, or lets the next client come.
func (c *crowd) Send(payload []byte, _ dhcpserver.Target) error {
	if payload[242] == byte(dhcpv4.MessageTypeAck) {
		c.acks.Done()
		c.next()
		return nil
	}
	offer, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return err
	}
	request, err := dhcpv4.NewRequestFromOffer(offer)
	if err != nil {
		return err
	}
	c.messages <- request.ToBytes()
	return nil
}

func (c *crowd) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

// BenchmarkExchange measures whole exchanges, DISCOVER to ACK, each lease durable in a file, with 500
// clients at a time. Building and parsing the clients' messages is part of it; sockets are not.
func BenchmarkExchange(b *testing.B) {
	d := &v1alpha1.DHCPServer{}
	d.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{CIDR: "10.0.0.0/8", Gateway: "10.0.0.1", ServerIP: "10.0.0.2"}
	d.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "10.1.0.0", RangeEnd: "10.255.0.0"}
	model, err := dhcpserver.Build(d)
	if err != nil {
		b.Fatal(err)
	}
	file, err := dhcpserver.OpenBolt(filepath.Join(b.TempDir(), "leases.db"))
	if err != nil {
		b.Fatal(err)
	}
	server, err := dhcpserver.NewServer(dhcpserver.Config{
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: file.Infra("clusters/tenant"),
	})
	if err != nil {
		b.Fatal(err)
	}
	server.Apply(model)

	const window = 500
	conn := &crowd{messages: make(chan []byte, 2*window), closed: make(chan struct{})}
	clients := make(chan []byte, b.N)
	for i := range b.N {
		mac := binary.BigEndian.AppendUint32([]byte{2, 0}, uint32(i))
		discover, err := dhcpv4.NewDiscovery(mac)
		if err != nil {
			b.Fatal(err)
		}
		clients <- discover.ToBytes()
	}
	conn.next = func() {
		select {
		case m := <-clients:
			conn.messages <- m
		default:
		}
	}
	conn.acks.Add(b.N)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	b.ResetTimer()
	go func() { done <- server.Run(ctx, conn) }()
	for range window {
		conn.next()
	}
	conn.acks.Wait()
	b.StopTimer()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "exchanges/s")
	cancel()
	if err := errors.Join(<-done, file.Close()); err != nil {
		b.Fatal(err)
	}
	if n := len(server.Leases()); n != b.N {
		b.Fatalf("%d leases of %d exchanges: something else was measured", n, b.N)
	}
}
