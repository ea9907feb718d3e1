package stack

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a program that runs beside this one. Its output goes to a file.
type Process struct {
	name string
	log  string
	cmd  *exec.Cmd
	done chan struct{}
}

// Start starts argv on a host; its output goes to <folder>/<name>.log. The program leads a process group of
// its own and is killed by the kernel when this process dies.
func (h Host) Start(folder, name string, argv ...string) (*Process, error) {
	argv = h.Argv(argv...)
	logPath := filepath.Join(folder, name+".log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{name: name, log: logPath, cmd: cmd, done: make(chan struct{})}

	started := make(chan error)
	go func() {
		// The kernel sends the parent-death signal when the thread that started the child ends, so that
		// thread is kept until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // the state of the process says how it ended
		}
		_ = log.Close() // the child has its own descriptor
		close(p.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	return p, nil
}

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Pid of the program.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Signal sends a signal to the program and whatever it started.
func (p *Process) Signal(s syscall.Signal) error {
	err := syscall.Kill(-p.Pid(), s)
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// Kill ends the program at once, as a crash would, and waits for its end.
func (p *Process) Kill() error {
	err := p.Signal(syscall.SIGKILL)
	<-p.done
	return err
}

// Stop asks the program to end, and kills it when it has not after ten seconds, which is an error. A nil
// Process is one that never started.
func (p *Process) Stop() error {
	if p == nil {
		return nil
	}
	select {
	case <-p.done:
		return nil
	default:
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stopping %s: %w", p.name, err)
	}
	select {
	case <-p.done:
		return nil
	case <-time.After(10 * time.Second):
		return errors.Join(fmt.Errorf("%s did not end within 10 s of SIGTERM", p.name), p.Kill())
	}
}

// Log is all that the program has printed.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tail is the last lines that the program has printed.
func (p *Process) Tail(lines int) string {
	all := strings.Split(strings.TrimRight(p.Log(), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// ended is an error that says how a program ended that should have gone on.
func (p *Process) ended() error {
	return Final(fmt.Errorf("%s ended (%s):\n%s", p.name, p.cmd.ProcessState, p.Tail(20)))
}
