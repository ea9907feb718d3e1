package netlab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

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
	Foreign   = "203.0.113.9" // of the client, too: an address that may ask nothing
)

// Config says which lab to start.
type Config struct {
	// Prefix of the namespaces' names, unique among the labs that run.
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

	*stack.Site
	Oooi     *stack.Oooi
	Envoy    *stack.Envoy
	Upstream *stack.Upstream
}

// Start builds the network and starts everything; what it started is stopped again when it fails.
func Start(ctx context.Context, c Config) (*Lab, error) {
	site, err := stack.NewSite()
	if err != nil {
		return nil, err
	}
	l := &Lab{Site: site}
	if err := l.start(ctx, c); err != nil {
		return nil, errors.Join(err, l.Stop())
	}
	return l, nil
}

func (l *Lab) start(ctx context.Context, c Config) error {
	n := &network{prefix: c.Prefix}
	l.Defer(n.stop)
	if err := n.start(ctx); err != nil {
		return err
	}
	l.WorkerA, l.WorkerB, l.Stranger = n.host("worker-a"), n.host("worker-b"), n.host("stranger")
	l.Client, l.Pod, l.Cluster = n.host("client"), n.host("pod"), n.host("cluster")

	for cluster, first := range map[string]string{"example-hcp-a": "172.30.1.1", "example-hcp-b": "172.30.2.1"} {
		if err := l.StartControlPlane(cluster, netip.MustParseAddr(first)); err != nil {
			return err
		}
	}
	var err error
	if l.Upstream, err = l.StartUpstream(l.Cluster, "198.51.100.53:53"); err != nil {
		return err
	}
	l.Oooi = &stack.Oooi{
		Binary: c.Binary, Host: l.Pod, HTTP: "127.0.0.1:8080", XDS: "127.0.0.1:18000",
		// Envoy listens on every address of the pod, as in a cluster: the VLAN's and the pod network's.
		Args: []string{"--interface", "vlan0", "--claim-addresses", "--proxy-bind", "any"},
	}
	if err := l.StartOooi(ctx, l.Oooi); err != nil {
		return err
	}
	envoy, err := stack.EnvoyBinary()
	if err != nil {
		return err
	}
	l.Envoy = &stack.Envoy{Binary: envoy, Host: l.Pod, Oooi: l.Oooi, Infra: Infra, Name: "envoy", Admin: "127.0.0.1:9901"}
	if c.DrainSeconds > 0 {
		l.Envoy.Args = []string{"--drain-time-s", fmt.Sprint(c.DrainSeconds)}
	}
	return l.StartEnvoy(ctx, l.Envoy)
}

// StartControlPlane starts the TLS servers of a hosted cluster in the cluster namespace, at four addresses from
// first on.
func (l *Lab) StartControlPlane(cluster string, first netip.Addr) error {
	services := stack.Services(first)
	for _, s := range services {
		if err := ip(context.Background(), fmt.Sprintf("-n %s addr replace %s/32 dev lo", l.Cluster, s.Address.Addr())); err != nil {
			return err
		}
	}
	return l.Site.StartControlPlane(l.Cluster, cluster, services)
}

// HardwareAddress makes a host another machine on the VLAN: with another hardware address, and no address yet.
func (l *Lab) HardwareAddress(ctx context.Context, h stack.Host, mac string) error {
	if err := ip(ctx, fmt.Sprintf("-n %s addr flush dev vlan0", h)); err != nil {
		return err
	}
	return ip(ctx, fmt.Sprintf("-n %s link set vlan0 address %s", h, mac))
}
