package main

import (
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connections bounds the connections of an HTTP server. A full server accepts the next client all the same: the client with
// the most connections loses the one that has been without a request for longest. So no number of idle connections keeps
// probes out.
type connections struct {
	most int

	mu   sync.Mutex
	open map[net.Conn]*connection
}

// connection is what is known of one of them.
type connection struct {
	client netip.Addr
	active bool // a request is under way
	since  time.Time
}

func newConnections(most int) *connections {
	return &connections{most: most, open: map[net.Conn]*connection{}}
}

// track is the ConnState of an http.Server.
func (c *connections) track(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch state {
	case http.StateNew:
		if len(c.open) >= c.most {
			c.closeOne()
		}
		client, _ := netip.ParseAddrPort(conn.RemoteAddr().String()) // all others are one client
		c.open[conn] = &connection{client: client.Addr(), since: time.Now()}
	case http.StateActive, http.StateIdle:
		if known := c.open[conn]; known != nil {
			known.active, known.since = state == http.StateActive, time.Now()
		}
	default:
		delete(c.open, conn)
	}
}

// closeOne makes room for one connection. The caller holds c.mu.
func (c *connections) closeOne() {
	of := map[netip.Addr]int{}
	for _, known := range c.open {
		of[known.client]++
	}
	var victim net.Conn
	for conn, known := range c.open {
		if victim == nil || known.yieldsBefore(c.open[victim], of) {
			victim = conn
		}
	}
	delete(c.open, victim)
	_ = victim.Close() // its goroutine notices
}

// yieldsBefore tells whether a connection is closed rather than another one; of counts the connections of each client.
func (k *connection) yieldsBefore(other *connection, of map[netip.Addr]int) bool {
	switch {
	case of[k.client] != of[other.client]:
		return of[k.client] > of[other.client]
	case k.active != other.active:
		return other.active
	default:
		return k.since.Before(other.since)
	}
}
