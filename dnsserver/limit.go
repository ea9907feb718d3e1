package dnsserver

import (
	"net/netip"
	"sync"
)

// limiter bounds how many of something there are, in all and for each client address.
type limiter struct {
	all, each int

	mu      sync.Mutex
	total   int
	clients map[netip.Addr]int
}

func newLimiter(all, each int) *limiter {
	return &limiter{all: all, each: each, clients: map[netip.Addr]int{}}
}

// acquire takes a place for the client, or returns false when there is none.
func (l *limiter) acquire(client netip.Addr) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.total >= l.all || l.clients[client] >= l.each {
		return false
	}
	l.total++
	l.clients[client]++
	return true
}

// release gives a place back.
func (l *limiter) release(client netip.Addr) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.total--
	if l.clients[client]--; l.clients[client] == 0 {
		delete(l.clients, client)
	}
}
