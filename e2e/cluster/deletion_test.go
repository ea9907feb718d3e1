package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/api/v1alpha1"
)

// TestDeletion deletes things with a real garbage collector at work: what must go goes, what must stay stays.
func TestDeletion(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	if err := s.ControllerManager.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	v := s.vlan(90)
	s.newProcess(t).start(t)
	neighbours := s.neighbours(t, v)
	s.apply(t, namespace("clusters"), s.page(t, v), neighbours, s.plainInfra("kept", s.vlan(91)), plainAttachment("kept", "hcp"))
	kept := all(
		s.says("InfraClusterAttachment", "kept/hcp", v1alpha1.ConditionAccepted, "True Accepted"),
		s.vlan(91).resolves("api.hcp.example.com", s.vlan(91).address(4)),
		s.serves("kept/kept", true), s.children("kept/kept", true),
	)
	isThere := all(
		v.resolves("api."+domain("b"), v.address(4)), v.resolves("kubernetes", v.address(4)), s.children(infra, true), s.serves(infra, true),
		s.says("InfraClusterAttachment", "clusters/example-hcp-b", v1alpha1.ConditionReady, "True Ready"), kept)
	within(t, "everything", isThere, v.resolves("api."+domain("a"), v.address(4)), s.routes(infra, 20))
	s.noFinalizers(t)
	uid := func(object *unstructured.Unstructured) string {
		t.Helper()
		there, err := s.fetch(t.Context(), object)
		if err != nil {
			t.Fatal(err)
		}
		return string(there.GetUID())
	}
	proxy := ours("ProxyServer", infra+"-proxy")
	first, ofKept := uid(proxy), uid(ours("ProxyServer", "kept/kept-proxy"))

	// An attachment.
	s.remove(t, ours("InfraClusterAttachment", "clusters/example-hcp-a"))
	within(t, "the attachment and all that it had to be gone", s.gone(ours("InfraClusterAttachment", "clusters/example-hcp-a")),
		v.resolves("api."+domain("a"), "203.0.113.80"), s.routes(infra, 10), isThere)

	// A control-plane namespace, as HyperShift does when a HostedCluster is deleted.
	controlPlane := refers("v1", "Namespace", "clusters-example-hcp-b")
	s.remove(t, controlPlane)
	within(t, "the control plane to be gone", s.gone(controlPlane),
		s.says("InfraClusterAttachment", "clusters/example-hcp-b", v1alpha1.ConditionReady, "False ControlPlaneNamespaceNotFound", "clusters-example-hcp-b"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-b", v1alpha1.ConditionSourcesDiscovered, "False NoMachines"),
		s.routes(infra, 0), v.resolves("api."+domain("b"), v.address(4)), v.resolves("kubernetes", "NXDOMAIN"), s.children(infra, true), kept)
	s.apply(t, neighbours)
	within(t, "the control plane again", isThere, s.routes(infra, 10))
	if again := uid(proxy); again != first {
		t.Errorf("the ProxyServer was made anew: %s, before %s", again, first)
	}

	// The Infra, in each way that kubectl knows; its attachment stays.
	for _, propagation := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground} {
		client, err := s.Resource(ours("Infra", infra))
		if err == nil {
			err = client.Delete(t.Context(), "tenant-vlan100", metav1.DeleteOptions{PropagationPolicy: &propagation})
		}
		if err != nil {
			t.Fatal(err)
		}
		within(t, "the Infra and its children to be gone", s.gone(ours("Infra", infra)), s.children(infra, false), s.serves(infra, false),
			s.says("InfraClusterAttachment", "clusters/example-hcp-b", v1alpha1.ConditionReady, "False InfraNotFound"),
			func(ctx context.Context) error {
				if answer, err := ask(ctx, v.address(250), v.dns(), "api."+domain("b")); err == nil {
					return fmt.Errorf("DNS still answers: %s", answer)
				}
				return nil
			}, kept)
		s.apply(t, documents(s.page(t, v), "kind: Infra\n"))
		within(t, "the Infra again", isThere, s.routes(infra, 10))
	}

	// The neighbours are uninstalled first, then the namespace of everything is deleted.
	for _, definition := range []string{"hostedclusters.hypershift.openshift.io", "nodepools.hypershift.openshift.io", "machines.cluster.x-k8s.io"} {
		if err := s.RemoveDefinition(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
	}
	s.remove(t, refers("v1", "Namespace", "clusters"))
	within(t, "the namespace to be gone", s.gone(refers("v1", "Namespace", "clusters")), kept)
	if again := uid(ours("ProxyServer", "kept/kept-proxy")); again != ofKept {
		t.Errorf("the other Infra's ProxyServer was made anew: %s, before %s", again, ofKept)
	}
}

// children is a condition: all children of an Infra are there, or none is.
func (s *site) children(infra string, want bool) check {
	var checks []check
	for kind, name := range map[string]string{"ProxyServer": "-proxy", "DNSServer": "-dns", "DHCPServer": "-dhcp"} {
		if child := ours(kind, infra+name); want {
			checks = append(checks, s.owned(child, infra))
		} else {
			checks = append(checks, s.gone(child))
		}
	}
	return all(checks...)
}

// serves is a condition: whether there is a Lease of a process that serves an Infra.
func (s *site) serves(infra string, want bool) check {
	return func(ctx context.Context) error {
		namespace, name, _ := strings.Cut(infra, "/")
		leases := schema.GroupVersionResource{Group: "coordination.k8s.io", Version: "v1", Resource: "leases"}
		list, err := s.Dynamic.Resource(leases).Namespace(namespace).List(ctx, metav1.ListOptions{LabelSelector: "hostedcluster.densityops.com/serves=" + name})
		if err == nil && len(list.Items) > 0 != want {
			err = fmt.Errorf("%d Leases of processes that serve Infra %s", len(list.Items), infra)
		}
		return err
	}
}

// routes is a condition: how many routes the ProxyServer of an Infra has. A name without a target has none.
func (s *site) routes(infra string, want int) check {
	return func(ctx context.Context) error {
		proxy, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", infra+"-proxy")
		if err != nil {
			return err
		}
		if routes := routesOf(proxy); len(routes) != want {
			return fmt.Errorf("%d routes, want %d: %v", len(routes), want, routes)
		}
		return nil
	}
}

// noFinalizers checks that no object of this API can be kept from going.
func (s *site) noFinalizers(t *testing.T) {
	t.Helper()
	for plural := range kinds {
		list, err := s.Dynamic.Resource(resource(plural)).List(t.Context(), metav1.ListOptions{})
		if err == nil && len(list.Items) == 0 {
			err = errors.New("there is none")
		}
		if err != nil {
			t.Fatalf("%s: %v", plural, err)
		}
		for _, o := range list.Items {
			if len(o.GetFinalizers()) > 0 {
				t.Errorf("%s %s/%s has the finalizers %v", o.GetKind(), o.GetNamespace(), o.GetName(), o.GetFinalizers())
			}
		}
	}
}
