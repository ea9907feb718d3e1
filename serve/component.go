package serve

import (
	"context"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// Waits between two tries to start a server.
const (
	firstRetry = 250 * time.Millisecond
	lastRetry  = 10 * time.Second
)

// applier is a server that takes a new model while it runs.
type applier[M any] interface {
	comparable
	Apply(M)
}

// component is one server of an Infra at one address. It is started by the first model, told of
// each further one, and started anew when its address changes. A server that ends with an error is
// started again, with growing waits.
type component[M any, S applier[M]] struct {
	log *slog.Logger

	mu       sync.Mutex
	server   S
	registry *prometheus.Registry
	address  netip.AddrPort
	cancel   context.CancelFunc
	done     chan struct{}
	ready    bool
	problem  string // why it does not serve
	refused  string // why the newest model is not served
}

// apply hands on a model, and starts the server when it does not run at that address yet.
func (c *component[M, S]) apply(ctx context.Context, address netip.AddrPort, model M,
	create func(*prometheus.Registry) (S, error), run func(ctx context.Context, server S, ready func()) error,
) {
	if c.cancel != nil && c.address != address {
		c.stop()
	}
	if c.cancel != nil {
		c.server.Apply(model)
		c.mu.Lock()
		c.refused = ""
		c.mu.Unlock()
		return
	}
	registry := prometheus.NewRegistry()
	server, err := create(registry)
	if err != nil {
		c.refuse(err)
		return
	}
	server.Apply(model)
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	c.mu.Lock()
	c.server, c.registry, c.address, c.cancel, c.done = server, registry, address, cancel, done
	c.ready, c.problem, c.refused = false, "starting", ""
	c.mu.Unlock()
	go func() {
		defer close(done)
		c.keepRunning(ctx, func() error { return run(ctx, server, c.setReady) })
	}()
}

func (c *component[M, S]) keepRunning(ctx context.Context, run func() error) {
	wait := firstRetry
	for {
		started := time.Now()
		err := run()
		if ctx.Err() != nil {
			return
		}
		if time.Since(started) > lastRetry {
			wait = firstRetry
		}
		text := "stopped"
		if err != nil {
			text = err.Error()
		}
		c.mu.Lock()
		news := c.ready || c.problem != text
		c.ready, c.problem = false, text
		c.mu.Unlock()
		if news {
			c.log.Error("not serving, trying again", "error", text)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
		wait = min(2*wait, lastRetry)
	}
}

func (c *component[M, S]) setReady() {
	c.mu.Lock()
	news := !c.ready
	c.ready, c.problem = true, ""
	c.mu.Unlock()
	if news {
		c.log.Info("serving")
	}
}

// refuse notes why the newest model cannot be served; the last good one stays.
func (c *component[M, S]) refuse(err error) {
	c.mu.Lock()
	news := c.refused != err.Error()
	c.refused = err.Error()
	c.mu.Unlock()
	if news {
		c.log.Error("configuration is refused, the last good one stays", "error", err)
	}
}

// stop ends the server and waits for it.
func (c *component[M, S]) stop() {
	c.mu.Lock()
	cancel, done := c.cancel, c.done
	c.refused = ""
	c.mu.Unlock()
	if cancel == nil {
		return
	}
	cancel()
	<-done
	var none S
	c.mu.Lock()
	c.server, c.registry, c.cancel, c.done = none, nil, nil, nil
	c.ready, c.problem = false, ""
	c.mu.Unlock()
}

// current is the running server, or the zero value.
func (c *component[M, S]) current() S {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.server
}

func (c *component[M, S]) metrics() *prometheus.Registry {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.registry
}

// state is nil when no server is asked for.
func (c *component[M, S]) state() *ComponentState {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.refused != "":
		return &ComponentState{Message: c.refused}
	case c.cancel == nil:
		return nil
	}
	return &ComponentState{Ready: c.ready, Message: c.problem}
}
