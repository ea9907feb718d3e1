package appsingress

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
)

// serviceAccountToken is the token of a ServiceAccount that it makes, with no rights.
func (c *cluster) serviceAccountToken(name string) string {
	c.t.Helper()
	c.apply("apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: " + name + ", namespace: kube-system}\n")
	config, err := c.ServiceAccountConfig(c.t.Context(), "kube-system", name)
	if err != nil {
		c.t.Fatal(err)
	}
	return config.BearerToken
}

// withToken makes a kubeconfig that has a token.
func (c *cluster) withToken(token string) map[string][]byte {
	return c.kubeconfig(func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
		*user = clientcmdapi.AuthInfo{Token: token}
	})
}

// TestAccess: whatever keeps the hosted cluster from being asked is Degraded with its cause, the VIP stays, and it heals by itself.
func TestAccess(t *testing.T) {
	t.Parallel()
	c, h := newCluster(t), newHub(t)
	c.ready()
	a := c.attachment(h, "a")
	const reason = v1alpha1.ReasonHostedClusterAccessFailed
	h.put(a)
	c.until(services, "openshift-ingress", "oooi-ingress", "there", isThere)
	c.announce("openshift-ingress", "oooi-ingress", `{"ip":"192.0.2.200"}`)
	ready := func() { h.waitFor(a, readyPhase, v1alpha1.ReasonReconciliationSucceeded, "192.0.2.200") }
	ready()

	foreign, _ := selfSigned(t, time.Now().Add(time.Hour), "kubernetes.default.svc")
	expired := "e30." + base64.RawURLEncoding.EncodeToString([]byte(`{"exp":1767225600}`)) + ".e30"
	powerless, dead := c.serviceAccountToken("powerless"), c.serviceAccountToken("dead")
	c.delete(kind{"", "v1", "ServiceAccount", "serviceaccounts"}, "kube-system", "dead")

	// The Secret is read again only after a while when nothing is wrong: another name has it read at once.
	renamed := 0
	retry := func(data map[string][]byte, err error) {
		renamed++
		a.Kubeconfig.Name = fmt.Sprintf("kubeconfig-%d", renamed)
		if data != nil {
			h.give(a, data)
		}
		if err != nil {
			h.refuse(a, err)
		}
		h.put(a)
	}
	for _, test := range []struct {
		name    string
		data    map[string][]byte
		err     error
		message []string
	}{
		{"no Secret", nil, nil, []string{"Secret clusters/kubeconfig-", "does not exist"}},
		{"forbidden", nil, apierrors.NewForbidden(corev1.Resource("secrets"), "x", nil), []string{"may not read Secret", "apply deploy/kubeconfigs, or give the hub's ServiceAccount get on this Secret"}},
		{"management API away", nil, errors.New("connection refused"), []string{"reading Secret clusters/kubeconfig-", "connection refused"}},
		{"no key", map[string][]byte{"value": []byte("x")}, nil, []string{`has no key "kubeconfig"`}},
		{"no kubeconfig", map[string][]byte{"kubeconfig": []byte("x")}, nil, []string{"the kubeconfig in Secret clusters/kubeconfig-", "is no kubeconfig"}},
		{"exec", c.kubeconfig(func(_ *clientcmdapi.Cluster, user *clientcmdapi.AuthInfo) {
			user.Exec = &clientcmdapi.ExecConfig{APIVersion: "client.authentication.k8s.io/v1", Command: "false", InteractiveMode: clientcmdapi.NeverExecInteractiveMode}
		}), nil, []string{"exec is refused"}},
		{"wrong CA", c.kubeconfig(func(cluster *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			cluster.CertificateAuthorityData = foreign
		}), nil, []string{"x509", "unknown authority"}},
		{"wrong name", c.kubeconfig(func(cluster *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
			cluster.Server = "https://api.a.example.com:6443"
		}), nil, []string{"API server api.a.example.com:6443 at 127.0.0.1:", "not api.a.example.com"}},
		{"expired token", c.withToken(expired), nil, []string{"refuses the token of the kubeconfig, which expired on 2026-01-01T00:00:00Z"}},
		{"no credentials any more", c.withToken(dead), nil, []string{"refuses the token of the kubeconfig (Unauthorized)"}},
		{"no rights", c.withToken(powerless), nil, []string{"system:serviceaccount:kube-system:powerless", "cannot list resource"}},
	} {
		retry(test.data, test.err)
		o := h.waitFor(a, degradedPhase, reason, "192.0.2.200", test.message...)
		if strings.Contains(o.Status.Message, dead[:20]) || strings.Contains(o.Status.Message, powerless[:20]) {
			t.Errorf("%s: the message holds a credential: %s", test.name, o.Status.Message)
		}
	}

	// What heals it, without anybody's telling: the Secret is read again at each attempt.
	h.give(a, c.kubeconfig(nil))
	ready()
	// tls-server-name is respected.
	retry(c.kubeconfig(func(cluster *clientcmdapi.Cluster, _ *clientcmdapi.AuthInfo) {
		cluster.Server, cluster.TLSServerName = "https://api.a.example.com:6443", "localhost"
	}), nil)
	mark := c.mark()
	c.until(services, "openshift-ingress", "oooi-ingress", "looked at by another name", func(*unstructured.Unstructured) bool {
		return len(c.requests(mark, func(controlplane.Request) bool { return true })) > 0
	})
	ready()

	// The credentials end while they are in use, and the Secret has new ones by then: nothing is seen of it.
	token := c.serviceAccountToken("renewed")
	c.apply(`
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: renewed}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: renewed, namespace: kube-system}]
`)
	retry(c.withToken(token), nil)
	c.until(services, "openshift-ingress", "oooi-ingress", "looked at with a token", func(*unstructured.Unstructured) bool {
		return slices.ContainsFunc(c.requests(mark, func(controlplane.Request) bool { return true }), func(r controlplane.Request) bool { return strings.HasSuffix(r.User, ":renewed") })
	})
	ready()
	h.forget()
	mark = c.mark()
	h.give(a, c.kubeconfig(nil))
	c.delete(kind{"", "v1", "ServiceAccount", "serviceaccounts"}, "kube-system", "renewed")
	n := 0
	c.until(services, "openshift-ingress", "oooi-ingress", "looked at with the new credentials", func(*unstructured.Unstructured) bool {
		n++ // another look: the API server knows a token for some seconds after its end
		c.patch(services, "openshift-ingress", "oooi-ingress", fmt.Sprintf(`{"metadata":{"annotations":{"example.com/n":"%d"}}}`, n))
		return len(c.requests(mark, func(r controlplane.Request) bool { return r.User == controlplane.AdminUser })) > 0
	})
	ready()
	if seen := h.seen(a); slices.ContainsFunc(seen, func(s v1alpha1.AppsIngressStatus) bool { return s.Phase != readyPhase }) {
		t.Errorf("new credentials were there, and yet: %+v", seen)
	}

	// The API server moves: other address and port, same name.
	a.Port = 1
	h.put(a)
	h.waitFor(a, degradedPhase, reason, "192.0.2.200", "API server kubernetes.default.svc:443 at 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused")
	a.Addresses, a.Port = []string{"127.0.0.2"}, relay(t, "127.0.0.2", c.port)
	h.put(a)
	ready()
	// One of two addresses answers.
	a.Addresses = []string{"127.0.0.3", "127.0.0.2"}
	h.put(a)
	ready()
	a.Addresses, a.Port = []string{"127.0.0.1"}, c.port
	h.put(a)
	ready()

	// It ends, and comes back.
	if err := c.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	h.waitFor(a, degradedPhase, reason, "192.0.2.200", "connection refused")
	if err := c.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	ready()

	// Not to be asked yet: the VIP stays known.
	a.Waiting = "the HostedCluster has no kubeconfig"
	h.put(a)
	h.waitFor(a, pendingPhase, v1alpha1.ReasonWaitingForHostedClusterNodes, "192.0.2.200", a.Waiting)
	a.Waiting = ""
	h.put(a)
	ready()
}

// TestLastIsKeptOverARestart: a Runner that cannot ask keeps what was known before it.
func TestLastIsKeptOverARestart(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	a := Attachment{Addresses: []string{"127.0.0.1"}, Port: 1, Last: v1alpha1.AppsIngressStatus{Phase: readyPhase, ExternalIP: "192.0.2.7"}}
	a.Key.Name, a.Key.Namespace = "a", "clusters"
	h.put(a)
	h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "192.0.2.7", "does not exist")
	h.drop(a)
	if o := h.Observed(); len(o) > 0 {
		t.Errorf("forgotten, and yet observed: %v", o)
	}
}

// relay passes TCP on to a port of 127.0.0.1, as a Service does; it returns its port.
func relay(t *testing.T, address string, to int32) int32 {
	t.Helper()
	listener, err := net.Listen("tcp4", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		for {
			in, err := listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp4", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(to))))
			if err != nil {
				_ = in.Close() // as a Service without endpoints
				continue
			}
			end := func() { _ = in.Close(); _ = out.Close() } // both at once, as often as it is asked for
			context.AfterFunc(ctx, end)
			running.Go(func() { _, _ = io.Copy(out, in); end() })
			running.Go(func() { _, _ = io.Copy(in, out); end() })
		}
	})
	t.Cleanup(func() {
		cancel()
		_ = listener.Close() // it ends Accept
		running.Wait()
	})
	return int32(listener.Addr().(*net.TCPAddr).Port)
}

// hostile is an API server that means no good: its port, and a kubeconfig for it.
func hostile(t *testing.T, handler http.HandlerFunc) (port int32, kubeconfig []byte) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(func() {
		server.CloseClientConnections() // it would wait for those who are still answered
		server.Close()
	})
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	return int32(server.Listener.Addr().(*net.TCPAddr).Port),
		[]byte(sample("server: https://example.com\ncertificate-authority-data: "+base64.StdEncoding.EncodeToString(ca), "token: "+secretToken))
}

// hostileClient is a client of one.
func hostileClient(t *testing.T, handler http.HandlerFunc) *hosted {
	t.Helper()
	port, kubeconfig := hostile(t, handler)
	a, err := parseKubeconfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	h, err := connect(a, []string{"127.0.0.1"}, port, make(chan struct{}, 1), func() {})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.close)
	return h
}

// TestHostileServers: the API server of a tenant gets no more out of oooi than a failed look.
func TestHostileServers(t *testing.T) {
	t.Parallel()
	t.Run("a redirect is not followed", func(t *testing.T) {
		t.Parallel()
		asked := atomic.Int32{}
		h := hostileClient(t, func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			http.Redirect(w, r, "https://elsewhere.example.com"+r.URL.Path, http.StatusTemporaryRedirect)
		})
		if _, err := h.get(t.Context(), namespaces, "", "a"); err == nil {
			t.Error("no error")
		}
		if n := asked.Load(); n != 1 {
			t.Errorf("asked %d times", n)
		}
	})
	t.Run("the certificate of another time", func(t *testing.T) {
		t.Parallel()
		cert, key := selfSigned(t, time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC), "example.com")
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.NotFoundHandler())
		server.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
		server.Config.ErrorLog = log.New(io.Discard, "", 0) // the handshake fails, as it should
		server.StartTLS()
		defer server.Close()
		a, err := parseKubeconfig([]byte(sample("server: https://example.com\ncertificate-authority-data: "+base64.StdEncoding.EncodeToString(cert), "token: "+secretToken)))
		if err != nil {
			t.Fatal(err)
		}
		h, err := connect(a, []string{"127.0.0.1"}, int32(server.Listener.Addr().(*net.TCPAddr).Port), make(chan struct{}, 1), func() {})
		if err != nil {
			t.Fatal(err)
		}
		defer h.close()
		_, err = h.get(t.Context(), namespaces, "", "a")
		// What is written into a status must not be another text each time.
		if want := "x509: its certificate is valid from 2019-12-31T23:00:00Z to 2020-01-01T00:00:00Z only"; err == nil || !strings.HasSuffix(h.cause(err, time.Now()), want) || !isCredential(err) {
			t.Errorf("%v", err)
		}
	})
}
