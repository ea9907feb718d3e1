package stack

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os/exec"
	"strings"
	"time"
)

// Oooi is a running `oooi serve`, or one to be started.
type Oooi struct {
	Binary    string
	Host      Host
	HTTP, XDS string   // host:port to listen on
	Args      []string // further arguments of serve

	manifests Manifests
	state     string // folder of what it keeps
	logs      string // folder of its log
	process   *Process
}

// Start starts the server and waits until it says that it is ready.
func (o *Oooi) Start(ctx context.Context) error {
	if err := o.Launch(); err != nil {
		return err
	}
	return Until(ctx, "oooi to be ready", func(ctx context.Context) error {
		select {
		case <-o.process.Done():
			return o.process.ended()
		default:
		}
		_, err := o.Get(ctx, "/readyz")
		return err
	})
}

// Launch starts the server and waits for nothing.
func (o *Oooi) Launch() error {
	argv := append([]string{
		o.Binary, "serve", "--config-dir", string(o.manifests), "--state-dir", o.state,
		"--http-listen", o.HTTP, "--xds-listen", o.XDS,
	}, o.Args...)
	var err error
	o.process, err = o.Host.Start(o.logs, "oooi", argv...)
	return err
}

// Process that runs the server; nil before Start.
func (o *Oooi) Process() *Process { return o.process }

// Get reads a path of the server's HTTP port; any status but 200 is an error.
func (o *Oooi) Get(ctx context.Context, path string) (string, error) {
	return get(ctx, o.Host, o.HTTP, path)
}

// Run runs another command of oooi on the same host and returns what it printed on stdout.
func (o *Oooi) Run(ctx context.Context, args ...string) (string, error) {
	return o.Host.Run(ctx, append([]string{o.Binary}, args...)...)
}

// Ask runs a command that asks the running server, such as explain or leases.
func (o *Oooi) Ask(ctx context.Context, args ...string) (string, error) {
	return o.Run(ctx, append(args, "--server", "http://"+o.HTTP)...)
}

// Run runs a command on the host and returns what it printed on stdout. Its error holds what it printed on stderr.
func (h Host) Run(ctx context.Context, argv ...string) (string, error) {
	argv = h.Argv(argv...)
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.WaitDelay = 2 * time.Second // for what the command left running with its output open
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// get reads a URL from a host.
func get(ctx context.Context, h Host, address, path string) (string, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return h.Dial(ctx, netip.Addr{}, address)
		},
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := client.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = resp.Body.Close() }() // only read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return "", err
	}
	if resp.StatusCode != http.StatusOK {
		return string(body), fmt.Errorf("%s: %s: %s", path, resp.Status, strings.TrimSpace(string(body)))
	}
	return string(body), nil
}
