package xds

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	csds "github.com/envoyproxy/go-control-plane/envoy/service/status/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// stopGrace is how long a stopping server waits for its streams to end by themselves.
	stopGrace = 2 * time.Second
	// A connection that is dead on the other side is noticed after these two together.
	pingInterval = 10 * time.Second
	pingTimeout  = 5 * time.Second
	// minPingInterval is how often an Envoy may ping us.
	minPingInterval = time.Second
	// unusedConnection is how long a connection may be without a stream.
	unusedConnection = 5 * time.Minute
	// firstRequestTimeout is how long a stream may take to say whose Envoy it is.
	firstRequestTimeout = 15 * time.Second
	// maxStreams bounds the streams of one connection: an Envoy has one, a person a few.
	maxStreams = 16
	// maxRequest bounds a request, in bytes: an Envoy that reconnects lists the versions of all that it has, 100 bytes each.
	maxRequest = 8 << 20
	// maxNodeName bounds node.id and node.cluster, in bytes: the names of a Kubernetes object and its namespace fit in.
	maxNodeName = 512
)

// Server holds the current snapshot of each Infra and brings every connected Envoy to it.
// An Infra is named NAMESPACE/NAME, which is what its Envoys say as node.cluster.
type Server struct {
	log          *slog.Logger
	metrics      *metrics
	firstRequest time.Duration // how long a stream may take to say whose Envoy it is

	mu     sync.Mutex
	infras map[string]*infra
	seq    uint64 // of the last Apply
	opened uint64 // streams opened so far
}

// NewServer makes a server that knows no Infra yet.
func NewServer(log *slog.Logger, reg prometheus.Registerer) *Server {
	return &Server{log: log, metrics: newMetrics(reg), firstRequest: firstRequestTimeout, infras: map[string]*infra{}}
}

// Apply makes snap the current snapshot of an Infra. It returns at once: the Envoys are sent what
// they lack by their own goroutines. Applying what is current already sends nothing,
// except what an Envoy refused before, which it gets another time.
func (s *Server) Apply(infraName string, snap *Snapshot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.infras[infraName]
	if in == nil {
		in = newInfra(infraName)
		s.infras[infraName] = in
	}
	in.removed = false
	s.publish(in, snap)
	s.metrics.applied(infraName, snap)
}

// Remove forgets an Infra. Envoys that are connected lose their listeners; those that come later are turned away.
func (s *Server) Remove(infraName string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.infras[infraName]
	if in == nil {
		return
	}
	in.removed = true
	if len(in.sessions) == 0 {
		s.forget(in)
		return
	}
	s.publish(in, emptySnapshot())
	s.metrics.applied(infraName, in.latest.Load().snap)
}

// publish hands a snapshot to the sessions of an Infra. The caller holds s.mu.
func (s *Server) publish(in *infra, snap *Snapshot) {
	s.seq++
	in.latest.Store(&applied{snap: snap, seq: s.seq, at: time.Now()})
	for _, session := range in.sessions {
		session.wake()
	}
}

// forget drops an Infra that nobody needs any more. The caller holds s.mu.
func (s *Server) forget(in *infra) {
	delete(s.infras, in.name)
	s.metrics.forget(in.name)
}

// Version is the version of the current snapshot of an Infra, empty when there is none.
func (s *Server) Version(infraName string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.infras[infraName]
	if in == nil || in.removed {
		return ""
	}
	return in.latest.Load().snap.version
}

// Status tells what each connected Envoy of an Infra was sent, has acknowledged and refused, in the order
// in which they connected. Envoys that share a node id are told apart by a number ("id#2").
func (s *Server) Status(infraName string) []v1alpha1.EnvoyStatus {
	var statuses []v1alpha1.EnvoyStatus
	seen := map[string]int{}
	for _, session := range s.sessionsOf(s.find(infraName)) {
		status := session.status()
		seen[status.Name]++
		if n := seen[status.Name]; n > 1 {
			status.Name = fmt.Sprintf("%s#%d", status.Name, n)
		}
		statuses = append(statuses, status)
	}
	return statuses
}

// find gives an Infra, nil when it is not known.
func (s *Server) find(infraName string) *infra {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.infras[infraName]
}

// sessionsOf copies the sessions of an Infra, if there is one.
func (s *Server) sessionsOf(in *infra) []*session {
	if in == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(in.sessions)
}

// WaitAcknowledged returns when each connected Envoy of the Infra has acknowledged or refused the snapshot that is current
// at the call, or a later one; at once when none is connected. The error is that of the context.
func (s *Server) WaitAcknowledged(ctx context.Context, infraName string) error {
	in := s.find(infraName)
	if in == nil {
		return nil
	}
	wanted := in.latest.Load().seq
	for {
		changed := in.changed() // before the look, so that no change is missed
		waiting := false
		for _, session := range s.sessionsOf(in) {
			waiting = waiting || session.answered() < wanted
		}
		if !waiting {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("wait for the Envoys of Infra %s: %w", infraName, ctx.Err())
		}
	}
}

// Serve answers Envoys (ADS, delta and state of the world) and people (CSDS, reflection) on a listener until ctx
// ends; then it ends the streams, waits for them, and returns nil. Envoys keep what they have. It
// closes the listener. A listener that can be reached from other hosts is refused: nothing here
// authenticates an Envoy.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	if tcp, ok := l.Addr().(*net.TCPAddr); ok && !tcp.IP.IsLoopback() {
		_ = l.Close() // the error below says more
		return fmt.Errorf("xDS listener %s: not a loopback address, and Envoys are not authenticated; listen on 127.0.0.1", tcp)
	}
	g := grpc.NewServer(
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingInterval, Timeout: pingTimeout, MaxConnectionIdle: unusedConnection}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: minPingInterval, PermitWithoutStream: true}),
		grpc.MaxRecvMsgSize(maxRequest),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.WaitForHandlers(true),
	)
	svc := &service{server: s, stop: ctx.Done()}
	discovery.RegisterAggregatedDiscoveryServiceServer(g, svc)
	csds.RegisterClientStatusDiscoveryServiceServer(g, svc)
	reflection.Register(g)

	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	select {
	case err := <-served:
		g.Stop()
		svc.readers.Wait()
		return fmt.Errorf("xDS listener %s: %w", l.Addr(), err)
	case <-ctx.Done():
	}

	stopped := make(chan struct{})
	go func() {
		g.GracefulStop()
		close(stopped)
	}()
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case <-stopped:
	case <-grace.C:
		g.Stop()
		<-stopped
	}
	err := <-served
	svc.readers.Wait()
	if err != nil && !errors.Is(err, grpc.ErrServerStopped) { // stopped before it had begun
		return fmt.Errorf("xDS listener %s: %w", l.Addr(), err)
	}
	return nil
}
