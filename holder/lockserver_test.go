package holder_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/densityops/oooi/holder"
)

// lockServer keeps the record of one Infra for pods that are other processes, at a Unix socket. What an API server does
// and does not do for one of them is the test's to say.
type lockServer struct {
	socket string

	mu      sync.Mutex
	record  holder.Record
	version int
	peers   []holder.Peer
	changed chan struct{}
	asking  sync.WaitGroup
	// cut pods get no answer.
	cut map[string]bool
	// stranger: the pods do not get to know each other.
	stranger bool
	// writes are all records that were written, in order.
	writes []holder.Record
}

// seen is what a watch delivers.
type seen struct {
	Generation int
	Record     holder.Record
	Peers      []holder.Peer
}

func serveLock(t *testing.T, initial holder.Record) *lockServer {
	t.Helper()
	s := &lockServer{socket: filepath.Join(t.TempDir(), "lock"), record: initial, cut: map[string]bool{}, changed: make(chan struct{})}
	if initial.Version != "" {
		s.version = 1
	}
	listener, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /record", s.answer(func(*http.Request) (any, int) {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.record, http.StatusOK
	}))
	mux.HandleFunc("PUT /record", s.answer(func(r *http.Request) (any, int) {
		var record holder.Record
		if err := json.NewDecoder(r.Body).Decode(&record); err != nil {
			return err.Error(), http.StatusBadRequest
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if record.Version != s.record.Version {
			return "conflict", http.StatusConflict
		}
		s.version++
		record.Version = strconv.Itoa(s.version)
		s.record = record
		s.writes = append(s.writes, record)
		s.notify()
		return record, http.StatusOK
	}))
	mux.HandleFunc("PUT /peer", s.answer(func(r *http.Request) (any, int) {
		var peer holder.Peer
		if err := json.NewDecoder(r.Body).Decode(&peer); err != nil {
			return err.Error(), http.StatusBadRequest
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.stranger {
			s.peers = append(s.peers, peer)
		}
		s.version++
		s.notify()
		return nil, http.StatusOK
	}))
	mux.HandleFunc("GET /seen", s.answer(func(r *http.Request) (any, int) {
		for {
			s.mu.Lock()
			now := seen{s.version, s.record, s.peers}
			changed := s.changed
			s.mu.Unlock()
			if r.FormValue("after") != strconv.Itoa(now.Generation) {
				return now, http.StatusOK
			}
			select {
			case <-changed:
			case <-r.Context().Done():
				return nil, http.StatusGone
			}
		}
	}))
	ctx, cancel := context.WithCancel(context.Background())
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute, BaseContext: func(net.Listener) context.Context { return ctx }}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("the lock is not served: %v", err)
		}
	}()
	t.Cleanup(func() {
		cancel()
		_ = server.Close() // the pods are gone
		<-done
		s.asking.Wait()
	})
	return s
}

// answer answers, unless the pod is cut off, before or after the question was acted on.
func (s *lockServer) answer(act func(*http.Request) (any, int)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.asking.Add(1)
		defer s.asking.Done()
		pod := r.Header.Get("Pod")
		if s.isCut(pod) {
			<-r.Context().Done()
			return
		}
		body, status := act(r)
		if s.isCut(pod) {
			<-r.Context().Done()
			return
		}
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body) // who asked may be gone
	}
}

func (s *lockServer) isCut(pod string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cut[pod]
}

func (s *lockServer) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// set cuts pods off, or lets them through again.
func (s *lockServer) set(cut bool, pods ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, pod := range pods {
		s.cut[pod] = cut
	}
	s.notify()
}

func (s *lockServer) current() holder.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.record
}

func (s *lockServer) written() []holder.Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.writes)
}

// lockClient is the Lock of a pod.
type lockClient struct {
	pod    string
	client *http.Client

	mu      sync.Mutex
	seen    seen
	changed chan struct{}
}

func newLockClient(pod, socket string) *lockClient {
	var dialer net.Dialer
	return &lockClient{
		pod: pod, changed: make(chan struct{}),
		client: &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", socket)
		}}},
	}
}

func (c *lockClient) ask(ctx context.Context, method, path string, body, answer any) error {
	var payload io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return err
		}
		payload = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(ctx, method, "http://lock"+path, payload)
	if err != nil {
		return err
	}
	r.Header.Set("Pod", c.pod)
	got, err := c.client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = got.Body.Close() }() // it was read
	switch got.StatusCode {
	case http.StatusOK:
		return json.NewDecoder(got.Body).Decode(answer)
	case http.StatusConflict:
		return holder.ErrConflict
	default:
		return errors.New(got.Status)
	}
}

func (c *lockClient) Get(ctx context.Context) (r holder.Record, err error) {
	err = c.ask(ctx, http.MethodGet, "/record", nil, &r)
	return r, err
}

func (c *lockClient) Put(ctx context.Context, record holder.Record) (r holder.Record, err error) {
	err = c.ask(ctx, http.MethodPut, "/record", record, &r)
	return r, err
}

func (c *lockClient) Seen() (holder.Record, []holder.Peer, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen.Record, c.seen.Peers, c.changed
}

// watch tells the lock who this pod is, and follows what is written, until the context ends.
func (c *lockClient) watch(ctx context.Context, key ed25519.PublicKey) {
	retry := func() bool {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(20 * time.Millisecond):
			return true
		}
	}
	// A request that hangs is a watch that does not notice that it is cut.
	bounded := func(method, path string, body, answer any) error {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		return c.ask(ctx, method, path, body, answer)
	}
	var none any
	for bounded(http.MethodPut, "/peer", holder.Peer{Name: c.pod, Key: key}, &none) != nil {
		if !retry() {
			return
		}
	}
	after := -1
	for {
		var news seen
		if err := bounded(http.MethodGet, fmt.Sprintf("/seen?after=%d", after), nil, &news); err != nil {
			if !retry() {
				return
			}
			continue
		}
		after = news.Generation
		c.mu.Lock()
		c.seen = news
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
	}
}
