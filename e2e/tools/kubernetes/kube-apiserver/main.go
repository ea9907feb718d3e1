// Command kube-apiserver is the API server of Kubernetes. Its module needs replace directives for its own
// parts, which only a main module may have.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	"k8s.io/kubernetes/cmd/kube-apiserver/app"
)

func main() { os.Exit(cli.Run(app.NewAPIServerCommand())) }
