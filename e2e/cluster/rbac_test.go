package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// The ServiceAccounts that deploy ships, as the audit log has them.
const (
	hubAccount  = "system:serviceaccount:oooi-system:oooi"
	vlanAccount = "system:serviceaccount:clusters:oooi-vlan"
)

var leases = schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}

// checkOwners is an admission plugin that OpenShift has switched on: owner references need rights.
const checkOwners = "--enable-admission-plugins=OwnerReferencesPermissionEnforcement"

// deployed is what `kubectl apply -k` applies of a folder below deploy.
func deployed(t *testing.T, folder string) []byte {
	t.Helper()
	root, err := stack.Root()
	if err != nil {
		t.Fatal(err)
	}
	kustomize, err := stack.Kustomize()
	if err != nil {
		t.Fatal(err)
	}
	text, err := stack.Host("").Run(t.Context(), kustomize, "build", filepath.Join(root, "deploy", folder))
	if err != nil {
		t.Fatal(err)
	}
	return []byte(text)
}

// byHand is the account of servers that no hub starts, in the namespace of the example: as the hub makes it for VLAN pods.
const byHand = `
{apiVersion: v1, kind: ServiceAccount, metadata: {name: oooi-vlan, namespace: clusters}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: oooi-vlan, namespace: clusters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: oooi-vlan}
subjects: [{kind: ServiceAccount, name: oooi-vlan, namespace: clusters}]
`

// deploy applies what deploy ships, and the namespace of the example. Then it applies more.
func (s *site) deploy(t *testing.T, more ...string) {
	t.Helper()
	manifests := [][]byte{deployed(t, "."), []byte(namespace("clusters"))}
	for _, text := range more {
		manifests = append(manifests, []byte(text))
	}
	for _, manifests := range manifests {
		if _, err := s.Apply(t.Context(), "admin", manifests); err != nil {
			t.Fatal(err)
		}
	}
}

// newHub makes a process that has the rights and the roles of a hub.
func (s *site) newHub(t *testing.T) *process {
	t.Helper()
	kubeconfig, err := s.ServiceAccountKubeconfig(t.Context(), "oooi-system", "oooi")
	if err != nil {
		t.Fatal(err)
	}
	return s.newProcess(t, "--kubeconfig", kubeconfig, "--roles", "reconcile")
}

// hubOfPod makes one that believes to run in one of the pods that the Deployment of the hub has made, so that it writes VLAN
// pods.
func (s *site) hubOfPod(t *testing.T) *process {
	t.Helper()
	hub := s.newHub(t)
	within(t, "a pod of the hub", func(ctx context.Context) error {
		pods, err := s.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace("oooi-system").List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) == 0 {
			err = errors.New("there is none")
		}
		if err == nil {
			hub.env = []string{"POD_NAMESPACE=oooi-system", "POD_NAME=" + pods.Items[0].GetName()}
		}
		return err
	})
	return hub
}

// newServing makes a process that has the rights and the roles of a VLAN's pod.
func (s *site) newServing(t *testing.T) *process {
	t.Helper()
	kubeconfig, err := s.ServiceAccountKubeconfig(t.Context(), "clusters", "oooi-vlan")
	if err != nil {
		t.Fatal(err)
	}
	return s.newProcess(t, "--kubeconfig", kubeconfig, "--infra", infra, "--roles", "xds,dns,dhcp")
}

// TestRolesOfDeploy runs hub and servers under the roles that deploy ships, through all that they ever write.
func TestRolesOfDeploy(t *testing.T) {
	t.Parallel()
	s := newSite(t, checkOwners).withNeighbours(t)
	if err := s.ControllerManager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	s.deploy(t)
	v := s.vlan(1)
	s.startBackends(t, "example-hcp-a", 1)
	s.startBackends(t, "example-hcp-b", 2)
	hub := s.hubOfPod(t).start(t)
	neighbours := s.neighbours(t, v)
	s.apply(t, s.page(t, v), strings.Replace(neighbours, documents(neighbours, "kind: Service\n", "tenant-vlan100-proxy"), "", 1))
	s.startPods(t)
	const clusterA, clusterB = "clusters-example-hcp-a", "clusters-example-hcp-b"
	within(t, "the hub alone",
		s.says("Infra", infra, v1alpha1.ConditionReady, "False NotServing"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionReady, "True Ready"),
		s.podsReady(infra, "oooi:latest"), each(workloads(infra, clusterA, clusterB), s.there))
	enable := func(dhcp, dns, proxy bool) {
		t.Helper()
		s.patch(t, ours("Infra", infra), fmt.Sprintf(
			`{"spec": {"infraComponents": {"dhcp": {"enabled": %t}, "dns": {"enabled": %t}, "proxy": {"enabled": %t}}}}`, dhcp, dns, proxy))
	}
	// All that belongs to the VLAN pods goes, is edited, and goes with its Infra.
	enable(false, false, false)
	within(t, "nothing to be asked for", each(workloads(infra, clusterA, clusterB), s.gone))
	enable(true, true, true)
	within(t, "the VLAN pods again", s.podsReady(infra, "oooi:latest"), each(workloads(infra, clusterA, clusterB), s.there))
	s.patch(t, deployment(infra), `{"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}, "spec": {"replicas": 7}}`)
	within(t, "the edit put back", s.podsReady(infra, "oooi:latest"), func(ctx context.Context) error {
		d, err := s.deployment(ctx, infra)
		if err == nil && (*d.Spec.Replicas != 2 || d.Labels["app.kubernetes.io/managed-by"] != "oooi") {
			err = fmt.Errorf("%d replicas, labels %v", *d.Spec.Replicas, d.Labels)
		}
		return err
	})
	s.apply(t, s.plainInfra("brief", s.vlan(2)), strings.Replace(plainAttachment("brief", "hcp"), "spec: {", "spec: {controlPlaneNamespace: elsewhere, ", 1), namespace("elsewhere"))
	within(t, "another Infra", each(workloads("brief/brief", "elsewhere"), s.there))
	s.remove(t, ours("Infra", "brief/brief"))
	within(t, "its end", each(workloads("brief/brief", "elsewhere"), s.gone))

	serving := s.newServing(t)
	serving.start(t)
	s.startEnvoy(t, serving, infra, "envoy-1")
	serves := []func(context.Context) error{
		s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"),
		s.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged"),
		s.says("DNSServer", infra+"-dns", v1alpha1.ConditionReady, "True Ready"),
		s.says("DHCPServer", infra+"-dhcp", v1alpha1.ConditionReady, "True Ready"),
		v.resolves("api.example-hcp-a.clusters.example.com", v.address(4)),
		s.answers(v.call(117, "kubernetes", portHTTPS), "example-hcp-a/kube-apiserver"),
	}
	within(t, "the page", serves...)
	within(t, "an Event", s.hasEvent("Infra", infra, "Ready"))

	// Fields that somebody adds to a child, which applying alone would leave there.
	s.patch(t, ours("ProxyServer", infra+"-proxy"), `{"spec": {"managerImage": "somebody.example.com/else:1", "backends": []}}`)
	s.patch(t, ours("DHCPServer", infra+"-dhcp"), `{"spec": {"options": [{"code": 42, "value": "192.0.2.9"}]}}`)
	within(t, "the edits put back", append(serves,
		s.lacks("ProxyServer", infra+"-proxy", "spec", "managerImage"), s.lacks("DHCPServer", infra+"-dhcp", "spec", "options"))...)

	// Children that go and come back.
	enable(false, true, false)
	within(t, "DNS alone", s.gone(ours("ProxyServer", infra+"-proxy")), s.gone(ours("DHCPServer", infra+"-dhcp")))
	s.patch(t, ours("DNSServer", infra+"-dns"), `{"spec": {"networkConfig": {"proxyIP": "192.0.2.9"}}}`)
	within(t, "the edit put back", s.lacks("DNSServer", infra+"-dns", "spec", "networkConfig", "proxyIP"))
	enable(true, false, false) // nothing at all would take the account of the servers away, too
	within(t, "the end of DNS", s.gone(ours("DNSServer", infra+"-dns")))
	enable(true, true, true)
	within(t, "everything back", serves...)

	// The servers stop: they give their Lease back, and the hub takes away what they reported.
	if err := serving.run.Stop(); err != nil {
		t.Fatal(err)
	}
	within(t, "the servers' end to be told",
		s.says("Infra", infra, v1alpha1.ConditionReady, "False NotServing"),
		s.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "False NoEnvoy"),
		func(ctx context.Context) error {
			p, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", infra+"-proxy")
			if err == nil && len(p.Status.Envoys) > 0 {
				err = fmt.Errorf("entries of processes that are gone: %v", p.Status.Envoys)
			}
			return err
		})
	// They come back, crash, and come back as themselves.
	serving.start(t)
	within(t, "the servers again", serves...)
	before := s.renewals(t)
	serving.kill(t)
	serving.start(t)
	within(t, "the servers after a crash", append(serves, func(context.Context) error {
		if now := s.renewals(t); maps.Equal(before, now) {
			return fmt.Errorf("no Lease is renewed: %v", now)
		}
		return nil
	})...)
	s.asksForApps(t)
	for _, p := range []*process{serving, hub} {
		if err := p.run.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	s.checkRights(t)
}

// asksForApps has the hub look for the kubeconfig of a hosted cluster, which is not there, and write a public Service.
func (s *site) asksForApps(t *testing.T) {
	t.Helper()
	if _, err := s.Apply(t.Context(), "admin", deployed(t, "kubeconfigs")); err != nil {
		t.Fatal(err)
	}
	attachment := ours("InfraClusterAttachment", "clusters/example-hcp-a")
	s.patch(t, attachment, `{"spec": {"externalService": {"enabled": true, "addressPoolName": "public"},
		"appsIngress": {"enabled": true, "metallb": {"addressPoolName": "apps"}}}}`)
	public := refers("v1", "Service", "clusters/example-hcp-a-proxy-external")
	within(t, "a word about the hosted cluster, and a public Service", s.there(public),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionAppsIngressReady, "False HostedClusterAccessFailed"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionExternalServiceReady, "False WaitingForExternalIP"))
	// Nothing was made in a hosted cluster, so nothing holds the attachment.
	s.remove(t, attachment)
	within(t, "the end of both", s.gone(attachment), s.gone(public))
}

// hasEvent is a condition: there is an Event with a reason about an object of this API.
func (s *site) hasEvent(kind, key, reason string) func(context.Context) error {
	return func(ctx context.Context) error {
		namespace, name, _ := strings.Cut(key, "/")
		events, err := s.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "events"}).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			about, _, _ := unstructured.NestedString(e.Object, "involvedObject", "name")
			of, _, _ := unstructured.NestedString(e.Object, "involvedObject", "kind")
			why, _, _ := unstructured.NestedString(e.Object, "reason")
			if of == kind && about == name && why == reason {
				return nil
			}
			seen = append(seen, of+" "+about+" "+why)
		}
		return fmt.Errorf("no Event %s about %s %s; there are %v", reason, kind, key, seen)
	}
}

// renewals are when the Leases beside the Infra were renewed last.
func (s *site) renewals(t *testing.T) map[string]string {
	t.Helper()
	list, err := s.Dynamic.Resource(leases).Namespace("clusters").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	renewed := map[string]string{}
	for _, l := range list.Items {
		renewed[l.GetName()], _, _ = unstructured.NestedString(l.Object, "spec", "renewTime")
	}
	return renewed
}

// lacks is a condition: an object of this API has no such field.
func (s *site) lacks(kind, key string, path ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		object, err := s.fetch(ctx, ours(kind, key))
		if err != nil {
			return err
		}
		if value, found, err := unstructured.NestedFieldNoCopy(object.Object, path...); err != nil || found {
			return fmt.Errorf("%s %s has %s: %v (%w)", kind, key, strings.Join(path, "."), value, err)
		}
		return nil
	}
}

// right is one verb on one resource, "patch proxyservers.hostedcluster.densityops.com/status".
func right(verb, group, resource, subresource string) string {
	if group != "" {
		resource += "." + group
	}
	if subresource != "" {
		resource += "/" + subresource
	}
	return verb + " " + resource
}

// checkRights holds the audit log of processes that have ended (a watch is in it when it ends) to the roles: nothing was
// refused, and each right was used.
func (s *site) checkRights(t *testing.T) {
	t.Helper()
	requests, err := s.Requests(0)
	if err != nil {
		t.Fatal(err)
	}
	used := map[string]map[string]bool{hubAccount: {}, vlanAccount: {}}
	for _, r := range requests {
		if used[r.User] == nil {
			continue
		}
		if r.Code == http.StatusForbidden || r.Code == http.StatusUnauthorized {
			t.Errorf("refused: %s", r)
		}
		used[r.User][right(r.Verb, r.Group, r.Resource, r.Subresource)] = true
	}
	granted := map[string]map[string]bool{
		hubAccount: granted(t, slices.Concat(deployed(t, "hub"), []byte("\n---\n"), deployed(t, "kubeconfigs"))), vlanAccount: granted(t, deployed(t, "vlan")),
	}
	for account, rights := range granted {
		for _, r := range slices.Sorted(maps.Keys(rights)) {
			if !used[account][r] && !needed(used[account], r) && !slices.Contains(elsewhere[account], r) {
				t.Errorf("%s has a right that it never used: %s", account, r)
			}
		}
	}
}

// elsewhere are the rights that have no use here. Servers share their VLAN with another pod in the tests of e2e/vlanpods, and the hub has
// hosted clusters there, in which it makes something: both under the same roles.
var elsewhere = map[string][]string{
	vlanAccount: {
		"list leases.coordination.k8s.io", "watch leases.coordination.k8s.io", "patch pods",
		"list dhcpleases.hostedcluster.densityops.com", "watch dhcpleases.hostedcluster.densityops.com",
		"create dhcpleases.hostedcluster.densityops.com", "update dhcpleases.hostedcluster.densityops.com", "delete dhcpleases.hostedcluster.densityops.com",
	},
	hubAccount: {"patch infraclusterattachments.hostedcluster.densityops.com"},
}

// needed tells of a right that no request of the log has in its name whether one of those needed it all the same.
func needed(used map[string]bool, right string) bool {
	verb, resource, _ := strings.Cut(right, " ")
	switch verb {
	case "list":
		// An API server that cannot stream the first list (WatchList) is asked for it.
		return used["watch "+resource]
	case "create":
		// Applying an object that is not there: the request is a patch, and creating is what is asked for as well.
		return used["patch "+resource]
	case "bind":
		// Asked for by whoever writes a binding to the role.
		return used["patch rolebindings.rbac.authorization.k8s.io"]
	}
	return false
}

// granted are the rights of all roles among manifests.
func granted(t *testing.T, manifests []byte) map[string]bool {
	t.Helper()
	objects, err := controlplane.Decode(manifests)
	if err != nil {
		t.Fatal(err)
	}
	rights := map[string]bool{}
	for _, object := range objects {
		if kind := object.GetKind(); kind != "Role" && kind != "ClusterRole" {
			continue
		}
		var role rbacv1.ClusterRole
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
			t.Fatal(err)
		}
		for _, rule := range role.Rules {
			if len(rule.NonResourceURLs) > 0 || slices.Contains(slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs), "*") {
				t.Errorf("%s %s: a rule for everything: %v", object.GetKind(), object.GetName(), rule)
			}
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					resource, subresource, _ := strings.Cut(resource, "/")
					for _, verb := range rule.Verbs {
						rights[right(verb, group, resource, subresource)] = true
					}
				}
			}
		}
	}
	return rights
}

// TestRolesEndThere asks for what the accounts must not have. Tenants share a wire with the one of a VLAN.
func TestRolesEndThere(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t, byHand)
	v := s.vlan(1)
	s.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: elsewhere}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: secret, namespace: clusters}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: secret, namespace: elsewhere}}",
		"{apiVersion: v1, kind: Secret, metadata: {name: secret, namespace: oooi-system}}",
		s.page(t, v), s.neighbours(t, v),
		strings.ReplaceAll(s.page(t, s.vlan(2)), "namespace: clusters", "namespace: elsewhere"))
	s.newHub(t).start(t)
	within(t, "the children", s.there(ours("DNSServer", infra+"-dns")), s.there(ours("DNSServer", "elsewhere/tenant-vlan100-dns")))
	vlan, hub := s.clientOf(t, "clusters", "oooi-vlan"), s.clientOf(t, "oooi-system", "oooi")

	// What is allowed is, so that what follows is refused for the right reason.
	mine := func(c dynamic.Interface, plural string) dynamic.NamespaceableResourceInterface {
		return c.Resource(v1alpha1.GroupVersion.WithResource(plural))
	}
	if _, err := mine(vlan, "dnsservers").Namespace("clusters").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatalf("the servers cannot read their children: %v", err)
	}
	if _, err := mine(hub, "infras").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatalf("the hub cannot read Infras: %v", err)
	}

	core := func(c dynamic.Interface, plural string) dynamic.NamespaceableResourceInterface {
		return c.Resource(schema.GroupVersionResource{Version: "v1", Resource: plural})
	}
	patch := []byte(`{"metadata": {"labels": {"a": "b"}}}`)
	get := func(r dynamic.ResourceInterface, name string, subresources ...string) error {
		_, err := r.Get(t.Context(), name, metav1.GetOptions{}, subresources...)
		return err
	}
	list := func(r dynamic.ResourceInterface) error {
		_, err := r.List(t.Context(), metav1.ListOptions{})
		return err
	}
	merge := func(r dynamic.ResourceInterface, name string, subresources ...string) error {
		_, err := r.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, subresources...)
		return err
	}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": map[string]any{"name": "more"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "oooi-vlan", "namespace": "clusters"}},
	}}
	bind := func(c dynamic.Interface, namespace string) error {
		_, err := c.Resource(rbacv1.SchemeGroupVersion.WithResource("rolebindings")).Namespace(namespace).Create(t.Context(), binding, metav1.CreateOptions{})
		return err
	}
	machines := schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}
	within(t, "the admission policies to be in force", func(context.Context) error {
		if err := merge(core(hub, "services").Namespace("clusters"), "tenant-vlan100-proxy"); !apierrors.IsForbidden(err) {
			return fmt.Errorf("the hub changes a Service: %w", cmp.Or(err, errors.New("admitted")))
		}
		return nil
	})
	for what, err := range map[string]error{
		"servers read a Secret of their namespace":       get(core(vlan, "secrets").Namespace("clusters"), "secret"),
		"servers list Secrets of their namespace":        list(core(vlan, "secrets").Namespace("clusters")),
		"servers read a Secret elsewhere":                get(core(vlan, "secrets").Namespace("elsewhere"), "secret"),
		"servers list all Secrets":                       list(core(vlan, "secrets")),
		"servers read their Infra":                       get(mine(vlan, "infras").Namespace("clusters"), "tenant-vlan100"),
		"servers list Infras":                            list(mine(vlan, "infras").Namespace("clusters")),
		"servers list attachments":                       list(mine(vlan, "infraclusterattachments").Namespace("clusters")),
		"servers list children elsewhere":                list(mine(vlan, "proxyservers").Namespace("elsewhere")),
		"servers list children everywhere":               list(mine(vlan, "proxyservers")),
		"servers report elsewhere":                       merge(mine(vlan, "dnsservers").Namespace("elsewhere"), "tenant-vlan100-dns", "status"),
		"servers change a child":                         merge(mine(vlan, "dnsservers").Namespace("clusters"), "tenant-vlan100-dns"),
		"servers delete a child":                         mine(vlan, "dnsservers").Namespace("clusters").Delete(t.Context(), "tenant-vlan100-dns", metav1.DeleteOptions{}),
		"servers report for the Infra":                   merge(mine(vlan, "infras").Namespace("clusters"), "tenant-vlan100", "status"),
		"servers read the Lease of the hubs":             get(vlan.Resource(leases).Namespace("oooi-system"), "oooi"),
		"servers list Leases elsewhere":                  list(vlan.Resource(leases).Namespace("oooi-system")),
		"servers list Machines":                          list(vlan.Resource(machines).Namespace("clusters-example-hcp-a")),
		"servers list namespaces":                        list(core(vlan, "namespaces")),
		"servers list Services":                          list(core(vlan, "services").Namespace("clusters")),
		"servers list Pods":                              list(core(vlan, "pods").Namespace("clusters")),
		"servers give themselves a role":                 bind(vlan, "clusters"),
		"hub reads a Secret of its namespace":            get(core(hub, "secrets").Namespace("oooi-system"), "secret"),
		"hub lists all Secrets":                          list(core(hub, "secrets")),
		"hub changes an Infra":                           merge(mine(hub, "infras").Namespace("clusters"), "tenant-vlan100"),
		"hub deletes an Infra":                           mine(hub, "infras").Namespace("clusters").Delete(t.Context(), "tenant-vlan100", metav1.DeleteOptions{}),
		"hub changes a Machine":                          merge(hub.Resource(machines).Namespace("clusters-example-hcp-a"), "example-hcp-a-worker-0"),
		"hub changes a Service":                          merge(core(hub, "services").Namespace("clusters"), "tenant-vlan100-proxy"),
		"hub deletes a Lease of the servers":             hub.Resource(leases).Namespace("clusters").Delete(t.Context(), "any", metav1.DeleteOptions{}),
		"hub changes another Lease of its own namespace": merge(hub.Resource(leases).Namespace("oooi-system"), "any"),
		"hub gives itself a role":                        bind(hub, "oooi-system"),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: want 403, got %v", what, err)
		}
	}
}

// clientOf is a client of a ServiceAccount. Its connections end with the test.
func (s *site) clientOf(t *testing.T, namespace, name string) dynamic.Interface {
	t.Helper()
	config, err := s.ServiceAccountConfig(t.Context(), namespace, name)
	if err != nil {
		t.Fatal(err)
	}
	httpClient, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(httpClient.CloseIdleConnections)
	client, err := dynamic.NewForConfigAndClient(config, httpClient)
	if err != nil {
		t.Fatal(err)
	}
	return client
}
