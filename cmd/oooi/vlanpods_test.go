package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch/workloads"
)

// TestWhoWritesVLANPods tries the flags inside and outside a pod; what is wrong usage is in the scripts.
func TestWhoWritesVLANPods(t *testing.T) {
	pod := types.NamespacedName{Namespace: "oooi-system", Name: "oooi-0"}
	for _, c := range []struct {
		name  string
		flags string
		inPod bool
		roles []serve.Role
		want  *workloads.Installation
	}{
		{"a hub in its pod", "", true, nil, &workloads.Installation{Pod: pod, Settings: workload.Settings{EnvoyImage: defaultEnvoyImage}}},
		{"a hub in its pod that must not", "--vlan-pods=false", true, nil, nil},
		{"a hub that serves, too, in its pod", "", true, []serve.Role{serve.RoleDNS}, nil},
		{"a hub that serves, too, and is told to", "--vlan-pods", true, []serve.Role{serve.RoleDNS}, &workloads.Installation{Pod: pod, Settings: workload.Settings{EnvoyImage: defaultEnvoyImage}}},
		{"a laptop", "", false, nil, nil},
		{
			"a laptop with an image", "--vlan-image=oooi:1 --envoy-image=envoy:1 --image-pull-policy=Never --image-pull-secrets=a,b", false, nil,
			&workloads.Installation{Settings: workload.Settings{Image: "oooi:1", EnvoyImage: "envoy:1", PullPolicy: corev1.PullNever, PullSecrets: []string{"a", "b"}}},
		},
		{"an image and no pods", "--vlan-image=oooi:1 --vlan-pods=false", false, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("POD_NAMESPACE", "")
			t.Setenv("POD_NAME", "")
			if c.inPod {
				t.Setenv("POD_NAMESPACE", pod.Namespace)
				t.Setenv("POD_NAME", pod.Name)
			}
			var f vlanPodsFlags
			cmd := &cobra.Command{}
			f.add(cmd)
			if err := cmd.ParseFlags(strings.Fields(c.flags)); err != nil {
				t.Fatal(err)
			}
			got, err := f.check(cmd, &settings{reconcile: true, serve: serve.Config{Roles: c.roles}})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
