package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

func TestMemoryOutlivesTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	sources := []v1alpha1.Source{{Machine: "worker-0", UID: "u1", Address: "192.0.2.117", MAC: "52:54:00:00:01:17"}}

	m := openMemory(t, dir)
	if err := m.Keep(planWith("a", sources)); err != nil {
		t.Fatal(err)
	}
	attachment := &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "a"}}
	objects := plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attachment}}
	openMemory(t, dir).Recall(&objects)
	if d := cmp.Diff(sources, objects.Attachments[0].Status.Sources); d != "" {
		t.Errorf("after a restart (-kept +recalled):\n%s", d)
	}
	if e := objects.Attachments[0].Status.ExternalService; e == nil || e.Port != 20007 {
		t.Errorf("the port of the public listener after a restart: %v", e)
	}
	if attachment.Status.Sources != nil || attachment.Status.ExternalService != nil {
		t.Error("Recall changed the object that it was given")
	}

	if err := m.Keep(planWith("a", nil)); err != nil {
		t.Fatal(err)
	}
	objects = plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attachment}}
	openMemory(t, dir).Recall(&objects)
	if got := objects.Attachments[0].Status; len(got.Sources) != 0 || got.ExternalService != nil {
		t.Errorf("what the plan dropped came back: %v", got)
	}
}

func TestMemoryThatIsCorruptIsPutAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "attachments.json")
	if err := os.WriteFile(path, []byte(`{"clusters/a": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := openMemory(t, dir)
	if _, err := os.Stat(path + ".corrupt"); err != nil {
		t.Errorf("the corrupt file is not kept for a look: %v", err)
	}
	if err := m.Keep(planWith("a", []v1alpha1.Source{{Machine: "m", Address: "192.0.2.1"}})); err != nil {
		t.Fatal(err)
	}
	if got := openMemory(t, dir).attachments["clusters/a"].Sources; len(got) != 1 {
		t.Errorf("memory does not work after a corrupt file: %v", got)
	}
}

func openMemory(t *testing.T, dir string) *Memory {
	t.Helper()
	m, err := OpenMemory(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func planWith(name string, sources []v1alpha1.Source) *plan.Result {
	a := &plan.Attachment{Object: &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}}
	a.Status.Sources = sources
	if len(sources) > 0 {
		a.Status.ExternalService = &v1alpha1.ExternalServiceStatus{Port: 20007}
	}
	return &plan.Result{Infras: []*plan.Infra{{
		Object:      &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "vlan"}},
		Attachments: []*plan.Attachment{a},
	}}}
}
