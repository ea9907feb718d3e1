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
` + infra("tenant-vlan100") + "---\n" + infra("other"))[2:]

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
	objects, err := workload.Build(&infra, []string{"clusters-a"}, workload.Settings{Image: "oooi:1", EnvoyImage: "envoy:1", PullSecrets: []string{"registry"}})
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
	const modest = `"containers": [{"name": "a", "image": "b", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]`
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

	const foreign = "named after its own Infra"
	lease := func(name string) *unstructured.Unstructured {
		return refer("coordination.k8s.io/v1", "Lease", "clusters", name)
	}
	grant := func(infra, address string) *unstructured.Unstructured {
		object := refer("hostedcluster.densityops.com/v1alpha1", "DHCPLease", "clusters", v1alpha1.DHCPLeaseName(infra, address))
		object.Object["spec"] = map[string]any{
			"address": address, "mac": "52:54:00:00:00:01", "start": "2026-03-01T12:00:00Z", "expires": "2026-03-01T13:00:00Z", "state": "active",
		}
		return object
	}
	for object, mine := range map[*unstructured.Unstructured]bool{
		lease("tenant-vlan100-vlan"):               true,
		lease("tenant-vlan100-serving-" + own):     true,
		lease("tenant-vlan100-serving-" + sibling): false,
		lease("other-vlan"):                        false,
		lease("other-serving-" + stranger):         false,
		lease("anything"):                          false,
		grant("tenant-vlan100", "192.0.2.100"):     true,
		grant("tenant", "192.0.2.100"):             false,
		grant("other", "192.0.2.100"):              false,
	} {
		create := func(ctx context.Context, as *cluster, options metav1.CreateOptions) error {
			client, err := as.Resource(object)
			if err != nil {
				return err
			}
			_, err = client.Create(ctx, object, options)
			return err
		}
		what := object.GetKind() + " " + object.GetName()
		if !mine {
			c.refused(what, foreign, func(ctx context.Context) error {
				return create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			})
			// Somebody who runs a server by hand has a token of no pod.
			if err := create(c.ctx, unbound, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
				c.t.Errorf("%s, by hand: %v", what, err)
			}
			continue
		}
		if err := create(c.ctx, pod, metav1.CreateOptions{}); err != nil {
			c.t.Errorf("%s: %v", what, err)
			continue
		}
		client, err := pod.Resource(object)
		if err == nil {
			err = client.Delete(c.ctx, object.GetName(), metav1.DeleteOptions{})
		}
		if err != nil {
			c.t.Errorf("%s cannot be deleted: %v", what, err)
		}
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
