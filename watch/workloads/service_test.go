package workloads

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
)

// TestWhatOthersOpenIsTakenAway: applying leaves the ports and addresses that somebody else has added.
func TestWhatOthersOpenIsTakenAway(t *testing.T) {
	infra := &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "tenant", UID: "uid"}}
	attachments := workload.Attachments{External: []workload.External{{Attachment: "a", Port: 20000}}}
	objects, err := workload.Build(infra, attachments, workload.Settings{Image: "oooi:1", EnvoyImage: "envoy:1"})
	if err != nil {
		t.Fatal(err)
	}
	services := map[string]*wantedObject{}
	for _, object := range objects {
		if _, is := object.(*corev1.Service); is {
			o, err := newWantedObject(objectKey{"Service", types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}, infra, object)
			if err != nil {
				t.Fatal(err)
			}
			services[object.GetName()] = o
		}
	}
	const nodePort = 30123
	second := corev1.ServicePort{Name: "kube-api", Protocol: corev1.ProtocolTCP, Port: 6443, TargetPort: intstr.FromInt32(6443)}
	for _, c := range []struct {
		name, service string
		edit          func(*corev1.ServiceSpec)
		taken         bool
		nodePorts     []int32 // that stay
	}{
		{"as it is wanted", "a-proxy-external", func(*corev1.ServiceSpec) {}, false, nil},
		{"the protocol left out", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Ports[0].Protocol = "" }, false, nil},
		// Applying is enough.
		{"another target", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Ports[0].TargetPort = intstr.FromInt32(443) }, false, nil},
		{"another type", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Type = corev1.ServiceTypeClusterIP }, false, nil},
		{"a second port", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Ports = append(s.Ports, second) }, true, []int32{nodePort}},
		{"a second port before ours", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Ports = append([]corev1.ServicePort{second}, s.Ports...) }, true, []int32{nodePort}},
		{"the same number by UDP", "a-proxy-external", func(s *corev1.ServiceSpec) {
			s.Ports = append(s.Ports, corev1.ServicePort{Name: "quic", Protocol: corev1.ProtocolUDP, Port: 443})
		}, true, []int32{nodePort}},
		{"another port", "a-proxy-external", func(s *corev1.ServiceSpec) { s.Ports = []corev1.ServicePort{second} }, true, []int32{0}},
		{"an address", "a-proxy-external", func(s *corev1.ServiceSpec) { s.ExternalIPs = []string{"198.51.100.99"} }, true, []int32{nodePort}},
		{"a Service of all attachments", "tenant-proxy", func(*corev1.ServiceSpec) {}, false, nil},
		{"a port of all attachments", "tenant-proxy", func(s *corev1.ServiceSpec) {
			s.Type = corev1.ServiceTypeNodePort
			s.Ports = append(s.Ports, corev1.ServicePort{Port: 20000, NodePort: 30124})
		}, true, []int32{0, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			wanted := services[c.service]
			there := wanted.object.(*corev1.Service).DeepCopy()
			there.UID, there.ResourceVersion = "a Service", "7"
			for i := range there.Spec.Ports {
				there.Spec.Ports[i].NodePort = nodePort
			}
			c.edit(&there.Spec)
			patch := wanted.clearing(there)
			if taken := patch != nil; taken != c.taken {
				t.Fatalf("the patch is %v", patch)
			}
			if !c.taken {
				return
			}
			there.Annotations = map[string]string{annotationApplied: value(wanted.content, "metadata", "annotations", annotationApplied).(string)}
			if wanted.isIn(there, appliedObject{uid: there.UID, version: versionOf(there)}) {
				t.Error("it is taken for what is wanted")
			}
			ours := wanted.object.(*corev1.Service).Spec
			ports := make([]corev1.ServicePort, len(ours.Ports))
			for i, port := range ours.Ports {
				ports[i], ports[i].NodePort = port, c.nodePorts[i]
			}
			want := map[string]any{
				"metadata": map[string]any{
					"uid": types.UID("a Service"), "resourceVersion": "7", "labels": map[string]any{"app.kubernetes.io/managed-by": "oooi"},
				},
				"spec": map[string]any{"type": ours.Type, "selector": ours.Selector, "ports": ports, "externalIPs": nil},
			}
			if diff := cmp.Diff(want, patch); diff != "" {
				t.Errorf("the patch (-want +got):\n%s", diff)
			}
		})
	}
}
