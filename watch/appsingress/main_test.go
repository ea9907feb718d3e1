package appsingress

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what takes a moment: long, for the machine may be busy.
const patience = 90 * time.Second

// tester is the field owner of what tests write.
const tester = "test"

// hub plays the management cluster: its Secrets, and who asks the Runner.
type hub struct {
	*Runner
	t *testing.T

	mu      sync.Mutex
	secrets map[types.NamespacedName]*corev1.Secret
	errs    map[types.NamespacedName]error
	reads   map[types.NamespacedName]int
	all     map[types.NamespacedName]Attachment
	latest  map[types.NamespacedName]v1alpha1.AppsIngressStatus
	history map[types.NamespacedName][]v1alpha1.AppsIngressStatus
}

// newHub runs a Runner for one test.
func newHub(t *testing.T) *hub {
	t.Helper()
	h := &hub{
		t: t, secrets: map[types.NamespacedName]*corev1.Secret{}, errs: map[types.NamespacedName]error{},
		reads: map[types.NamespacedName]int{}, all: map[types.NamespacedName]Attachment{},
		latest: map[types.NamespacedName]v1alpha1.AppsIngressStatus{}, history: map[types.NamespacedName][]v1alpha1.AppsIngressStatus{},
	}
	h.Runner = New(Config{
		Secret: h.secret, Changed: h.changed, Registerer: prometheus.NewRegistry(),
		Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return h
}

func (h *hub) secret(_ context.Context, key types.NamespacedName) (*corev1.Secret, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.reads[key]++
	if err := h.errs[key]; err != nil {
		return nil, err
	}
	if secret := h.secrets[key]; secret != nil {
		return secret, nil
	}
	return nil, apierrors.NewNotFound(corev1.Resource("secrets"), key.Name)
}

// changed keeps what was observed.
func (h *hub) changed() {
	observed := h.Observed()
	h.mu.Lock()
	defer h.mu.Unlock()
	for key, o := range observed {
		if h.latest[key] != o.Status {
			h.history[key] = append(h.history[key], o.Status)
			h.latest[key] = o.Status
		}
	}
}

// forget begins the history anew.
func (h *hub) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.history)
}

// seen is what was observed of an attachment since then.
func (h *hub) seen(a Attachment) []v1alpha1.AppsIngressStatus {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.history[a.Key])
}

// give writes the Secret of an attachment.
func (h *hub) give(a Attachment, data map[string][]byte) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.errs, a.Kubeconfig)
	h.secrets[a.Kubeconfig] = &corev1.Secret{Data: data}
}

// refuse lets reading the Secret of an attachment fail.
func (h *hub) refuse(a Attachment, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.errs[a.Kubeconfig] = err
}

// put adds or changes an attachment.
func (h *hub) put(a Attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.all[a.Key] = a
	h.setAll()
}

// drop takes an attachment out.
func (h *hub) drop(a Attachment) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.all, a.Key)
	h.setAll()
}

func (h *hub) setAll() {
	var all []Attachment
	for _, a := range h.all {
		all = append(all, a)
	}
	h.Set(all)
}

// wait waits for an observation.
func (h *hub) wait(a Attachment, what string, is func(Observation) bool) Observation {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	var o Observation
	if err := stack.Until(ctx, what, func(context.Context) error {
		var known bool
		if o, known = h.Observed()[a.Key]; !known || !is(o) {
			return fmt.Errorf("%s is %+v", a.Key, o)
		}
		return nil
	}); err != nil {
		h.t.Fatal(err)
	}
	return o
}

// waitFor waits for a phase, a reason, a VIP and parts of the message.
func (h *hub) waitFor(a Attachment, phase, reason, vip string, message ...string) Observation {
	h.t.Helper()
	return h.wait(a, fmt.Sprintf("%s/%s %q %q", phase, reason, vip, message), func(o Observation) bool {
		s := o.Status
		return s.Phase == phase && s.Reason == reason && s.ExternalIP == vip && !slices.ContainsFunc(message, func(part string) bool { return !strings.Contains(s.Message, part) })
	})
}

// cluster plays a hosted cluster. Nobody runs in it: the test plays MetalLB and the nodes.
type cluster struct {
	*controlplane.ControlPlane
	t    *testing.T
	port int32
}

func newCluster(t *testing.T, flags ...string) *cluster {
	t.Helper()
	c := &cluster{ControlPlane: controlplane.ForTest(t, flags...), t: t}
	u, err := url.Parse(c.URL())
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	c.port = int32(port)
	return c
}

// attachment is one whose hosted cluster this is. Its kubeconfig is in a Secret of the hub.
func (c *cluster) attachment(h *hub, name string) Attachment {
	a := Attachment{
		Key:        types.NamespacedName{Namespace: "clusters", Name: name},
		Kubeconfig: types.NamespacedName{Namespace: "clusters", Name: name + "-admin-kubeconfig"},
		Addresses:  []string{"127.0.0.1"}, Port: c.port,
	}
	a.Spec.Enabled = true
	a.Spec.MetalLB.AddressPoolName = name + "-apps"
	a.Spec.MetalLB.IPAddressPoolRange = "192.0.2.200-192.0.2.209"
	h.give(a, c.kubeconfig(nil))
	return a
}

// kubeconfig is the admin's, as HyperShift writes it: with the name and port that the outside has, which nobody here could dial.
func (c *cluster) kubeconfig(change func(*clientcmdapi.Cluster, *clientcmdapi.AuthInfo)) map[string][]byte {
	c.t.Helper()
	admin := c.AdminConfig()
	config := clientcmdapi.NewConfig()
	server := &clientcmdapi.Cluster{Server: "https://kubernetes.default.svc:443", CertificateAuthorityData: admin.CAData}
	user := &clientcmdapi.AuthInfo{ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData}
	if change != nil {
		change(server, user)
	}
	config.Clusters["cluster"], config.AuthInfos["admin"] = server, user
	config.Contexts["admin"] = &clientcmdapi.Context{Cluster: "cluster", AuthInfo: "admin"}
	config.CurrentContext = "admin"
	raw, err := clientcmd.Write(*config)
	if err != nil {
		c.t.Fatal(err)
	}
	return map[string][]byte{"kubeconfig": raw}
}

// apply writes objects, and their statuses.
func (c *cluster) apply(manifests string) {
	c.t.Helper()
	if err := c.ApplyWithStatus(c.t.Context(), tester, []byte(manifests)); err != nil {
		c.t.Fatal(err)
	}
}

// define installs definitions, MetalLB's real ones where they are beside the checkout.
func (c *cluster) define(files ...string) {
	c.t.Helper()
	root, err := stack.Root()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, file := range files {
		var manifests [][]byte
		if file == "metallb.yaml" {
			for _, name := range []string{"metallb.io_ipaddresspools.yaml", "metallb.io_l2advertisements.yaml"} {
				raw, err := os.ReadFile(filepath.Join(root, "..", "shared", "crds", name))
				if errors.Is(err, fs.ErrNotExist) {
					break
				}
				if err != nil {
					c.t.Fatal(err)
				}
				manifests = append(manifests, raw)
			}
		}
		if len(manifests) < 2 {
			raw, err := os.ReadFile(filepath.Join("testdata", file))
			if err != nil {
				c.t.Fatal(err)
			}
			manifests = [][]byte{raw}
		}
		if err := c.InstallDefinitions(c.t.Context(), manifests...); err != nil {
			c.t.Fatal(err)
		}
	}
}

// namespace makes namespaces.
func (c *cluster) namespace(names ...string) {
	c.t.Helper()
	for _, name := range names {
		c.apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n")
	}
}

// node makes a node, or changes whether it is Ready.
func (c *cluster) node(name, ready string) {
	c.t.Helper()
	c.apply(fmt.Sprintf(`
apiVersion: v1
kind: Node
metadata: {name: %s}
status:
  conditions:
  - {type: Ready, status: %q, reason: Test, message: test, lastHeartbeatTime: "2026-01-01T00:00:00Z", lastTransitionTime: "2026-01-01T00:00:00Z"}
`, name, ready))
}

// ready makes all that an attachment needs before its Service has an address.
func (c *cluster) ready() {
	c.t.Helper()
	c.define("metallb.yaml")
	c.namespace("metallb-system", "openshift-ingress")
	c.node("worker", "True")
}

// there reads an object; nil: it is not there.
func (c *cluster) there(k kind, namespace, name string) *unstructured.Unstructured {
	c.t.Helper()
	object, err := c.Dynamic.Resource(k.resource()).Namespace(namespace).Get(c.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return object
}

// until waits for a state of an object; nil: it is not there.
func (c *cluster) until(k kind, namespace, name, what string, is func(*unstructured.Unstructured) bool) *unstructured.Unstructured {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	var object *unstructured.Unstructured
	if err := stack.Until(ctx, k.String(namespace, name)+" "+what, func(context.Context) error {
		if object = c.there(k, namespace, name); !is(object) {
			return fmt.Errorf("it is %v", object)
		}
		return nil
	}); err != nil {
		c.t.Fatal(err)
	}
	return object
}

func isThere(u *unstructured.Unstructured) bool { return u != nil }
func isGone(u *unstructured.Unstructured) bool  { return u == nil }

// patch changes an object as a person with kubectl edit would.
func (c *cluster) patch(k kind, namespace, name, patch string, subresources ...string) {
	c.t.Helper()
	if _, err := c.Dynamic.Resource(k.resource()).Namespace(namespace).Patch(c.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: tester}, subresources...); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cluster) delete(k kind, namespace, name string) {
	c.t.Helper()
	if err := c.Dynamic.Resource(k.resource()).Namespace(namespace).Delete(c.t.Context(), name, metav1.DeleteOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// announce gives a Service addresses, as MetalLB would: entries of status.loadBalancer.ingress in JSON.
func (c *cluster) announce(namespace, name, entries string) {
	c.t.Helper()
	c.patch(services, namespace, name, `{"status":{"loadBalancer":{"ingress":[`+entries+`]}}}`, "status")
}

// writes are those that the Runner asked for since a mark.
func (c *cluster) requests(since controlplane.Mark, is func(controlplane.Request) bool) []controlplane.Request {
	c.t.Helper()
	all, err := c.Requests(since)
	if err != nil {
		c.t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(r controlplane.Request) bool { return r.Agent != "oooi" || !is(r) })
}

func (c *cluster) mark() controlplane.Mark {
	c.t.Helper()
	mark, err := c.Mark()
	if err != nil {
		c.t.Fatal(err)
	}
	return mark
}

const (
	pendingPhase  = v1alpha1.PhasePending
	readyPhase    = v1alpha1.PhaseReady
	degradedPhase = v1alpha1.PhaseDegraded
)

// resource is the kind for the dynamic client.
func (k kind) resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: k.plural}
}
