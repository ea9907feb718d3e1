package workloads

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/densityops/oooi/deploy/workload"
)

func TestSettingsComeFromTheHubsOwnPod(t *testing.T) {
	pod := func(containers ...corev1.Container) *corev1.Pod {
		return &corev1.Pod{Spec: corev1.PodSpec{Containers: containers, ImagePullSecrets: []corev1.LocalObjectReference{{Name: "registry"}}}}
	}
	oooi := corev1.Container{Name: "oooi", Image: "example.com/oooi:1", ImagePullPolicy: corev1.PullAlways}
	for _, c := range []struct {
		name  string
		given workload.Settings
		pod   *corev1.Pod
		want  *workload.Settings
	}{
		{"everything", workload.Settings{EnvoyImage: "e"}, pod(corev1.Container{Name: "proxy"}, oooi), &workload.Settings{Image: "example.com/oooi:1", EnvoyImage: "e", PullPolicy: corev1.PullAlways, PullSecrets: []string{"registry"}}},
		{"the only container", workload.Settings{}, pod(corev1.Container{Name: "hub", Image: "i"}), &workload.Settings{Image: "i", PullSecrets: []string{"registry"}}},
		{"an image that was given", workload.Settings{Image: "other:1"}, pod(oooi), &workload.Settings{Image: "other:1", PullSecrets: []string{"registry"}}},
		{"a policy and secrets that were given", workload.Settings{PullPolicy: corev1.PullNever, PullSecrets: []string{"mine"}}, pod(oooi), &workload.Settings{Image: "example.com/oooi:1", PullPolicy: corev1.PullNever, PullSecrets: []string{"mine"}}},
		{"no container of oooi", workload.Settings{}, pod(corev1.Container{Name: "a"}, corev1.Container{Name: "b"}), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := fromPod(c.given, c.pod)
			if (err == nil) != (c.want != nil) {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}
