package stack

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	stdlog "log"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// echoProtocol is the ALPN name of connections that stay open and send every line back. Envoy passes TLS
// through, so only the two ends know of it.
const echoProtocol = "oooi-echo"

// Service is one Service of a control plane.
type Service struct {
	Name    string
	Address netip.AddrPort
}

// Services are the four that workers reach through the proxy, at consecutive addresses from first on.
func Services(first netip.Addr) []Service {
	var services []Service
	address := first
	for _, s := range []struct {
		name string
		port uint16
	}{{"kube-apiserver", 6443}, {"oauth-openshift", 6443}, {"ignition-server-proxy", 443}, {"konnectivity-server", 8091}} {
		services = append(services, Service{Name: s.name, Address: netip.AddrPortFrom(address, s.port)})
		address = address.Next()
	}
	return services
}

// names of a hosted cluster, and the aliases that its API server's certificate names besides.
var (
	clusterNames = []string{"api", "oauth", "ignition", "konnectivity"}
	aliases      = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
)

// controlPlane is the TLS servers of one hosted cluster. Each answers HTTPS with a line that names the
// cluster and the service, and its certificate names both.
type controlPlane struct {
	servers []*http.Server
	group   sync.WaitGroup
}

// startControlPlane listens on a host at the address of each service.
func startControlPlane(h Host, ca *CA, cluster, domain string, services []Service) (*controlPlane, error) {
	names := append([]string(nil), aliases...)
	for _, n := range clusterNames {
		names = append(names, n+"."+domain)
	}
	cp := &controlPlane{}
	for _, s := range services {
		text := fmt.Sprintf("cluster %s, service %s\n", cluster, s.Name)
		server, err := NewServer(ca, cluster, s.Name, names, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }))
		if err != nil {
			return nil, errors.Join(err, cp.stop())
		}
		listener, err := h.Listen(s.Address.String())
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s of %s: %w", s.Name, cluster, err), cp.stop())
		}
		cp.servers = append(cp.servers, server)
		cp.group.Go(func() { _ = server.ServeTLS(listener, "", "") }) // ends with ErrServerClosed
	}
	return cp, nil
}

// NewServer makes an HTTPS server of one service of a cluster, for ServeTLS without files. Its certificate, of those DNS names, tells a
// Call who answered, and Hold finds what it needs.
func NewServer(ca *CA, cluster, service string, names []string, handler http.Handler) (*http.Server, error) {
	certificate, err := ca.issue(cluster, service, names)
	if err != nil {
		return nil, err
	}
	return &http.Server{
		Handler:   handler,
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{certificate}, NextProtos: []string{"http/1.1", echoProtocol}},
		TLSNextProto: map[string]func(*http.Server, *tls.Conn, http.Handler){
			echoProtocol: func(_ *http.Server, c *tls.Conn, _ http.Handler) { _, _ = io.Copy(c, c) },
		},
		ReadHeaderTimeout: 10 * time.Second,
		ErrorLog:          stdlog.New(io.Discard, "", 0), // tests break handshakes on purpose
	}, nil
}

// stop closes the servers and every connection.
func (cp *controlPlane) stop() error {
	var errs []error
	for _, s := range cp.servers {
		errs = append(errs, s.Close())
	}
	cp.group.Wait()
	return errors.Join(errs...)
}

// Call is a TLS connection to the proxy.
type Call struct {
	Host   Host           // where the client is
	Source netip.Addr     // its address; the zero one: whichever the kernel takes
	To     netip.AddrPort // the proxy
	SNI    string         // server name; empty: none is sent
	Chunk  int            // sends at most so many bytes at a time, as a ClientHello of several packets; 0: no limit
}

// Answer is who answered a Call. The zero Answer means that the connection was closed.
type Answer struct {
	Cluster, Service string
}

// String is "cluster/service", or "closed".
func (a Answer) String() string {
	if a == (Answer{}) {
		return "closed"
	}
	return a.Cluster + "/" + a.Service
}

// Try makes the call and hangs up. The answer is that of the certificate. An error is one of the test, such
// as a proxy that nobody can connect to: a connection that is accepted and then closed is an answer.
func (c Call) Try(ctx context.Context, ca *CA) (Answer, error) {
	stream, answer, err := c.open(ctx, ca, "http/1.1")
	if err != nil || stream == nil {
		return answer, err
	}
	return answer, stream.Close()
}

// Hold makes the call and keeps the connection.
func (c Call) Hold(ctx context.Context, ca *CA) (*Stream, Answer, error) {
	conn, answer, err := c.open(ctx, ca, echoProtocol)
	if err != nil {
		return nil, answer, err
	}
	if conn == nil {
		return nil, answer, fmt.Errorf("%s from %v: closed", c.To, c.Source)
	}
	return &Stream{conn: conn, lines: bufio.NewReader(conn)}, answer, nil
}

// open returns a nil connection when the proxy closed it before the handshake was over.
func (c Call) open(ctx context.Context, ca *CA, protocol string) (*tls.Conn, Answer, error) {
	conn, err := c.Host.Dial(ctx, c.Source, c.To.String())
	if err != nil {
		return nil, Answer{}, err
	}
	if c.Chunk > 0 {
		conn = chunked{conn, c.Chunk}
	}
	pool := ca.Pool()
	secured := tls.Client(conn, &tls.Config{
		ServerName: c.SNI, // an empty one sends no server name
		NextProtos: []string{protocol},
		// Names are not compared, since a call without SNI has none; the chain is verified below.
		InsecureSkipVerify: true,
	})
	if err := secured.HandshakeContext(ctx); err != nil {
		_ = conn.Close() // already broken
		if ctx.Err() != nil {
			return nil, Answer{}, fmt.Errorf("TLS to %s neither answered nor closed: %w", c.To, ctx.Err())
		}
		return nil, Answer{}, nil
	}
	certificate := secured.ConnectionState().PeerCertificates[0]
	if err := verify(certificate, pool); err != nil {
		return nil, Answer{}, errors.Join(err, secured.Close())
	}
	return secured, Answer{Cluster: certificate.Subject.Organization[0], Service: certificate.Subject.CommonName}, nil
}

// chunked is a connection that sends its bytes in small pieces, each in a packet of its own.
type chunked struct {
	net.Conn
	size int
}

func (c chunked) Write(p []byte) (int, error) {
	sent := 0
	for piece := range slices.Chunk(p, c.size) {
		n, err := c.Conn.Write(piece)
		sent += n
		if err != nil {
			return sent, err
		}
	}
	return sent, nil
}

// TryPlain sends bytes as they are and returns what came back before the connection was closed. A connection
// that stays open is an error.
func (c Call) TryPlain(ctx context.Context, text string) (string, error) {
	conn, err := c.Host.Dial(ctx, c.Source, c.To.String())
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	if deadline, ok := ctx.Deadline(); ok {
		if err := conn.SetDeadline(deadline); err != nil {
			return "", err
		}
	}
	if _, err := io.WriteString(conn, text); err != nil {
		return "", nil // closed already
	}
	answer, err := io.ReadAll(conn)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		return "", fmt.Errorf("the connection to %s was not closed: %w", c.To, err)
	}
	return string(answer), nil
}

// Stream is a connection held open through the proxy.
type Stream struct {
	conn  *tls.Conn
	lines *bufio.Reader
	sent  int
}

// Alive sends a line and waits for it to come back.
func (s *Stream) Alive() error {
	s.sent++
	line := strconv.Itoa(s.sent) + "\n"
	if err := s.conn.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	if _, err := io.WriteString(s.conn, line); err != nil {
		return err
	}
	got, err := s.lines.ReadString('\n')
	if err != nil {
		return err
	}
	if got != line {
		return fmt.Errorf("sent %q, got %q back", line, got)
	}
	return nil
}

// Close hangs up.
func (s *Stream) Close() error { return s.conn.Close() }
