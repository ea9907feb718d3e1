package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

const (
	portOffset = 10000
	dhcpServer = "127.0.2.2"
	dnsServer  = "127.0.2.3"
	proxy      = "127.0.2.4"
	upstream   = "127.0.2.53:10053"
	xdsListen  = "127.0.0.1:18000"
	httpListen = "127.0.0.1:18080"
	envoyAdmin = "127.0.0.1:19901"
	infra      = "clusters/tenant-vlan100"
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer cancel()
	if err := run(ctx, os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "run:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	switch {
	case len(args) == 0:
		return serve(ctx, out)
	case len(args) == 2 && args[0] == "dhcp":
		return lease(ctx, args[1], out)
	}
	return errors.New("usage: run [dhcp MAC]")
}

// lease asks for an address as a relay on the gateway's address would.
func lease(ctx context.Context, hardware string, out io.Writer) error {
	mac, err := net.ParseMAC(hardware)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	relay := stack.Relay{
		Address: netip.MustParseAddrPort("127.0.2.1:" + port(67)),
		Server:  netip.MustParseAddrPort(dhcpServer + ":" + port(67)),
	}
	ack, err := relay.Lease(ctx, mac)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "address %s, DNS %s, router %s, for %s\n", ack.YourIPAddr, ack.DNS()[0], ack.Router()[0], ack.IPAddressLeaseTime(0))
	return nil
}

// port is a well-known port as it is served here.
func port(wellKnown int) string { return strconv.Itoa(wellKnown + portOffset) }

func serve(ctx context.Context, out io.Writer) (err error) {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	binary := filepath.Join(root, "bin", "oooi")
	if _, err := os.Stat(binary); err != nil {
		return fmt.Errorf("%w: run make build first", err)
	}
	if err := portsFree(); err != nil {
		return err
	}
	envoyBinary, err := stack.EnvoyBinary()
	if err != nil {
		return err
	}

	site, err := stack.NewLoopbackSite(upstream)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Stop()) }()
	oooi := &stack.Oooi{
		Binary: binary, HTTP: httpListen, XDS: xdsListen, Args: []string{"--port-offset", strconv.Itoa(portOffset)},
	}
	envoy := &stack.Envoy{Binary: envoyBinary, Oooi: oooi, Infra: infra, Name: "envoy", Admin: envoyAdmin}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := site.StartOooi(starting, oooi); err != nil {
		return err
	}
	if err := site.StartEnvoy(starting, envoy); err != nil {
		return err
	}

	guide(out, site.Folder)
	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "stopping")
		return nil
	case <-oooi.Process().Done():
		return fmt.Errorf("oooi ended:\n%s", oooi.Process().Tail(20))
	case <-envoy.Process().Done():
		return fmt.Errorf("envoy ended:\n%s", envoy.Process().Tail(20))
	}
}

// portsFree fails when something listens where this program wants to.
func portsFree() error {
	for _, address := range []string{
		proxy + ":" + port(443), proxy + ":" + port(6443), dnsServer + ":" + port(53), xdsListen, httpListen, envoyAdmin,
	} {
		l, err := net.Listen("tcp4", address)
		if err != nil {
			return fmt.Errorf("needs %s (TCP), is another `make run` there? %w", address, err)
		}
		if err := l.Close(); err != nil {
			return err
		}
	}
	for _, address := range []string{dnsServer + ":" + port(53), dhcpServer + ":" + port(67)} {
		c, err := net.ListenPacket("udp4", address)
		if err != nil {
			return fmt.Errorf("needs %s (UDP), is another `make run` there? %w", address, err)
		}
		if err := c.Close(); err != nil {
			return err
		}
	}
	return nil
}
