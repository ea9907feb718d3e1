package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	discovery "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
)

// replay is an xDS server that sends an Envoy what another one was sent, and does nothing else.
type replay struct {
	discovery.UnimplementedAggregatedDiscoveryServiceServer

	address string
	server  *grpc.Server
	done    chan error

	first   []*discovery.DeltaDiscoveryResponse
	updates chan *discovery.DeltaDiscoveryResponse
	acks    chan time.Time
	once    sync.Once
	ready   chan struct{} // the first responses are acknowledged
	failed  chan error
}

// newReplay serves the first responses of a tap to each Envoy that asks.
func newReplay(listen string, first []*discovery.DeltaDiscoveryResponse) (*replay, error) {
	listener, err := net.Listen("tcp4", listen)
	if err != nil {
		return nil, err
	}
	r := &replay{
		address: listener.Addr().String(), done: make(chan error, 1), server: grpc.NewServer(grpc.MaxSendMsgSize(window)),
		updates: make(chan *discovery.DeltaDiscoveryResponse), acks: make(chan time.Time, 1), failed: make(chan error, 10), ready: make(chan struct{}), first: first,
	}
	discovery.RegisterAggregatedDiscoveryServiceServer(r.server, r)
	go func() { r.done <- r.server.Serve(listener) }()
	return r, nil
}

func (r *replay) stop() error {
	r.server.Stop()
	return <-r.done
}

// DeltaAggregatedResources serves one Envoy.
func (r *replay) DeltaAggregatedResources(stream discovery.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	type received struct {
		nonce string
		at    time.Time
		err   error
	}
	requests := make(chan received)
	go func() {
		for {
			request, err := stream.Recv()
			got := received{nonce: request.GetResponseNonce(), at: time.Now(), err: err}
			if request.GetErrorDetail() != nil {
				got.err = errors.New(request.GetErrorDetail().GetMessage())
			}
			select {
			case requests <- got:
			case <-stream.Context().Done():
				return
			}
			if err != nil {
				return
			}
		}
	}()
	sent := 0
	send := func(response *discovery.DeltaDiscoveryResponse) (time.Time, error) {
		sent++
		response.Nonce = strconv.Itoa(sent)
		if err := stream.Send(response); err != nil {
			return time.Time{}, err
		}
		for {
			select {
			case <-stream.Context().Done():
				return time.Time{}, stream.Context().Err()
			case got := <-requests:
				if got.err != nil || got.nonce == response.Nonce {
					return got.at, got.err
				}
			}
		}
	}
	err := func() error {
		if got := <-requests; got.err != nil { // the first: Envoy says who it is
			return got.err
		}
		for _, response := range r.first {
			if _, err := send(moved(response)); err != nil {
				return err
			}
		}
		r.once.Do(func() { close(r.ready) }) // Envoy may come again
		for {
			select {
			case <-stream.Context().Done():
				return nil
			case <-requests: // another type that is asked for
			case update := <-r.updates:
				at, err := send(update)
				if err != nil {
					return err
				}
				r.acks <- at
			}
		}
	}()
	if err != nil {
		r.failed <- err // once is enough: a figure of a second stream would be another one
	}
	return err
}

// moved is a copy of a response with the proxy at another address: two Envoys cannot listen at one.
func moved(response *discovery.DeltaDiscoveryResponse) *discovery.DeltaDiscoveryResponse {
	response = proto.CloneOf(response)
	for _, resource := range response.Resources {
		value := resource.GetResource().GetValue()
		// Of the same length, so that the message stays well-formed.
		copy(value, bytes.ReplaceAll(value, []byte(proxyAddress), []byte(floorAddress)))
	}
	return response
}

// measure sends an update and tells how long Envoy took to acknowledge it. The clock starts when the update is made,
// which is before it is marshalled.
func (r *replay) measure(ctx context.Context, update *discovery.DeltaDiscoveryResponse) (time.Duration, error) {
	update = moved(update)
	started := time.Now()
	select {
	case r.updates <- update:
	case err := <-r.failed:
		return 0, fmt.Errorf("floor: %w", err)
	}
	select {
	case at := <-r.acks:
		return at.Sub(started), nil
	case err := <-r.failed:
		return 0, fmt.Errorf("floor: %w", err)
	case <-ctx.Done():
		return 0, fmt.Errorf("floor: %w", ctx.Err())
	}
}
