package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

var (
	oauthA, oauthB = "oauth." + domain(clusterA), "oauth." + domain(clusterB)
	onlyOAuthA     = map[string]string{oauthA: clusterA + "/oauth-openshift"}
	onlyOAuthB     = map[string]string{oauthB: clusterB + "/oauth-openshift"}
)

// TestExternal publishes the OAuth servers of two clusters, each at an address of its own that opens nothing else. Then all that
// can be done to the one is done to it, and costs the other no connection.
func TestExternal(t *testing.T) {
	w.nothingRefused(t)
	w.settle(t)
	w := startPublic(t)
	w.boot(t, w.workerB, netlab.Udhcpc, workerB)

	portB := w.testStrangersService(t)
	held := w.holdB(t)
	var portA int32
	step := func(name string, test func(*testing.T)) {
		t.Helper()
		t.Run(name, test)
		held.alive(t, name)
		if err := w.opens(t.Context(), vipB, onlyOAuthB); err != nil {
			t.Errorf("after %s: %v", name, err)
		}
	}
	step("published", func(t *testing.T) {
		w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
		portA = w.awaitPublic(t, clusterA, vipA)
		if portA == portB {
			t.Errorf("both listeners are on port %d", portA)
		}
		w.testOpen(t, portA)
	})
	step("the API, too", func(t *testing.T) {
		w.attach(t, clusterA, asOnThePage(clusterA, poolA, ", services: [oauth, api]"))
		api := "api." + domain(clusterA)
		w.awaitPublicly(t, vipA, api, clusterA+"/kube-apiserver")
		both := map[string]string{oauthA: clusterA + "/oauth-openshift", api: clusterA + "/kube-apiserver"}
		if err := w.opens(t.Context(), vipA, both); err != nil {
			t.Error(err)
		}
		w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
		w.awaitPublicly(t, vipA, api, "closed")
	})
	step("what is in the Service", func(t *testing.T) { w.testService(t, portA) })
	step("somebody edits the Service", func(t *testing.T) { w.testEdits(t, portA) })
	step("somebody deletes the Service", func(t *testing.T) {
		before, err := w.public(t.Context(), clusterA)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.services(namespace).Delete(t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another one", func(ctx context.Context) error {
			now, err := w.public(ctx, clusterA)
			if err == nil && now.UID == before.UID {
				err = errors.New("it is still there")
			}
			return err
		})
		w.samePort(t, clusterA, vipA, portA)
		w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	})
	step("the hub starts anew", func(t *testing.T) { w.testRestart(t, portA, portB) })
	step("disabled", func(t *testing.T) {
		w.attach(t, clusterA, "{enabled: false}")
		w.awaitClosed(t, portA)
		w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
		if portA = w.awaitPublic(t, clusterA, vipA); portA == portB {
			t.Errorf("the listeners are both on port %d", portA)
		}
		w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	})
	step("in conflict", func(t *testing.T) { w.testConflict(t, portA) })
	step("the attachment is deleted", func(t *testing.T) {
		if err := w.attachments().Delete(t.Context(), clusterA, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.awaitClosed(t, portA)
		w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
		if portA = w.awaitPublic(t, clusterA, vipA); portA == portB {
			t.Errorf("the listeners are both on port %d", portA)
		}
		w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	})
	step("in the DNS", w.testNames)
	w.samePort(t, clusterB, vipB, portB)

	before, _ := w.pair(t)
	if err := w.force(t.Context(), before); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ vip, name, want string }{
		{vipA, oauthA, clusterA + "/oauth-openshift"}, {vipB, oauthB, clusterB + "/oauth-openshift"},
	} {
		w.awaitPublicly(t, c.vip, c.name, c.want)
	}
	if after, _ := w.pair(t); after == before {
		t.Errorf("the holder is still %s", after)
	}
	if err := errors.Join(w.opens(t.Context(), vipA, onlyOAuthA), w.opens(t.Context(), vipB, onlyOAuthB)); err != nil {
		t.Error(err)
	}
}

// testStrangersService has a stranger's Service where that of B belongs, until it goes. A does not mind. It returns the port of B's
// listener.
func (w publicSide) testStrangersService(t *testing.T) int32 {
	t.Helper()
	strange := fmt.Appendf(nil, `apiVersion: v1
kind: Service
metadata:
  name: %s
  namespace: %s
  labels: {app: something-else}
  annotations: {metallb.universe.tf/address-pool: %s}
spec:
  type: LoadBalancer
  selector: {app: something-else}
  ports: [{name: https, port: 443, targetPort: 8443}]
`, v1alpha1.ExternalServiceName(clusterB), namespace, poolB)
	if _, err := w.Apply(t.Context(), "a-stranger", strange); err != nil {
		t.Fatal(err)
	}
	var before *corev1.Service
	eventually(t, "the stranger's VIP", func(ctx context.Context) (err error) {
		before, err = w.public(ctx, clusterB)
		if err == nil && len(before.Status.LoadBalancer.Ingress) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	w.attach(t, clusterB, asOnThePage(clusterB, poolB, ""))
	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
	w.awaitPublic(t, clusterA, vipA)
	w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	w.awaitWord(t, clusterB, "ExternalServiceReady=False NotOurs: ", "Ready=False NotOurs: ")
	w.attach(t, clusterA, "{enabled: false}")
	awaitSilence(t, vipA)
	now, err := w.public(t.Context(), clusterB)
	if err != nil {
		t.Fatal(err)
	}
	now.ManagedFields, before.ManagedFields = nil, nil
	if diff := cmp.Diff(before, now); diff != "" {
		t.Errorf("the stranger's Service is not what it was:\n%s", diff)
	}
	if err := w.services(namespace).Delete(t.Context(), before.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	port := w.awaitPublic(t, clusterB, vipB)
	w.awaitPublicly(t, vipB, oauthB, clusterB+"/oauth-openshift")
	w.awaitWord(t, clusterB, "Ready=True ")
	return port
}

// holdB holds connections to B by every way that there is.
func (w publicSide) holdB(t *testing.T) *heldCalls {
	t.Helper()
	proxy, err := w.clusterIP(t.Context(), v1alpha1.ProxyServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	at := func(address string, port uint16) netip.AddrPort {
		return netip.AddrPortFrom(netip.MustParseAddr(address), port)
	}
	return w.hold(t, map[string]stack.Call{
		"OAuth at the VIP":           {Host: outsider, To: at(vipB, 443), SNI: oauthB},
		"the API for a worker":       {Host: w.workerB, To: at(addressProxy, 6443), SNI: "api." + domain(clusterB)},
		"konnectivity for a worker":  {Host: w.workerB, To: at(addressProxy, 443), SNI: "konnectivity." + domain(clusterB)},
		"an alias for a worker":      {Host: w.workerB, To: at(addressProxy, 443), SNI: "kubernetes.default.svc"},
		"no name at all of a worker": {Host: w.workerB, To: at(addressProxy, 6443)},
		"OAuth for pods":             {To: at(proxy.String(), 443), SNI: oauthB},
	})
}

// testOpen looks at all that can be reached from the public network.
func (w publicSide) testOpen(t *testing.T, portA int32) {
	t.Helper()
	w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	w.awaitPublicly(t, vipA, strings.ToUpper(oauthA), clusterA+"/oauth-openshift")
	if err := w.opens(t.Context(), vipA, onlyOAuthA); err != nil {
		t.Error(err)
	}
	service, err := w.public(t.Context(), clusterA)
	if err != nil {
		t.Fatal(err)
	}
	ports := []int32{53, 80, 6443, 8080, 8081, 9901, 18000, portA, service.Spec.Ports[0].NodePort}
	if open := accepted(t.Context(), vipA, ports...); len(open) > 0 {
		t.Errorf("%s has ports open beside 443: %v", vipA, open)
	}
	// A node port, which is on the nodes' own network only, leads where the VIP leads. Nothing else of a node is a VLAN pod's.
	nodePort := uint16(service.Spec.Ports[0].NodePort)
	for name, want := range map[string]string{oauthA: clusterA + "/oauth-openshift", "api." + domain(clusterA): "closed", oauthB: "closed"} {
		if got, err := w.callAt(t.Context(), "", kubelet.NodeAddress.String(), nodePort, name); err != nil || got != want {
			t.Errorf("%s at the node port: %s, want %s (%v)", name, got, want, err)
		}
	}
	if open := accepted(t.Context(), publicNode, append(ports, 443)...); len(open) > 0 {
		t.Errorf("the node has ports open: %v", open)
	}
}

// testService looks at the Service as the API server has it, with what the user wants, what others have added, and what nobody may change.
func (w publicSide) testService(t *testing.T, port int32) {
	t.Helper()
	const foreign = "cloud.example.com/id"
	patch(t, w.services(namespace), v1alpha1.ExternalServiceName(clusterA),
		`{"metadata": {"labels": {"`+foreign+`": "one"}, "annotations": {"`+foreign+`": "two"}}}`)
	before, err := w.public(t.Context(), clusterA)
	if err != nil {
		t.Fatal(err)
	}
	w.attach(t, clusterA, fmt.Sprintf(`{enabled: true, addressPoolName: %s,
    labels: {team: one, app.kubernetes.io/managed-by: me, hostedcluster.densityops.com/infra: mine, hostedcluster.densityops.com/attachment: %s},
    annotations: {example.com/note: "a note", metallb.universe.tf/address-pool: %[3]s, metallb.io/address-pool: %[3]s,
      hostedcluster.densityops.com/applied-hash: none}}`, poolA, clusterB, poolB))
	var now *corev1.Service
	eventually(t, "the label", func(ctx context.Context) (err error) {
		now, err = w.public(ctx, clusterA)
		if err == nil && now.Labels["team"] != "one" {
			err = fmt.Errorf("the labels are %v", now.Labels)
		}
		return err
	})
	if len(now.Spec.Ports) != 1 {
		t.Fatalf("it has the ports %v", now.Spec.Ports)
	}
	want := corev1.ServicePort{Name: "https", Protocol: corev1.ProtocolTCP, Port: 443, TargetPort: intstr.FromInt32(port), NodePort: before.Spec.Ports[0].NodePort}
	if diff := cmp.Diff(want, now.Spec.Ports[0]); diff != "" {
		t.Errorf("its port (-want +got):\n%s", diff)
	}
	if now.Spec.Type != corev1.ServiceTypeLoadBalancer || now.UID != before.UID {
		t.Errorf("it is another one, or of type %s", now.Spec.Type)
	}
	for name, c := range map[string]struct {
		got  map[string]string
		want map[string]string
	}{
		"labels": {now.Labels, map[string]string{
			"team": "one", foreign: "one", "app.kubernetes.io/managed-by": "oooi",
			v1alpha1.LabelInfra: infra, v1alpha1.LabelAttachment: clusterA, "external-dns.example.com/publish": "",
		}},
		"annotations": {now.Annotations, map[string]string{
			"example.com/note": "a note", foreign: "two", "metallb.universe.tf/address-pool": poolA, "metallb.io/address-pool": "",
			"external-dns.alpha.kubernetes.io/hostname": "",
		}},
	} {
		for key, want := range c.want {
			if got := c.got[key]; got != want {
				t.Errorf("%s: %s is %q, want %q", name, key, got, want)
			}
		}
	}
	if now.Annotations["hostedcluster.densityops.com/applied-hash"] == "none" {
		t.Error("a user has set an annotation of oooi's own")
	}
	if diff := cmp.Diff(before.Status, now.Status); diff != "" {
		t.Errorf("the status is another one:\n%s", diff)
	}
	w.samePort(t, clusterA, vipA, port)
	if err := w.opens(t.Context(), vipA, onlyOAuthA); err != nil {
		t.Error(err)
	}
	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
	eventually(t, "the Service without what the user wants no longer", func(ctx context.Context) error {
		now, err := w.public(ctx, clusterA)
		if err != nil {
			return err
		}
		_, label := now.Labels["team"]
		_, annotation := now.Annotations["example.com/note"]
		if label || annotation || now.Labels[foreign] != "one" || now.Annotations[foreign] != "two" {
			err = fmt.Errorf("the labels are %v, and the annotations %v", now.Labels, now.Annotations)
		}
		return err
	})
}

// testEdits has somebody change the Service in every way that would open something else, or nothing. It is put back.
func (w publicSide) testEdits(t *testing.T, port int32) {
	t.Helper()
	ours, err := w.public(t.Context(), clusterA)
	if err != nil {
		t.Fatal(err)
	}
	https := fmt.Sprintf(`{"name": "https", "port": 443, "protocol": "TCP", "targetPort": %d}`, port)
	const kubeAPI = `{"name": "kube-api", "port": 6443, "protocol": "TCP", "targetPort": 6443}`
	for _, c := range []struct{ name, patch string }{
		{"what all share", strings.ReplaceAll(`{"spec": {"ports": [PORT]}}`, "PORT", strings.ReplaceAll(https, fmt.Sprint(port), "443"))},
		{"another selector", `{"spec": {"selector": {"app": "something-else"}}}`},
		{"a second port", `{"spec": {"ports": [` + https + `, ` + kubeAPI + `]}}`},
		{"another port", `{"spec": {"ports": [` + kubeAPI + `]}}`},
		{"an address of his own", `{"spec": {"externalIPs": ["198.51.100.99"]}}`},
		{"no load balancer", `{"spec": {"type": "ClusterIP"}}`},
		{"another name", `{"spec": {"type": "ExternalName", "externalName": "example.org"}}`},
		{"no label", `{"metadata": {"labels": {"app.kubernetes.io/managed-by": null}}}`},
		{"no owner", `{"metadata": {"ownerReferences": null}}`},
		{
			"all at once",
			`{"metadata": {"labels": {"app.kubernetes.io/managed-by": null}},
			"spec": {"type": "NodePort", "selector": {"app": "something-else"}, "externalIPs": ["198.51.100.99"], "ports": [` + https + `, ` + kubeAPI + `]}}`,
		},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			patch(t, w.services(namespace), ours.Name, c.patch)
			eventually(t, "the Service as it was", func(ctx context.Context) error {
				now, err := w.public(ctx, clusterA)
				if err != nil {
					return err
				}
				for _, service := range []*corev1.Service{ours, now} {
					// A Service that was another name has another ClusterIP, and the name says nothing any more.
					service.Spec.ClusterIP, service.Spec.ClusterIPs, service.Spec.ExternalName = "", nil, ""
					for i := range service.Spec.Ports {
						service.Spec.Ports[i].NodePort = 0
					}
				}
				if diff := cmp.Diff([]any{ours.UID, ours.Labels, ours.OwnerReferences, ours.Spec}, []any{now.UID, now.Labels, now.OwnerReferences, now.Spec}); diff != "" {
					return fmt.Errorf("it is (-want +got):\n%s", diff)
				}
				return nil
			})
		}) {
			return // the rest would wait for the same
		}
	}
	w.samePort(t, clusterA, vipA, port)
	w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
	if err := w.opens(t.Context(), vipA, onlyOAuthA); err != nil {
		t.Error(err)
	}
	if open := accepted(t.Context(), vipA, 80, 6443); len(open) > 0 {
		t.Errorf("%s has ports open beside 443: %v", vipA, open)
	}
}

// testRestart has another process lead. It writes nothing, until there is something to write.
func (w publicSide) testRestart(t *testing.T, portA, portB int32) {
	t.Helper()
	versions := func() []string {
		var versions []string
		for _, cluster := range []string{clusterA, clusterB} {
			service, err := w.public(t.Context(), cluster)
			if err != nil {
				t.Fatal(err)
			}
			versions = append(versions, service.ResourceVersion)
		}
		return versions
	}
	before := versions()
	hubs, err := w.nodes.Pods(t.Context(), "oooi-system", "app.kubernetes.io/component=hub")
	if err != nil {
		t.Fatal(err)
	}
	for _, hub := range hubs {
		if err := w.Dynamic.Resource(podResource).Namespace("oooi-system").Delete(t.Context(), hub.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "other hubs", func(ctx context.Context) error {
		now, err := w.nodes.Pods(ctx, "oooi-system", "app.kubernetes.io/component=hub")
		if err != nil {
			return err
		}
		for _, pod := range now {
			for _, hub := range hubs {
				if pod.UID == hub.UID {
					return fmt.Errorf("%s is there", hub.Name)
				}
			}
		}
		return w.available(ctx, "oooi-system", "oooi")
	})
	// What a new leader does about A is done after it has looked at everything.
	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ", services: [oauth, konnectivity]"))
	w.awaitPublicly(t, vipA, "konnectivity."+domain(clusterA), clusterA+"/konnectivity-server")
	w.attach(t, clusterA, asOnThePage(clusterA, poolA, ""))
	w.awaitPublicly(t, vipA, "konnectivity."+domain(clusterA), "closed")
	w.samePort(t, clusterA, vipA, portA)
	w.samePort(t, clusterB, vipB, portB)
	if diff := cmp.Diff(before, versions()); diff != "" {
		t.Errorf("the Services have been written:\n%s", diff)
	}
}

// testConflict has another attachment say that it is of A's domain.
func (w publicSide) testConflict(t *testing.T, portA int32) {
	t.Helper()
	const other = "example-hcp-c"
	if _, err := w.Apply(t.Context(), "kubectl", fmt.Appendf(nil, `apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  infraRef: {name: %[3]s}
  hostedClusterRef: {name: %[1]s, namespace: clusters}
  dns: {clusterName: %[4]s, baseDomain: clusters.example.com}
  externalService: {enabled: true, addressPoolName: %[5]s}
`, other, namespace, infra, clusterA, otherPoolA)); err != nil {
		t.Fatal(err)
	}
	w.awaitWord(t, clusterA, "Ready=False DuplicateHostname: ", "ExternalServiceReady=False DuplicateHostname: ")
	w.awaitClosed(t, portA)
	if _, err := w.public(t.Context(), other); !apierrors.IsNotFound(err) {
		t.Errorf("the Service of %s: %v", other, err)
	}
	if err := w.attachments().Delete(t.Context(), other, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.samePort(t, clusterA, vipA, portA)
	w.awaitPublicly(t, vipA, oauthA, clusterA+"/oauth-openshift")
}

// samePort waits until an attachment is public, at the port that it had.
func (w publicSide) samePort(t testing.TB, cluster, vip string, port int32) {
	t.Helper()
	if now := w.awaitPublic(t, cluster, vip); now != port {
		t.Errorf("the port of %s is %d, and was %d", cluster, now, port)
	}
}

// awaitClosed waits until nothing of A is public any more: no Service, no VIP, and no listener.
func (w publicSide) awaitClosed(t testing.TB, port int32) {
	t.Helper()
	eventually(t, "no Service", func(ctx context.Context) error {
		if _, err := w.public(ctx, clusterA); !apierrors.IsNotFound(err) {
			return errors.Join(errors.New("it is there"), err)
		}
		return nil
	})
	awaitSilence(t, vipA)
	holder, err := w.holder(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	address, err := w.nodes.Address(namespace, holder)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "no listener", func(ctx context.Context) error {
		conn, refused := stack.Host("").Dial(ctx, netip.Addr{}, netip.AddrPortFrom(address, uint16(port)).String())
		if refused == nil {
			return errors.Join(fmt.Errorf("port %d is open", port), conn.Close())
		}
		return nil
	})
}
