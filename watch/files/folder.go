package files

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/densityops/oooi/watch/plan"
)

const (
	// stillToRead is how long a file must not have changed before it is read.
	stillToRead = 50 * time.Millisecond
	// stillToBelieve is how long a file must not have changed before it may take objects away.
	stillToBelieve = time.Second
	// maxFileSize is far above any real manifest: 10,000 Machines have about 5 MiB.
	maxFileSize = 64 << 20
)

// Result is what a folder says.
type Result struct {
	// Objects for the plan, in the order of namespaces and names.
	Objects plan.Objects
	// Problems are what is wrong with files and objects, in the order of files and lines.
	Problems []Problem
	// Warnings are kinds that are not used, one each.
	Warnings []Problem
}

// Load reads a folder once. Files and objects at fault are left out and reported in the Result, save that an object
// which only Validate finds fault with is kept as well, so that the plan can say what is wrong with it. The
// error is about the folder itself.
func Load(dir string) (Result, error) {
	d, err := newDecoder()
	if err != nil {
		return Result{}, err
	}
	return load(dir, d)
}

func load(dir string, d *decoder) (Result, error) {
	f := newFolder(dir, d, nil, slog.New(slog.DiscardHandler))
	if err := f.start(time.Time{}); err != nil {
		return Result{}, err
	}
	return Result{f.store.objects(), f.problems(), f.warnings()}, nil
}

// folder reads the files of a folder when they have changed. It has no clock: the caller says what time it is.
type folder struct {
	dir     string
	log     *slog.Logger
	decoder *decoder
	store   *store
	state   *state // nil: nothing is kept over a restart
	files   map[string]*file
	// trouble is with the folder or the state, not with one manifest.
	trouble map[string]Problem
	// odd are names that are no regular files, so that they are mentioned once.
	odd map[string]bool
}

// file is what is known of one file of the folder, or of one that was there.
type file struct {
	stamp   stamp
	changed time.Time
	// unread since the change; pending: read, but not yet believed in full.
	unread, pending bool
	// taken is the checksum of what was taken in last, nothing when that failed or was not believed in full.
	taken [sha256.Size]byte
}

// stamp tells two versions of a file apart without reading it. The zero stamp is a file that is not there.
type stamp struct {
	device, inode  uint64
	size           int64
	written, moved syscall.Timespec // mtime, ctime
	err            string           // why the file cannot be looked at
}

func stampOf(info fs.FileInfo) stamp {
	s := stamp{size: info.Size()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.device, s.inode, s.written, s.moved = sys.Dev, sys.Ino, sys.Mtim, sys.Ctim
	}
	return s
}

func newFolder(dir string, d *decoder, st *state, log *slog.Logger) *folder {
	return &folder{
		dir: dir, log: log, decoder: d, store: newStore(), state: st,
		files: map[string]*file{}, trouble: map[string]Problem{}, odd: map[string]bool{},
	}
}

func (f *folder) path(name string) string { return filepath.Join(f.dir, name) }

// start reads everything there is, at once: nothing has been served yet that could be taken away.
func (f *folder) start(now time.Time) error {
	if err := f.look(now); err != nil {
		return err
	}
	if f.state != nil {
		f.report(f.state.path, f.state.forget(slices.Collect(maps.Keys(f.files))))
	}
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		f.read(name, f.files[name], now, true, true)
	}
	f.store.settle()
	f.save()
	return nil
}

// look lists the folder and notes which files changed. An error means that the folder cannot be read; then nothing
// counts as changed.
func (f *folder) look(now time.Time) error {
	entries, err := os.ReadDir(f.dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("config folder %s does not exist: create it, or name another", f.dir)
		} else {
			err = fmt.Errorf("config folder %s cannot be read: %w", f.dir, err)
		}
		return err
	}
	there := make(map[string]bool, len(entries))
	for _, entry := range entries {
		if isManifest(entry.Name()) {
			there[entry.Name()] = true
			f.glance(entry.Name(), now, false)
		} else if entry.IsDir() && !f.odd[entry.Name()] {
			f.odd[entry.Name()] = true
			f.log.Debug("subfolder ignored", "path", f.path(entry.Name()))
		}
	}
	for name, known := range f.files {
		if !there[name] {
			known.note(stamp{}, now, false)
		}
	}
	return nil
}

// glance looks at one file without reading it; touched means that somebody saw it change.
func (f *folder) glance(name string, now time.Time, touched bool) {
	known := f.files[name]
	info, err := os.Stat(f.path(name))
	var s stamp
	switch {
	case err == nil && !info.Mode().IsRegular():
		if !f.odd[name] {
			f.odd[name] = true
			f.log.Debug("not a regular file, ignored", "path", f.path(name))
		}
	case err == nil:
		delete(f.odd, name)
		s = stampOf(info)
	default:
		// A link that leads nowhere is a file that cannot be read; a name that is not there is none at all.
		if _, linkErr := os.Lstat(f.path(name)); linkErr == nil {
			s.err = err.Error()
		}
	}
	if known == nil {
		if s == (stamp{}) {
			return
		}
		known = &file{}
		f.files[name] = known
	}
	known.note(s, now, touched)
}

func (k *file) note(s stamp, now time.Time, touched bool) {
	if s == k.stamp && !touched {
		return
	}
	k.stamp, k.changed, k.unread, k.pending = s, now, true, false
}

// step reads the files that have been still for long enough. It returns whether anything in force changed, and
// when to come back; the zero time means when something happens.
func (f *folder) step(now time.Time) (changed bool, next time.Time) {
	for _, name := range slices.Sorted(maps.Keys(f.files)) {
		k := f.files[name]
		still := now.Sub(k.changed)
		switch {
		case k.unread && still >= stillToRead, k.pending && still >= stillToBelieve:
			f.read(name, k, now, still >= stillToBelieve, false)
		}
	}
	for _, k := range f.files {
		var at time.Time
		switch {
		case k.unread:
			at = k.changed.Add(stillToRead)
		case k.pending:
			at = k.changed.Add(stillToBelieve)
		default:
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return f.store.settle(), next
}

// read takes in one file. At the start it is taken as it is; later a file that moves under the reader has its turn
// when it is still.
func (f *folder) read(name string, k *file, now time.Time, settled, starting bool) {
	path := f.path(name)
	if k.stamp == (stamp{}) {
		f.store.remove(path)
		delete(f.files, name)
		return
	}
	raw, read, err := readFile(path)
	k.unread, k.pending = false, false
	if err == nil && read != k.stamp {
		k.note(read, now, true)
		if !starting {
			return
		}
	}
	if err != nil {
		if _, linkErr := os.Lstat(path); linkErr != nil {
			k.note(stamp{}, now, true) // it went away in between
			return
		}
		f.seed(name, path)
		k.taken = [sha256.Size]byte{}
		f.store.fail(path, Problem{File: path, Message: fmt.Sprintf("cannot be read: %s", cause(err))})
		return
	}
	hash := sum(raw)
	if hash == k.taken {
		return // touched, or written again as it was
	}
	if !settled && len(raw) > 0 && raw[len(raw)-1] != '\n' && filepath.Ext(name) != ".json" {
		k.pending = true // its last line may go on
		return
	}
	c := f.decoder.read(path, raw)
	if !c.clean() {
		f.seed(name, path)
	}
	if f.store.update(path, c, settled) {
		k.pending, hash = true, [sha256.Size]byte{}
	}
	k.taken = hash
}

// seed brings back the last good objects of a file from before a restart, unless the file had its turn already.
func (f *folder) seed(name, path string) {
	if f.state == nil || f.store.files[path] != nil {
		return
	}
	objects, err := f.state.load(name, f.decoder)
	f.report(f.state.file(name), err)
	if len(objects) > 0 {
		f.store.seed(path, objects)
	}
}

// save keeps the last good objects of the files that changed.
func (f *folder) save() {
	if f.state == nil {
		return
	}
	for _, path := range f.store.dropped {
		f.report(path, f.state.drop(filepath.Base(path)))
	}
	f.store.dropped = nil
	for path, claims := range f.store.files {
		if !claims.changed {
			continue
		}
		name := filepath.Base(path)
		err := f.state.save(name, slices.Collect(maps.Values(claims.objects)))
		claims.changed = err != nil
		f.report(f.state.file(name), err)
	}
}

// report notes trouble with a path, or that there is none any more.
func (f *folder) report(path string, err error) {
	if err == nil {
		delete(f.trouble, path)
		return
	}
	f.trouble[path] = Problem{File: path, Message: err.Error()}
}

func (f *folder) problems() []Problem {
	all := f.store.problems()
	for _, p := range f.trouble {
		all = append(all, p)
	}
	sortProblems(all)
	return all
}

func (f *folder) warnings() []Problem { return f.store.warnings() }

// readFile reads a regular file of a bounded size, and says which version of it that was.
func readFile(path string) ([]byte, stamp, error) {
	// Not blocking: a pipe that took the file's place must not hold up the others.
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, stamp{}, err
	}
	defer func() { _ = file.Close() }() // only read
	before, err := file.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	if !before.Mode().IsRegular() {
		return nil, stamp{}, errors.New("it is not a regular file")
	}
	if before.Size() > maxFileSize {
		return nil, stamp{}, fmt.Errorf("it has %d bytes, more than %d: split it", before.Size(), maxFileSize)
	}
	var raw bytes.Buffer
	raw.Grow(int(before.Size()) + bytes.MinRead)
	if _, err := io.Copy(&raw, io.LimitReader(file, maxFileSize+1)); err != nil {
		return nil, stamp{}, err
	}
	after, err := file.Stat()
	if err != nil {
		return nil, stamp{}, err
	}
	s := stampOf(after)
	if int64(raw.Len()) != s.size {
		s = stamp{err: "it changed while it was read"}
	}
	return raw.Bytes(), s, nil
}

// cause is the reason of an error without the path, which the Problem has.
func cause(err error) error {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		return pathErr.Err
	}
	return err
}

// sum is the checksum of what is kept.
func sum(raw []byte) [sha256.Size]byte { return sha256.Sum256(raw) }
