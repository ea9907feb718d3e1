package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"

	"github.com/google/renameio/v2"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// Memory remembers the sources of each attachment over restarts (product rule 10), where no
// cluster keeps the attachment's status. It is for one goroutine.
type Memory struct {
	path string
	// sources by attachment, "namespace/name".
	sources map[string][]v1alpha1.Source
}

// OpenMemory reads what was remembered in the state folder. A file that cannot be read as memory is put aside with
// a warning: routes by source then come back as Machines show their addresses.
func OpenMemory(stateDir string, log *slog.Logger) (*Memory, error) {
	m := &Memory{path: filepath.Join(stateDir, "sources.json"), sources: map[string][]v1alpha1.Source{}}
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("remembered sources: %w", err)
	}
	if err := json.Unmarshal(data, &m.sources); err != nil {
		aside := m.path + ".corrupt"
		if err := os.Rename(m.path, aside); err != nil {
			return nil, fmt.Errorf("remembered sources: put the corrupt file aside: %w", err)
		}
		log.Warn("remembered sources are corrupt, starting without them", "file", m.path, "putAside", aside, "error", err)
		m.sources = map[string][]v1alpha1.Source{}
	}
	return m, nil
}

// Recall puts what is remembered into the statuses of the attachments, on copies of them.
func (m *Memory) Recall(objects *plan.Objects) {
	attachments := make([]*v1alpha1.InfraClusterAttachment, len(objects.Attachments))
	for i, a := range objects.Attachments {
		attachments[i] = a
		if sources, known := m.sources[a.Namespace+"/"+a.Name]; known {
			remembering := *a
			remembering.Status.Sources = sources
			attachments[i] = &remembering
		}
	}
	objects.Attachments = attachments
}

// Keep remembers the sources of a plan. They are durable when it returns without an error.
func (m *Memory) Keep(result *plan.Result) error {
	sources := map[string][]v1alpha1.Source{}
	for _, infra := range result.Infras {
		for _, a := range infra.Attachments {
			if len(a.Status.Sources) > 0 {
				sources[a.Key().String()] = a.Status.Sources
			}
		}
	}
	if maps.EqualFunc(sources, m.sources, func(x, y []v1alpha1.Source) bool { return reflect.DeepEqual(x, y) }) {
		return nil
	}
	data, err := json.MarshalIndent(sources, "", "  ")
	if err != nil {
		return fmt.Errorf("remember sources: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return fmt.Errorf("remember sources: %w", err)
	}
	if err := renameio.WriteFile(m.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("remember sources: %w", err)
	}
	m.sources = sources
	return nil
}
