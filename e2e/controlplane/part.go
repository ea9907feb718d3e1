package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"syscall"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// startTime is how long a part may take to be ready: seconds, were the machine not shared.
const startTime = 2 * time.Minute

// Part is one process of the control plane. Started again after Kill or Stop it has the same port and the same data.
type Part struct {
	name    string
	host    stack.Host
	folder  string
	argv    []string
	url     string
	client  *http.Client
	process *stack.Process
}

// NewPart is a program beside the control plane, for a test to start on a host: ready when it answers a GET of the URL with 200. Its
// output goes to <folder>/<name>.log.
func NewPart(host stack.Host, folder, name, url string, argv ...string) *Part {
	return &Part{name: name, host: host, folder: folder, url: url, argv: argv}
}

// Name of the program, and of its log.
func (p *Part) Name() string { return p.name }

// ready asks the program whether it is.
func (p *Part) ready(ctx context.Context) error {
	client := p.client
	if client == nil || p.host != "" {
		// One connection a question: none stays behind, and it is made on the host.
		client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, address string) (net.Conn, error) {
			return p.host.Dial(ctx, netip.Addr{}, address)
		}}}
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		return err
	}
	response, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // only read
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s: %s", p.url, response.Status, body)
	}
	return nil
}

// Start starts the process and waits until it is ready to serve.
func (p *Part) Start(ctx context.Context) error {
	if p.Running() {
		return fmt.Errorf("%s runs already", p.name)
	}
	process, err := p.host.Start(p.folder, p.name, p.argv...)
	if err != nil {
		return err
	}
	p.process = process
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	err = stack.Until(ctx, p.name, func(ctx context.Context) error {
		if !p.Running() {
			return stack.Final(errors.New("it ended"))
		}
		return p.ready(ctx)
	})
	if err != nil {
		return fmt.Errorf("%w\n%s", err, p.Tail(20))
	}
	return nil
}

// Running tells whether the process is there.
func (p *Part) Running() bool {
	if p.process == nil {
		return false
	}
	select {
	case <-p.process.Done():
		return false
	default:
		return true
	}
}

// Kill ends the process at once, as a crash would.
func (p *Part) Kill() error {
	if !p.Running() {
		return nil
	}
	return p.process.Kill()
}

// Stop asks the process to end, as an upgrade would, and waits for its end.
func (p *Part) Stop() error { return p.process.Stop() }

// Freeze stops the process without ending it: its connections stay, and nothing is answered.
func (p *Part) Freeze() error { return p.process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (p *Part) Thaw() error { return p.process.Signal(syscall.SIGCONT) }

// Tail is the last lines that the process has logged, over all of its starts.
func (p *Part) Tail(lines int) string {
	if p.process == nil {
		return ""
	}
	return p.process.Tail(lines)
}
