package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
)

// statusReport is the answer of /status.
type statusReport struct {
	// Infras with their attachments; none in a process that only serves.
	Infras []watch.InfraReport `json:"infras"`
	// Orphans are attachments whose Infra does not exist, or that are being deleted.
	Orphans []watch.AttachmentReport `json:"orphans,omitempty"`
	// Serving says what really serves.
	Serving []serve.InfraState `json:"serving"`
	// Problems of manifests, whose last good state is served.
	Problems []files.Problem `json:"problems,omitempty"`
	// Stale is true while what is served was read from the state folder, since the API cannot be reached.
	Stale bool `json:"stale,omitempty"`
	// Leading is true in the process that writes children and statuses to a cluster.
	Leading bool `json:"leading,omitempty"`
}

// web is the HTTP endpoints for people, probes and Prometheus.
type web struct {
	ready       func() error
	result      func() *plan.Result // nil: there is none yet
	status      func() statusReport // also brings the metrics of statuses up to date
	leases      func() []serve.Lease
	metrics     prometheus.Gatherer
	podNetworks []netip.Prefix
}

const (
	// maxHTTPConns bounds the connections to one address of the HTTP endpoints, so that a flood there leaves file descriptors to
	// the servers that matter.
	maxHTTPConns = 64
	// maxHTTPHeader bounds the headers of a request, in bytes.
	maxHTTPHeader = 16 << 10
	// httpHeaderTimeout is how long a client may take over them.
	httpHeaderTimeout = 5 * time.Second
)

// serve answers at every address until ctx ends. With ownLink, what comes over another interface than the one that has the
// address is not answered: a host takes packets to any of its addresses on every interface (RFC 1122 section 3.3.4.2, weak
// model), and tenants are on one of them.
func (e *web) serve(ctx context.Context, addresses []string, ownLink bool) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, address := range addresses {
		l, err := listenHTTP(ctx, address, ownLink)
		if err != nil {
			return fmt.Errorf("HTTP server: %w: choose another address with --http-listen", err)
		}
		group.Go(func() error { return e.answer(ctx, l) })
	}
	return group.Wait()
}

func listenHTTP(ctx context.Context, address string, ownLink bool) (net.Listener, error) {
	var lc net.ListenConfig
	if ownLink {
		name, err := interfaceOf(address)
		if err != nil {
			return nil, err
		}
		lc.Control = func(_, _ string, raw syscall.RawConn) error {
			var bound error
			err := raw.Control(func(fd uintptr) { bound = unix.BindToDevice(int(fd), name) })
			return errors.Join(err, bound)
		}
	}
	return lc.Listen(ctx, "tcp", address)
}

// interfaceOf is the name of the interface that has an address.
func interfaceOf(address string) (string, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return "", err
	}
	wanted, err := netip.ParseAddr(host)
	if err != nil || wanted.IsUnspecified() {
		return "", fmt.Errorf("%s is not the address of one interface: where tenants are on another one, that has to be said", address)
	}
	interfaces, err := net.Interfaces()
	if err != nil {
		return "", err
	}
	for _, i := range interfaces {
		addresses, err := i.Addrs()
		if err != nil {
			return "", err
		}
		for _, a := range addresses {
			if prefix, err := netip.ParsePrefix(a.String()); err == nil && (prefix.Addr() == wanted || i.Flags&net.FlagLoopback != 0 && wanted.IsLoopback()) {
				return i.Name, nil
			}
		}
	}
	return "", fmt.Errorf("no interface has the address %s", host)
}

// answer answers one listener until ctx ends.
func (e *web) answer(ctx context.Context, l net.Listener) error {
	server := &http.Server{
		Handler:           ownHostOnly(e.handler()),
		ReadHeaderTimeout: httpHeaderTimeout, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: maxHTTPHeader,
		ConnState:      newConnections(maxHTTPConns).track,
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close() // answers are short and nobody depends on one that is cut
	}()
	err := server.Serve(l)
	if ctx.Err() == nil {
		return fmt.Errorf("HTTP server: %w", err)
	}
	<-stopped
	return nil
}

// ownHostOnly refuses requests for a host that is not this one. A web page could otherwise have its own name resolve to this
// process, and read what all tenants are called in the browser of the person who looks at it (DNS rebinding).
func ownHostOnly(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !isOwnHost(r.Host) {
			http.Error(w, fmt.Sprintf("%.253q is not a name of this server: ask it by its address, as localhost, or by the name of a Service", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// isOwnHost tells whether a Host header can only mean this process: an address, localhost, or a name that no public DNS
// zone has (one label, or a Service of the cluster). A request without one (HTTP/1.0) is from no browser.
func isOwnHost(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	name = v1alpha1.NormalizeDomain(strings.TrimSuffix(strings.TrimPrefix(name, "["), "]"))
	if _, err := netip.ParseAddr(name); err == nil {
		return true
	}
	return !strings.Contains(name, ".") || strings.HasSuffix(name, ".svc") || strings.HasSuffix(name, ".svc.cluster.local")
}

func (e *web) handler() http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(e.metrics, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		e.status()
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := e.ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		respond(w, e.status())
	})
	mux.HandleFunc("GET /leases", func(w http.ResponseWriter, _ *http.Request) {
		leases := e.leases()
		if leases == nil {
			leases = []serve.Lease{}
		}
		respond(w, leases)
	})
	mux.HandleFunc("GET /explain", e.explain)
	return mux
}

func (e *web) explain(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := e.result()
	if result == nil {
		http.Error(w, "the first complete set of objects is not there yet", http.StatusServiceUnavailable)
		return
	}
	a, err := explain(result, q, e.podNetworks)
	switch {
	case errors.Is(err, errUsage):
		http.Error(w, strings.TrimPrefix(err.Error(), errUsage.Error()+": "), http.StatusBadRequest)
	case err != nil:
		http.Error(w, err.Error(), http.StatusNotFound)
	default:
		respond(w, a)
	}
}

func respond(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = writeJSON(w, value) // the client has gone
}

// newProcessMetrics are the metrics of the process itself.
func newProcessMetrics() *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return registry
}

// splitKey splits "namespace/name".
func splitKey(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
