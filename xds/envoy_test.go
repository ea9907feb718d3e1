package xds

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
)

// portOffset keeps the listeners of the tests off the privileged ports.
const portOffset = 20000

var lastLoopback atomic.Uint32

// loopbacks gives addresses of 127.0.0.0/8 that no other test, and likely no other process, uses.
func loopbacks(n int) []string {
	addresses := make([]string, n)
	for i := range addresses {
		k := lastLoopback.Add(1)
		pid := uint32(os.Getpid())
		addresses[i] = netip.AddrFrom4([4]byte{127, byte(64 + pid>>7%128), byte(pid%128<<1) + byte(k/250), byte(1 + k%250)}).String()
	}
	return addresses
}

// runningServer is a Server on a loopback port.
type runningServer struct {
	*Server
	registry *prometheus.Registry
	address  *net.TCPAddr
	stop     func()
}

func startServer(t testing.TB, at string) *runningServer {
	t.Helper()
	var l net.Listener
	eventually(t, "the port is free again", func() (ok bool) {
		var err error
		l, err = net.Listen("tcp", at)
		return err == nil
	})
	reg := prometheus.NewRegistry()
	s := &runningServer{Server: NewServer(testLog(t), reg), registry: reg, address: l.Addr().(*net.TCPAddr)}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l) }()
	s.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-served; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	t.Cleanup(s.stop)
	return s
}

// envoy is a real Envoy.
type envoy struct {
	t     testing.TB
	admin string
	log   *lockedBuffer // stderr
	out   *lockedBuffer // the access log
	kill  func()
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// startEnvoy runs the binary that ENVOY names with our bootstrap, a drain time of one second.
func startEnvoy(t testing.TB, nodeID string, xds *net.TCPAddr, changes ...func(bootstrap string) string) *envoy {
	t.Helper()
	binary := os.Getenv("ENVOY")
	if binary == "" {
		t.Fatal("ENVOY is not set: set it to the path of an Envoy 1.40 binary (make test does)")
	}
	config, err := Bootstrap(BootstrapConfig{
		Infra: testInfra, NodeID: nodeID, XDSHost: xds.IP.String(), XDSPort: xds.Port, AdminAddress: "127.0.0.1:0",
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, change := range changes {
		config = []byte(change(string(config)))
	}
	dir := t.TempDir()
	file, adminFile := filepath.Join(dir, "envoy.yaml"), filepath.Join(dir, "admin")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	e := &envoy{t: t, log: &lockedBuffer{}, out: &lockedBuffer{}}
	cmd := exec.Command(binary, "-c", file, "--admin-address-path", adminFile, "--disable-hot-restart",
		"--drain-time-s", "1", "--concurrency", "2", "--log-level", "info", "--file-flush-interval-msec", "50")
	cmd.Stderr, cmd.Stdout = e.log, e.out
	cmd.WaitDelay = patience // were ENVOY a script, what it started could keep the pipes open
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	e.kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended already; Wait tells
		if err := cmd.Wait(); err != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("Envoy: %v", err)
		}
	})
	t.Cleanup(func() {
		e.kill()
		if t.Failed() {
			_, log, _ := strings.Cut(e.log.String(), "starting main dispatch loop") // before it there is a page about the build
			t.Logf("Envoy's log:\n%s\nits access log:\n%s", log, e.out)
		}
	})
	eventually(t, "Envoy's admin interface answers", func() bool {
		text, err := os.ReadFile(adminFile)
		e.admin = string(text)
		return err == nil && e.admin != ""
	})
	return e
}

// get reads a page of the admin interface.
func (e *envoy) get(path string) string {
	e.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	response, err := client.Get("http://" + e.admin + path)
	if err != nil {
		e.t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		e.t.Fatal(err)
	}
	return string(body)
}

// stat is one counter or gauge of Envoy.
func (e *envoy) stat(name string) int {
	e.t.Helper()
	for line := range strings.Lines(e.get("/stats?filter=^" + strings.ReplaceAll(name, ".", "\\.") + "$")) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+": "); ok {
			n, err := strconv.Atoi(value)
			if err != nil {
				e.t.Fatal(err)
			}
			return n
		}
	}
	e.t.Fatalf("Envoy has no stat %s", name)
	return 0
}

// dialChange wraps the connection under TLS, or changes what the client says.
type dialChange func(raw net.Conn, config *tls.Config) net.Conn

func listenerAddress(server string, port int) string {
	return net.JoinHostPort(server, strconv.Itoa(port+portOffset))
}

// dial opens TLS through Envoy from a source, and tells who answered: "cluster/service".
func dial(source, server string, port int, sni string, changes ...dialChange) (conn *tls.Conn, identity string, err error) {
	from := &net.TCPAddr{IP: net.ParseIP(source)}
	dialer := net.Dialer{LocalAddr: from, Timeout: patience}
	raw, err := dialer.Dial("tcp", listenerAddress(server, port))
	if err != nil {
		return nil, "", err
	}
	config := &tls.Config{ServerName: sni, InsecureSkipVerify: true} // the test looks at the certificate itself
	for _, change := range changes {
		raw = change(raw, config)
	}
	conn = tls.Client(raw, config)
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, "", err
	}
	if err := conn.Handshake(); err != nil {
		_ = conn.Close() // the handshake's error says why
		return nil, "", err
	}
	return conn, conn.ConnectionState().PeerCertificates[0].Subject.CommonName, nil
}

// dialListening is dial once the port listens: Envoy acknowledges a listener a moment before its workers have it.
func dialListening(source, server string, port int, sni string, changes ...dialChange) (*tls.Conn, string, error) {
	deadline := time.Now().Add(patience)
	for {
		conn, identity, err := dial(source, server, port, sni, changes...)
		if !errors.Is(err, syscall.ECONNREFUSED) || time.Now().After(deadline) {
			return conn, identity, err
		}
	}
}

// reaches tells who answers, or "closed".
func reaches(source, server string, port int, sni string, changes ...dialChange) string {
	conn, identity, err := dialListening(source, server, port, sni, changes...)
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
			return "closed"
		}
		return err.Error()
	}
	_ = conn.Close() // the answer is known
	return identity
}

// stream is a connection that is held open.
type stream struct {
	name string
	conn *tls.Conn
}

func openStream(t testing.TB, source, server string, port int, sni string) *stream {
	t.Helper()
	conn, identity, err := dialListening(source, server, port, sni)
	if err != nil {
		t.Fatalf("%s from %s: %v", sni, source, err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &stream{name: fmt.Sprintf("%s port %d from %s to %s", sni, port, source, identity), conn: conn}
}

// alive sends a byte and waits for its echo.
func (s *stream) alive() error {
	if err := s.conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if _, err := s.conn.Write([]byte("x")); err != nil {
		return err
	}
	_, err := io.ReadFull(s.conn, make([]byte, 1))
	return err
}

// applyAndWait gives the snapshot to the server and waits until Envoy has answered.
func applyAndWait(t testing.TB, s *Server, proxy *v1alpha1.ProxyServer) {
	t.Helper()
	s.Apply(testInfra, mustBuild(t, proxy, Options{PortOffset: portOffset}))
	waitAcknowledged(t, s)
}

func waitAcknowledged(t testing.TB, s *Server) {
	t.Helper()
	eventually(t, "an Envoy is connected", func() bool { return len(s.Status(testInfra)) > 0 })
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.WaitAcknowledged(ctx, testInfra); err != nil {
		t.Fatal(err)
	}
}
