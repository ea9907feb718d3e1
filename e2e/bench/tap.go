package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/proto"
)

const listenerType = "type.googleapis.com/envoy.config.listener.v3.Listener"

// window is large enough for any update to be under way at once.
const window = 32 << 20

// raw is a gRPC codec that leaves messages as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(message any) ([]byte, error) { return *message.(*[]byte), nil }

func (raw) Unmarshal(data []byte, into any) error {
	*into.(*[]byte) = bytes.Clone(data)
	return nil
}

// passage is one response about listeners that passed a tap.
type passage struct {
	response *discovery.DeltaDiscoveryResponse

	passed, acked time.Time // acked is zero until then
	refused       bool
}

// tap stands between an Envoy and its xDS server.
type tap struct {
	address string
	server  *grpc.Server
	client  *grpc.ClientConn
	done    chan error

	mu       sync.Mutex
	first    []*discovery.DeltaDiscoveryResponse // the responses of the newest stream up to its first about listeners, that one included
	passages []*passage
	changed  chan struct{} // closed at each change
}

// newTap listens on an address of its own and leads to a server.
func newTap(listen, to string) (*tap, error) {
	listener, err := net.Listen("tcp4", listen)
	if err != nil {
		return nil, err
	}
	t := &tap{address: listener.Addr().String(), done: make(chan error, 1), changed: make(chan struct{})}
	t.client, err = grpc.NewClient(to, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(raw{}), grpc.MaxCallRecvMsgSize(window), grpc.MaxCallSendMsgSize(window)))
	if err != nil {
		return nil, errors.Join(err, listener.Close())
	}
	t.server = grpc.NewServer(grpc.ForceServerCodec(raw{}), grpc.UnknownServiceHandler(t.handle),
		grpc.MaxRecvMsgSize(window), grpc.MaxSendMsgSize(window))
	go func() { t.done <- t.server.Serve(listener) }()
	return t, nil
}

func (t *tap) stop() error {
	t.server.Stop()
	return errors.Join(<-t.done, t.client.Close())
}

// handle hands on one stream in both directions.
func (t *tap) handle(_ any, envoy grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(envoy)
	if !ok {
		return errors.New("a stream without a method")
	}
	ctx, cancel := context.WithCancel(envoy.Context())
	defer cancel()
	server, err := t.client.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, method)
	if err != nil {
		return err
	}
	t.mu.Lock()
	t.first = nil
	t.mu.Unlock()
	group, _ := errgroup.WithContext(ctx)
	group.Go(func() error {
		defer cancel()
		for {
			var message []byte
			if err := envoy.RecvMsg(&message); err != nil {
				return ended(err)
			}
			if err := t.request(message); err != nil {
				return err
			}
			if err := server.SendMsg(&message); err != nil {
				return ended(err)
			}
		}
	})
	group.Go(func() error {
		for {
			var message []byte
			if err := server.RecvMsg(&message); err != nil {
				return ended(err)
			}
			passed := time.Now()
			if err := envoy.SendMsg(&message); err != nil {
				return ended(err)
			}
			if err := t.response(message, passed); err != nil {
				return err
			}
		}
	})
	return group.Wait()
}

func ended(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// request notes what Envoy acknowledges or refuses.
func (t *tap) request(message []byte) error {
	now := time.Now()
	var r discovery.DeltaDiscoveryRequest
	if err := proto.Unmarshal(message, &r); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, p := range t.passages {
		if r.ResponseNonce != "" && p.response.Nonce == r.ResponseNonce && r.TypeUrl == listenerType {
			p.acked, p.refused = now, r.ErrorDetail != nil
		}
	}
	t.announce()
	return nil
}

// response notes what Envoy was sent.
func (t *tap) response(message []byte, passed time.Time) error {
	r := new(discovery.DeltaDiscoveryResponse)
	if err := proto.Unmarshal(message, r); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if n := len(t.first); n == 0 || t.first[n-1].TypeUrl != listenerType {
		t.first = append(t.first, r)
	}
	if r.TypeUrl == listenerType {
		t.passages = append(t.passages, &passage{response: r, passed: passed})
	}
	t.announce()
	return nil
}

func (t *tap) announce() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// forget drops what passed so far but the first responses.
func (t *tap) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.passages = nil
}

// passed counts the responses so far.
func (t *tap) passed() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.passages)
}

// wait waits until a response, not counting the first ones, that holds a text has been acknowledged. The listeners for 443 and 6443 hold the same
// sources: with responses of their own, it is the last of them that counts.
func (t *tap) wait(ctx context.Context, since int, text string) (*passage, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		t.mu.Lock()
		changed := t.changed
		listeners := 0
		for _, p := range t.passages[since:] {
			if p.acked.IsZero() {
				continue
			}
			if p.refused {
				t.mu.Unlock()
				return nil, errors.New("Envoy refused an update")
			}
			for _, resource := range p.response.Resources {
				if bytes.Contains(resource.GetResource().GetValue(), []byte(text)) {
					listeners++
				}
			}
			if listeners >= 2 {
				found := *p
				t.mu.Unlock()
				return &found, nil
			}
		}
		t.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("no acknowledged update holds %s: %w", text, ctx.Err())
		case <-changed:
		}
	}
}
