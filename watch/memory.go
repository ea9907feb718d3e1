package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/google/renameio/v2"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// Memory remembers over restarts, where no cluster keeps the attachments' statuses: the sources of each attachment (product
// rule 10), the port of its public listener, and the VIP that is published. It is for one goroutine.
type Memory struct {
	path string
	// attachments by "namespace/name".
	attachments map[string]remembered
	// unwritten: they are not in the state folder yet.
	unwritten bool
}

// remembered is what is remembered of one attachment.
type remembered struct {
	Sources      []v1alpha1.Source `json:"sources,omitempty"`
	ExternalPort int32             `json:"externalPort,omitempty"`
	VIP          netip.Addr        `json:"vip,omitzero"`
}

// OpenMemory reads what was remembered in the state folder. A file that cannot be read as memory is put aside with
// a warning: routes by source then come back as Machines show their addresses, public listeners may get other ports, and of two
// attachments that show one VIP neither has it.
func OpenMemory(stateDir string, log *slog.Logger) (*Memory, error) {
	m := &Memory{path: filepath.Join(stateDir, "attachments.json"), attachments: map[string]remembered{}}
	data, err := os.ReadFile(m.path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("memory of attachments: %w", err)
	}
	if err := json.Unmarshal(data, &m.attachments); err != nil {
		aside := m.path + ".corrupt"
		if err := os.Rename(m.path, aside); err != nil {
			return nil, fmt.Errorf("memory of attachments: put the corrupt file aside: %w", err)
		}
		log.Warn("what was remembered of attachments is corrupt, starting without it", "file", m.path, "putAside", aside, "error", err)
		m.attachments = map[string]remembered{}
	}
	return m, nil
}

// Recall puts what is remembered into the statuses of the attachments, on copies of them.
func (m *Memory) Recall(objects *plan.Objects) {
	attachments := make([]*v1alpha1.InfraClusterAttachment, len(objects.Attachments))
	for i, a := range objects.Attachments {
		attachments[i] = a
		if r, known := m.attachments[a.Namespace+"/"+a.Name]; known {
			remembering := *a
			remembering.Status.Sources = r.Sources
			if r.ExternalPort != 0 {
				remembering.Status.ExternalService = &v1alpha1.ExternalServiceStatus{Port: r.ExternalPort}
			}
			attachments[i] = &remembering
		}
	}
	objects.Attachments = attachments
}

// Published are the VIPs that are published, for the next plan.
func (m *Memory) Published() map[types.NamespacedName]netip.Addr {
	vips := map[types.NamespacedName]netip.Addr{}
	for name, r := range m.attachments {
		if namespace, name, ok := strings.Cut(name, "/"); ok && r.VIP.IsValid() {
			vips[types.NamespacedName{Namespace: namespace, Name: name}] = r.VIP
		}
	}
	return vips
}

// Keep remembers what a plan says. It is durable when it returns without an error.
func (m *Memory) Keep(result *plan.Result) error {
	attachments := map[string]remembered{}
	keep := func(all []*plan.Attachment) {
		for _, a := range all {
			r := remembered{Sources: a.Status.Sources, VIP: a.VIP()}
			if external := a.Status.ExternalService; external != nil {
				r.ExternalPort = external.Port
			}
			if len(r.Sources) > 0 || r.ExternalPort != 0 || r.VIP.IsValid() {
				attachments[a.Key().String()] = r
			}
		}
	}
	for _, infra := range result.Infras {
		keep(infra.Attachments)
	}
	keep(result.Orphans)
	if maps.EqualFunc(attachments, m.attachments, func(x, y remembered) bool { return reflect.DeepEqual(x, y) }) && !m.unwritten {
		return nil
	}
	m.attachments, m.unwritten = attachments, true
	data, err := json.MarshalIndent(attachments, "", "  ")
	if err != nil {
		return fmt.Errorf("memory of attachments: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(m.path), 0o700); err != nil {
		return fmt.Errorf("memory of attachments: %w", err)
	}
	if err := renameio.WriteFile(m.path, append(data, '\n'), 0o600); err != nil {
		return fmt.Errorf("memory of attachments: %w", err)
	}
	m.unwritten = false
	return nil
}
