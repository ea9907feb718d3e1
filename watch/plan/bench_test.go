package plan_test

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// BenchmarkPlan is the largest Infra that oooi is meant for: 1,000 attachments, 10,000 Machines.
func BenchmarkPlan(b *testing.B) {
	objects := manyClusters(1000, 10)
	b.ReportAllocs()
	for b.Loop() {
		plan.Plan(plan.Input{Objects: objects})
	}
}

// BenchmarkPlanEverything is the same with apps ingress and public OAuth everywhere.
func BenchmarkPlanEverything(b *testing.B) {
	objects := withEverything(manyClusters(1000, 10), "oauth")
	b.ReportAllocs()
	for b.Loop() {
		plan.Plan(plan.Input{Objects: objects})
	}
}

// manyClusters are hosted clusters of one Infra, each with its own control plane and as many workers as said.
func manyClusters(clusters, workers int) plan.Objects {
	infra := &v1alpha1.Infra{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "large"},
		Spec: v1alpha1.InfraSpec{
			NetworkConfig: v1alpha1.NetworkConfig{CIDR: "10.0.0.0/16", Gateway: "10.0.0.1", NetworkAttachmentDefinition: "large"},
			InfraComponents: v1alpha1.InfraComponents{
				DHCP:  v1alpha1.DHCPComponent{ServerIP: "10.0.0.2", RangeStart: "10.0.1.0", RangeEnd: "10.0.255.254"},
				DNS:   v1alpha1.DNSComponent{ServerIP: "10.0.0.3"},
				Proxy: v1alpha1.ProxyComponent{ServerIP: "10.0.0.4"},
			},
		},
	}
	objects := plan.Objects{Infras: []*v1alpha1.Infra{infra}}
	address := 256
	for c := range clusters {
		name := fmt.Sprintf("hcp-%04d", c)
		namespace := "clusters-" + name
		attachment := &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}
		attachment.Spec.InfraRef.Name = "large"
		attachment.Spec.HostedClusterRef.Name = name
		attachment.Spec.DNS = v1alpha1.AttachmentDNS{ClusterName: name, BaseDomain: "clusters.example.com"}
		objects.Attachments = append(objects.Attachments, attachment)
		objects.Namespaces = append(objects.Namespaces, namespace)
		meta := metav1.ObjectMeta{Namespace: "clusters", Name: name}
		objects.HostedClusters = append(objects.HostedClusters, &hypershift.HostedCluster{ObjectMeta: meta})
		pool := &hypershift.NodePool{ObjectMeta: meta}
		pool.Spec.ClusterName, pool.Spec.Platform.Type = name, hypershift.KubeVirtPlatform
		objects.NodePools = append(objects.NodePools, pool)
		for i, service := range []string{"kube-apiserver", "oauth-openshift", "ignition-server-proxy", "konnectivity-server"} {
			objects.Services = append(objects.Services, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: service},
				Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprintf("172.30.%d.%d", c%250, i+1)},
			})
		}
		for w := range workers {
			objects.Machines = append(objects.Machines, &plan.Machine{
				Namespace: namespace, Name: fmt.Sprintf("%s-%d", name, w), UID: fmt.Sprintf("%s-%d", name, w),
				NodePool:  "clusters/" + name,
				Addresses: []string{fmt.Sprintf("10.0.%d.%d", address/256, address%256), "10.132.0.2", "fe80::1"},
			})
			address++
		}
	}
	return objects
}
