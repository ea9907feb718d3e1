package deploy

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// TestExternalDNS runs the two ExternalDNS of the example under their roles, with their arguments but for the DNS server, beside the
// Services that HyperShift and oooi write: each publishes its own names, at the addresses of its own Services.
func TestExternalDNS(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := cluster{t: t, ctx: ctx, ControlPlane: controlplane.ForTest(t)}
	c.apply(`
{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: clusters-example-hcp-a}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: clusters-example-hcp-b}}
`)
	apart := c.apply(string(render(t, "examples/external-dns")))
	c.balanced(c.apply(kubeAPIServer("example-hcp-a"))[0], "198.51.100.10")
	c.balanced(c.apply(kubeAPIServer("example-hcp-b"))[0], "198.51.100.11")
	for _, service := range publicServices(t) {
		c.balanced(c.apply(service)[0], "198.51.100.20")
	}

	for deployment, want := range map[string][]string{
		"external-dns-api":   {"api.example-hcp-a.clusters.example.com 198.51.100.10", "api.example-hcp-b.clusters.example.com 198.51.100.11"},
		"external-dns-oauth": {"oauth.example-hcp-a.clusters.example.com 198.51.100.20"},
	} {
		i := slices.IndexFunc(apart, func(o *unstructured.Unstructured) bool {
			return o.GetKind() == "Deployment" && o.GetName() == deployment
		})
		if i < 0 {
			t.Fatalf("there is no Deployment %s", deployment)
		}
		if got := c.publishedBy(apart[i]); !cmp.Equal(got, want) {
			t.Errorf("%s publishes %q, want %q", deployment, got, want)
		}
	}
}

// kubeAPIServer is the Service of a hosted cluster's API server, published by LoadBalancer, as HyperShift writes it.
func kubeAPIServer(cluster string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata:
  name: kube-apiserver
  namespace: clusters-%[1]s
  labels: {app: kube-apiserver, hypershift.openshift.io/control-plane-component: kube-apiserver}
  annotations: {external-dns.alpha.kubernetes.io/hostname: api.%[1]s.clusters.example.com}
spec:
  type: LoadBalancer
  selector: {app: kube-apiserver}
  ports: [{port: 6443, targetPort: client}]
`, cluster)
}

// publicServices are those of the attachments of the example.
func publicServices(t *testing.T) []string {
	t.Helper()
	objects, err := controlplane.Decode(render(t, "examples/apps"))
	if err != nil {
		t.Fatal(err)
	}
	var infra v1alpha1.Infra
	var attachments workload.Attachments
	for _, object := range objects {
		var attachment v1alpha1.InfraClusterAttachment
		switch object.GetKind() {
		case "Infra":
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &infra)
		case "InfraClusterAttachment":
			err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &attachment)
		}
		if err != nil {
			t.Fatal(err)
		}
		if e := attachment.Spec.ExternalService; e != nil {
			attachments.External = append(attachments.External, workload.External{
				Attachment: attachment.Name, Port: v1alpha1.ExternalPortFirst,
				AddressPool: e.AddressPoolName, Labels: e.Labels, Annotations: e.Annotations,
			})
		}
	}
	infra.UID = "1b0a4b9c-0000-4000-8000-000000000001"
	built, err := workload.Build(&infra, attachments, workload.Settings{Image: "oooi:1", EnvoyImage: "envoy:1"})
	if err != nil {
		t.Fatal(err)
	}
	var services []string
	for _, object := range built {
		service, is := object.(*corev1.Service)
		if !is {
			continue
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(service)
		if err != nil {
			t.Fatal(err)
		}
		text, err := (&unstructured.Unstructured{Object: fields}).MarshalJSON()
		if err != nil {
			t.Fatal(err)
		}
		services = append(services, string(text))
	}
	return services
}

// balanced gives a Service an address, as a load balancer does, if it asks for one.
func (c *cluster) balanced(service *unstructured.Unstructured, address string) {
	c.t.Helper()
	if kind, _, _ := unstructured.NestedString(service.Object, "spec", "type"); kind != string(corev1.ServiceTypeLoadBalancer) {
		return
	}
	client, err := c.Resource(service)
	if err != nil {
		c.t.Fatal(err)
	}
	status := []byte(`{"status": {"loadBalancer": {"ingress": [{"ip": "` + address + `"}]}}}`)
	if _, err := client.Patch(c.ctx, service.GetName(), types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		c.t.Fatal(err)
	}
}

// created is what ExternalDNS says of a record that it makes in a zone which it keeps in memory.
var created = regexp.MustCompile(`CREATE: (\S+) \d+ IN A\s+(\S+)`)

// publishedBy runs what a Deployment runs, once, and returns "name address" of each record that it makes.
func (c *cluster) publishedBy(deployment *unstructured.Unstructured) []string {
	c.t.Helper()
	binary, err := stack.ExternalDNS()
	if err != nil {
		c.t.Fatal(err)
	}
	pod, _, err := unstructured.NestedMap(deployment.Object, "spec", "template", "spec")
	if err != nil {
		c.t.Fatal(err)
	}
	container := pod["containers"].([]any)[0].(map[string]any)
	kubeconfig, err := c.ServiceAccountKubeconfig(c.ctx, deployment.GetNamespace(), pod["serviceAccountName"].(string))
	if err != nil {
		c.t.Fatal(err)
	}
	args := []string{"--once", "--kubeconfig=" + kubeconfig, "--metrics-address=127.0.0.1:0", "--provider=inmemory", "--inmemory-zone=clusters.example.com"}
	for _, arg := range container["args"].([]any) {
		if text := arg.(string); !strings.HasPrefix(text, "--provider=") && !strings.HasPrefix(text, "--rfc2136-") {
			args = append(args, text)
		}
	}
	output, err := exec.CommandContext(c.ctx, binary, args...).CombinedOutput()
	if err != nil {
		c.t.Fatalf("%s: %v\n%s", deployment.GetName(), err, output)
	}
	var names []string
	for _, match := range created.FindAllStringSubmatch(string(output), -1) {
		names = append(names, match[1]+" "+strings.Trim(match[2], `"`))
	}
	if len(names) == 0 {
		c.t.Logf("%s says:\n%s", deployment.GetName(), output)
	}
	slices.Sort(names)
	return names
}
