package hosted

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/e2e/stack"
)

// RouterService is what a stack.Answer calls the router.
const RouterService = "router"

// RouterLabel is the label of the default router's Pods, whose value is "default"; Services select it.
const RouterLabel = "ingresscontroller.operator.openshift.io/deployment-ingresscontroller"

// RouterTarget is where the router listens for TLS, without any Service.
var RouterTarget = netip.AddrPortFrom(routerAddress, 443)

// router is the servers of the default router.
type router struct {
	servers []*http.Server
	group   sync.WaitGroup
}

// startRouter starts the servers on the worker and makes their Pod.
func (c *Cluster) startRouter(ctx context.Context, ca *stack.CA) error {
	c.router = &router{}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		sni := "-"
		if r.TLS != nil && r.TLS.ServerName != "" {
			sni = r.TLS.ServerName
		}
		client, _, _ := net.SplitHostPort(r.RemoteAddr)
		if r.Header.Get("Upgrade") == "websocket" {
			echo(w)
			return
		}
		fmt.Fprintf(w, "cluster %s, service %s, sni %s, host %s, client %s, path %s\n", c.Name, RouterService, sni, r.Host, client, r.URL.Path)
	})
	secure, err := stack.NewServer(ca, c.Name, RouterService, []string{"*.apps." + c.Domain}, handler)
	if err != nil {
		return err
	}
	plain := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second}
	for port, serve := range map[uint16]func(net.Listener) error{
		443: func(l net.Listener) error { return secure.ServeTLS(l, "", "") },
		80:  plain.Serve,
	} {
		listener, err := c.Worker.Listen(netip.AddrPortFrom(routerAddress, port).String())
		if err != nil {
			return err
		}
		c.router.group.Go(func() { _ = serve(listener) }) // ends with ErrServerClosed
	}
	c.router.servers = []*http.Server{secure, plain}

	if _, err := c.Apply(ctx, "ingress-operator", fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata:
  name: router-default-0
  namespace: %s
  labels: {%s: default}
spec:
  nodeName: %s
  containers:
  - name: router
    image: router
    ports: [{name: http, containerPort: 80}, {name: https, containerPort: 443}, {name: metrics, containerPort: 1936}]
`, IngressNamespace, RouterLabel, c.Node())); err != nil {
		return err
	}
	return c.SetRouter(ctx, true)
}

// echo takes over a connection as a WebSocket does, and sends back all that comes, until the client hangs up. Of RFC 6455 there is
// nothing else: no proxy between looks into it.
func echo(w http.ResponseWriter) {
	conn, buffered, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }() // the other end has hung up
	if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"); err == nil {
		_, _ = io.Copy(conn, buffered) // ends with the connection
	}
}

// SetRouter says whether the router's Pod is ready. MetalLB announces no VIP of a Service without a ready endpoint.
func (c *Cluster) SetRouter(ctx context.Context, ready bool) error {
	status := metav1.ConditionFalse
	if ready {
		status = metav1.ConditionTrue
	}
	_, err := c.ApplyStatus(ctx, "kubelet", fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: router-default-0, namespace: %s}
status:
  phase: Running
  podIP: %s
  podIPs: [{ip: %[2]s}]
  conditions: [{type: Ready, status: %q}]
`, IngressNamespace, routerAddress, status))
	return err
}

// Get asks a server for a path by plain HTTP, from a host and under a name that nobody looks up. It returns the status code and the body.
func Get(ctx context.Context, from stack.Host, to netip.AddrPort, name, path string) (int, string, error) {
	client := &http.Client{
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return from.Dial(ctx, netip.Addr{}, to.String())
		}},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+name+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }() // only read
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// stop closes the servers and every connection.
func (r *router) stop() error {
	var errs []error
	for _, s := range r.servers {
		errs = append(errs, s.Close())
	}
	r.group.Wait()
	return errors.Join(errs...)
}
