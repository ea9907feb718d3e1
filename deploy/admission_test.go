package deploy

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/deploy/workload"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// TestAPIServer applies what is rendered to an API server that knows nothing of oooi, as a user would, unknown fields
// refused. Then the hub's account writes the workload of an Infra as the builder gives it, and a VLAN pod's account does what
// it has to, and both what they must not.
func TestAPIServer(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	c := cluster{t: t, ctx: ctx, ControlPlane: controlplane.ForTest(t, "--allow-privileged=true")}
	applied := c.apply(string(render(t, ".")))

	i := slices.IndexFunc(applied, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Deployment" })
	if i < 0 {
		t.Fatal("there is no Deployment")
	}
	if _, err := c.ApplyObject(ctx, "user", podOf(t, applied[i], "hub")); err != nil {
		t.Errorf("the hub's pods are refused: %v", err)
	}

	infras := c.apply(`
{apiVersion: v1, kind: Namespace, metadata: {name: clusters-a}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: baseline, labels: {pod-security.kubernetes.io/enforce: baseline}}}
---
` + infra("tenant-vlan100") + "---\n" + infra("other") + `
  vlanPods:
    imagePullPolicy: Always
    imagePullSecrets: [{name: of-the-tenant}]
    nodeSelector: {example.com/vlan: "200"}
    tolerations: [{key: example.com/network, operator: Exists, effect: NoSchedule}]
    priorityClassName: system-cluster-critical
    resources: {requests: {cpu: "1", memory: 1Gi}, limits: {memory: 1Gi}}
    envoyResources: {requests: {cpu: 500m}}
`)[2:]

	hub := c.as(c.serviceAccount("oooi-system", "oooi"))
	var deployments []*unstructured.Unstructured
	for _, object := range infras {
		deployments = append(deployments, c.writeWorkload(hub, object))
	}
	// Both Infras own what they share.
	for _, kind := range []string{"ServiceAccount", "RoleBinding"} {
		shared := c.get(map[string]string{"ServiceAccount": "v1", "RoleBinding": "rbac.authorization.k8s.io/v1"}[kind], kind, "clusters", "oooi-vlan")
		if owners := shared.GetOwnerReferences(); len(owners) != 2 {
			t.Errorf("%s is owned by %v", kind, owners)
		}
	}
	c.hubEndsThere(hub, deployments[0])
	c.hubWritesForInfrasOnly(hub, infras[0], deployments[0])
	c.foreignMetadataStays(hub, infras[0])
	c.hubHoldsUpAttachments(hub)
	c.hubReadsKubeconfigsByName(hub)

	// Pods as the Deployments' controllers would make them.
	for deployment, name := range map[*unstructured.Unstructured]string{
		deployments[0]: "tenant-vlan100-vlan-6d5f8c9b7d-abcde", deployments[1]: "other-vlan-6d5f8c9b7d-abcde",
	} {
		pod := podOf(t, deployment, name)
		if _, err := c.ApplyObject(ctx, "user", pod); err != nil {
			t.Errorf("the VLAN pods are refused: %v", err)
		}
		pod.SetNamespace("baseline")
		if _, err := c.ApplyObject(ctx, "user", pod); err == nil || !strings.Contains(err.Error(), "NET_ADMIN") {
			t.Errorf("security.md says that the level baseline forbids VLAN pods: %v", err)
		}
	}
	if _, err := c.ApplyObject(ctx, "user", podOf(t, deployments[0], "tenant-vlan100-vlan-6d5f8c9b7d-fghij")); err != nil {
		t.Fatal(err)
	}
	c.vlanPodsKeepToTheirOwn()
	c.longNamesAreKeptApart(deployments[0])
}

func infra(name string) string {
	return `
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: Infra
metadata: {name: ` + name + `, namespace: clusters}
spec:
  networkConfig: {cidr: 192.0.2.0/24, gateway: 192.0.2.1, networkAttachmentDefinition: ` + name + `}
  infraComponents:
    dhcp: {serverIP: 192.0.2.2, rangeStart: 192.0.2.100, rangeEnd: 192.0.2.200}
    dns: {serverIP: 192.0.2.3}
    proxy: {serverIP: 192.0.2.4}
`
}

// cluster is a control plane and the test that has it.
type cluster struct {
	*controlplane.ControlPlane
	t   *testing.T
	ctx context.Context
}

func (c *cluster) apply(manifests string) []*unstructured.Unstructured {
	c.t.Helper()
	applied, err := c.Apply(c.ctx, "user", []byte(manifests))
	if err != nil {
		c.t.Fatal(err)
	}
	return applied
}

func (c *cluster) get(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	c.t.Helper()
	object := refer(apiVersion, kind, namespace, name)
	client, err := c.Resource(object)
	if err != nil {
		c.t.Fatal(err)
	}
	if object, err = client.Get(c.ctx, name, metav1.GetOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return object
}

func refer(apiVersion, kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion(apiVersion)
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func (c *cluster) serviceAccount(namespace, name string) *rest.Config {
	c.t.Helper()
	config, err := c.ServiceAccountConfig(c.ctx, namespace, name)
	if err != nil {
		c.t.Fatal(err)
	}
	return config
}

// as is the same control plane as somebody else sees it.
func (c *cluster) as(config *rest.Config) *cluster {
	c.t.Helper()
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		c.t.Fatal(err)
	}
	return &cluster{t: c.t, ctx: c.ctx, ControlPlane: &controlplane.ControlPlane{Dynamic: client, Mapper: c.Mapper}}
}

// pod is the client of a VLAN pod: its token is bound to it, as that in its volume is.
func (c *cluster) pod(name string) *cluster {
	c.t.Helper()
	admin, err := kubernetes.NewForConfig(c.AdminConfig())
	if err != nil {
		c.t.Fatal(err)
	}
	uid := c.get("v1", "Pod", "clusters", name).GetUID()
	answer, err := admin.CoreV1().ServiceAccounts("clusters").CreateToken(c.ctx, v1alpha1.VLANAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: name, UID: uid}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	config := c.serviceAccount("clusters", v1alpha1.VLANAccount)
	config.BearerToken = answer.Status.Token
	return c.as(config)
}

// podOf is a pod as the controller of a Deployment makes it.
func podOf(t *testing.T, deployment *unstructured.Unstructured, name string) *unstructured.Unstructured {
	t.Helper()
	template, _, err := unstructured.NestedMap(deployment.Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetNamespace(deployment.GetNamespace())
	pod.SetName(name)
	return pod
}

// writeWorkload writes what the builder gives for an Infra as the hub does, and returns the Deployment.
func (c *cluster) writeWorkload(hub *cluster, object *unstructured.Unstructured) *unstructured.Unstructured {
	c.t.Helper()
	var infra v1alpha1.Infra
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &infra); err != nil {
		c.t.Fatal(err)
	}
	objects, err := workload.Build(&infra, attachmentsOf(infra.Name), workload.Settings{Image: "oooi:1", EnvoyImage: "envoy:1", PullSecrets: []string{"registry"}})
	if err != nil {
		c.t.Fatal(err)
	}
	var last *unstructured.Unstructured
	for _, o := range objects {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			c.t.Fatal(err)
		}
		// A second time nothing changes: what is applied has no default that the API server reads otherwise.
		var versions []string
		for range 2 {
			last, err = hub.ApplyObject(c.ctx, workload.FieldOwner(&infra, o), &unstructured.Unstructured{Object: fields})
			if err != nil {
				c.t.Fatalf("%T %s: %v", o, o.GetName(), err)
			}
			versions = append(versions, last.GetResourceVersion())
		}
		if versions[0] != versions[1] {
			c.t.Errorf("%T %s changes when it is applied again", o, o.GetName())
		}
	}
	if last.GetKind() != "Deployment" {
		c.t.Fatalf("the last object is a %s", last.GetKind())
	}
	return last
}

// attachmentsOf are those of an Infra, one of them with public names.
func attachmentsOf(infra string) workload.Attachments {
	return workload.Attachments{
		ControlPlanes: []string{"clusters-a"},
		External: []workload.External{{
			Attachment: "of-" + infra, Port: v1alpha1.ExternalPortFirst, AddressPool: "oauth",
			Labels:      map[string]string{"external-dns.example.com/publish": "yes"},
			Annotations: map[string]string{"external-dns.alpha.kubernetes.io/hostname": "oauth.example-hcp-a.clusters.example.com."},
		}},
	}
}

// foreignMetadataStays has others write to a public Service what is theirs, and what is not.
func (c *cluster) foreignMetadataStays(hub *cluster, object *unstructured.Unstructured) {
	c.t.Helper()
	attachment := "of-" + object.GetName()
	name := v1alpha1.ExternalServiceName(attachment)
	client, err := c.Resource(refer("v1", "Service", "clusters", name))
	if err != nil {
		c.t.Fatal(err)
	}
	edit := func(text string, subresources ...string) *unstructured.Unstructured {
		c.t.Helper()
		edited, err := client.Patch(c.ctx, name, types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "somebody"}, subresources...)
		if err != nil {
			c.t.Fatal(err)
		}
		return edited
	}
	nodePort := func(service *unstructured.Unstructured) any {
		ports, _, _ := unstructured.NestedSlice(service.Object, "spec", "ports")
		return ports[0].(map[string]any)["nodePort"]
	}
	before := edit(`{"metadata": {"labels": {"example.com/theirs": "yes", "hostedcluster.densityops.com/attachment": "example-hcp-b"},
		"annotations": {"example.com/theirs": "yes", "metallb.universe.tf/address-pool": "another", "metallb.universe.tf/ip-allocated-from-pool": "another"}}}`)
	edit(`{"status": {"loadBalancer": {"ingress": [{"ip": "198.51.100.20"}]}}}`, "status")
	c.writeWorkload(hub, object)
	after := c.get("v1", "Service", "clusters", name)
	labels, annotations := after.GetLabels(), after.GetAnnotations()
	if labels["example.com/theirs"] != "yes" || annotations["example.com/theirs"] != "yes" || annotations["metallb.universe.tf/ip-allocated-from-pool"] != "another" {
		c.t.Errorf("what others wrote is gone: %v, %v", labels, annotations)
	}
	if labels[v1alpha1.LabelAttachment] != attachment || annotations["metallb.universe.tf/address-pool"] != "oauth" {
		c.t.Errorf("what is ours did not come back: %v, %v", labels, annotations)
	}
	if nodePort(before) == nil || nodePort(before) != nodePort(after) {
		c.t.Errorf("the node port was %v and is %v", nodePort(before), nodePort(after))
	}
	if ingress, _, _ := unstructured.NestedSlice(after.Object, "status", "loadBalancer", "ingress"); len(ingress) != 1 {
		c.t.Errorf("the address is gone: %v", ingress)
	}
}

// hubHoldsUpAttachments has the hub put its finalizer on an attachment and take it off, and try the rest.
func (c *cluster) hubHoldsUpAttachments(hub *cluster) {
	c.t.Helper()
	var attachment *unstructured.Unstructured
	examples, err := controlplane.Decode(render(c.t, "examples/apps"))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, object := range examples {
		if object.GetKind() != "InfraClusterAttachment" {
			continue
		}
		if attachment, err = c.ApplyObject(c.ctx, "user", object); err != nil {
			c.t.Fatalf("the example %s is refused: %v", object.GetName(), err)
		}
	}
	client, err := c.Resource(attachment)
	if err != nil {
		c.t.Fatal(err)
	}
	theirs := []byte(`{"metadata": {"finalizers": ["example.com/theirs"], "labels": {"a": "b"}, "annotations": {"a": "b"}}}`)
	if _, err := client.Patch(c.ctx, attachment.GetName(), types.MergePatchType, theirs, metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		c.t.Fatal(err)
	}
	apply := func(finalizers ...string) *unstructured.Unstructured {
		c.t.Helper()
		mine := refer(attachment.GetAPIVersion(), attachment.GetKind(), attachment.GetNamespace(), attachment.GetName())
		mine.SetFinalizers(finalizers)
		applied, err := hub.ApplyObject(c.ctx, "oooi-apps-ingress", mine)
		if err != nil {
			c.t.Fatalf("the hub may not apply the finalizers %v: %v", finalizers, err)
		}
		return applied
	}
	// Whether it is on or off, what others wrote stays.
	for _, finalizers := range [][]string{{v1alpha1.FinalizerAppsIngress}, nil, {v1alpha1.FinalizerAppsIngress}} {
		applied := apply(finalizers...)
		want := append([]string{"example.com/theirs"}, finalizers...)
		if got := applied.GetFinalizers(); !slices.Equal(got, want) || applied.GetLabels()["a"] != "b" || applied.GetGeneration() != attachment.GetGeneration() {
			c.t.Errorf("with %v applied there are the finalizers %v, the labels %v, generation %d", finalizers, got, applied.GetLabels(), applied.GetGeneration())
		}
	}

	mine, err := hub.Resource(attachment)
	if err != nil {
		c.t.Fatal(err)
	}
	patch := func(text string, subresources ...string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := mine.Patch(ctx, attachment.GetName(), types.MergePatchType, []byte(text), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, subresources...)
			return err
		}
	}
	const finalizer = "its own finalizer"
	for what, text := range map[string]string{
		"another domain":              `{"spec": {"dns": {"clusterName": "other"}}}`,
		"another Infra":               `{"spec": {"infraRef": {"name": "other"}}}`,
		"apps ingress off":            `{"spec": {"appsIngress": null}}`,
		"a label":                     `{"metadata": {"labels": {"b": "c"}}}`,
		"a label less":                `{"metadata": {"labels": null}}`,
		"an annotation":               `{"metadata": {"annotations": {"a": "c"}}}`,
		"an annotation less":          `{"metadata": {"annotations": {"a": null}}}`,
		"an owner":                    `{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]}}`,
		"another finalizer":           `{"metadata": {"finalizers": ["example.com/theirs", "` + v1alpha1.FinalizerAppsIngress + `", "example.com/more"]}}`,
		"somebody else's finalizer":   `{"metadata": {"finalizers": ["` + v1alpha1.FinalizerAppsIngress + `"]}}`,
		"a finalizer in its place":    `{"metadata": {"finalizers": ["example.com/other"]}}`,
		"no finalizer":                `{"metadata": {"finalizers": null}}`,
		"its finalizer, and the spec": `{"metadata": {"finalizers": ["example.com/theirs"]}, "spec": {"dns": {"clusterName": "other"}}}`,
	} {
		c.refused(what, finalizer, patch(text))
	}
	if err := patch(`{"metadata": {"finalizers": ["example.com/theirs"]}}`)(c.ctx); err != nil {
		c.t.Errorf("its own finalizer: %v", err)
	}
	if err := patch(`{"status": {"domain": "example-hcp-a.clusters.example.com"}}`, "status")(c.ctx); err != nil {
		c.t.Errorf("the status: %v", err)
	}
	c.forbidden("an attachment taken away", mine.Delete(c.ctx, attachment.GetName(), metav1.DeleteOptions{}))
	c.forbidden("an attachment made", create(c.ctx, hub, attachment, metav1.CreateOptions{}))
	absent := refer(attachment.GetAPIVersion(), attachment.GetKind(), attachment.GetNamespace(), "absent")
	absent.Object["spec"] = attachment.Object["spec"]
	absent.SetFinalizers([]string{v1alpha1.FinalizerAppsIngress})
	_, err = hub.ApplyObject(c.ctx, "oooi-apps-ingress", absent)
	c.forbidden("an attachment that is not there, applied", err)

	// Deleted, it waits for the hub, and goes when nobody wants it any more.
	if err := client.Delete(c.ctx, attachment.GetName(), metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if held := c.get(attachment.GetAPIVersion(), attachment.GetKind(), attachment.GetNamespace(), attachment.GetName()); held.GetDeletionTimestamp() == nil {
		c.t.Error("the attachment is not being deleted")
	}
	apply()
	if _, err := client.Patch(c.ctx, attachment.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if _, err := client.Get(c.ctx, attachment.GetName(), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		c.t.Errorf("the attachment is still there: %v", err)
	}
}

// hubReadsKubeconfigsByName has the hub read Secrets without and with the optional role.
func (c *cluster) hubReadsKubeconfigsByName(hub *cluster) {
	c.t.Helper()
	for _, secret := range [][2]string{
		{"clusters", "example-hcp-a-admin-kubeconfig"}, {"clusters", "example-hcp-c-admin-kubeconfig"}, {"clusters-a", "example-hcp-a-admin-kubeconfig"},
	} {
		c.apply(`{apiVersion: v1, kind: Secret, metadata: {namespace: ` + secret[0] + `, name: ` + secret[1] + `}}`)
	}
	get := func(ctx context.Context, namespace, name string) error {
		client, err := hub.Resource(refer("v1", "Secret", namespace, name))
		if err != nil {
			return err
		}
		_, err = client.Get(ctx, name, metav1.GetOptions{})
		return err
	}
	c.forbidden("a kubeconfig without the role", get(c.ctx, "clusters", "example-hcp-a-admin-kubeconfig"))
	c.apply(string(render(c.t, "kubeconfigs")))
	// Roles, too, take a moment until they are in force.
	if err := stack.Until(c.ctx, "the kubeconfig", func(ctx context.Context) error { return get(ctx, "clusters", "example-hcp-a-admin-kubeconfig") }); err != nil {
		c.t.Error(err)
	}
	c.forbidden("a kubeconfig that is not named", get(c.ctx, "clusters", "example-hcp-c-admin-kubeconfig"))
	c.forbidden("a kubeconfig in another namespace", get(c.ctx, "clusters-a", "example-hcp-a-admin-kubeconfig"))
	secret := refer("v1", "Secret", "clusters", "example-hcp-a-admin-kubeconfig")
	client, err := hub.Resource(secret)
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = client.List(c.ctx, metav1.ListOptions{})
	c.forbidden("all Secrets", err)
	_, err = client.List(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + secret.GetName()})
	c.forbidden("a list of one", err)
	_, err = client.Watch(c.ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + secret.GetName()})
	c.forbidden("a watch of one", err)
	_, err = client.Patch(c.ctx, secret.GetName(), types.MergePatchType, []byte(`{"data": null}`), metav1.PatchOptions{})
	c.forbidden("a change", err)
	c.forbidden("its end", client.Delete(c.ctx, secret.GetName(), metav1.DeleteOptions{}))
}

// forbidden wants the hub's roles to refuse a request.
func (c *cluster) forbidden(what string, err error) {
	c.t.Helper()
	if !apierrors.IsForbidden(err) || strings.Contains(err.Error(), "ValidatingAdmissionPolicy") {
		c.t.Errorf("%s: got %v, want it forbidden by the roles", what, err)
	}
}

// refused wants a policy to refuse a request with a message. A policy takes a moment until it is in force.
func (c *cluster) refused(what, message string, request func(context.Context) error) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.ctx, 30*time.Second)
	defer cancel()
	if err := stack.Until(ctx, "the policy", func(ctx context.Context) error {
		err := request(ctx)
		if err != nil && strings.Contains(err.Error(), message) {
			return nil
		}
		return fmt.Errorf("got %w, want it refused: %s", err, message)
	}); err != nil {
		c.t.Errorf("%s: %v", what, err)
	}
}

// hubEndsThere asks as the hub for what it must not have: others' objects, and pods that are more than VLAN pods.
func (c *cluster) hubEndsThere(hub *cluster, deployment *unstructured.Unstructured) {
	c.t.Helper()
	dryRun := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	patch := func(namespace, name, text string) func(context.Context) error {
		return func(ctx context.Context) error {
			_, err := hub.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(namespace).
				Patch(ctx, name, types.MergePatchType, []byte(text), dryRun)
			return err
		}
	}
	c.refused("the hub's own Deployment", "labelled app.kubernetes.io/managed-by=oooi",
		patch("oooi-system", "oooi", `{"metadata": {"annotations": {"a": "b"}}}`))
	c.refused("taking somebody else's Deployment over", "labelled app.kubernetes.io/managed-by=oooi",
		patch("oooi-system", "oooi", `{"metadata": {"labels": {"app.kubernetes.io/managed-by": "oooi"}}}`))
	c.refused("deleting it", "labelled app.kubernetes.io/managed-by=oooi", func(ctx context.Context) error {
		return hub.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace("oooi-system").
			Delete(ctx, "oooi", metav1.DeleteOptions{DryRun: dryRun.DryRun})
	})
	c.refused("another account with the rights of VLAN pods", "of the binding's own namespace only", func(ctx context.Context) error {
		binding := refer("rbac.authorization.k8s.io/v1", "RoleBinding", "clusters", v1alpha1.VLANAccount)
		client, err := hub.Resource(binding)
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, binding.GetName(), types.MergePatchType,
			[]byte(`{"subjects": [{"kind": "ServiceAccount", "name": "oooi-vlan", "namespace": "elsewhere"}]}`), dryRun)
		return err
	})
	pod := func(text string) func(context.Context) error {
		return patch("clusters", deployment.GetName(), `{"spec": {"template": {"spec": `+text+`}}}`)
	}
	if err := pod(`{"priorityClassName": "system-cluster-critical"}`)(c.ctx); err != nil {
		c.t.Errorf("the hub may not change its own Deployment: %v", err)
	}
	c.refused("another account", "under the account oooi-vlan only", pod(`{"serviceAccountName": "default", "serviceAccount": "default"}`))
	c.refused("the host's network", "in namespaces of the host", pod(`{"hostNetwork": true, "securityContext": {"sysctls": null}}`))
	const (
		modestContext = `"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}`
		modest        = `"containers": [{"name": "a", "image": "b", "securityContext": {` + modestContext + `}}]`
	)
	c.refused("the host's files", "no volumes but", pod(`{`+modest+`, "volumes": [{"name": "host", "hostPath": {"path": "/"}}]}`))
	c.refused("a Secret", "no volumes but", pod(`{`+modest+`, "volumes": [{"name": "secret", "secret": {"secretName": "a"}}]}`))
	for what, context := range map[string]string{
		"nothing said":       `null`,
		"privileged":         `{"privileged": true}`,
		"one capability too": `{"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN"]}}`,
		"nothing dropped":    `{"allowPrivilegeEscalation": false}`,
		"escalation":         `{"capabilities": {"drop": ["ALL"]}}`,
	} {
		c.refused(what, "more than NET_ADMIN and NET_RAW", pod(`{"containers": [{"name": "a", "image": "b", "securityContext": `+context+`}]}`))
	}
	c.refused("containers that start first", "more than NET_ADMIN and NET_RAW",
		pod(`{"initContainers": [{"name": "a", "image": "b", "securityContext": {"privileged": true}}]}`))
	c.refused("a Secret among other things", "no volumes but",
		pod(`{`+modest+`, "volumes": [{"name": "a", "projected": {"sources": [{"configMap": {"name": "a"}}, {"secret": {"name": "a"}}]}}]}`))
	for what, row := range map[string][2]string{
		"a Secret as a variable":     {"no variables from anything but", `"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "a", "key": "b"}}}]`},
		"a Secret as variables":      {"no variables from anything but", `"envFrom": [{"secretRef": {"name": "a"}}]`},
		"a port of the host":         {"nor on its ports", `"ports": [{"containerPort": 443, "hostPort": 443}]`},
		"a container without a wall": {"without the runtime's own", `"securityContext": {"seccompProfile": {"type": "Unconfined"}, ` + modestContext + `}`},
		"AppArmor off":               {"without the runtime's own", `"securityContext": {"appArmorProfile": {"type": "Unconfined"}, ` + modestContext + `}`},
		"another SELinux type":       {"without the runtime's own", `"securityContext": {"seLinuxOptions": {"type": "spc_t"}, ` + modestContext + `}`},
		"a user of Windows":          {"without the runtime's own", `"securityContext": {"windowsOptions": {"runAsUserName": "a"}, ` + modestContext + `}`},
		"all of /proc":               {"without the runtime's own", `"securityContext": {"procMount": "Unmasked", ` + modestContext + `}`},
	} {
		container := row[1]
		if !strings.Contains(container, "securityContext") {
			container += `, "securityContext": {` + modestContext + `}`
		}
		c.refused(what, row[0], pod(`{"volumes": null, "hostUsers": false, "containers": [{"name": "a", "image": "b", `+container+`}]}`))
	}
	for what, context := range map[string]string{
		"pods without a wall":              `{"seccompProfile": {"type": "Unconfined"}}`,
		"pods that say nothing of one":     `null`,
		"pods with another SELinux type":   `{"seLinuxOptions": {"type": "spc_t"}}`,
		"pods without AppArmor":            `{"appArmorProfile": {"type": "Unconfined"}}`,
		"another sysctl":                   `{"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}`,
		"pods that Windows takes for host": `{"windowsOptions": {"runAsUserName": "a"}}`,
	} {
		c.refused(what, "without the runtime's own", pod(`{"securityContext": `+context+`}`))
	}
	c.refused("a node by its name", "where the scheduler lets them", pod(`{"nodeName": "control-plane-0"}`))
	meta := func(text string) func(context.Context) error {
		return patch("clusters", deployment.GetName(), `{"spec": {"template": {"metadata": `+text+`}}}`)
	}
	c.refused("endpoints of somebody else's Service", "labels of VLAN pods and no others", meta(`{"labels": {"k8s-app": "kube-dns"}}`))
	c.refused("AppArmor off, as it was said before", "no annotations for the runtime",
		meta(`{"annotations": {"container.apparmor.security.beta.kubernetes.io/oooi": "unconfined"}}`))
	if err := meta(`{"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-03-01T12:00:00Z"}}`)(c.ctx); err != nil {
		c.t.Errorf("pods that somebody restarted by hand: %v", err)
	}
	// What an Infra may ask for.
	if err := pod(`{"nodeSelector": {"a": "b"}, "tolerations": [{"operator": "Exists"}], "imagePullSecrets": [{"name": "a"}]}`)(c.ctx); err != nil {
		c.t.Errorf("what an Infra asks for: %v", err)
	}
}

// hubWritesForInfrasOnly asks as the hub for objects that are labelled as its own, in a namespace where no Infra wants them.
func (c *cluster) hubWritesForInfrasOnly(hub *cluster, infra, deployment *unstructured.Unstructured) {
	c.t.Helper()
	const (
		account = "ClusterRole oooi-vlan to the account oooi-vlan"
		names   = "only what an Infra controls"
		leads   = "lead to VLAN pods"
		public  = "with the one port 443"
		walls   = "to the control planes of attachments"
		vlan    = `{app.kubernetes.io/name: oooi, app.kubernetes.io/component: vlan}`
		peer    = `{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: clusters}}, podSelector: {matchLabels: ` + vlan + `}}`
		meta    = `metadata: {namespace: kube-system, labels: {app.kubernetes.io/managed-by: oooi}, name: `
	)
	owned := fmt.Sprintf(`metadata: {namespace: clusters, labels: {app.kubernetes.io/managed-by: oooi}, ownerReferences: [{apiVersion: %s, kind: Infra, name: third, uid: %s, controller: true}], name: `,
		v1alpha1.GroupVersion, infra.GetUID())
	service := func(meta, spec string) string {
		return `{apiVersion: v1, kind: Service, ` + meta + `, spec: ` + spec + `}`
	}
	policy := func(meta, spec string) string {
		return `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, ` + meta + `, spec: ` + spec + `}`
	}
	binding := func(name, role string) string {
		return `{apiVersion: rbac.authorization.k8s.io/v1, kind: RoleBinding, ` + meta + name + `}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: ` + role + `}, subjects: [{kind: ServiceAccount, name: oooi-vlan, namespace: kube-system}]}`
	}
	disruption := func(meta, spec string) string {
		return `{apiVersion: policy/v1, kind: PodDisruptionBudget, ` + meta + `, spec: ` + spec + `}`
	}
	const (
		ports    = `ports: [{port: 53}]`
		balanced = `type: LoadBalancer`
		external = `ports: [{name: https, port: 443, targetPort: 20000}]`
		third    = `{app.kubernetes.io/name: oooi, app.kubernetes.io/component: vlan, hostedcluster.densityops.com/infra: third}`
	)
	for _, row := range []struct{ what, manifest, message string }{
		{"an account", `{apiVersion: v1, kind: ServiceAccount, ` + meta + `oooi-vlan}}`, ""},
		{"another account", `{apiVersion: v1, kind: ServiceAccount, ` + meta + `default-2}}`, names},
		{"its binding", binding("oooi-vlan", "oooi-vlan"), ""},
		{"the hub's own rights for pods", binding("oooi-vlan", "oooi-hub"), account},
		{"another binding", binding("oooi", "oooi-vlan"), names},
		{"a ConfigMap", `{apiVersion: v1, kind: ConfigMap, ` + owned + `third-envoy}}`, ""},
		{"a ConfigMap that others read", `{apiVersion: v1, kind: ConfigMap, ` + meta + `coredns-custom}}`, names},
		{"a ConfigMap of another name", `{apiVersion: v1, kind: ConfigMap, ` + owned + `coredns-custom}}`, names},
		{"a Service", service(owned+`third-dns}`, `{`+ports+`, selector: `+vlan+`}`), ""},
		{"a Service of no Infra", service(meta+`third-dns}`, `{`+ports+`, selector: `+vlan+`}`), names},
		{"a Service of another Infra", service(owned+`fourth-dns}`, `{`+ports+`, selector: `+vlan+`}`), names},
		{"others' addresses", service(owned+`third-dns}`, `{`+ports+`, selector: `+vlan+`, externalIPs: [192.0.2.8]}`), leads},
		{"ports of nodes", service(owned+`third-proxy}`, `{type: NodePort, `+ports+`, selector: `+vlan+`}`), leads},
		{"others' pods", service(owned+`third-proxy}`, `{`+ports+`, selector: {k8s-app: kube-dns}}`), leads},
		{"a public Service", service(owned+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: `+third+`}`), ""},
		{
			"a public Service with its defaults", service(owned+`a-proxy-external}`, `{`+balanced+`, allocateLoadBalancerNodePorts: true, externalTrafficPolicy: Local,
			ports: [{name: https, port: 443, targetPort: 29999, protocol: TCP, nodePort: 30443}], selector: `+third+`}`), "",
		},
		{"a public Service of no Infra", service(meta+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: `+third+`}`), names},
		{"a public Service of another name", service(owned+`a-proxy-public}`, `{`+balanced+`, `+external+`, selector: `+third+`}`), names},
		{"what all share, public", service(owned+`third-proxy}`, `{`+balanced+`, `+external+`, selector: `+third+`}`), leads},
		{"a public Service with others' addresses", service(owned+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: `+third+`, externalIPs: [192.0.2.8]}`), leads},
		{"a public Service before others' pods", service(owned+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: {k8s-app: kube-dns, hostedcluster.densityops.com/infra: third}}`), leads},
		{"a public Service before another Infra's pods", service(owned+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: `+strings.ReplaceAll(third, "third", "fourth")+`}`), leads},
		{"a public Service before all VLAN pods", service(owned+`a-proxy-external}`, `{`+balanced+`, `+external+`, selector: `+vlan+`}`), leads},
		{"a public Service without an address", service(owned+`a-proxy-external}`, `{`+external+`, selector: `+third+`}`), public},
		{"a public Service on ports of nodes", service(owned+`a-proxy-external}`, `{type: NodePort, `+external+`, selector: `+third+`}`), public},
		{"a public Service that is another name", service(owned+`a-proxy-external}`, `{type: ExternalName, externalName: www.example.com, `+external+`, selector: `+third+`}`), public},
		{"the API server, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 6443, targetPort: 20000}], selector: `+third+`}`), public},
		{"datagrams, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443, targetPort: 20000, protocol: UDP}], selector: `+third+`}`), public},
		{"the listener of all, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443, targetPort: 443}], selector: `+third+`}`), public},
		{"the listener of all by default, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443}], selector: `+third+`}`), public},
		{"the listener of all by name, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443, targetPort: https}], selector: `+third+`}`), public},
		{"a port below the range, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443, targetPort: 19999}], selector: `+third+`}`), public},
		{"a port above the range, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{port: 443, targetPort: 30000}], selector: `+third+`}`), public},
		{
			"a second port, public", service(owned+`a-proxy-external}`, `{`+balanced+`, ports: [{name: a, port: 443, targetPort: 20000}, {name: b, port: 6443, targetPort: 6443}], selector: `+third+`}`), public,
		},
		{"a wall", policy(owned+`third-vlan}`, `{podSelector: {matchLabels: `+vlan+`}, policyTypes: [Ingress]}`), ""},
		{"a wall around all", policy(owned+`third-vlan}`, `{podSelector: {}, policyTypes: [Ingress]}`), walls},
		{"a wall of no Infra", policy(meta+`third-vlan}`, `{podSelector: {matchLabels: `+vlan+`}, policyTypes: [Ingress]}`), names},
		{"a way in", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {matchLabels: {app: kube-apiserver}}, policyTypes: [Ingress], ingress: [{from: [`+peer+`]}]}`), ""},
		{"no way in or out", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {}, policyTypes: [Ingress, Egress]}`), walls},
		{"no way in", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {}, policyTypes: [Ingress]}`), walls},
		{"no way out", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {matchLabels: {app: kube-apiserver}}, policyTypes: [Ingress, Egress]}`), walls},
		{"a way in for all", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {matchLabels: {app: kube-apiserver}}, policyTypes: [Ingress], ingress: [{}]}`), walls},
		{
			"a way in for others", policy(meta+`oooi.clusters.third.a}`, `{podSelector: {matchLabels: {app: kube-apiserver}}, policyTypes: [Ingress], ingress: [{from: [`+peer+`, {ipBlock: {cidr: 0.0.0.0/0}}]}]}`), walls,
		},
		{"a budget", disruption(owned+`third-vlan}`, `{maxUnavailable: 1, selector: {matchLabels: `+vlan+`}}`), ""},
		{"a budget of others' pods", disruption(owned+`third-vlan}`, `{maxUnavailable: 0, selector: {}}`), "about VLAN pods"},
		{"a budget of no Infra", disruption(meta+`third-vlan}`, `{maxUnavailable: 1, selector: {matchLabels: `+vlan+`}}`), names},
	} {
		objects, err := controlplane.Decode([]byte(row.manifest))
		if err != nil {
			c.t.Fatalf("%s: %v", row.what, err)
		}
		c.hubCreates(hub, row.what, row.message, objects[0])
	}

	free := deployment.DeepCopy()
	unstructured.RemoveNestedField(free.Object, "metadata", "ownerReferences")
	renamed := deployment.DeepCopy()
	renamed.SetName("coredns")
	for what, object := range map[string]*unstructured.Unstructured{"pods of no Infra": free, "pods of another name": renamed} {
		object.SetNamespace("kube-system")
		object.SetResourceVersion("")
		object.SetUID("")
		c.hubCreates(hub, what, names, object)
	}
}

// hubCreates asks as the hub whether it may create an object; without a message it may.
func (c *cluster) hubCreates(hub *cluster, what, message string, object *unstructured.Unstructured) {
	c.t.Helper()
	dryRun := func(ctx context.Context) error {
		return create(ctx, hub, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	}
	if message != "" {
		c.refused(what, message, dryRun)
	} else if err := dryRun(c.ctx); err != nil {
		c.t.Errorf("%s: %v", what, err)
	}
}

// vlanPodsKeepToTheirOwn has two pods of one Infra and one of another, all of one account.
func (c *cluster) vlanPodsKeepToTheirOwn() {
	c.t.Helper()
	const own, sibling, stranger = "tenant-vlan100-vlan-6d5f8c9b7d-abcde", "tenant-vlan100-vlan-6d5f8c9b7d-fghij", "other-vlan-6d5f8c9b7d-abcde"
	pod := c.pod(own)
	patch := func(name, text string) func(context.Context) error {
		return func(ctx context.Context) error {
			client, err := pod.Resource(refer("v1", "Pod", "clusters", name))
			if err != nil {
				return err
			}
			_, err = client.Patch(ctx, name, types.StrategicMergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
	}
	const (
		holder   = `{"metadata": {"labels": {"hostedcluster.densityops.com/holder": "true"}, "annotations": {"controller.kubernetes.io/pod-deletion-cost": "100"}}}`
		noHolder = `{"metadata": {"labels": {"hostedcluster.densityops.com/holder": null}, "annotations": {"controller.kubernetes.io/pod-deletion-cost": null}}}`
	)
	c.refused("a sibling made the holder", "nothing else", patch(sibling, holder))
	c.refused("a sibling with another label", "of its labels", patch(sibling, `{"metadata": {"labels": {"a": "b"}}}`))
	c.refused("a stranger", "of its own Infra, only", patch(stranger, noHolder))
	if err := patch(sibling, noHolder)(c.ctx); err != nil {
		c.t.Errorf("the pod may not take the mark off its sibling: %v", err)
	}
	for _, text := range []string{holder, noHolder, holder} {
		if err := patch(own, text)(c.ctx); err != nil {
			c.t.Errorf("the pod may not mark itself (%s): %v", text, err)
		}
	}
	for text, message := range map[string]string{
		`{"metadata": {"labels": {"a": "b"}}}`:                                                                    "of its labels",
		`{"metadata": {"labels": {"app.kubernetes.io/component": "hub"}}}`:                                        "of its labels",
		`{"metadata": {"labels": {"hostedcluster.densityops.com/infra": null}}}`:                                  "of its labels",
		`{"metadata": {"annotations": {"a": "b"}}}`:                                                               "of its annotations",
		`{"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": null}}}`:                                    "of its annotations",
		`{"metadata": {"finalizers": ["example.com/never"]}}`:                                                     "one label and one annotation",
		`{"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "b"}]}}`: "one label and one annotation",
		`{"spec": {"containers": [{"name": "oooi", "image": "somebody.example.com/else"}]}}`:                      "one label and one annotation",
	} {
		c.refused(text, message, patch(own, text))
	}
	unbound := c.as(c.serviceAccount("clusters", v1alpha1.VLANAccount))
	c.refused("a token of no pod", "of its own Infra, only", func(ctx context.Context) error {
		client, err := unbound.Resource(refer("v1", "Pod", "clusters", own))
		if err != nil {
			return err
		}
		_, err = client.Patch(ctx, own, types.MergePatchType, []byte(noHolder), metav1.PatchOptions{})
		return err
	})

	const foreign, labelled, others = "named after its own Infra", "as that of its own Infra", "for itself only"
	for _, row := range []struct {
		object  *unstructured.Unstructured
		message string // empty: it is the pod's to write
	}{
		{lease("tenant-vlan100-vlan", "tenant-vlan100", own), ""},
		{lease("tenant-vlan100-vlan", "tenant-vlan100", sibling), ""},
		{lease("tenant-vlan100-vlan", "other", own), labelled},
		{lease("tenant-vlan100-serving-"+own, "tenant-vlan100", own), ""},
		{lease("tenant-vlan100-serving-"+own, "", own), ""},
		{lease("tenant-vlan100-serving-"+own, "other", own), labelled},
		{lease("tenant-vlan100-serving-"+own, "tenant-vlan100", sibling), others},
		{lease("tenant-vlan100-serving-"+own, "tenant-vlan100", stranger), others},
		{lease("tenant-vlan100-serving-"+own, "tenant-vlan100", ""), others},
		{lease("tenant-vlan100-serving-"+sibling, "tenant-vlan100", own), foreign},
		{lease("other-vlan", "other", own), foreign},
		{lease("other-serving-"+stranger, "other", own), foreign},
		{lease("anything", "tenant-vlan100", own), foreign},
		{grant("tenant-vlan100", "192.0.2.100", "tenant-vlan100"), ""},
		{grant("tenant-vlan100", "192.0.2.100", "other"), labelled},
		{grant("tenant", "192.0.2.100", "tenant-vlan100"), foreign},
		{grant("other", "192.0.2.100", "tenant-vlan100"), foreign},
	} {
		c.podCreates(pod, row.object, row.message)
		// Somebody who runs a server by hand has a token of no pod.
		if err := create(c.ctx, unbound, row.object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			c.t.Errorf("%s, by hand: %v", describe(row.object), err)
		}
	}
	// What is there already cannot be relabelled either.
	for object, changed := range map[*unstructured.Unstructured]*unstructured.Unstructured{
		lease("tenant-vlan100-serving-"+own, "tenant-vlan100", own): lease("tenant-vlan100-serving-"+own, "other", own),
		grant("tenant-vlan100", "192.0.2.101", "tenant-vlan100"):    grant("tenant-vlan100", "192.0.2.101", "other"),
	} {
		if err := create(c.ctx, pod, object, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		c.refused(describe(changed)+", afterwards", labelled, func(ctx context.Context) error {
			client, err := pod.Resource(changed)
			if err != nil {
				return err
			}
			changed.SetResourceVersion(c.get(object.GetAPIVersion(), object.GetKind(), "clusters", object.GetName()).GetResourceVersion())
			_, err = client.Update(ctx, changed, metav1.UpdateOptions{})
			return err
		})
	}

	// What a pod says about itself goes into the children of its own Infra.
	for infra, mine := range map[string]bool{"tenant-vlan100": true, "other": false} {
		child := c.apply(`
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: ProxyServer
metadata: {name: ` + v1alpha1.ProxyServerName(infra) + `, namespace: clusters}
spec: {networkConfig: {serverIP: 192.0.2.4, networkAttachmentName: ` + infra + `}}
`)[0]
		say := func(ctx context.Context) error {
			client, err := pod.Resource(child)
			if err != nil {
				return err
			}
			_, err = client.Patch(ctx, child.GetName(), types.MergePatchType, []byte(`{"status": {"backendCount": 1}}`), metav1.PatchOptions{}, "status")
			return err
		}
		if !mine {
			c.refused(child.GetName(), foreign, say)
		} else if err := say(c.ctx); err != nil {
			c.t.Errorf("%s: %v", child.GetName(), err)
		}
	}
}

// lease is a Lease that says of a pod that it serves an Infra.
func lease(name, infra, pod string) *unstructured.Unstructured {
	object := refer("coordination.k8s.io/v1", "Lease", "clusters", name)
	if infra != "" {
		object.SetLabels(map[string]string{v1alpha1.LabelInfra: infra, "hostedcluster.densityops.com/serves": infra})
	}
	spec := map[string]any{"leaseDurationSeconds": int64(30)}
	if pod != "" {
		spec["holderIdentity"] = pod
	}
	object.Object["spec"] = spec
	return object
}

// grant is the DHCPLease of an address of an Infra, with the label of one.
func grant(infra, address, label string) *unstructured.Unstructured {
	object := refer("hostedcluster.densityops.com/v1alpha1", "DHCPLease", "clusters", v1alpha1.DHCPLeaseName(infra, address))
	object.SetLabels(map[string]string{v1alpha1.LabelInfra: label})
	object.Object["spec"] = map[string]any{
		"address": address, "mac": "52:54:00:00:00:01", "start": "2026-03-01T12:00:00Z", "expires": "2026-03-01T13:00:00Z", "state": "active",
	}
	return object
}

func describe(object *unstructured.Unstructured) string {
	holder, _, _ := unstructured.NestedString(object.Object, "spec", "holderIdentity")
	return strings.TrimSpace(fmt.Sprintf("%s %s labelled %v %s", object.GetKind(), object.GetName(), object.GetLabels(), holder))
}

func create(ctx context.Context, as *cluster, object *unstructured.Unstructured, options metav1.CreateOptions) error {
	client, err := as.Resource(object)
	if err != nil {
		return err
	}
	_, err = client.Create(ctx, object, options)
	return err
}

// podCreates asks as a VLAN pod whether it may create an object, and take it away again; with a message it may not.
func (c *cluster) podCreates(pod *cluster, object *unstructured.Unstructured, message string) {
	c.t.Helper()
	what := describe(object)
	if message != "" {
		c.refused(what, message, func(ctx context.Context) error {
			return create(ctx, pod, object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		})
		return
	}
	if err := create(c.ctx, pod, object, metav1.CreateOptions{}); err != nil {
		c.t.Errorf("%s: %v", what, err)
		return
	}
	if err := remove(c.ctx, pod, object); err != nil {
		c.t.Errorf("%s cannot be deleted: %v", what, err)
	}
}

func remove(ctx context.Context, as *cluster, object *unstructured.Unstructured) error {
	client, err := as.Resource(object)
	if err != nil {
		return err
	}
	return client.Delete(ctx, object.GetName(), metav1.DeleteOptions{})
}

// longNamesAreKeptApart has pods of Infras whose Leases, and whose pods even, have names that are cut.
func (c *cluster) longNamesAreKeptApart(deployment *unstructured.Unstructured) {
	c.t.Helper()
	const foreign, labelled, others = "named after its own Infra", "as that of its own Infra", "for itself only"
	const cut = "tenant-with-a-long-name-vlan100"
	longest := strings.Repeat("tenant-", 6) + "of-vlan100" // 52 characters
	serving := func(infra, pod string) string { return v1alpha1.LabelValue(infra + "-serving-" + pod) }
	for infra, pods := range map[string][2]string{
		cut:     {cut + "-vlan-6d5f8c9b7d-abcde", cut + "-vlan-6d5f8c9b7d-fghij"},
		longest: {(longest + "-vlan-6d5f8c9b7d-")[:58] + "abcde", (longest + "-vlan-6d5f8c9b7d-")[:58] + "fghij"},
	} {
		own, sibling := pods[0], pods[1]
		for _, name := range pods {
			if _, err := c.ApplyObject(c.ctx, "user", podOf(c.t, deployment, name)); err != nil {
				c.t.Fatal(err)
			}
		}
		pod := c.pod(own)
		for _, row := range []struct {
			object  *unstructured.Unstructured
			message string
		}{
			{lease(infra+"-vlan", infra, own), ""},
			{lease(serving(infra, own), infra, own), ""},
			{lease(serving(infra, own), "other", own), labelled},
			{lease(serving(infra, own), infra, sibling), others},
			{lease(serving("other", own), infra, own), foreign},
			{grant(infra, "192.0.2.100", infra), ""},
			{grant(infra, "192.0.2.100", "other"), labelled},
		} {
			c.podCreates(pod, row.object, row.message)
		}
		if infra == cut {
			c.podCreates(pod, lease(infra+"-serving-anything", infra, own), foreign)
		}
		// The policies cannot tell which of the names that are cut is the sibling's, but what is in it.
		theirs := lease(serving(infra, sibling), infra, sibling)
		if err := create(c.ctx, c.pod(sibling), theirs, metav1.CreateOptions{}); err != nil {
			c.t.Fatal(err)
		}
		c.refused("the sibling's "+describe(theirs), others, func(ctx context.Context) error { return remove(ctx, pod, theirs) })
		taken := lease(serving(infra, sibling), infra, own)
		c.refused("the sibling's "+describe(taken), others, func(ctx context.Context) error {
			client, err := pod.Resource(taken)
			if err != nil {
				return err
			}
			taken.SetResourceVersion(c.get("coordination.k8s.io/v1", "Lease", "clusters", taken.GetName()).GetResourceVersion())
			_, err = client.Update(ctx, taken, metav1.UpdateOptions{})
			return err
		})
	}
}

// TestNetworkAttachmentsGiveNoAddress: addresses of the VLAN are oooi's to give and to have.
func TestNetworkAttachmentsGiveNoAddress(t *testing.T) {
	objects, err := controlplane.Decode(render(t, "examples/vlan100"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, object := range objects {
		if object.GetKind() != "NetworkAttachmentDefinition" {
			continue
		}
		found++
		text, _, err := unstructured.NestedString(object.Object, "spec", "config")
		if err != nil {
			t.Fatal(err)
		}
		var config map[string]any
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatalf("%s: %v", object.GetName(), err)
		}
		if _, has := config["ipam"]; has || config["type"] == nil {
			t.Errorf("%s: %v", object.GetName(), config)
		}
	}
	if found == 0 {
		t.Error("there is no example of a NetworkAttachmentDefinition")
	}
}

// TestSecurityContextConstraints holds OpenShift's word for VLAN pods to the pods: no API server here knows that kind.
func TestSecurityContextConstraints(t *testing.T) {
	objects, err := controlplane.Decode(render(t, "overlays/openshift"))
	if err != nil {
		t.Fatal(err)
	}
	var rules []any
	var constraints *unstructured.Unstructured
	for _, object := range objects {
		switch {
		case object.GetKind() == "SecurityContextConstraints":
			constraints = object
		case object.GetKind() == "ClusterRole" && object.GetName() == v1alpha1.VLANAccount:
			rules, _, _ = unstructured.NestedSlice(object.Object, "rules")
		}
	}
	if constraints == nil {
		t.Fatal("there are none")
	}
	use, err := yaml.Marshal(rules[len(rules)-1])
	if err != nil {
		t.Fatal(err)
	}
	if want := "apiGroups:\n- security.openshift.io\nresourceNames:\n- oooi-vlan\nresources:\n- securitycontextconstraints\nverbs:\n- use\n"; string(use) != want {
		t.Errorf("the account may\n%s", use)
	}
	for field, value := range constraints.Object {
		if strings.HasPrefix(field, "allow") && value == true {
			t.Errorf("%s is allowed", field)
		}
	}
	for field, want := range map[string]string{
		"allowedCapabilities": "[NET_ADMIN NET_RAW]", "requiredDropCapabilities": "[ALL]", "volumes": "[configMap emptyDir projected]",
		"allowedUnsafeSysctls": "[net.ipv4.ip_unprivileged_port_start]", "seccompProfiles": "[runtime/default]", "readOnlyRootFilesystem": "true",
		"users": "[]", "groups": "[]",
	} {
		if got := fmt.Sprint(constraints.Object[field]); got != want {
			t.Errorf("%s is %s, want %s", field, got, want)
		}
	}
}
