package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/watch/workloads"
)

// defaultEnvoyImage is the release of Envoy that oooi is tested with.
const defaultEnvoyImage = "envoyproxy/envoy:distroless-v1.40.0"

// vlanPodsFlags are the flags of a hub about VLAN pods, as they were given.
type vlanPodsFlags struct {
	write                         bool
	image, envoyImage, pullPolicy string
	pullSecrets                   []string
}

func (f *vlanPodsFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&f.write, "vlan-pods", false, "for the hub: write the VLAN pods of each Infra and what belongs to them; false: what is there stays, and servers are started by hand. Default true in a pod that serves nothing itself, or with --vlan-image")
	flags.StringVar(&f.image, "vlan-image", "", "image of oooi in VLAN pods (default: that of the hub's own pod)")
	flags.StringVar(&f.envoyImage, "envoy-image", defaultEnvoyImage, "image of Envoy in VLAN pods")
	flags.StringVar(&f.pullPolicy, "image-pull-policy", "", "when the images of VLAN pods are pulled: Always, IfNotPresent or Never (default: as for the hub's own image)")
	flags.StringSliceVar(&f.pullSecrets, "image-pull-secrets", nil, "names of the Secrets to pull the images of VLAN pods with, in the namespaces of the Infras (default: those of the hub's own pod)")
}

// check turns the flags into what a hub needs; nil: it writes no VLAN pods.
func (f *vlanPodsFlags) check(cmd *cobra.Command, s *settings) (*workloads.Installation, error) {
	hub := s.reconcile && s.configDir == ""
	for _, name := range []string{"vlan-pods", "vlan-image", "envoy-image", "image-pull-policy", "image-pull-secrets"} {
		if cmd.Flags().Changed(name) && !hub {
			return nil, usageError("--%s is for the hub of a cluster: name reconcile among --roles, and no --config-dir", name)
		}
	}
	policies := []string{"", string(corev1.PullAlways), string(corev1.PullIfNotPresent), string(corev1.PullNever)}
	switch {
	case !slices.Contains(policies, f.pullPolicy):
		return nil, usageError("--image-pull-policy %q is none of %s", f.pullPolicy, strings.Join(policies[1:], ", "))
	case f.envoyImage == "":
		return nil, usageError("--envoy-image is empty: name an image, or leave the flag out for %s", defaultEnvoyImage)
	}
	for _, name := range f.pullSecrets {
		if len(validation.IsDNS1123Subdomain(name)) > 0 {
			return nil, usageError("--image-pull-secrets %q is not the name of a Secret", name)
		}
	}
	pod := ownPod()
	inPod := pod.Name != ""
	// A process that serves a VLAN itself must not have it served by pods, too, unless it is told to.
	write := f.image != "" || inPod && len(s.serve.Roles) == 0
	if cmd.Flags().Changed("vlan-pods") {
		write = f.write
	}
	switch {
	case !hub || !write:
		return nil, nil
	case !inPod && f.image == "":
		return nil, usageError("--vlan-pods needs --vlan-image outside a pod: name the image of oooi")
	}
	return &workloads.Installation{Pod: pod, Settings: workload.Settings{
		Image: f.image, EnvoyImage: f.envoyImage, PullPolicy: corev1.PullPolicy(f.pullPolicy), PullSecrets: f.pullSecrets,
	}}, nil
}
