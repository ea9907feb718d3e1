package dnsserver

import (
	"bufio"
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// acceptPause is the wait after an accept that failed, for want of file descriptors as a rule.
const acceptPause = 50 * time.Millisecond

// serveTCP accepts connections until ctx ends and waits for them.
func (s *Server) serveTCP(ctx context.Context, listener *net.TCPListener) error {
	var conns sync.WaitGroup
	defer conns.Wait()
	for {
		conn, err := listener.AcceptTCP()
		if ctx.Err() != nil {
			if err == nil {
				_ = conn.Close() // nobody has asked anything by it yet
			}
			return nil
		}
		if err != nil {
			s.log.Warn("accept of a DNS connection failed", "err", err)
			select {
			case <-time.After(acceptPause):
			case <-ctx.Done():
			}
			continue
		}
		client := conn.RemoteAddr().(*net.TCPAddr).AddrPort()
		client = netip.AddrPortFrom(client.Addr().Unmap(), client.Port())
		if !s.conns.acquire(client.Addr()) {
			s.metrics.connsDeny.Inc()
			_ = conn.Close() // the client's address has too many already
			continue
		}
		s.metrics.conns.Inc()
		conns.Go(func() {
			defer s.metrics.conns.Dec()
			defer s.conns.release(client.Addr())
			c := tcpConn{server: s, conn: conn, client: client}
			c.serve(ctx)
		})
	}
}

// tcpConn is one connection of a client. Queries may be pipelined; answers leave as they are ready
// (RFC 7766 6.2.1.1).
type tcpConn struct {
	server *Server
	conn   *net.TCPConn
	client netip.AddrPort

	writing sync.Mutex
}

func (c *tcpConn) serve(ctx context.Context) {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.Close() }) // unblocks read and write
	defer func() {
		stop()
		_ = c.conn.Close() // the client hears of it, whatever happens
	}()
	// A client may have closed its side only: what it asked is still answered.
	var forwards sync.WaitGroup
	defer forwards.Wait()
	in := bufio.NewReader(c.conn)
	var buf []byte
	for {
		// One deadline for the whole query, so that one byte now and then does not hold the
		// connection. It is longer than a forwarded query takes, so nobody is cut off waiting.
		if c.conn.SetReadDeadline(time.Now().Add(c.server.limits.ConnIdle)) != nil {
			return
		}
		var prefix [2]byte
		if _, err := io.ReadFull(in, prefix[:]); err != nil {
			return
		}
		length := int(binary.BigEndian.Uint16(prefix[:]))
		if length < headerLen {
			return
		}
		if len(buf) < length+replyRoom {
			buf = make([]byte, length+replyRoom)
		}
		if _, err := io.ReadFull(in, buf[:length]); err != nil {
			return
		}
		if !c.handle(ctx, &forwards, buf, length) {
			return
		}
	}
}

// handle answers one query, or starts to; false ends the connection.
func (c *tcpConn) handle(ctx context.Context, forwards *sync.WaitGroup, buf []byte, length int) bool {
	s := c.server
	model := s.model.Load()
	r := model.respond(buf, length, c.client.Addr())
	if r.outcome == outForwarded && s.admit(&r, buf, c.client) {
		packet := append(make([]byte, 0, length+replyRoom), buf[:length]...)
		forwards.Go(func() {
			c.write(s.answerForwarded(ctx, model, r, packet, c.client, dns.MaxMsgSize))
		})
		return true
	}
	s.metrics.queries[r.view][r.outcome].Inc()
	if r.n == 0 {
		return false
	}
	return c.write(buf[:r.n])
}

func (c *tcpConn) write(answer []byte) bool {
	frame := binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(answer)), uint16(len(answer)))
	frame = append(frame, answer...)
	c.writing.Lock()
	defer c.writing.Unlock()
	err := c.conn.SetWriteDeadline(time.Now().Add(c.server.limits.ConnIdle))
	if err == nil {
		_, err = c.conn.Write(frame)
	}
	if err != nil {
		c.server.metrics.unsent.Inc()
		_ = c.conn.Close() // a part of the frame may be out: nothing can follow it
	}
	return err == nil
}
