package controlplane

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"

	"github.com/densityops/oooi/e2e/stack"
)

// AdminUser is the name that the admin's requests have in the audit log.
const AdminUser = "admin"

// controllers are those of kube-controller-manager that make sense without nodes.
var controllers = []string{
	"garbage-collector-controller", "namespace-controller", "serviceaccount-controller",
	"root-ca-certificate-publisher-controller", "deployment-controller", "replicaset-controller", "daemonset-controller",
	"endpointslice-controller", "endpointslice-mirroring-controller", "disruption-controller", "clusterrole-aggregation-controller",
}

// nodeControllers are those that Pods which really run need besides.
var nodeControllers = []string{
	"node-lifecycle-controller", "taint-eviction-controller", "pod-garbage-collector-controller", "endpoints-controller",
}

// Options of a control plane.
type Options struct {
	// Address is where kube-apiserver is. 127.0.0.1 unless said: nobody in another network namespace can reach that.
	Address string
	// Port of kube-apiserver at Address. A free one unless said.
	Port uint16
	// Names are DNS names that kube-apiserver's certificate has besides.
	Names []string
	// Nodes: Pods are run, by somebody. Then there are kube-scheduler and kube-proxy, for the test to start; Pods get
	// ServiceAccounts and their tokens; and the Service "kubernetes" leads to kube-apiserver.
	Nodes bool
	// ServiceCIDR is 172.30.0.0/16 unless said.
	ServiceCIDR string
	// PodCIDR is what kube-proxy takes for the pod network.
	PodCIDR string
	// Node is the node that kube-proxy is for.
	Node string
	// ProxyHost is where kube-proxy runs: on the machine of Node, when that has a network of its own.
	ProxyHost stack.Host
	// Controllers of kube-controller-manager: all that make sense unless some are named.
	Controllers []string
	// Flags are added to kube-apiserver's.
	Flags []string
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	// Etcd keeps the objects.
	Etcd *Part
	// APIServer is kube-apiserver.
	APIServer *Part
	// ControllerManager is kube-controller-manager. Start leaves it to the test to start it: its garbage
	// collector takes up to 30 s to notice kinds that are installed later.
	ControllerManager *Part
	// Scheduler is kube-scheduler, for the test to start where there are nodes.
	Scheduler *Part
	// Proxy is kube-proxy, for the test to start where there are nodes. It writes nftables rules where this process is,
	// unless Options say on which host.
	Proxy *Part
	// Dynamic is the admin's client, without a rate limit.
	Dynamic dynamic.Interface
	// Mapper finds the resources of kinds.
	Mapper *restmapper.DeferredDiscoveryRESTMapper

	folder    string
	url       string
	authority *authority
	admin     *rest.Config
	client    *http.Client
}

// Start starts etcd and kube-apiserver and waits until the latter is ready, RBAC's own roles included. Data, certificates,
// kubeconfig files and logs go to the folder, which must be there. The flags are added to kube-apiserver's.
func Start(ctx context.Context, folder string, flags ...string) (*ControlPlane, error) {
	return StartWith(ctx, folder, Options{Flags: flags})
}

// StartWith is Start with options.
func StartWith(ctx context.Context, folder string, o Options) (*ControlPlane, error) {
	if o.Address == "" {
		o.Address = "127.0.0.1"
	}
	if o.ServiceCIDR == "" {
		o.ServiceCIDR = "172.30.0.0/16"
	}
	assets, err := stack.KubebuilderAssets()
	if err != nil {
		return nil, err
	}
	ports, err := FreePorts(7)
	if err != nil {
		return nil, err
	}
	if o.Port != 0 {
		ports[2] = strconv.Itoa(int(o.Port))
	}
	c := &ControlPlane{folder: folder, url: "https://" + net.JoinHostPort(o.Address, ports[2])}
	if c.authority, err = newAuthority(folder); err != nil {
		return nil, err
	}
	c.authority.names = append([]string{"localhost", "kubernetes.default.svc"}, o.Names...)
	if c.authority.addresses, err = servingAddresses(o); err != nil {
		return nil, err
	}
	serving, err := c.authority.issue("serving")
	if err != nil {
		return nil, err
	}
	tokens, err := c.authority.issue("serviceaccounts")
	if err != nil {
		return nil, err
	}
	if err := c.newClients(); err != nil {
		return nil, err
	}
	policy := filepath.Join(folder, "audit-policy.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}

	etcd := "http://127.0.0.1:" + ports[0]
	c.Etcd = c.part("etcd", assets, etcd+"/readyz", []string{
		"--data-dir=" + filepath.Join(folder, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd, "--listen-peer-urls=http://127.0.0.1:" + ports[1],
		// A benchmark's objects, and all their versions.
		"--quota-backend-bytes=" + strconv.Itoa(4<<30),
	})
	api := []string{
		"--etcd-servers=" + etcd, "--bind-address=" + o.Address, "--secure-port=" + ports[2],
		"--advertise-address=" + o.Address, "--service-cluster-ip-range=" + o.ServiceCIDR,
		"--tls-cert-file=" + serving.certFile, "--tls-private-key-file=" + serving.keyFile, "--client-ca-file=" + c.authority.file(),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file=" + tokens.certFile,
		"--service-account-signing-key-file=" + tokens.keyFile, "--authorization-mode=RBAC",
		"--audit-policy-file=" + policy, "--audit-log-path=" + c.auditLog(), "--audit-log-maxsize=100000",
	}
	if !o.Nodes {
		// Nothing runs the Pods, so they need no tokens, and no default ServiceAccount before they are written.
		api = append(api, "--endpoint-reconciler-type=none", "--disable-admission-plugins=ServiceAccount")
	}
	c.APIServer = c.part("kube-apiserver", assets, c.url+"/readyz", append(api, o.Flags...))
	manager, err := c.kubeconfigOf("system:kube-controller-manager", "system:masters")
	if err != nil {
		return nil, err
	}
	run := controllers
	if o.Nodes {
		run = slices.Concat(controllers, nodeControllers)
	}
	if len(o.Controllers) > 0 {
		run = o.Controllers
	}
	c.ControllerManager = c.part("kube-controller-manager", assets, "https://127.0.0.1:"+ports[3]+"/healthz", []string{
		"--kubeconfig=" + manager, "--bind-address=127.0.0.1", "--secure-port=" + ports[3],
		"--tls-cert-file=" + serving.certFile, "--tls-private-key-file=" + serving.keyFile,
		"--service-account-private-key-file=" + tokens.keyFile, "--root-ca-file=" + c.authority.file(),
		"--leader-elect=false", "--controllers=" + strings.Join(run, ","), "--concurrent-gc-syncs=5",
		"--kube-api-qps=500", "--kube-api-burst=1000",
	})

	scheduler, err := c.kubeconfigOf("system:kube-scheduler", "system:masters")
	if err != nil {
		return nil, err
	}
	c.Scheduler = c.part("kube-scheduler", assets, "https://127.0.0.1:"+ports[4]+"/healthz", []string{
		"--kubeconfig=" + scheduler, "--bind-address=127.0.0.1", "--secure-port=" + ports[4],
		"--tls-cert-file=" + serving.certFile, "--tls-private-key-file=" + serving.keyFile, "--leader-elect=false",
	})
	proxy, err := c.kubeconfigOf("system:kube-proxy", "system:masters")
	if err != nil {
		return nil, err
	}
	c.Proxy = c.part("kube-proxy", assets, "http://127.0.0.1:"+ports[5]+"/livez", []string{
		"--kubeconfig=" + proxy, "--hostname-override=" + o.Node, "--proxy-mode=nftables", "--cluster-cidr=" + o.PodCIDR,
		"--healthz-bind-address=127.0.0.1:" + ports[5], "--metrics-bind-address=127.0.0.1:" + ports[6],
		// These are the machine's, which is not the test's.
		"--conntrack-max-per-core=0", "--conntrack-min=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s",
		"--iptables-min-sync-period=0s",
	})
	c.Proxy.host = o.ProxyHost

	for _, part := range []*Part{c.Etcd, c.APIServer} {
		if err := part.Start(ctx); err != nil {
			return nil, errors.Join(err, c.Stop())
		}
	}
	return c, nil
}

// Stop ends everything at once. The folder stays.
func (c *ControlPlane) Stop() error {
	var errs []error
	for _, part := range []*Part{c.Proxy, c.Scheduler, c.ControllerManager, c.APIServer, c.Etcd} {
		errs = append(errs, part.Kill())
	}
	utilnet.CloseIdleConnectionsFor(c.client.Transport)
	return errors.Join(errs...)
}

// Tails are the last lines of each part's log.
func (c *ControlPlane) Tails(lines int) string {
	var tails strings.Builder
	for _, part := range []*Part{c.Etcd, c.APIServer, c.ControllerManager, c.Scheduler, c.Proxy} {
		if tail := part.Tail(lines); tail != "" {
			fmt.Fprintf(&tails, "the end of %s's log:\n%s\n", part.name, tail)
		}
	}
	return tails.String()
}

// URL of kube-apiserver.
func (c *ControlPlane) URL() string { return c.url }

// newClients makes the admin's clients.
func (c *ControlPlane) newClients() error {
	admin, err := c.authority.issue(AdminUser, "system:masters")
	if err != nil {
		return err
	}
	c.admin = &rest.Config{
		Host:            c.url,
		TLSClientConfig: rest.TLSClientConfig{CAData: c.authority.pem, CertData: admin.cert, KeyData: admin.key},
		QPS:             -1,
		UserAgent:       "e2e",
		// What the API server says in passing, deprecations for one, is for kubectl's users.
		WarningHandler: rest.NoWarnings{},
	}
	if c.client, err = rest.HTTPClientFor(c.admin); err != nil {
		return err
	}
	if c.Dynamic, err = dynamic.NewForConfigAndClient(c.admin, c.client); err != nil {
		return err
	}
	kinds, err := discovery.NewDiscoveryClientForConfigAndClient(c.admin, c.client)
	if err != nil {
		return err
	}
	c.Mapper = restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))
	return nil
}

// part is a program that is ready when it answers a GET of the URL with 200.
func (c *ControlPlane) part(name, assets, url string, flags []string) *Part {
	p := NewPart("", c.folder, name, url, append([]string{filepath.Join(assets, name)}, flags...)...)
	p.client = c.client
	return p
}

// servingAddresses are those that kube-apiserver is reached at: its own, and the ClusterIP of the Service "kubernetes".
func servingAddresses(o Options) ([]net.IP, error) {
	services, err := netip.ParsePrefix(o.ServiceCIDR)
	if err != nil {
		return nil, fmt.Errorf("service CIDR: %w", err)
	}
	address, err := netip.ParseAddr(o.Address)
	if err != nil {
		return nil, fmt.Errorf("address of kube-apiserver: %w", err)
	}
	first := services.Masked().Addr().Next()
	return []net.IP{net.IPv4(127, 0, 0, 1), address.AsSlice(), first.AsSlice()}, nil
}

// FreePorts finds TCP ports of 127.0.0.1 that nobody listens on, below those that the kernel gives to outgoing
// connections: a server that is away for a while finds its port free when it comes back.
func FreePorts(n int) ([]string, error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			_ = l.Close() // it accepted nothing
		}
	}()
	var ports []string
	for range 1000 {
		if len(ports) == n {
			return ports, nil
		}
		port := strconv.Itoa(20000 + rand.IntN(12000))
		l, err := net.Listen("tcp4", "127.0.0.1:"+port)
		if err != nil {
			continue // somebody has it
		}
		listeners, ports = append(listeners, l), append(ports, port)
	}
	return nil, fmt.Errorf("no %d free ports between 20000 and 32000 on 127.0.0.1", n)
}
