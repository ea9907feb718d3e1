package cluster

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// TestHub is about what the hub writes, with nobody to serve it.
func TestHub(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	p := s.newProcess(t, "--roles", "reconcile").start(t)
	t.Run("order does not matter", func(t *testing.T) { testOrder(t, s) })
	t.Run("order does not matter to conflicts", func(t *testing.T) { testOrderOfConflicts(t, s) })
	t.Run("an attachment that moves", func(t *testing.T) { testMove(t, s) })
	t.Run("a child's name taken", func(t *testing.T) { testOccupied(t, s) })
	t.Run("one that cannot be written", func(t *testing.T) { testHopeless(t, s, p) })
	t.Run("too large", func(t *testing.T) { testTooLarge(t, s) })
}

const (
	orders = 50
	// ordersOfConflicts are fewer, since more objects are involved.
	ordersOfConflicts = 25
	// atOnce is how many orders are tried at the same time, each in namespaces of its own.
	atOnce = 5
)

// testOrder creates the objects of the example in many orders. There is no conflict among them, so no route may appear
// on the way that is not there in the end.
func testOrder(t *testing.T, s *site) {
	defer s.clear(t, "order", orders)
	v := s.vlan(60)
	routes := s.watchRoutes(t)
	s.tryOrders(t, "order", s.neighbours(t, v)+"\n---\n"+s.page(t, v), orders)
	seen, versions := routes()
	t.Logf("%d versions of ProxyServers seen", versions)
	if len(seen) < orders {
		t.Fatalf("routes of %d orders seen, want %d", len(seen), orders)
	}
	for namespace, before := range seen {
		proxy, err := read[v1alpha1.ProxyServer](t.Context(), s, "ProxyServer", namespace+"/tenant-vlan100-proxy")
		if err != nil {
			t.Fatal(err)
		}
		final := routesOf(proxy)
		if len(final) != 20 { // five names, and from its source four aliases and none, of each cluster
			t.Errorf("%s has only the routes %v", namespace, final)
		}
		for route := range before {
			if !final[route] {
				t.Errorf("%s: there was a route %s, which is not there in the end", namespace, route)
			}
		}
	}
}

// testOrderOfConflicts does the same with attachments in conflict, a Machine that shows another one's address, an attachment
// of no Infra, and an Infra without upstream resolvers.
func testOrderOfConflicts(t *testing.T, s *site) {
	defer s.clear(t, "clash", ordersOfConflicts)
	v := s.vlan(60)
	s.tryOrders(t, "clash", strings.Join([]string{
		s.neighbours(t, v), strings.ReplaceAll(s.page(t, v), "    dnsServers:\n      - "+s.upstreamAddress()+"\n", ""),
		s.anotherCluster(t, v, "example-hcp-c", 3, 130),
		attachment("twin", "twin", "example-hcp-C", ""), machine("thief", "example-hcp-b", v.address(117), v.address(131)),
		strings.Replace(attachment("lost", "lost", "lost", ""), "tenant-vlan100", "nowhere", 1),
	}, "\n---\n"), ordersOfConflicts)
}

// tryOrders creates objects in random orders and compares what comes of them.
func (s *site) tryOrders(t *testing.T, prefix, manifests string, orders int) {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(atOnce)
	name := func(i int) string { return fmt.Sprintf("%s-%d", prefix, i) }
	for i := range orders {
		group.Go(func() error {
			objects, err := controlplane.Decode([]byte(inNamespaces(manifests, name(i))))
			if err != nil {
				return err
			}
			random := rand.New(rand.NewPCG(seed, uint64(i)))
			random.Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
			return s.applyInOrder(ctx, objects)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	s.quiet(t, 2*time.Second)
	first, err := s.outcome(t.Context(), name(0))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < orders; i++ {
		outcome, err := s.outcome(t.Context(), name(i))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := slices.Sorted(maps.Keys(outcome)), slices.Sorted(maps.Keys(first)); !slices.Equal(got, want) {
			t.Errorf("order %d has %v, order 0 %v", i, got, want)
		}
		for object, want := range first {
			if got := outcome[object]; got != want {
				t.Fatalf("order %d: %s is\n%s\nwhereas in order 0 it is\n%s", i, object, got, want)
			}
		}
	}
	t.Logf("each order came to\n%s", first["Infra tenant-vlan100"])
}

// clear takes what orders have made out of the way of what follows.
func (s *site) clear(t *testing.T, prefix string, orders int) {
	t.Helper()
	for i := range orders {
		for plural := range kinds {
			client := s.Dynamic.Resource(resource(plural)).Namespace(fmt.Sprintf("%s-%d", prefix, i))
			if err := client.DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
				t.Error(err)
			}
		}
	}
}

// inNamespaces moves manifests to namespaces of their own: that of the Infra instead of clusters, and those of its control
// planes. Services get whichever cluster IPs are free.
func inNamespaces(manifests, clusters string) string {
	var kept []string
	for line := range strings.Lines(manifests) {
		if strings.Contains(line, "clusterIP:") || strings.Contains(line, "networkAttachmentNamespace:") {
			continue
		}
		parts := strings.Split(line, baseDomain)
		for i := range parts {
			parts[i] = strings.ReplaceAll(parts[i], "clusters", clusters)
		}
		kept = append(kept, strings.Join(parts, baseDomain))
	}
	return strings.Join(kept, "")
}

// applyInOrder applies objects one after the other; one whose namespace is not there yet waits for it.
func (s *site) applyInOrder(ctx context.Context, objects []*unstructured.Unstructured) error {
	for len(objects) > 0 {
		var waiting []*unstructured.Unstructured
		for _, object := range objects {
			_, err := s.applyObject(ctx, object)
			switch {
			case apierrors.IsNotFound(err) && object.GetNamespace() != "":
				waiting = append(waiting, object)
			case err != nil:
				return fmt.Errorf("%s %s/%s: %w", object.GetKind(), object.GetNamespace(), object.GetName(), err)
			}
		}
		if len(waiting) == len(objects) {
			return fmt.Errorf("no namespace for %d objects", len(waiting))
		}
		objects = waiting
	}
	return nil
}

// kinds of this API that the hub writes something of, by resource.
var kinds = map[string]string{
	"infras": "Infra", "infraclusterattachments": "InfraClusterAttachment",
	"proxyservers": "ProxyServer", "dnsservers": "DNSServer", "dhcpservers": "DHCPServer",
}

func resource(name string) schema.GroupVersionResource {
	return v1alpha1.GroupVersion.WithResource(name)
}

// outcome is what the hub has written in a namespace, as YAML by kind and name: without what nobody decides, which is times,
// UIDs, generations of children, and the addresses that the API server allocates.
func (s *site) outcome(ctx context.Context, namespace string) (map[string]string, error) {
	replace := []string{}
	for _, given := range []schema.GroupVersionResource{
		{Version: "v1", Resource: "services"}, {Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"}, resource("infras"),
	} {
		list, err := s.Dynamic.Resource(given).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			if o.GetNamespace() != namespace && !strings.HasPrefix(o.GetNamespace(), namespace+"-") {
				continue
			}
			replace = append(replace, string(o.GetUID()), "<uid of "+o.GetName()+">")
			if ip, _, _ := unstructured.NestedString(o.Object, "spec", "clusterIP"); ip != "" {
				replace = append(replace, " "+ip+"\n", " <"+o.GetName()+">\n")
			}
		}
	}
	replacer := strings.NewReplacer(append(replace, namespace, "<clusters>")...)
	outcome := map[string]string{}
	for plural, kind := range kinds {
		list, err := s.Dynamic.Resource(resource(plural)).Namespace(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for _, o := range list.Items {
			conditions, _, err := unstructured.NestedSlice(o.Object, "status", "conditions")
			if err != nil {
				return nil, err
			}
			for _, c := range conditions {
				delete(c.(map[string]any), "lastTransitionTime")
				if strings.HasSuffix(kind, "Server") {
					delete(c.(map[string]any), "observedGeneration")
				}
			}
			if conditions != nil {
				if err := unstructured.SetNestedSlice(o.Object, conditions, "status", "conditions"); err != nil {
					return nil, err
				}
			}
			text, err := yaml.Marshal(map[string]any{
				"labels": o.GetLabels(), "annotations": o.GetAnnotations(), "owners": o.GetOwnerReferences(),
				"spec": o.Object["spec"], "status": o.Object["status"],
			})
			if err != nil {
				return nil, err
			}
			outcome[kind+" "+o.GetName()] = replacer.Replace(string(text))
		}
	}
	return outcome, nil
}

// routesOf lists all routes of a ProxyServer: from a server name or none, and a source or any, to a target.
func routesOf(p *v1alpha1.ProxyServer) map[string]bool {
	routes := map[string]bool{}
	for _, b := range p.Spec.Backends {
		sources := b.SourcePrefixRanges
		if len(sources) == 0 {
			sources = []string{"anywhere"}
		}
		for _, name := range append([]string{b.Hostname}, b.AlternateHostnames...) {
			for _, source := range sources {
				for _, address := range b.Addresses {
					routes[fmt.Sprintf("%q %s -> %s/%s %s:%d", name, source, b.TargetNamespace, b.TargetService, address, b.TargetPort)] = true
				}
			}
		}
	}
	return routes
}

// watchRoutes collects the routes of every version of every ProxyServer, by namespace. The function that it returns stops
// that and gives the routes, and how many versions there were.
func (s *site) watchRoutes(t *testing.T) func() (map[string]map[string]bool, int) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	watch, err := s.Dynamic.Resource(resource("proxyservers")).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen, versions := map[string]map[string]bool{}, 0
	var collecting sync.WaitGroup
	collecting.Go(func() {
		for event := range watch.ResultChan() {
			object, ok := event.Object.(*unstructured.Unstructured)
			if !ok {
				continue
			}
			proxy := &v1alpha1.ProxyServer{}
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, proxy); err != nil {
				t.Error(err)
				continue
			}
			versions++
			if seen[proxy.Namespace] == nil {
				seen[proxy.Namespace] = map[string]bool{}
			}
			maps.Copy(seen[proxy.Namespace], routesOf(proxy))
		}
	})
	t.Cleanup(collecting.Wait)
	t.Cleanup(watch.Stop)
	return func() (map[string]map[string]bool, int) {
		watch.Stop()
		collecting.Wait()
		return seen, versions
	}
}
