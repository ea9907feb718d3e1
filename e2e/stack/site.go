package stack

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
)

// Site is one temporary folder, and what runs from it: an oooi, its Envoys, and the control planes that they
// lead to. Stop undoes everything, in the opposite order.
type Site struct {
	// Folder holds manifests, state, logs, and the CA of the control planes as ca.pem.
	Folder    string
	CA        *CA
	Manifests Manifests

	undo []func() error
}

// NewSite makes the folder, with the example of two clusters in it and the replacements (old, new, …) made.
func NewSite(replacements ...string) (*Site, error) {
	s := &Site{}
	if err := s.init(replacements); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Site) init(replacements []string) error {
	var err error
	if s.Folder, err = os.MkdirTemp("", "oooi-"); err != nil {
		return err
	}
	s.Defer(func() error { return os.RemoveAll(s.Folder) })
	for _, sub := range []string{"manifests", "state", "logs"} {
		if err := os.Mkdir(filepath.Join(s.Folder, sub), 0o700); err != nil {
			return err
		}
	}
	if s.Manifests, err = TwoClusters(filepath.Join(s.Folder, "manifests"), replacements...); err != nil {
		return err
	}
	if s.CA, err = NewCA(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(s.Folder, "ca.pem"), s.CA.PEM, 0o600)
}

// Logs is the folder of the log files.
func (s *Site) Logs() string { return filepath.Join(s.Folder, "logs") }

// Defer adds something that Stop does.
func (s *Site) Defer(f func() error) { s.undo = append(s.undo, f) }

// Stop undoes everything.
func (s *Site) Stop() error {
	var errs []error
	for i := len(s.undo) - 1; i >= 0; i-- {
		errs = append(errs, s.undo[i]())
	}
	s.undo = nil
	return errors.Join(errs...)
}

// StartControlPlane starts the TLS servers of a hosted cluster on a host, at four addresses from first on.
func (s *Site) StartControlPlane(h Host, cluster string, services []Service) error {
	cp, err := startControlPlane(h, s.CA, cluster, cluster+".clusters.example.com", services)
	if err != nil {
		return err
	}
	s.Defer(cp.stop)
	return nil
}

// StartUpstream starts an upstream DNS server on a host.
func (s *Site) StartUpstream(h Host, address string) (*Upstream, error) {
	u, err := startUpstream(h, address)
	if err != nil {
		return nil, err
	}
	s.Defer(u.stop)
	return u, nil
}

// StartOooi fills in the folders of o, starts it, and waits until it is ready.
func (s *Site) StartOooi(ctx context.Context, o *Oooi) error {
	o.manifests, o.state, o.logs = s.Manifests, filepath.Join(s.Folder, "state"), s.Logs()
	s.Defer(func() error { return o.process.Stop() })
	return o.Start(ctx)
}

// StartEnvoy fills in the folder of e, starts it, and waits until it is ready.
func (s *Site) StartEnvoy(ctx context.Context, e *Envoy) error {
	e.logs = s.Logs()
	s.Defer(func() error { return e.process.Stop() })
	return e.Start(ctx)
}

// loopback moves the networks of the example to networks of the loopback interface.
var loopback = []string{
	// Nobody but root may listen on port 443, so the ignition servers are reached as headless Services are: at
	// their endpoints, on the target port.
	"clusterIP: 172.30.1.3", "clusterIP: None",
	"clusterIP: 172.30.2.3", "clusterIP: None",
	"192.0.2.", "127.0.2.",
	"172.30.", "127.30.",
}

// endpointSlice is the endpoint of ignition-server-proxy in a control-plane namespace.
const endpointSlice = `apiVersion: discovery.k8s.io/v1
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

// NewLoopbackSite makes a site whose VLAN is 127.0.2.0/24, with its control planes and an upstream DNS server
// at the given address running. Nothing in it needs a privilege, as long as oooi has a port offset.
func NewLoopbackSite(upstream string) (*Site, error) {
	s, err := NewSite(append(loopback, "198.51.100.53", upstream)...)
	if err != nil {
		return nil, err
	}
	if err := s.startLoopback(upstream); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

func (s *Site) startLoopback(upstream string) error {
	for i, cluster := range []string{"example-hcp-a", "example-hcp-b"} {
		services := Services(netip.MustParseAddr("127.30." + strconv.Itoa(i+1) + ".1"))
		for i, service := range services {
			if service.Address.Port() != 443 {
				continue
			}
			services[i].Address = netip.AddrPortFrom(service.Address.Addr(), 8443)
			slice := fmt.Sprintf(endpointSlice, "clusters-"+cluster, service.Address.Addr())
			if err := s.Manifests.Write("endpoints-"+cluster+".yaml", slice); err != nil {
				return err
			}
		}
		if err := s.StartControlPlane("", cluster, services); err != nil {
			return err
		}
	}
	_, err := s.StartUpstream("", upstream)
	return err
}
