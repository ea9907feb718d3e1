// Command kube-controller-manager runs the controllers of Kubernetes: garbage collection by owner references,
// namespaces, Deployments, EndpointSlices.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
)

func main() { os.Exit(cli.Run(app.NewControllerManagerCommand())) }
