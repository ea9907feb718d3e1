package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dnsserver"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/workloads"
)

// serveFlags are the flags of oooi serve as they were given.
type serveFlags struct {
	configDir, kubeconfig, infra, stateDir, xdsListen, proxyBind, envoyAdmin string

	roles, httpListen, interfaces, podNetworks []string
	claimAddresses                             bool
	portOffset                                 int

	vlanPods vlanPodsFlags
}

// settings are the flags of oooi serve, checked.
type settings struct {
	configDir, kubeconfig, infra, stateDir, envoyAdmin string
	httpListen                                         []string
	// reconcile is the role of the hub; the others are those of serve.
	reconcile bool
	// workloads is how the hub writes VLAN pods; nil: it writes none.
	workloads *workloads.Installation

	serve serve.Config
}

const roleReconcile = "reconcile"

// serving is nil while the Infra that --infra names is among those that are served.
func (s *settings) serving(states []serve.InfraState) error {
	if s.infra == "" || slices.ContainsFunc(states, func(st serve.InfraState) bool { return st.Infra == s.infra }) {
		return nil
	}
	return fmt.Errorf("Infra %s does not exist yet, or asks for nothing: check --infra", s.infra)
}

// ready says of a server whether it serves what it was told to.
func (s *settings) ready(server *serve.Server) error {
	if err := server.Ready(); err != nil {
		return err
	}
	return s.serving(server.State())
}

func newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve DHCP, DNS and Envoy's configuration, following every change",
		Long: `Serve the Infras of a cluster, or of a folder of manifests, and follow every change.

In a cluster the process that leads writes children and statuses (role reconcile); the other roles read nothing
but the children, and go on without the API, over a restart too. With --config-dir there is no cluster at all: a file
that does not parse or an object that is wrong keeps its last good state, with one clear error.

Nothing listens before the first complete state is known. On SIGTERM or Ctrl-C everything stops but
Envoy, which keeps serving what it has. With --config-dir so do the server addresses put up by --claim-addresses; in a
cluster they are for the pod of the same Infra that follows.`,
		Example: `  oooi serve --roles reconcile                                       # the hub of a cluster, in its pod: it writes the VLAN pods, too
  oooi serve --kubeconfig ~/.kube/config --roles reconcile           # the same from outside, without VLAN pods
  oooi serve --infra clusters/tenant-vlan100 --roles xds,dns,dhcp    # the servers of one VLAN, by hand
  oooi serve --config-dir /etc/oooi --interface eth1 --claim-addresses --state-dir /var/lib/oooi
  oooi serve --config-dir examples/two-clusters --roles xds --state-dir /tmp/oooi   # only Envoy's configuration
  oooi serve --config-dir DIR --port-offset 10000                                   # no root, 127.x addresses`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			log, err := newLog(cmd)
			if err != nil {
				return err
			}
			s, err := f.check()
			if err != nil {
				return err
			}
			if s.workloads, err = f.vlanPods.check(cmd, s); err != nil {
				return err
			}
			if len(s.serve.Roles) > 0 { // a hub keeps nothing
				lock, err := lockStateDir(s.stateDir)
				if err != nil {
					return err
				}
				defer func() { _ = lock.Close() }() // nothing was written to it
			}
			if s.configDir == "" {
				return serveCluster(cmd.Context(), log, s)
			}
			return serveFolder(cmd.Context(), log, s)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.configDir, "config-dir", "", "serve the manifests of this folder (*.yaml, *.yml, *.json), watched for changes, with no cluster at all")
	flags.StringVar(&f.kubeconfig, "kubeconfig", "", "kubeconfig of the cluster to serve (default: KUBECONFIG, or the cluster of the pod)")
	flags.StringVar(&f.infra, "infra", "", "serve only this Infra, as NAMESPACE/NAME")
	flags.StringSliceVar(&f.roles, "roles", []string{roleReconcile, string(serve.RoleXDS), string(serve.RoleDNS), string(serve.RoleDHCP)}, "what this process does")
	flags.StringVar(&f.xdsListen, "xds-listen", "127.0.0.1:18000", "address of the xDS server; loopback only, it is not authenticated")
	flags.StringSliceVar(&f.httpListen, "http-listen", []string{defaultHTTPListen}, "addresses of /metrics, /healthz, /readyz, /status, /leases and /explain; with --claim-addresses in a cluster each is answered on the interface that has it, and never on the VLAN")
	flags.StringVar(&f.envoyAdmin, "envoy-admin", "", "address of Envoy's administration: with --claim-addresses in a cluster, who is the holder depends on Envoy's readiness too")
	flags.StringSliceVar(&f.interfaces, "interface", nil, "the VLAN interface; with several Infras NAMESPACE/NAME=IF for each")
	flags.BoolVar(&f.claimAddresses, "claim-addresses", false, "put the server addresses on the VLAN interface and announce them")
	flags.StringVar(&f.stateDir, "state-dir", defaultStateDir(), "folder for leases, remembered sources and last good manifests")
	flags.StringSliceVar(&f.podNetworks, "pod-networks", nil, "networks that may ask the DNS server besides the VLAN (default: private and loopback ranges)")
	flags.StringVar(&f.proxyBind, "proxy-bind", "", "where Envoy listens: server-ip (the proxy's address on the VLAN; default with --config-dir) or any (default in a cluster)")
	flags.IntVar(&f.portOffset, "port-offset", 0, "added to the DNS, DHCP and Envoy listener ports, so that no root is needed; DHCP then answers relayed and unicast messages only")
	f.vlanPods.add(cmd)
	return cmd
}

// defaultStateDir is where a daemon or a user keeps state (XDG base directory specification).
func defaultStateDir() string {
	if os.Geteuid() == 0 {
		return "/var/lib/oooi"
	}
	if dir := os.Getenv("XDG_STATE_HOME"); dir != "" {
		return filepath.Join(dir, "oooi")
	}
	home, err := os.UserHomeDir()
	if err != nil {
		return "" // --state-dir must be given
	}
	return filepath.Join(home, ".local", "state", "oooi")
}

// check turns the flags into settings.
func (f *serveFlags) check() (*settings, error) {
	s := &settings{configDir: f.configDir, kubeconfig: f.kubeconfig, infra: f.infra, reconcile: slices.Contains(f.roles, roleReconcile), stateDir: f.stateDir, httpListen: f.httpListen, envoyAdmin: f.envoyAdmin}
	switch {
	case f.configDir != "" && f.kubeconfig != "":
		return nil, usageError("--config-dir and --kubeconfig exclude each other: objects come from a folder or from a cluster")
	case f.infra != "" && !isInfraKey(f.infra):
		return nil, usageError("--infra %q is not NAMESPACE/NAME", f.infra)
	case f.portOffset < 0 || f.portOffset > 65535-v1alpha1.ExternalPortLast:
		return nil, usageError("--port-offset %d is not between 0 and %d", f.portOffset, 65535-v1alpha1.ExternalPortLast)
	case f.proxyBind != "" && f.proxyBind != "server-ip" && f.proxyBind != "any":
		return nil, usageError("--proxy-bind %q is neither server-ip nor any", f.proxyBind)
	case f.portOffset > 0 && len(f.interfaces) > 0:
		return nil, usageError("--port-offset and --interface exclude each other: DHCP clients on a VLAN use port 67")
	case f.claimAddresses && f.configDir == "" && f.infra == "":
		return nil, usageError("--claim-addresses in a cluster needs --infra: the pods of one VLAN decide among themselves who has its addresses")
	case f.claimAddresses && len(f.interfaces) == 0:
		return nil, usageError("--claim-addresses needs --interface: name the VLAN interface")
	}
	if err := checkLoopback(f.xdsListen); err != nil {
		return nil, err
	}
	for _, address := range f.httpListen {
		if strings.HasPrefix(address, ":") {
			address = "0.0.0.0" + address // on all addresses
		}
		if _, _, err := splitAddress("--http-listen", address); err != nil {
			return nil, err
		}
	}
	roles, err := f.servingRoles()
	if err != nil {
		return nil, err
	}
	if len(roles) > 0 && f.stateDir == "" {
		return nil, usageError("--state-dir is missing, and there is no home folder: leases must be kept somewhere")
	}
	interfaces, err := f.interfacesByInfra()
	if err != nil {
		return nil, err
	}
	networks, err := f.networks()
	if err != nil {
		return nil, err
	}
	s.serve = serve.Config{
		Roles:          roles,
		XDSListen:      f.xdsListen,
		StateDir:       f.stateDir,
		Interfaces:     interfaces,
		ClaimAddresses: f.claimAddresses,
		PodNetworks:    networks,
		ProxyBindAny:   f.proxyBind == "any" || f.proxyBind == "" && f.configDir == "",
		PortOffset:     f.portOffset,
	}
	return s, nil
}

// checkLoopback keeps the xDS server, which tells every route to whoever asks, off the network.
func checkLoopback(address string) error {
	host, _, err := splitAddress("--xds-listen", address)
	if err != nil {
		return err
	}
	if ip, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !ip.IsLoopback()) {
		return usageError("--xds-listen %q is not a loopback address: off loopback xDS demands mTLS, which is not in this release", address)
	}
	return nil
}

func (f *serveFlags) servingRoles() ([]serve.Role, error) {
	known := []string{roleReconcile, string(serve.RoleXDS), string(serve.RoleDNS), string(serve.RoleDHCP)}
	var roles []serve.Role
	for _, role := range f.roles {
		switch {
		case !slices.Contains(known, role):
			return nil, usageError("--roles %q is none of %s", role, strings.Join(known, ", "))
		case role != roleReconcile: // there is nothing to write back to a folder
			roles = append(roles, serve.Role(role))
		}
	}
	if len(roles) == 0 && f.configDir != "" {
		return nil, usageError("--roles %s serves nothing: with --config-dir name xds, dns or dhcp", strings.Join(f.roles, ","))
	}
	return roles, nil
}

func (f *serveFlags) interfacesByInfra() (map[string]string, error) {
	interfaces := map[string]string{}
	for _, text := range f.interfaces {
		infra, name, named := strings.Cut(text, "=")
		if !named {
			infra, name = "", text
		}
		if name == "" || named && !isInfraKey(infra) {
			return nil, usageError("--interface %q is neither IF nor NAMESPACE/NAME=IF", text)
		}
		if interfaces[infra] != "" {
			return nil, usageError("--interface %q: the interface of that Infra is given already", text)
		}
		interfaces[infra] = name
	}
	if interfaces[""] != "" && len(interfaces) > 1 {
		return nil, usageError("--interface: give one IF, or NAMESPACE/NAME=IF for each Infra")
	}
	return interfaces, nil
}

func (f *serveFlags) networks() ([]netip.Prefix, error) {
	if f.podNetworks == nil {
		return dnsserver.PrivateNetworks(), nil
	}
	var networks []netip.Prefix
	for _, text := range f.podNetworks {
		network, err := netip.ParsePrefix(text)
		if err != nil || !network.Addr().Is4() {
			return nil, usageError("--pod-networks %q is not an IPv4 CIDR", text)
		}
		networks = append(networks, network.Masked())
	}
	return networks, nil
}

// serveFolder serves the manifests of a folder until ctx ends.
func serveFolder(ctx context.Context, log *slog.Logger, s *settings) (err error) {
	log.Info("oooi starts", "version", version, "configDir", s.configDir, "stateDir", s.stateDir)
	source, err := files.New(files.Config{Dir: s.configDir, StateDir: s.stateDir, Log: log})
	if err != nil {
		return err
	}
	leasesChanged := make(chan struct{}, 1)
	s.serve.Log = log
	s.serve.LeasesChanged = func() {
		select {
		case leasesChanged <- struct{}{}:
		default:
		}
	}
	server, err := serve.New(s.serve)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	f, err := newFolder(log, s, server, source)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return source.Run(ctx, f.setObjects) })
	group.Go(func() error { return f.run(ctx, leasesChanged) })
	group.Go(func() error { return server.Run(ctx) })
	group.Go(func() error { return f.web().serve(ctx, s.httpListen, false) })
	if err := group.Wait(); err != nil && !errors.Is(err, context.Canceled) {
		return fmt.Errorf("serve: %w", err)
	}
	log.Info("oooi has stopped")
	return nil
}
