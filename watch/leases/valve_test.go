package leases_test

import (
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"
)

type familyOf = dto.MetricFamily

// valve is a way to the API server that can be shut.
type valve struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	mu    sync.Mutex
	shut  bool
	conns map[net.Conn]struct{}
}

func newValve(t *testing.T, url string) *valve {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	v := &valve{listener: listener, target: strings.TrimPrefix(url, "https://"), conns: map[net.Conn]struct{}{}}
	v.running.Go(v.serve)
	t.Cleanup(func() {
		if err := listener.Close(); err != nil {
			t.Error(err)
		}
		v.close()
		v.running.Wait()
	})
	return v
}

// config goes through the valve.
func (v *valve) config(c *rest.Config) *rest.Config {
	c.Host = "https://" + v.listener.Addr().String()
	c.ServerName = "127.0.0.1"
	return c
}

// close cuts every connection, and lets none through.
func (v *valve) close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = true
	for c := range v.conns {
		_ = c.Close() // cut
	}
}

func (v *valve) open() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.shut = false
}

func (v *valve) serve() {
	for {
		conn, err := v.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			continue
		}
		v.running.Go(func() { v.pass(conn) })
	}
}

func (v *valve) pass(conn net.Conn) {
	defer func() { _ = conn.Close() }() // may be cut already
	server, err := net.Dial("tcp4", v.target)
	if err != nil {
		return
	}
	defer func() { _ = server.Close() }()
	v.mu.Lock()
	shut := v.shut
	v.conns[conn], v.conns[server] = struct{}{}, struct{}{}
	v.mu.Unlock()
	defer func() {
		v.mu.Lock()
		defer v.mu.Unlock()
		delete(v.conns, conn)
		delete(v.conns, server)
	}()
	if shut {
		return
	}
	var both sync.WaitGroup
	for _, way := range [][2]net.Conn{{conn, server}, {server, conn}} {
		both.Go(func() {
			_, _ = io.Copy(way[0], way[1]) // until it is cut
			_, _ = way[0].Close(), way[1].Close()
		})
	}
	both.Wait()
}
