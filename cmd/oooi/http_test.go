package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/serve"
	"github.com/densityops/oooi/watch/plan"
)

// startWeb serves the HTTP endpoints on loopback until the test ends.
func startWeb(t *testing.T) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e := &web{
		ready:   func() error { return nil },
		result:  func() *plan.Result { return &plan.Result{} },
		status:  func() statusReport { return statusReport{} },
		leases:  func() []serve.Lease { return nil },
		metrics: prometheus.NewRegistry(),
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- e.answer(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return l.Addr().String()
}

// getOnce asks on a connection of its own.
func getOnce(t *testing.T, address, path, host string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Host = host
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: time.Minute}).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

// An idle client, and one that never ends its request, keep nobody out: neither probes nor people.
func TestIdleConnectionsDoNotKeepProbesOut(t *testing.T) {
	address := startWeb(t)
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for i := range 3 * maxHTTPConns {
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if i%2 == 0 {
			if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n"); err != nil {
				t.Fatal(err)
			}
		}
	}
	if code, body := getOnce(t, address, "/healthz", ""); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
}

// The client with the most connections gives way, not the one that is idle for longest.
func TestAClientWithOneConnectionKeepsIt(t *testing.T) {
	address := startWeb(t)
	quiet, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = quiet.Close() }()
	ask := func() (*http.Response, error) {
		if _, err := io.WriteString(quiet, "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
			return nil, err
		}
		return http.ReadResponse(bufio.NewReader(quiet), nil)
	}
	if _, err := ask(); err != nil {
		t.Fatal(err)
	}
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
	for range 2 * maxHTTPConns {
		conn, err := dialer.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if code, _ := getOnce(t, address, "/healthz", ""); code != http.StatusOK {
		t.Fatalf("/healthz: %d", code)
	}
	if response, err := ask(); err != nil || response.StatusCode != http.StatusOK {
		t.Errorf("the connection of a client that has no other was closed: %v", err)
	}
}

func TestOnlyItsOwnHostsAreAnswered(t *testing.T) {
	address := startWeb(t)
	for host, want := range map[string]int{
		address: http.StatusOK, "localhost:8080": http.StatusOK, "LOCALHOST": http.StatusOK, "[::1]:8080": http.StatusOK, "192.0.2.7": http.StatusOK,
		"oooi": http.StatusOK, "oooi.oooi-system.svc:8080": http.StatusOK, "oooi.oooi-system.svc.cluster.local": http.StatusOK,
		"rebound.example.com": http.StatusMisdirectedRequest, "127.0.0.1.example.com:8080": http.StatusMisdirectedRequest,
		"svc.example.com": http.StatusMisdirectedRequest, "example.com.": http.StatusMisdirectedRequest, "xsvc.cluster.local.example": http.StatusMisdirectedRequest,
	} {
		for _, path := range []string{"/status", "/leases", "/metrics", "/healthz", "/explain"} {
			want := want
			if path == "/explain" && want == http.StatusOK {
				want = http.StatusBadRequest // no question was asked
			}
			if code, body := getOnce(t, address, path, host); code != want {
				t.Errorf("Host %s, %s: %d %q, want %d", host, path, code, body, want)
			}
		}
	}
}

func TestLongNamesAreRefused(t *testing.T) {
	address := startWeb(t)
	for _, flag := range []string{"sni", "dns"} {
		query := url.Values{"source": {"192.0.2.1"}, flag: {strings.Repeat("a", 300)}}
		if code, body := getOnce(t, address, "/explain?"+query.Encode(), ""); code != http.StatusBadRequest || !strings.Contains(body, "at most 254") {
			t.Errorf("%s: %d %q", flag, code, body)
		}
	}
	if code, _ := getOnce(t, address, "/explain?sni="+strings.Repeat("a", 100_000), ""); code != http.StatusRequestHeaderFieldsTooLarge {
		t.Errorf("100,000 bytes of a name: %d", code)
	}
}
