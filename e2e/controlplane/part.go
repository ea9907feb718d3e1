package controlplane

import (
	"context"
	"errors"
	"fmt"
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
	ready   func(context.Context) error
	process *stack.Process
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
