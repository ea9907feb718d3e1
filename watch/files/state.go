package files

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/renameio/v2"
)

// state keeps the last good objects of each file in a folder of its own, so that a process that starts with a broken
// file serves what was good. One file for each, replaced in one go.
type state struct {
	path string
}

// saved is the form of one kept file. The checksum is over the bytes of Objects.
type saved struct {
	File    string          `json:"file"`
	SHA256  string          `json:"sha256"`
	Objects json.RawMessage `json:"objects"`
}

// savedObject is one kept object: the manifest as it was last good, and the line it was on.
type savedObject struct {
	Line     int             `json:"line"`
	Manifest json.RawMessage `json:"manifest"`
}

// openState makes the folder for what is kept.
func openState(dir string) (*state, error) {
	path := filepath.Join(dir, "files")
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("state folder: %w", err)
	}
	return &state{path}, nil
}

// file is where the objects of a file are kept. Long names are replaced by their checksum.
func (s *state) file(name string) string {
	escaped := url.PathEscape(name)
	if len(escaped) > 200 {
		hash := sum([]byte(name))
		escaped = hex.EncodeToString(hash[:])
	}
	return filepath.Join(s.path, escaped+".last-good")
}

// save replaces what is kept of a file. It is durable when save returns.
func (s *state) save(name string, objects []*object) error {
	list := []savedObject{}
	slices.SortFunc(objects, func(a, b *object) int { return a.line - b.line })
	for _, o := range objects {
		if !o.doubtful {
			list = append(list, savedObject{o.line, o.raw})
		}
	}
	raw, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("the last good state cannot be kept: %w", err)
	}
	hash := sum(raw)
	whole, err := json.Marshal(saved{name, hex.EncodeToString(hash[:]), raw})
	if err != nil {
		return fmt.Errorf("the last good state cannot be kept: %w", err)
	}
	if err := renameio.WriteFile(s.file(name), whole, 0o600); err != nil {
		return fmt.Errorf("the last good state cannot be kept, so a restart with a broken %s would lose its objects: %w", name, cause(err))
	}
	return nil
}

// load returns what is kept of a file; nothing when nothing is.
func (s *state) load(name string, d *decoder) ([]*object, error) {
	raw, err := os.ReadFile(s.file(name))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the last good state cannot be read: %w", cause(err))
	}
	var kept saved
	if err := json.Unmarshal(raw, &kept); err != nil {
		return nil, fmt.Errorf("the last good state of %s is corrupt and was ignored: %w", name, err)
	}
	if hash := sum(kept.Objects); kept.File != name || kept.SHA256 != hex.EncodeToString(hash[:]) {
		return nil, fmt.Errorf("the last good state of %s is corrupt and was ignored: its checksum does not match", name)
	}
	var list []savedObject
	if err := json.Unmarshal(kept.Objects, &list); err != nil {
		return nil, fmt.Errorf("the last good state of %s is corrupt and was ignored: %w", name, err)
	}
	var objects []*object
	for _, o := range list {
		c := d.read(name+".json", o.Manifest)
		if len(c.problems) > 0 {
			return objects, fmt.Errorf("the last good state of %s holds an object that is not understood any more and was ignored: %w", name, c.problems[0])
		}
		for _, object := range c.objects {
			object.line = o.Line
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// drop removes what is kept of one file.
func (s *state) drop(name string) error {
	if err := os.Remove(s.file(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the last good state of a file that is gone cannot be removed: %w", cause(err))
	}
	return nil
}

// forget removes what is kept of files that are gone: after a restart, gone is gone.
func (s *state) forget(names []string) error {
	keep := map[string]bool{}
	for _, name := range names {
		keep[filepath.Base(s.file(name))] = true
	}
	entries, err := os.ReadDir(s.path)
	if err != nil {
		return fmt.Errorf("the last good state cannot be read: %w", cause(err))
	}
	for _, entry := range entries {
		if keep[entry.Name()] || !strings.Contains(entry.Name(), ".last-good") {
			continue
		}
		if err := os.Remove(filepath.Join(s.path, entry.Name())); err != nil {
			return fmt.Errorf("the last good state of a file that is gone cannot be removed: %w", err)
		}
	}
	return nil
}
