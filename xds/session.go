package xds

import (
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/densityops/oooi/api/v1alpha1"
)

// infra is the current snapshot of one Infra and the Envoys that are connected for it.
type infra struct {
	name     string
	latest   atomic.Pointer[applied]
	removed  bool       // guarded by Server.mu
	sessions []*session // guarded by Server.mu; in the order of connecting

	mu     sync.Mutex
	change chan struct{} // closed when a session has answered or left
}

// applied is one call of Apply.
type applied struct {
	snap *Snapshot
	seq  uint64
	at   time.Time
}

func newInfra(name string) *infra {
	return &infra{name: name, change: make(chan struct{})}
}

// changed is closed at the next change.
func (in *infra) changed() <-chan struct{} {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.change
}

func (in *infra) announce() {
	in.mu.Lock()
	defer in.mu.Unlock()
	close(in.change)
	in.change = make(chan struct{})
}

// session is one stream of one Envoy. Its key is the stream, not the node id, which two Envoys may share.
type session struct {
	id        uint64
	node      *core.Node
	infra     *infra
	metrics   *metrics
	log       *slog.Logger
	connected time.Time
	kick      chan struct{}
	retry     *time.Timer // runs while Envoy may come to take what it refused

	mu        sync.Mutex
	pub       *publisher
	working   *applied // what is being published
	resting   bool     // nothing more to send of working
	sent      string   // version of the snapshot sent last
	acked     string   // version of the snapshot acknowledged last
	responses uint64   // sent so far; numbers the nonces
	done      uint64   // seq of the last snapshot that was answered in full
	// retryAfter is how long the retry timer was set for last; 0: nothing waits for it.
	retryAfter time.Duration
}

// A resource that Envoy refused for a cause that may pass is sent again after retryFirst, then at growing intervals up to retryMost.
const (
	retryFirst = time.Second
	retryMost  = time.Minute
)

// open registers a stream under the Infra that its node names.
func (s *Server) open(node *core.Node) (*session, error) {
	name := node.GetCluster()
	switch {
	case node == nil || name == "":
		return nil, status.Error(codes.InvalidArgument,
			"node.cluster is empty: set it to NAMESPACE/NAME of the Infra that this Envoy serves")
	case node.GetId() == "":
		return nil, status.Error(codes.InvalidArgument,
			"node.id is empty: set it to a name that no other Envoy has, for example that of its pod")
	case len(name) > maxNodeName || len(node.GetId()) > maxNodeName:
		return nil, status.Errorf(codes.InvalidArgument,
			"node.id has %d bytes and node.cluster %d: %d are the most", len(node.GetId()), len(name), maxNodeName)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	in := s.infras[name]
	if in == nil || in.removed {
		return nil, status.Errorf(codes.NotFound,
			"node.cluster %q is no Infra with a proxy that is served here: it must be NAMESPACE/NAME of one", name)
	}
	s.opened++
	latest := in.latest.Load()
	ses := &session{
		id:        s.opened,
		node:      identity(node),
		infra:     in,
		metrics:   s.metrics,
		log:       s.log.With("infra", name, "envoy", node.GetId(), "stream", s.opened),
		connected: time.Now(),
		kick:      make(chan struct{}, 1),
		retry:     stoppedTimer(),
		pub:       newPublisher(latest.snap),
		working:   latest,
	}
	in.sessions = append(in.sessions, ses)
	s.metrics.connected.WithLabelValues(name).Inc()
	version := node.GetUserAgentBuildVersion().GetVersion()
	ses.log.Info("Envoy connected", "version", fmt.Sprintf("%d.%d.%d", version.GetMajorNumber(), version.GetMinorNumber(), version.GetPatch()))
	return ses, nil
}

// identity is what of a node is worth keeping: an Envoy also lists all its extensions, some 90 kB.
func identity(node *core.Node) *core.Node {
	return &core.Node{
		Id: node.GetId(), Cluster: node.GetCluster(), Locality: node.GetLocality(),
		UserAgentName: node.GetUserAgentName(), UserAgentVersionType: node.GetUserAgentVersionType(),
	}
}

func stoppedTimer() *time.Timer {
	t := time.NewTimer(retryMost)
	t.Stop()
	return t
}

// leave takes a session away when its stream has ended.
func (s *Server) leave(ses *session) {
	ses.retry.Stop()
	s.mu.Lock()
	in := ses.infra
	in.sessions = slices.DeleteFunc(in.sessions, func(other *session) bool { return other == ses })
	s.metrics.connected.WithLabelValues(in.name).Dec()
	if in.removed && len(in.sessions) == 0 {
		s.forget(in)
	}
	s.mu.Unlock()
	in.announce()
	ses.log.Info("Envoy disconnected")
}

// wake makes the session's goroutine look for something to send. It never blocks.
func (ses *session) wake() {
	select {
	case ses.kick <- struct{}{}:
	default:
	}
}

// next makes the response to send now, or nil. A snapshot is published to its end before the next one is taken up, so that a
// quick succession of them cannot keep the listeners waiting behind clusters; only trouble ends it early.
func (ses *session) next(w wire) (send func() error) {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	for {
		latest := ses.infra.latest.Load()
		newer := latest.seq > ses.working.seq
		if newer && len(ses.pub.inFlight) == 0 && (ses.resting || ses.pub.troubled()) {
			ses.working, ses.resting, newer = latest, false, false
			ses.pub.retarget(latest.snap)
			ses.retryAfter = 0
		}
		if st := ses.pub.next(); st != nil {
			ses.resting = false
			ses.sent = ses.working.snap.version
			ses.responses++
			nonce := strconv.FormatUint(ses.responses, 10)
			ses.pub.types[st.typeURL].nonce = nonce
			ses.metrics.pushes.WithLabelValues(ses.infra.name, shortType(st.typeURL)).Inc()
			return w.encode(ses.pub, st, nonce)
		}
		if len(ses.pub.inFlight) > 0 {
			return nil
		}
		ses.rest()
		if !newer {
			return nil
		}
	}
}

// handle books a request: an answer to the response in flight, a subscription, or both.
func (ses *session) handle(req *request) {
	if !slices.Contains(servedTypes, req.typeURL) {
		ses.log.Debug("Envoy asks for a type that is not served", "type", req.typeURL)
		return
	}
	ses.mu.Lock()
	defer ses.mu.Unlock()
	sub := ses.pub.types[req.typeURL]
	if sub != nil && sub.nonce != req.nonce && req.wholeState {
		return // it speaks of an older response; the answer to the newer one will repeat what it asks for
	}
	if st := ses.pub.inFlight[req.typeURL]; st != nil && req.nonce == sub.nonce {
		ses.answer(st, req)
	}
	req.subscribe(ses.pub, sub)
	ses.pub.abandonRoutes()
}

// answer books an ACK or a NACK.
func (ses *session) answer(st *step, req *request) {
	kind := shortType(st.typeURL)
	if req.errorDetail == nil {
		ses.metrics.acks.WithLabelValues(ses.infra.name, kind).Inc()
		ses.pub.acknowledged(req.typeURL)
		return
	}
	ses.metrics.nacks.WithLabelValues(ses.infra.name, kind).Inc()
	ses.log.Warn("Envoy refused a response", "type", kind, "resources", len(st.add), "error", req.errorDetail.GetMessage())
	ses.pub.refusedStep(req.typeURL, req.errorDetail.GetMessage())
}

// rest books that nothing is left to send. An Envoy that has not asked for its listeners yet, or for the routes of one, is
// still starting, and has not answered.
func (ses *session) rest() {
	ses.resting = true
	if ses.pub.types[clusterType] == nil || ses.pub.types[listenerType] == nil || ses.pub.awaitsRoutes() {
		return
	}
	ses.planRetry()
	version, troubled, first := ses.working.snap.version, ses.pub.troubled(), ses.done < ses.working.seq
	if !first && (troubled || ses.acked == version) {
		return
	}
	ses.done = ses.working.seq
	ses.sent = version
	if !troubled {
		ses.acked = version
		if first && ses.working.at.After(ses.connected) {
			ses.metrics.ackSeconds.WithLabelValues(ses.infra.name).Observe(time.Since(ses.working.at).Seconds())
		}
	}
	ses.infra.announce()
}

// planRetry sets the retry timer when Envoy refused something that it may take later as it is.
func (ses *session) planRetry() {
	if !ses.pub.hasPassing() {
		ses.retry.Stop()
		ses.retryAfter = 0
		return
	}
	ses.retryAfter = min(max(2*ses.retryAfter, retryFirst), retryMost)
	ses.retry.Reset(ses.retryAfter)
}

// tryAgain has what Envoy may take now sent again, when the retry timer has run out.
func (ses *session) tryAgain() {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	ses.pub.retryPassing()
}

// status of the Envoy at the other end.
func (ses *session) status() v1alpha1.EnvoyStatus {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return v1alpha1.EnvoyStatus{
		Name: ses.node.GetId(), Sent: ses.sent, Acknowledged: ses.acked, Error: ses.pub.refusals(),
	}
}

// answered is the seq of the last snapshot that Envoy answered in full.
func (ses *session) answered() uint64 {
	ses.mu.Lock()
	defer ses.mu.Unlock()
	return ses.done
}
