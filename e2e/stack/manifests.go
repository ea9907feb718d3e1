package stack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/densityops/oooi/examples"
)

// Manifests is a folder of manifests as a user would keep it.
type Manifests string

// TwoClusters writes the example of two clusters into a folder, with the replacements (old, new, …) made in it.
func TwoClusters(folder string, replacements ...string) (Manifests, error) {
	m := Manifests(folder)
	replacer := strings.NewReplacer(replacements...)
	files, err := fs.Glob(examples.TwoClusters, "two-clusters/*.yaml")
	if err != nil {
		return "", err
	}
	for _, file := range files {
		text, err := fs.ReadFile(examples.TwoClusters, file)
		if err != nil {
			return "", err
		}
		if err := m.Write(filepath.Base(file), replacer.Replace(string(text))); err != nil {
			return "", err
		}
	}
	return m, nil
}

// Write replaces a file in one step, as editors and configuration tools do.
func (m Manifests) Write(file, text string) error {
	temporary := filepath.Join(string(m), "."+file+".new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(string(m), file))
}

// Read gives the text of a file.
func (m Manifests) Read(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(m), file))
	return string(text), err
}

// Replace changes one text of a file into another; it is an error when the file does not hold it.
func (m Manifests) Replace(file, before, after string) error {
	text, err := m.Read(file)
	if err != nil {
		return err
	}
	if !strings.Contains(text, before) {
		return fmt.Errorf("%s does not hold %q", file, before)
	}
	return m.Write(file, strings.ReplaceAll(text, before, after))
}

// Remove deletes a file.
func (m Manifests) Remove(file string) error {
	return os.Remove(filepath.Join(string(m), file))
}
