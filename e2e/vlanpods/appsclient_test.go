package vlanpods

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/stack"
)

// asker is somebody who wants to reach an app: where, which DNS server is asked, and where the names have to lead.
type asker struct {
	host   stack.Host
	server string
	// proxy is where all names of ours lead for pods; the zero address for a worker.
	proxy netip.Addr
}

func (a asker) String() string {
	if a.proxy.IsValid() {
		return "a pod"
	}
	return "a worker"
}

// leadsTo is where a name leads for the asker that leads to an address on the VLAN.
func (a asker) leadsTo(address string) string {
	if a.proxy.IsValid() {
		return a.proxy.String()
	}
	return address
}

// get asks the proxy for a page under a name, by HTTP.
func (a asker) get(ctx context.Context, name string) (int, string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	return hosted.Get(ctx, a.host, netip.AddrPortFrom(a.proxy, 80), name, "/dashboards")
}

// askers are a worker on the VLAN, and a pod.
func (w *appsSide) askers(t *testing.T) (worker, pod asker) {
	t.Helper()
	dnsService, err := w.clusterIP(t.Context(), v1alpha1.DNSServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	proxyService, err := w.clusterIP(t.Context(), v1alpha1.ProxyServiceName(infra))
	if err != nil {
		t.Fatal(err)
	}
	return asker{host: w.workerA, server: addressDNS}, asker{server: dnsService.String(), proxy: proxyService}
}

// console is a name of an app of a hosted cluster.
func console(cluster string) string { return "console.apps." + domain(cluster) }

// resolve asks as a resolver does: once more when there is no answer.
func (a asker) resolve(ctx context.Context, name string) (string, error) {
	got, err := lookup(ctx, a.host, a.server, name)
	var timeout net.Error
	if errors.As(err, &timeout) && timeout.Timeout() {
		got, err = lookup(ctx, a.host, a.server, name)
	}
	return got, err
}

// reach is an error unless the asker gets to the router of a cluster, which has a VIP, by name: over TLS and over HTTP.
func (w *appsSide) reach(ctx context.Context, a asker, cluster, vip string) error {
	name := console(cluster)
	got, err := a.resolve(ctx, name)
	if err != nil {
		return fmt.Errorf("%s for %s: %w", name, a, err)
	}
	if want := a.leadsTo(vip); got != want {
		return fmt.Errorf("%s for %s: %s, want %s", name, a, got, want)
	}
	answer, err := w.callAt(ctx, a.host, got, 443, name)
	if err != nil {
		return fmt.Errorf("%s over TLS from %s: %w", name, a, err)
	}
	if want := cluster + "/" + hosted.RouterService; answer != want {
		return fmt.Errorf("%s over TLS from %s: %s answers, want %s", name, a, answer, want)
	}
	code, text, err := hosted.Get(ctx, a.host, netip.AddrPortFrom(netip.MustParseAddr(got), 80), name, "/dashboards")
	if err != nil {
		return fmt.Errorf("%s over HTTP from %s: %w", name, a, err)
	}
	if prefix := fmt.Sprintf("cluster %s, service router, sni -, host %s, ", cluster, name); code != http.StatusOK || !strings.HasPrefix(text, prefix) {
		return fmt.Errorf("%s over HTTP from %s: %d %q, want 200 and %q", name, a, code, text, prefix)
	}
	return nil
}

// reached waits until workers and pods get to the apps of a cluster.
func (w *appsSide) reached(t *testing.T, cluster, vip string) {
	t.Helper()
	worker, pod := w.askers(t)
	for _, a := range []asker{worker, pod} {
		eventually(t, "apps", func(ctx context.Context) error {
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			return w.reach(ctx, a, cluster, vip)
		})
	}
}

// closed waits until the names of a cluster's apps are names like any other, and the proxy leads nowhere for them.
func (w *appsSide) closed(t *testing.T, cluster string) {
	t.Helper()
	worker, pod := w.askers(t)
	name := console(cluster)
	eventually(t, "the end of apps of "+cluster, func(ctx context.Context) error {
		var errs []error
		for _, a := range []asker{worker, pod} {
			if got, err := a.resolve(ctx, name); err != nil || got != stack.UpstreamAnswer {
				errs = append(errs, fmt.Errorf("%s for %s: %s, want what upstream says", name, a, got), err)
			}
		}
		// Nobody listens where nothing is served any more.
		refused := func(err error) bool { return errors.Is(err, syscall.ECONNREFUSED) }
		if got, err := w.callAt(ctx, pod.host, pod.proxy.String(), 443, name); !refused(err) && (err != nil || got != "closed") {
			errs = append(errs, fmt.Errorf("%s over TLS: %s, want it closed", name, got), err)
		}
		if code, text, err := pod.get(ctx, name); !refused(err) && (err != nil || code != http.StatusNotFound) {
			errs = append(errs, fmt.Errorf("%s over HTTP: %d %q, want 404", name, code, text), err)
		}
		return errors.Join(errs...)
	})
}

// undisturbed asks for the apps of a cluster until the end of the test, as a worker and as a pod. Each time there has to be the
// right answer.
func (w *appsSide) undisturbed(t *testing.T, cluster, vip string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	worker, pod := w.askers(t)
	var group sync.WaitGroup
	var probes []*probe
	for _, a := range []asker{worker, pod} {
		p := &probe{name: fmt.Sprintf("apps of %s for %s", cluster, a), every: 4 * w.pace, patience: 15 * time.Second, try: func(ctx context.Context, _ int) error {
			return w.reach(ctx, a, cluster, vip)
		}}
		probes = append(probes, p)
		group.Go(func() { p.run(ctx) })
	}
	t.Cleanup(func() {
		cancel()
		group.Wait()
		for _, p := range probes {
			failed := 0
			for _, a := range p.past {
				if a.err == nil {
					continue
				}
				if failed++; failed <= 5 {
					t.Errorf("%s: asked at %s, %s: %v", p.name, a.begun.Format("15:04:05.000"), a.ended.Sub(a.begun).Round(time.Millisecond), a.err)
				}
			}
			if len(p.past) == 0 {
				t.Errorf("%s: nobody asked", p.name)
			}
			t.Logf("%s: asked %d times, %d failures", p.name, len(p.past), failed)
		}
	})
}

// heldOpen opens a connection of a pod to the apps of B on each port, and uses them until the end of the test, and at the end.
func (w *appsSide) heldOpen(t *testing.T) {
	t.Helper()
	_, pod := w.askers(t)
	name := console(clusterB)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, _, err := stack.Call{Host: pod.host, To: netip.AddrPortFrom(pod.proxy, 443), SNI: name}.Hold(ctx, w.site.CA)
	if err != nil {
		t.Fatal(err)
	}
	socket, err := openWebSocket(ctx, pod.host, netip.AddrPortFrom(pod.proxy, 80), name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stream.Alive(); err != nil {
			t.Errorf("a connection held open through port 443: %v", err)
		}
		if err := socket.alive(); err != nil {
			t.Errorf("a WebSocket held open through port 80: %v", err)
		}
		_, _ = stream.Close(), socket.conn.Close()
	})
	for range 2 {
		if err := errors.Join(stream.Alive(), socket.alive()); err != nil {
			t.Fatal(err)
		}
	}
}

// webSocket is a connection that was upgraded to WebSocket. What it says is nobody's business but of its ends.
type webSocket struct {
	conn  net.Conn
	lines *bufio.Reader
}

// openWebSocket asks for an upgrade.
func openWebSocket(ctx context.Context, from stack.Host, to netip.AddrPort, name string) (*webSocket, error) {
	conn, err := from.Dial(ctx, netip.Addr{}, to.String())
	if err != nil {
		return nil, err
	}
	s := &webSocket{conn: conn, lines: bufio.NewReader(conn)}
	if err := s.upgrade(name); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return s, nil
}

func (s *webSocket) upgrade(name string) error {
	if err := s.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	if _, err := fmt.Fprintf(s.conn, "GET /terminal HTTP/1.1\r\nHost: %s\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n", name); err != nil {
		return err
	}
	response, err := http.ReadResponse(s.lines, nil)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		return fmt.Errorf("%s: %s, want an upgrade", name, response.Status)
	}
	return nil
}

// alive sends a line and waits for it to come back.
func (s *webSocket) alive() error {
	if err := s.conn.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return err
	}
	const line = "still there\n"
	if _, err := io.WriteString(s.conn, line); err != nil {
		return err
	}
	got, err := s.lines.ReadString('\n')
	if err == nil && got != line {
		err = fmt.Errorf("sent %q, got %q back", line, got)
	}
	return err
}
