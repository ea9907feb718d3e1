package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// TestRun does what a newcomer does: `make run`, every command that it prints, Ctrl-C.
func TestRun(t *testing.T) {
	t.Parallel()
	if _, err := stack.Grpcurl(); err != nil { // built while there is a network to fetch its source from
		t.Fatal(err)
	}
	// In a network namespace its addresses and ports are free, whatever else runs on this machine.
	wayIn(t, newHost(t, "run"), "run", powerless("make", "run"))
}

// TestLabProgram does the same with `make lab`, first with what root may do, then in a user namespace.
func TestLabProgram(t *testing.T) {
	t.Parallel()
	wayIn(t, "", "lab", []string{"make", "lab"})
	wayIn(t, "", "lab", powerless("make", "lab"))
}

// powerless runs a command as anybody: root gives up what makes it root. What it keeps is what it takes to map
// user 0 into a user namespace (user_namespaces(7)), which other users need not.
func powerless(argv ...string) []string {
	if os.Geteuid() != 0 {
		return argv
	}
	return append([]string{"setpriv", "--bounding-set=-all,+setfcap", "--inh-caps=-all"}, argv...)
}

// wayIn runs one of the two targets on a host.
func wayIn(t *testing.T, h stack.Host, target string, argv []string) {
	t.Helper()
	temporary := t.TempDir()
	argv = h.Argv(argv...)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	var out output
	cmd.Stdout, cmd.Stderr = &out, &out
	started, ended := make(chan error), make(chan struct{})
	var exit error // read it after ended is closed
	go func() {
		// The parent-death signal comes when the thread that started the child ends: it is kept.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := cmd.Start()
		started <- err
		if err == nil {
			exit = cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // it has ended, unless the test failed
		<-ended
	})

	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute) // it may have to build Envoy's folder and itself
	defer cancel()
	if err := stack.Until(ctx, "make "+target+" to say what to try", func(context.Context) error {
		select {
		case <-ended:
			return stack.Final(fmt.Errorf("it ended: %w", exit))
		default:
		}
		if !strings.Contains(out.String(), "Ctrl-C stops everything.") {
			return errors.New("it has not yet")
		}
		return nil
	}); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out.String(), logsIn(temporary))
	}

	tries := readTries(out.String())
	if len(tries) < 8 {
		t.Errorf("make %s says too little to try:\n%s", target, out.String())
	}
	for _, try := range tries {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		argv := h.Argv("bash", "-c", try.command)
		cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
		cmd.Dir = root
		got, err := cmd.CombinedOutput()
		cancel()
		if !try.pattern().Match(bytes.TrimSpace(got)) {
			t.Errorf("$ %s\nprinted (%v):\n%s\nand make %s promised:\n%s", try.command, err, got, target, try.prints)
		}
	}
	if t.Failed() {
		t.Log(logsIn(temporary))
	}

	// Ctrl-C in a terminal goes to the whole foreground process group.
	if err := syscall.Kill(-cmd.Process.Pid, syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Fatalf("make %s did not end:\n%s", target, out.String())
	}
	if left, err := os.ReadDir(temporary); err != nil || len(left) > 0 {
		t.Errorf("make %s left files behind: %v %v", target, left, err)
	}
	if left := processesIn(t, temporary); len(left) > 0 {
		t.Errorf("make %s left processes behind: %v", target, left)
	}
	if left, _ := filepath.Glob("/run/netns/oooi-*"); target == "lab" && len(left) > 0 {
		t.Errorf("make lab left network namespaces behind: %v", left)
	}
}

// try is a command that the program printed, and what it promised.
type try struct{ command, prints string }

// readTries reads lines of the form "  $ command", followed by indented lines with what it prints.
func readTries(text string) []try {
	var tries []try
	open := false
	for line := range strings.Lines(text) {
		line = strings.TrimSuffix(line, "\n")
		switch {
		case strings.HasPrefix(line, "  $ "):
			tries = append(tries, try{command: strings.TrimPrefix(line, "  $ ")})
			open = true
		case open && strings.HasPrefix(line, "  "):
			last := &tries[len(tries)-1]
			last.prints = strings.TrimPrefix(last.prints+"\n"+line[2:], "\n")
		default:
			open = false
		}
	}
	return tries
}

// pattern matches what the command must print; "…" stands for any text.
func (t try) pattern() *regexp.Regexp {
	return regexp.MustCompile(`(?s)^` + strings.ReplaceAll(regexp.QuoteMeta(t.prints), "…", ".*") + `$`)
}

// output collects what a program prints, while it is read.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// logsIn gives the ends of the log files below a folder.
func logsIn(folder string) string {
	var b strings.Builder
	files, _ := filepath.Glob(filepath.Join(folder, "*", "logs", "*.log"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		fmt.Fprintf(&b, "%s:\n%s\n", filepath.Base(file), text[max(0, len(text)-4000):])
	}
	return b.String()
}

// processesIn lists the command lines that name a folder.
func processesIn(t *testing.T, folder string) []string {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err == nil && bytes.Contains(text, []byte(folder)) {
			found = append(found, string(bytes.ReplaceAll(text, []byte{0}, []byte{' '})))
		}
	}
	return found
}
