package files

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/densityops/oooi/watch/plan"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// running is a Source at work.
type running struct {
	t       *testing.T
	dir     string
	source  *Source
	objects chan plan.Objects
	log     *lockedBuffer
}

// lockedBuffer is a log that can be read while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func run(t *testing.T, dir, stateDir string) *running {
	t.Helper()
	r := &running{t: t, dir: dir, objects: make(chan plan.Objects, 100), log: &lockedBuffer{}}
	var err error
	r.source, err = New(Config{Dir: dir, StateDir: stateDir, Log: slog.New(slog.NewTextHandler(r.log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.source.Run(ctx, func(o plan.Objects) { r.objects <- o }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return r
}

// deadline is when a test gives up; nothing is measured.
const deadline = 20 * time.Second

// until waits for objects that look so.
func (r *running) until(names string) {
	r.t.Helper()
	last := "nothing"
	timeout := time.After(deadline)
	for {
		select {
		case o := <-r.objects:
			var all []string
			for _, s := range o.Services {
				all = append(all, s.Name+"="+strings.TrimPrefix(s.Spec.ClusterIP, "10.0.0."))
			}
			if last = strings.Join(all, " "); last == names {
				return
			}
		case <-timeout:
			r.t.Fatalf("last got %s, want %s; problems %v", last, names, r.source.Problems())
		}
	}
}

// wait waits for something to become true.
func (r *running) wait(what string, ok func() bool) {
	r.t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	timeout := time.After(deadline)
	for !ok() {
		select {
		case <-tick.C:
		case <-timeout:
			r.t.Fatalf("%s: not within %s; problems %v", what, deadline, r.source.Problems())
		}
	}
}

func TestSourceFollowsEdits(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", services("a", "1", "b", "2"))
	r := run(t, dir, t.TempDir())
	r.until("a=1 b=2")
	write(t, dir, "a.yaml", services("a", "3", "b", "2"))
	r.until("a=3 b=2")
	write(t, dir, "new.yaml", services("c", "4"))
	r.until("a=3 b=2 c=4")
	write(t, dir, "a.yaml", services("a", "3"))
	r.until("a=3 c=4")
}

func TestSourceLogsAProblemOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "a.yaml", services("a", "1"))
	r := run(t, dir, "")
	r.until("a=1")
	problems := func(n int) func() bool { return func() bool { return len(r.source.Problems()) == n } }
	write(t, dir, "a.yaml", "a: [\n")
	r.wait("the problem", problems(1))
	// The same mistake again, further down: still the one problem. The new file shows that it was read.
	write(t, dir, "a.yaml", "\n\na: [\n", "b.yaml", services("b", "2"))
	r.until("a=1 b=2")
	write(t, dir, "a.yaml", services("a", "1"))
	r.wait("the fix", problems(0))
	log := r.log.String()
	if strings.Count(log, "level=ERROR") != 1 || strings.Count(log, `msg="fixed: `) != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestSourceWarnsOncePerKind(t *testing.T) {
	dir := t.TempDir()
	pod := "apiVersion: v1\nkind: Pod\nmetadata: {name: p, namespace: n1}\n---\n"
	write(t, dir, "a.yaml", pod+strings.Replace(pod, "name: p", "name: q", 1), "b.yaml", services("b", "2"), "c.yaml", strings.Replace(pod, "name: p", "name: r", 1))
	r := run(t, dir, "")
	r.until("b=2")
	if got := r.source.Warnings(); len(got) != 1 || got[0].Line != 1 {
		t.Errorf("%v", got)
	}
	if log := r.log.String(); strings.Count(log, "level=WARN") != 1 {
		t.Errorf("log:\n%s", log)
	}
}

func TestSourceConfigMapMount(t *testing.T) {
	dir := t.TempDir()
	mount := func(version string, pairs ...string) {
		if err := os.Mkdir(filepath.Join(dir, version), 0o755); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, version), pairs...)
		if err := os.Symlink(version, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	mount("..2026_01", "a.yaml", services("a", "1"))
	if err := os.Symlink("..data/a.yaml", filepath.Join(dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	r := run(t, dir, "")
	r.until("a=1")
	mount("..2026_02", "a.yaml", services("a", "2"))
	r.until("a=2")
	if err := os.RemoveAll(filepath.Join(dir, "..2026_01")); err != nil {
		t.Fatal(err)
	}
	mount("..2026_03", "a.yaml", services("a", "3"))
	r.until("a=3")
	if p := r.source.Problems(); len(p) != 0 {
		t.Error(p)
	}
}

func TestSourceFolderGoneAndBack(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "config")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", services("a", "1"))
	r := run(t, dir, "")
	r.until("a=1")
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	r.wait("the folder is missed", func() bool {
		for _, p := range r.source.Problems() {
			if strings.Contains(p.Message, "does not exist") {
				return true
			}
		}
		return false
	})
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", services("a", "2"))
	r.until("a=2")
	r.wait("all is well", func() bool { return len(r.source.Problems()) == 0 })
	write(t, dir, "a.yaml", services("a", "3"))
	r.until("a=3")
}

func TestSourceStartsWithABrokenFile(t *testing.T) {
	dir, stateDir := t.TempDir(), t.TempDir()
	write(t, dir, "a.yaml", services("a", "1"))
	t.Run("before", func(t *testing.T) {
		run(t, dir, stateDir).until("a=1")
	})
	write(t, dir, "a.yaml", "a: [\n")
	r := run(t, dir, stateDir)
	r.until("a=1")
	if p := r.source.Problems(); len(p) != 1 || !strings.Contains(p[0].Message, "its object stays in force") {
		t.Error(p)
	}
}

func TestSourceWithoutAFolder(t *testing.T) {
	s, err := New(Config{Dir: filepath.Join(t.TempDir(), "nowhere"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Run(context.Background(), func(plan.Objects) { t.Error("objects from nowhere") })
	if err == nil || !strings.Contains(err.Error(), "nowhere does not exist: create it") {
		t.Error(err)
	}
}
