package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/files"
)

// statusReport is the answer of /status.
type statusReport struct {
	// Infras with their attachments.
	Infras []watch.InfraReport `json:"infras"`
	// Orphans are attachments whose Infra does not exist.
	Orphans []watch.AttachmentReport `json:"orphans,omitempty"`
	// Serving says what really serves.
	Serving []serve.InfraState `json:"serving"`
	// Problems of manifests, whose last good state is served.
	Problems []files.Problem `json:"problems,omitempty"`
}

// serveHTTP serves the endpoints for people, probes and Prometheus until ctx ends.
func (f *folder) serveHTTP(ctx context.Context, address string) error {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("HTTP server: %w: choose another address with --http-listen", err)
	}
	server := &http.Server{Handler: f.handler(), ReadHeaderTimeout: 10 * time.Second}
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

func (f *folder) handler() http.Handler {
	mux := http.NewServeMux()
	metrics := promhttp.HandlerFor(prometheus.Gatherers{f.metrics, f.server}, promhttp.HandlerOpts{})
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		f.report()
		metrics.ServeHTTP(w, r)
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := f.server.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) {
		infras, orphans := f.report()
		respond(w, statusReport{Infras: infras, Orphans: orphans, Serving: f.server.State(), Problems: f.source.Problems()})
	})
	mux.HandleFunc("GET /leases", func(w http.ResponseWriter, _ *http.Request) {
		leases := f.server.Leases()
		if leases == nil {
			leases = []serve.Lease{}
		}
		respond(w, leases)
	})
	mux.HandleFunc("GET /explain", f.explain)
	return mux
}

func (f *folder) explain(w http.ResponseWriter, r *http.Request) {
	q, err := parseQuestion(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	result := f.result.Load()
	if result == nil {
		http.Error(w, "the first complete set of objects is not there yet", http.StatusServiceUnavailable)
		return
	}
	a, err := explain(result, q, f.settings.serve.PodNetworks)
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

// splitKey splits "namespace/name".
func splitKey(key string) types.NamespacedName {
	namespace, name, _ := strings.Cut(key, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}
