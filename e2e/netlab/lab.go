package netlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/densityops/oooi/e2e/stack"
)

// Infra that the lab serves, and addresses of the example.
const (
	Infra     = "clusters/tenant-vlan100"
	DNSServer = "192.0.2.3"
	Proxy     = "192.0.2.4"
	ClusterIP = "172.30.0.4" // of the proxy, for pods
	WorkerA   = "192.0.2.117"
	WorkerB   = "192.0.2.118"
	Stranger  = "192.0.2.119"
)

// Config says which lab to start.
type Config struct {
	// Prefix of the namespaces' names, at most 6 characters.
	Prefix string
	// Binary is the path of oooi.
	Binary string
	// DrainSeconds is how long Envoy lets connections of a removed chain go on. 0: Envoy's default.
	DrainSeconds int
}

// Lab is a running VLAN with two hosted clusters.
type Lab struct {
	WorkerA, WorkerB, Stranger stack.Host // on the VLAN, without an address at first
	Client                     stack.Host // a pod of the management cluster
	Pod                        stack.Host // the VLAN pod
	Cluster                    stack.Host // the pod network's router

	CA        *stack.CA
	Manifests stack.Manifests
	Oooi      *stack.Oooi
	Envoy     *stack.Envoy
	Upstream  *stack.Upstream

	folder string
	undo   []func() error
}

// Start builds the network and starts everything; what it started is stopped again when it fails.
func Start(ctx context.Context, c Config) (*Lab, error) {
	l := &Lab{}
	if err := l.start(ctx, c); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context, c Config) error {
	var err error
	if l.folder, err = os.MkdirTemp("", "oooi-lab-"); err != nil {
		return err
	}
	l.undo = append(l.undo, func() error { return os.RemoveAll(l.folder) })
	for _, sub := range []string{"manifests", "state", "logs"} {
		if err := os.Mkdir(filepath.Join(l.folder, sub), 0o700); err != nil {
			return err
		}
	}

	n := &network{prefix: c.Prefix}
	l.undo = append(l.undo, n.stop)
	if err := n.start(ctx); err != nil {
		return err
	}
	l.WorkerA, l.WorkerB, l.Stranger = n.host("worker-a"), n.host("worker-b"), n.host("stranger")
	l.Client, l.Pod, l.Cluster = n.host("client"), n.host("pod"), n.host("cluster")

	if l.CA, err = stack.NewCA(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(l.folder, "ca.pem"), l.CA.PEM, 0o600); err != nil {
		return err
	}
	for cluster, first := range map[string]string{"example-hcp-a": "172.30.1.1", "example-hcp-b": "172.30.2.1"} {
		if err := l.ControlPlane(cluster, cluster+".clusters.example.com", netip.MustParseAddr(first)); err != nil {
			return err
		}
	}
	if l.Upstream, err = stack.StartUpstream(l.Cluster, "198.51.100.53:53"); err != nil {
		return err
	}
	l.undo = append(l.undo, l.Upstream.Stop)

	if l.Manifests, err = stack.TwoClusters(filepath.Join(l.folder, "manifests")); err != nil {
		return err
	}
	l.Oooi = &stack.Oooi{
		Binary: c.Binary, Host: l.Pod, Manifests: l.Manifests, State: filepath.Join(l.folder, "state"), Logs: l.Logs(),
		HTTP: "127.0.0.1:8080", XDS: "127.0.0.1:18000",
		// Envoy listens on every address of the pod, as in a cluster: the VLAN's and the pod network's.
		Args: []string{"--interface", "vlan0", "--claim-addresses", "--proxy-bind", "any"},
	}
	l.undo = append(l.undo, func() error { return stop(l.Oooi.Process()) })
	if err := l.Oooi.Start(ctx); err != nil {
		return err
	}
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		return err
	}
	l.Envoy = &stack.Envoy{
		Binary: envoy, Host: l.Pod, Oooi: l.Oooi, Infra: Infra, Name: "envoy", Logs: l.Logs(), Admin: "127.0.0.1:9901",
	}
	if c.DrainSeconds > 0 {
		l.Envoy.Args = []string{"--drain-time-s", fmt.Sprint(c.DrainSeconds)}
	}
	l.undo = append(l.undo, func() error { return stop(l.Envoy.Process()) })
	return l.Envoy.Start(ctx)
}

// Folder holds everything that the lab writes: manifests, state, logs, and the CA as ca.pem.
func (l *Lab) Folder() string { return l.folder }

// Logs is the folder of the log files.
func (l *Lab) Logs() string { return filepath.Join(l.folder, "logs") }

// ControlPlane starts the TLS servers of one more hosted cluster, at four addresses from first on, which the
// cluster namespace gets when it lacks them.
func (l *Lab) ControlPlane(cluster, domain string, first netip.Addr) error {
	services := stack.Services(first)
	for _, s := range services {
		if err := ip(context.Background(), fmt.Sprintf("-n %s addr replace %s/32 dev lo", l.Cluster, s.Address.Addr())); err != nil {
			return err
		}
	}
	controlPlane, err := stack.StartControlPlane(l.Cluster, l.CA, cluster, domain, services)
	if err != nil {
		return err
	}
	l.undo = append(l.undo, controlPlane.Stop)
	return nil
}

// Address puts an address of the VLAN on a host's vlan0, in place of a DHCP client.
func (l *Lab) Address(ctx context.Context, h stack.Host, address string) error {
	return ip(ctx, fmt.Sprintf("-n %s addr replace %s/24 dev vlan0", h, address))
}

// Stop ends every process and removes the namespaces and the folder.
func (l *Lab) Stop() error {
	var errs []error
	for i := len(l.undo) - 1; i >= 0; i-- {
		errs = append(errs, l.undo[i]())
	}
	l.undo = nil
	return errors.Join(errs...)
}

func stop(p *stack.Process) error {
	if p == nil {
		return nil
	}
	return p.Stop()
}
