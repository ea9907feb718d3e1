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

// The example's networks become networks of the loopback interface.
var addresses = []string{
	// Nobody but root may listen on port 443, so the ignition servers are reached as headless Services are: at
	// their endpoints, on the target port.
	"clusterIP: 172.30.1.3", "clusterIP: None",
	"clusterIP: 172.30.2.3", "clusterIP: None",
	"192.0.2.", "127.0.2.",
	"172.30.", "127.30.",
	"198.51.100.53", upstream,
}

// endpoints of the headless Service ignition-server-proxy in a control-plane namespace.
const endpoints = `apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: ignition-server-proxy-1
  namespace: %s
  labels:
    kubernetes.io/service-name: ignition-server-proxy
addressType: IPv4
ports:
  - {port: 8443, protocol: TCP}
endpoints:
  - addresses: ["%s"]
    conditions: {ready: true}
`

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
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
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

	folder, err := os.MkdirTemp("", "oooi-run-")
	if err != nil {
		return err
	}
	// Everything is undone in the opposite order, whatever happens.
	var undo []func() error
	defer func() {
		for i := len(undo) - 1; i >= 0; i-- {
			err = errors.Join(err, undo[i]())
		}
	}()
	undo = append(undo, func() error { return os.RemoveAll(folder) })
	for _, sub := range []string{"manifests", "state", "logs"} {
		if err := os.Mkdir(filepath.Join(folder, sub), 0o700); err != nil {
			return err
		}
	}

	ca, err := stack.NewCA()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(folder, "ca.pem"), ca.PEM, 0o600); err != nil {
		return err
	}
	manifests, err := stack.TwoClusters(filepath.Join(folder, "manifests"), addresses...)
	if err != nil {
		return err
	}
	for cluster, first := range map[string]string{"example-hcp-a": "127.30.1.1", "example-hcp-b": "127.30.2.1"} {
		services := stack.Services(netip.MustParseAddr(first))
		for i, s := range services {
			if s.Address.Port() != 443 {
				continue
			}
			services[i].Address = netip.AddrPortFrom(s.Address.Addr(), 8443)
			slice := fmt.Sprintf(endpoints, "clusters-"+cluster, s.Address.Addr())
			if err := manifests.Write("endpoints-"+cluster+".yaml", slice); err != nil {
				return err
			}
		}
		controlPlane, err := stack.StartControlPlane("", ca, cluster, cluster+".clusters.example.com", services)
		if err != nil {
			return err
		}
		undo = append(undo, controlPlane.Stop)
	}
	resolver, err := stack.StartUpstream("", upstream)
	if err != nil {
		return err
	}
	undo = append(undo, resolver.Stop)

	oooi := &stack.Oooi{
		Binary: binary, Manifests: manifests, State: filepath.Join(folder, "state"), Logs: filepath.Join(folder, "logs"),
		HTTP: httpListen, XDS: xdsListen, Args: []string{"--port-offset", strconv.Itoa(portOffset)},
	}
	envoy := &stack.Envoy{
		Binary: envoyBinary, Oooi: oooi, Infra: infra, Name: "envoy", Logs: oooi.Logs, Admin: envoyAdmin,
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	undo = append(undo, func() error { return stop(oooi.Process()) })
	if err := oooi.Start(starting); err != nil {
		return err
	}
	undo = append(undo, func() error { return stop(envoy.Process()) })
	if err := envoy.Start(starting); err != nil {
		return err
	}

	guide(out, folder)
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

func stop(p *stack.Process) error {
	if p == nil {
		return nil
	}
	return p.Stop()
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
