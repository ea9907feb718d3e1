package files

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/densityops/oooi/watch/plan"
)

// lookEvery is how often the folder is looked at without being told: for file systems that tell nobody, events
// that were lost, and a folder that was taken away and put back.
const lookEvery = time.Second

// Config is what a Source needs.
type Config struct {
	// Dir is the folder with the manifests.
	Dir string
	// StateDir is where the last good objects are kept over a restart, in a folder "files" of it that nobody
	// else may use. Empty: nothing is kept.
	StateDir string
	// Log gets each problem once when it appears and once when it is gone.
	Log *slog.Logger
}

// Source watches a folder of manifests.
type Source struct {
	dir    string
	log    *slog.Logger
	folder *folder

	mu       sync.Mutex
	problems []Problem
	warnings []Problem
}

// New prepares a Source, and the folder that it keeps its state in. It does not read the manifests.
func New(c Config) (*Source, error) {
	var st *state
	if c.StateDir != "" {
		var err error
		if st, err = openState(c.StateDir); err != nil {
			return nil, err
		}
	}
	d, err := newDecoder()
	if err != nil {
		return nil, err
	}
	return &Source{dir: c.Dir, log: c.Log, folder: newFolder(c.Dir, d, st, c.Log)}, nil
}

// Problems are those that there are now, in the order of files and lines. It may be called at any time.
func (s *Source) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}

// Warnings are the kinds that are not used, one each. It may be called at any time.
func (s *Source) Warnings() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.warnings)
}

// Run hands on everything that the folder has, and then all of it again after each change of what is in force,
// until the context ends; then it returns nil. deliver is called by one goroutine, one call after the
// other, and must not change the objects. An error means that the folder cannot be read at the start.
func (s *Source) Run(ctx context.Context, deliver func(plan.Objects)) error {
	// The watch comes first, so that no change falls between.
	w := s.watch()
	defer w.close()
	if err := s.folder.start(time.Now()); err != nil {
		return err
	}
	s.publish()
	deliver(s.folder.store.objects())

	look := time.NewTicker(lookEvery)
	defer look.Stop()
	wake := time.NewTimer(0)
	defer wake.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case event := <-w.events:
			s.event(event)
		case err := <-w.errors:
			s.log.Debug("watch of the config folder lost events, looking at all files", "path", s.dir, "err", err)
			s.look()
		case <-look.C:
			w.renew()
			s.look()
		case <-wake.C:
		}
		changed, next := s.folder.step(time.Now())
		s.publish()
		if changed {
			deliver(s.folder.store.objects())
		}
		s.folder.save()
		s.publish()
		if !next.IsZero() {
			wake.Reset(max(0, time.Until(next)))
		}
	}
}

// event takes in one event: of one manifest, or of something that may concern all (a ConfigMap's ..data).
func (s *Source) event(e fsnotify.Event) {
	if name := filepath.Base(e.Name); isManifest(name) && filepath.Clean(e.Name) == filepath.Clean(s.folder.path(name)) {
		s.folder.glance(name, time.Now(), true)
		return
	}
	if strings.HasPrefix(filepath.Base(e.Name), ".") && !strings.HasPrefix(filepath.Base(e.Name), "..") {
		return // an editor's swap file
	}
	s.look()
}

// look looks at all files. A folder that is gone takes nothing away.
func (s *Source) look() { s.folder.report(s.dir, s.folder.look(time.Now())) }

// publish makes the problems known, and logs those that are new and those that are no more.
func (s *Source) publish() {
	problems, warnings := s.folder.problems(), s.folder.warnings()
	s.mu.Lock()
	before, warned := s.problems, s.warnings
	s.problems, s.warnings = problems, warnings
	s.mu.Unlock()
	for _, p := range missing(problems, before) {
		s.log.Error(p.Message, p.attributes()...)
	}
	for _, p := range missing(before, problems) {
		s.log.Info("fixed: "+p.Message, p.attributes()...)
	}
	for _, p := range missing(warnings, warned) {
		s.log.Warn(p.Message, p.attributes()...)
	}
}

// missing are the problems of one list that another has not.
func missing(list, other []Problem) []Problem {
	if len(list) == 0 {
		return nil
	}
	known := make(map[Problem]bool, len(other))
	for _, p := range other {
		known[p.same()] = true
	}
	var out []Problem
	for _, p := range list {
		if same := p.same(); !known[same] {
			known[same] = true
			out = append(out, p)
		}
	}
	return out
}

func (p Problem) attributes() []any {
	attributes := []any{"file", p.File}
	if p.Line > 0 {
		attributes = append(attributes, "line", p.Line)
	}
	if p.Object != "" {
		attributes = append(attributes, "object", p.Object)
	}
	if p.Field != "" {
		attributes = append(attributes, "field", p.Field)
	}
	return attributes
}

// watcher tells about changes in the folder, as far as the system can tell.
type watcher struct {
	dir     string
	log     *slog.Logger
	notify  *fsnotify.Watcher
	events  chan fsnotify.Event
	errors  chan error
	watched os.FileInfo // the folder that is watched; another may have taken its name
}

func (s *Source) watch() *watcher {
	w := &watcher{dir: s.dir, log: s.log}
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		s.log.Warn("the system gives no notice of changes, looking every second instead", "path", s.dir, "err", err)
		return w
	}
	w.notify, w.events, w.errors = notify, notify.Events, notify.Errors
	w.renew()
	return w
}

// renew watches the folder that has the name now.
func (w *watcher) renew() {
	if w.notify == nil {
		return
	}
	info, err := os.Stat(w.dir)
	if err != nil {
		w.watched = nil // whoever looks at the folder says so
		return
	}
	if w.watched != nil && os.SameFile(w.watched, info) {
		return
	}
	if w.watched != nil {
		if err := w.notify.Remove(w.dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			w.log.Debug("watch of the folder before not removed", "path", w.dir, "err", err)
		}
	}
	if err := w.notify.Add(w.dir); err != nil {
		w.log.Warn("the system gives no notice of changes, looking every second instead", "path", w.dir, "err", err)
		return
	}
	w.watched = info
}

func (w *watcher) close() {
	if w.notify != nil {
		if err := w.notify.Close(); err != nil {
			w.log.Debug("watch not closed", "path", w.dir, "err", err)
		}
	}
}
