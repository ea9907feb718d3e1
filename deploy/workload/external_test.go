package workload

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestEveryPublicPortIsLetIn: a public Service whose port the policy of the pods does not admit would be dead.
func TestEveryPublicPortIsLetIn(t *testing.T) {
	g := read(t, "testdata/page.in.yaml")
	build := func() (wall *networkingv1.NetworkPolicy, public []*corev1.Service) {
		objects, err := Build(&g.Infra, g.Attachments, g.Settings)
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			switch o := object.(type) {
			case *networkingv1.NetworkPolicy:
				if o.Name == v1alpha1.VLANName(g.Infra.Name) {
					wall = o
				}
			case *corev1.Service:
				if o.Spec.Type == corev1.ServiceTypeLoadBalancer {
					public = append(public, o)
				}
			}
		}
		return wall, public
	}
	g.Attachments.External = nil
	before, _ := build()
	g.Attachments.External = []External{{Attachment: "b", Port: v1alpha1.ExternalPortLast}, {Attachment: "a", Port: v1alpha1.ExternalPortFirst}}
	wall, public := build()
	if diff := cmp.Diff(before, wall); diff != "" {
		t.Errorf("the policy changes with attachments:\n%s", diff)
	}
	if len(public) != 2 {
		t.Fatalf("there are %d public Services", len(public))
	}
	for _, service := range public {
		target := service.Spec.Ports[0].TargetPort.IntVal
		if !slices.ContainsFunc(wall.Spec.Ingress[0].Ports, func(p networkingv1.NetworkPolicyPort) bool {
			return *p.Protocol == corev1.ProtocolTCP && p.EndPort != nil && p.Port.IntVal <= target && target <= *p.EndPort
		}) {
			t.Errorf("%s leads to port %d, which is closed", service.Name, target)
		}
	}
}

// TestTheUsersMapsAreHis: what Build is given belongs to somebody else.
func TestTheUsersMapsAreHis(t *testing.T) {
	g, untouched := read(t, "testdata/external.in.yaml"), read(t, "testdata/external.in.yaml")
	if _, err := Build(&g.Infra, g.Attachments, g.Settings); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(untouched.Attachments, g.Attachments); diff != "" {
		t.Errorf("Build changed what it was given:\n%s", diff)
	}
}
