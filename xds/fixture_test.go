package xds

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is the deadline of every wait in these tests; none of them takes that long.
const patience = 20 * time.Second

// aliasNames are the unqualified names that are told apart by source.
var aliasNames = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}

// portOf are the ports of the four targets of an attachment, by Service.
type portOf map[string]int32

var pagePorts = portOf{"kube-apiserver": 6443, "oauth-openshift": 6443, "ignition-server-proxy": 443, "konnectivity-server": 8091}

// attachment is the backends that the plan writes for one hosted cluster.
func attachment(name, address string, ports portOf, sources ...string) []v1alpha1.Backend {
	domain := name + ".clusters.example.com"
	backend := func(role, service, host string, on ...int32) v1alpha1.Backend {
		return v1alpha1.Backend{
			Name: v1alpha1.BackendName(name, role), Attachment: name, Hostname: host, Ports: on,
			TargetService: service, TargetNamespace: "clusters-" + name, TargetPort: ports[service],
			Addresses: []string{address}, TimeoutSeconds: 30,
		}
	}
	backends := []v1alpha1.Backend{
		backend("kube-apiserver", "kube-apiserver", "api."+domain, 443, 6443),
		backend("kube-apiserver-internal", "kube-apiserver", "api-int."+domain, 443, 6443),
		backend("oauth-openshift", "oauth-openshift", "oauth."+domain, 443),
		backend("ignition-server", "ignition-server-proxy", "ignition."+domain, 443),
		backend("konnectivity-server", "konnectivity-server", "konnectivity."+domain, 443),
	}
	if len(sources) > 0 {
		byName := backend("kubernetes-hostname", "kube-apiserver", aliasNames[0], 443, 6443)
		byName.AlternateHostnames = aliasNames[1:]
		nameless := backend("kubernetes-ip", "kube-apiserver", "", 443, 6443)
		for _, source := range sources {
			byName.SourcePrefixRanges = append(byName.SourcePrefixRanges, source+"/32")
		}
		nameless.SourcePrefixRanges = byName.SourcePrefixRanges
		backends = append(backends, byName, nameless)
	}
	return backends
}

// proxyServer is a ProxyServer of Infra clusters/tenant-vlan100.
func proxyServer(serverIP string, attachments ...[]v1alpha1.Backend) *v1alpha1.ProxyServer {
	proxy := &v1alpha1.ProxyServer{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "tenant-vlan100-proxy"}}
	proxy.Spec.NetworkConfig.ServerIP = serverIP
	for _, backends := range attachments {
		proxy.Spec.Backends = append(proxy.Spec.Backends, backends...)
	}
	return proxy
}

const testInfra = "clusters/tenant-vlan100"

func mustBuild(t testing.TB, proxy *v1alpha1.ProxyServer, opts Options) *Snapshot {
	t.Helper()
	snap, err := Build(proxy, opts)
	if err != nil {
		t.Fatal(err)
	}
	return snap
}

// testLog writes what the server logs into the test's output.
func testLog(t testing.TB) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// eventually waits until the condition holds.
func eventually(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(patience)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
		time.Sleep(5 * time.Millisecond) // between two looks at the condition
	}
}

// controlPlane is the four targets of one hosted cluster: TLS servers whose certificates tell the cluster and
// the Service, and that echo what they read.
type controlPlane struct {
	ports portOf
}

func startControlPlane(t testing.TB, name, address string) *controlPlane {
	t.Helper()
	cp := &controlPlane{ports: portOf{}}
	for service := range pagePorts {
		cp.ports[service] = startTarget(t, name+"/"+service, netip.AddrPortFrom(netip.MustParseAddr(address), 0))
	}
	return cp
}

// startTarget starts one TLS echo server and gives its port.
func startTarget(t testing.TB, identity string, on netip.AddrPort) int32 {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: identity},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := tls.Listen("tcp", on.String(), &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[conn] = true
			mu.Unlock()
			wg.Go(func() {
				_, _ = io.Copy(conn, conn) // ends when either side closes
				_ = conn.Close()
				mu.Lock()
				delete(open, conn)
				mu.Unlock()
			})
		}
	})
	t.Cleanup(func() {
		_ = l.Close()
		mu.Lock()
		for conn := range open {
			_ = conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	return int32(l.Addr().(*net.TCPAddr).Port)
}
