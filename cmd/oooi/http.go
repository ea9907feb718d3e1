package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/net/netutil"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
)

// statusReport is the answer of /status.
type statusReport struct {
	// Infras with their attachments; none in a process that only serves.
	Infras []watch.InfraReport `json:"infras"`
	// Orphans are attachments whose Infra does not exist.
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

// maxHTTPConns bounds the connections to the HTTP endpoints.
const maxHTTPConns = 64

// serve answers until ctx ends.
func (e *web) serve(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("HTTP server: %w: choose another address with --http-listen", err)
	}
	// Bounded, so that a flood here leaves file descriptors to the servers that matter.
	l = netutil.LimitListener(l, maxHTTPConns)
	server := &http.Server{
		Handler: e.handler(), ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second, IdleTimeout: time.Minute,
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		<-ctx.Done()
		_ = server.Close() // answers are short and nobody depends on one that is cut
	}()
	err = server.Serve(l)
	if ctx.Err() == nil {
		return fmt.Errorf("HTTP server: %w", err)
	}
	<-stopped
	return nil
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
