package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/stack"
)

// The public side of the management cluster, a network of its nodes that is no VLAN.
const (
	publicBridge, publicLink = "public", "public0"
	publicNode               = "198.51.100.2"
	publicMetalLB            = "metallb-system"

	// Pools of MetalLB, each with one address but that of the API servers.
	poolA, vipA           = "example-hcp-a-oauth", "198.51.100.20"
	otherPoolA, otherVIPA = "example-hcp-a-oauth-2", "198.51.100.21"
	poolB, vipB           = "example-hcp-b-oauth", "198.51.100.30"
)

// pools are what MetalLB may give. That of the API servers is for all who name none.
var pools = slices.Concat(
	hosted.Pool(publicMetalLB, poolA, netip.MustParseAddr(vipA), netip.MustParseAddr(vipA), publicLink), []byte("---\n"),
	hosted.Pool(publicMetalLB, otherPoolA, netip.MustParseAddr(otherVIPA), netip.MustParseAddr(otherVIPA), publicLink), []byte("---\n"),
	hosted.Pool(publicMetalLB, poolB, netip.MustParseAddr(vipB), netip.MustParseAddr(vipB), publicLink), []byte(`---
apiVersion: metallb.io/v1beta1
kind: IPAddressPool
metadata: {name: api-servers, namespace: `+publicMetalLB+`}
spec: {addresses: [198.51.100.10-198.51.100.13]}
---
apiVersion: metallb.io/v1beta1
kind: L2Advertisement
metadata: {name: advertise-api-servers, namespace: `+publicMetalLB+`}
spec: {ipAddressPools: [api-servers], interfaces: [`+publicLink+`]}
`))

// outsider is a machine on the public network, and on no other one.
const outsider stack.Host = "outsider"

// publicNetwork makes the network and its machine, once.
var publicNetwork = sync.OnceValue(func() error {
	if err := w.network.Join(publicLink, publicBridge, netip.MustParsePrefix(publicNode+"/24")); err != nil {
		return err
	}
	if _, err := w.network.Worker(string(outsider), publicBridge, "52:54:00:00:05:01"); err != nil {
		return err
	}
	return w.network.Address(outsider, "vlan0", netip.MustParsePrefix("198.51.100.9/24"))
})

// publicSide is the world as it is seen from the public network.
type publicSide struct{ *world }

// startPublic has MetalLB give and announce VIPs on the public network until the end of the test, which leaves the attachments as
// they are in the example.
func startPublic(t *testing.T) publicSide {
	t.Helper()
	w := publicSide{w}
	if err := publicNetwork(); err != nil {
		t.Fatal(err)
	}
	folder, err := os.MkdirTemp(w.site.Folder, "metallb-")
	if err != nil {
		t.Fatal(err)
	}
	metallb, err := hosted.NewMetalLB(t.Context(), hosted.MetalLBConfig{
		API: w.ControlPlane, Folder: folder, Namespace: publicMetalLB, Node: "node-1", Announce: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(metallb.Tails(20))
		}
		if err := metallb.Kill(); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.nothingPublic(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := metallb.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Apply(t.Context(), "a-person", pools); err != nil {
		t.Fatal(err)
	}
	return w
}

// nothingPublic applies the example and waits until it has no public Service.
func (w publicSide) nothingPublic(ctx context.Context) error {
	manifests, err := kustomize(ctx, "deploy/examples/vlan100")
	if err != nil {
		return err
	}
	if _, err := w.Apply(ctx, "kubectl", manifests); err != nil {
		return err
	}
	return stack.Until(ctx, "the end of public Services", func(ctx context.Context) error {
		for _, cluster := range []string{clusterA, clusterB} {
			if _, err := w.services(namespace).Get(ctx, v1alpha1.ExternalServiceName(cluster), metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(fmt.Errorf("that of %s is there", cluster), err)
			}
		}
		return nil
	})
}

func (w publicSide) services(namespace string) dynamic.ResourceInterface {
	return w.Dynamic.Resource(corev1.SchemeGroupVersion.WithResource("services")).Namespace(namespace)
}

func (w publicSide) attachments() dynamic.ResourceInterface {
	return w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("infraclusterattachments")).Namespace(namespace)
}

// attach applies an attachment of the example as a user does, with what it says of its external Service, in YAML's flow style.
func (w publicSide) attach(t testing.TB, cluster, external string) {
	t.Helper()
	if _, err := w.Apply(t.Context(), "kubectl", fmt.Appendf(nil, `apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  infraRef: {name: %[3]s}
  hostedClusterRef: {name: %[1]s, namespace: clusters}
  dns: {clusterName: %[1]s, baseDomain: clusters.example.com}
  externalService: %[4]s
`, cluster, namespace, infra, external)); err != nil {
		t.Fatal(err)
	}
}

// asOnThePage is the externalService of docs/public-names.md, with more besides.
func asOnThePage(cluster, pool, more string) string {
	return fmt.Sprintf(`{enabled: true, addressPoolName: %s, labels: {external-dns.example.com/publish: "yes"}, `+
		`annotations: {external-dns.alpha.kubernetes.io/hostname: "oauth.%s."}%s}`, pool, domain(cluster), more)
}

// attachment as it is, with its conditions, one a line.
func (w publicSide) attachment(ctx context.Context, name string) (*v1alpha1.InfraClusterAttachment, string, error) {
	object, err := w.attachments().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, "", err
	}
	attachment := &v1alpha1.InfraClusterAttachment{}
	err = runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, attachment)
	return attachment, "\n" + conditions(object), err
}

// awaitPublic waits until an attachment says that it is public at an address, and returns the port of its listener.
func (w publicSide) awaitPublic(t testing.TB, cluster, address string) int32 {
	t.Helper()
	var port int32
	eventually(t, cluster+" at "+address, func(ctx context.Context) error {
		a, text, err := w.attachment(ctx, cluster)
		if err != nil {
			return err
		}
		status := a.Status.ExternalService
		if status == nil || status.IP != address || !strings.Contains(text, "\nExternalServiceReady=True Published: ") {
			return fmt.Errorf("status.externalService is %+v, and the conditions are:%s", status, text)
		}
		port = status.Port
		return nil
	})
	if port < v1alpha1.ExternalPortFirst || port > v1alpha1.ExternalPortLast {
		t.Errorf("the port of %s is %d", cluster, port)
	}
	return port
}

// awaitWord waits until an attachment has a condition that begins with these words: type, status and reason.
func (w publicSide) awaitWord(t testing.TB, attachment string, words ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q of %s", words, attachment), func(ctx context.Context) error {
		_, text, err := w.attachment(ctx, attachment)
		for _, word := range words {
			if err == nil && !strings.Contains(text, "\n"+word) {
				err = fmt.Errorf("the conditions are:%s", text)
			}
		}
		return err
	})
}

// public is the public Service of an attachment.
func (w publicSide) public(ctx context.Context, cluster string) (*corev1.Service, error) {
	return w.service(ctx, namespace, v1alpha1.ExternalServiceName(cluster))
}

// service is a Service as the API server has it.
func (w publicSide) service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	object, err := w.services(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	service := &corev1.Service{}
	return service, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, service)
}

// patch changes an object with a merge patch, as somebody with an editor does.
func patch(t testing.TB, client dynamic.ResourceInterface, name, text string) {
	t.Helper()
	if _, err := client.Patch(t.Context(), name, types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "somebody"}); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// publicly opens a TLS connection from the public network, and returns who answers.
func (w publicSide) publicly(ctx context.Context, vip, sni string) (string, error) {
	return w.callAt(ctx, outsider, vip, 443, sni)
}

// awaitPublicly waits until a name is answered at a VIP by that one.
func (w publicSide) awaitPublicly(t testing.TB, vip, sni, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s at %s", sni, vip), func(ctx context.Context) error {
		got, err := w.publicly(ctx, vip, sni)
		if err == nil && got != want {
			err = fmt.Errorf("got %s, want %s", got, want)
		}
		return err
	})
}

// opens is an error unless from all names, and what is no TLS with a name, a VIP leads to those servers and no others: want is
// "cluster/service" by name.
func (w publicSide) opens(ctx context.Context, vip string, want map[string]string) error {
	names := []string{"", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "unknown.example.com"}
	for _, cluster := range []string{clusterA, clusterB} {
		for _, name := range []string{"api", "api-int", "oauth", "ignition", "konnectivity", "console.apps", "unknown", "oauth.apps", "x.oauth"} {
			names = append(names, name+"."+domain(cluster))
		}
		names = append(names, domain(cluster))
	}
	var group sync.WaitGroup
	errs := make([]error, len(names)+1)
	for i, name := range names {
		group.Go(func() {
			should := want[name]
			if should == "" {
				should = "closed"
			}
			got, err := w.publicly(ctx, vip, name)
			if err == nil && got != should {
				err = fmt.Errorf("it is %s, want %s", got, should)
			}
			if err != nil {
				errs[i] = fmt.Errorf("%q at %s: %w", name, vip, err)
			}
		})
	}
	group.Go(func() {
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		call := stack.Call{Host: outsider, To: netip.AddrPortFrom(netip.MustParseAddr(vip), 443)}
		answer, err := call.TryPlain(ctx, "GET / HTTP/1.1\r\nHost: oauth."+domain(clusterA)+"\r\n\r\n")
		if err == nil && answer != "" {
			err = fmt.Errorf("plain HTTP at %s is answered: %q", vip, answer)
		}
		errs[len(names)] = err
	})
	group.Wait()
	return errors.Join(errs...)
}

// accepted are the ports of an address, of these, at which somebody takes connections from the public network.
func accepted(ctx context.Context, address string, ports ...int32) []int32 {
	var group sync.WaitGroup
	open := make([]bool, len(ports))
	for i, port := range ports {
		group.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			conn, err := outsider.Dial(ctx, netip.Addr{}, address+":"+strconv.Itoa(int(port)))
			if err == nil {
				open[i] = true
				_ = conn.Close() // nothing was said
			}
		})
	}
	group.Wait()
	var found []int32
	for i, port := range ports {
		if open[i] {
			found = append(found, port)
		}
	}
	return found
}

// awaitSilence waits until nobody on the public network has an address.
func awaitSilence(t testing.TB, address string) {
	t.Helper()
	eventually(t, "silence at "+address, func(ctx context.Context) error {
		macs, err := hosted.AskARP(ctx, outsider, "vlan0", netip.MustParseAddr(address), 300*time.Millisecond)
		if err == nil && len(macs) > 0 {
			err = fmt.Errorf("%v have it", macs)
		}
		return err
	})
	if ports := accepted(t.Context(), address, 443); len(ports) > 0 {
		t.Errorf("%s is taken, and nobody has it", address)
	}
}

// heldCalls are connections that stay open for the length of a test.
type heldCalls struct {
	names   []string
	streams []*stack.Stream
}

// hold opens connections, by what they are called, and closes them at the end of the test.
func (w publicSide) hold(t testing.TB, calls map[string]stack.Call) *heldCalls {
	t.Helper()
	h := &heldCalls{}
	for name, call := range calls {
		eventually(t, name, func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			stream, answer, err := call.Hold(ctx, w.site.CA)
			if err != nil {
				return err
			}
			if answer.Cluster != clusterB {
				return errors.Join(fmt.Errorf("%s answers", answer), stream.Close())
			}
			h.names, h.streams = append(h.names, name), append(h.streams, stream)
			return nil
		})
	}
	t.Cleanup(func() {
		for _, stream := range h.streams {
			_ = stream.Close() // it may be broken
		}
	})
	return h
}

// alive fails the test when a connection has come to its end.
func (h *heldCalls) alive(t testing.TB, after string) {
	t.Helper()
	for i, stream := range h.streams {
		if err := stream.Alive(); err != nil {
			t.Errorf("after %s: %s: %v", after, h.names[i], err)
		}
	}
}
