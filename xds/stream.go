package xds

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	core "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// service is a Server on one listener.
type service struct {
	server  *Server
	stop    <-chan struct{}
	readers sync.WaitGroup
}

// request is what both variants of the protocol have in common.
type request struct {
	node        *core.Node
	typeURL     string
	nonce       string // of the response that it answers, if any
	errorDetail *rpcstatus.Status
	wholeState  bool // state of the world: a request repeats all that is asked for
	// subscribe books what is asked for; sub is nil when the type was not asked for before on this stream.
	subscribe func(p *publisher, sub *subscription)
}

// wire is one stream in one of the two variants of the protocol.
type wire interface {
	Context() context.Context
	receive() (*request, error)
	// encode makes the response of a step and gives what sends it. The publisher is locked during encode, not during send.
	encode(p *publisher, st *step, nonce string) (send func() error)
}

// received is one result of wire.receive.
type received struct {
	req *request
	err error
}

// serve runs one stream to its end. Receiving has a goroutine of its own, which ends with the stream's
// context; service.readers waits for it.
func (svc *service) serve(w wire) error {
	ctx := w.Context()
	requests := make(chan received)
	svc.readers.Go(func() {
		for {
			req, err := w.receive()
			select {
			case requests <- received{req, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})

	var ses *session
	// None of these before the first request.
	var kick <-chan struct{}
	var retry <-chan time.Time
	silent := time.NewTimer(svc.server.firstRequest)
	defer silent.Stop()
	for {
		select {
		case got := <-requests:
			if got.err != nil {
				if errors.Is(got.err, io.EOF) || status.Code(got.err) == codes.Canceled {
					return nil
				}
				return got.err
			}
			if ses == nil {
				var err error
				if ses, err = svc.server.open(got.req.node); err != nil {
					svc.server.log.Warn("Envoy turned away", "error", err)
					return err
				}
				defer svc.server.leave(ses)
				kick, retry = ses.kick, ses.retry.C
				silent.Stop()
			}
			ses.handle(got.req)
		case <-kick:
		case <-retry:
			ses.tryAgain()
		case <-silent.C:
			return status.Errorf(codes.DeadlineExceeded, "no request within %s: an Envoy says first who it is", svc.server.firstRequest)
		case <-svc.stop:
			return status.Error(codes.Unavailable, "the control plane is stopping; Envoy keeps what it has")
		case <-ctx.Done():
			return nil
		}
		if ses == nil {
			continue
		}
		for send := ses.next(w); send != nil; send = ses.next(w) {
			if err := send(); err != nil {
				return err
			}
		}
	}
}
