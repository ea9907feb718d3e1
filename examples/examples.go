// Package examples holds manifests to read, to apply and to try: the folder two-clusters is the example that
// `make run`, `make lab` and the end-to-end tests start from.
package examples

import "embed"

// TwoClusters is two hosted clusters on one VLAN: infra.yaml is what a person writes, neighbours.yaml what
// HyperShift, Cluster API and Kubernetes have around it.
//
//go:embed two-clusters/*.yaml
var TwoClusters embed.FS
