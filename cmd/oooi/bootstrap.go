package main

import (
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/densityops/oooi/xds"
)

func newBootstrap() *cobra.Command {
	var infra, xdsAddress, nodeID, admin string
	cmd := &cobra.Command{
		Use:   "bootstrap --infra NS/NAME --xds-address HOST:PORT",
		Short: "Print an Envoy bootstrap for one Infra",
		Example: `  oooi bootstrap --infra clusters/tenant-vlan100 --xds-address 127.0.0.1:18000 > envoy.yaml
  envoy --config-path envoy.yaml --drain-time-s 30`,
		Long: `Print an Envoy bootstrap for one Infra. Start Envoy with --drain-time-s 30: that is how long
established connections of an attachment that was removed or left out live on (Envoy's own default is 600 s).`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !isInfraKey(infra) {
				return usageError("--infra %q is not NAMESPACE/NAME", infra)
			}
			host, port, err := splitAddress("--xds-address", xdsAddress)
			if err != nil {
				return err
			}
			adminHost, _, err := splitAddress("--admin-address", admin)
			if err != nil {
				return err
			}
			if _, err := netip.ParseAddr(adminHost); err != nil {
				return usageError("--admin-address %q has a name; Envoy binds an IP address", admin)
			}
			if nodeID == "" {
				if nodeID, err = os.Hostname(); err != nil {
					return usageError("this host has no name: give --node-id")
				}
			}
			text, err := xds.Bootstrap(xds.BootstrapConfig{
				Infra: infra, NodeID: nodeID,
				XDSHost: host, XDSPort: port,
				AdminAddress: admin,
			})
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&infra, "infra", "", "the Infra, as NAMESPACE/NAME; becomes Envoy's node.cluster (required)")
	cmd.Flags().StringVar(&xdsAddress, "xds-address", "127.0.0.1:18000", "where oooi serves xDS, as HOST:PORT")
	cmd.Flags().StringVar(&nodeID, "node-id", "", "Envoy's node.id, unique per Envoy (default: the host name)")
	cmd.Flags().StringVar(&admin, "admin-address", "127.0.0.1:9901", "Envoy's admin interface, as HOST:PORT")
	return cmd
}

// isInfraKey tells whether text is NAMESPACE/NAME.
func isInfraKey(text string) bool {
	namespace, name, found := strings.Cut(text, "/")
	return found && namespace != "" && name != "" && !strings.Contains(name, "/")
}

func splitAddress(flag, text string) (host string, port int, err error) {
	host, number, err := net.SplitHostPort(text)
	if err != nil || host == "" {
		return "", 0, usageError("%s %q is not HOST:PORT", flag, text)
	}
	n, err := strconv.ParseUint(number, 10, 16)
	if err != nil || n == 0 {
		return "", 0, usageError("%s %q has no port between 1 and 65535", flag, text)
	}
	return host, int(n), nil
}
