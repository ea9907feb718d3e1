// Command kube-proxy makes Services of Kubernetes work on one node: it writes nftables rules from Services and
// EndpointSlices.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-proxy/app"
)

func main() { os.Exit(cli.Run(app.NewProxyCommand())) }
