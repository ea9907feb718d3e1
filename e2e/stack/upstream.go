package stack

import (
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/miekg/dns"
)

// UpstreamAnswer is the address that the upstream DNS server gives for every name.
const UpstreamAnswer = "203.0.113.80"

// Upstream is a DNS server that knows an address for every name, and remembers what it was asked.
type Upstream struct {
	servers []*dns.Server
	group   sync.WaitGroup

	mu    sync.Mutex
	asked map[string]int
}

// startUpstream serves DNS on a host over UDP and TCP.
func startUpstream(h Host, address string) (*Upstream, error) {
	u := &Upstream{asked: map[string]int{}}
	packets, err := h.ListenPacket(address)
	if err != nil {
		return nil, fmt.Errorf("upstream DNS: %w", err)
	}
	listener, err := h.Listen(address)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("upstream DNS: %w", err), packets.Close())
	}
	for _, s := range []*dns.Server{{PacketConn: packets}, {Listener: listener}} {
		started := make(chan struct{})
		s.Handler = dns.HandlerFunc(u.answer)
		s.NotifyStartedFunc = func() { close(started) }
		u.servers = append(u.servers, s)
		u.group.Go(func() { _ = s.ActivateAndServe() }) // ends by Shutdown
		<-started
	}
	return u, nil
}

func (u *Upstream) answer(w dns.ResponseWriter, query *dns.Msg) {
	reply := new(dns.Msg).SetReply(query)
	if len(query.Question) == 1 {
		q := query.Question[0]
		u.mu.Lock()
		u.asked[dns.CanonicalName(q.Name)]++
		u.mu.Unlock()
		if q.Qtype == dns.TypeA {
			reply.Answer = append(reply.Answer, &dns.A{
				Hdr: dns.RR_Header{Name: q.Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 60},
				A:   net.ParseIP(UpstreamAnswer),
			})
		}
	}
	_ = w.WriteMsg(reply) // the client asks again
}

// Asked is how often the server was asked about a name, whatever the type.
func (u *Upstream) Asked(name string) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.asked[dns.CanonicalName(name)]
}

// stop closes the server.
func (u *Upstream) stop() error {
	var errs []error
	for _, s := range u.servers {
		errs = append(errs, s.Shutdown())
	}
	u.group.Wait()
	return errors.Join(errs...)
}
