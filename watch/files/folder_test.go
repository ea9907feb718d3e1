package files

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// TestGivenVIP: of the status of an attachment the VIP counts, over a restart beside a broken file too, and nothing else; a status that makes no
// sense costs nothing.
func TestGivenVIP(t *testing.T) {
	vip := func(status string) string {
		w := newWorld(t, "a.yaml", `
apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: a, namespace: clusters}
spec: {infraRef: {name: vlan100}, hostedClusterRef: {name: a}, dns: {clusterName: a, baseDomain: example.com}}
status: `+status)
		write(t, w.dir, "a.yaml", "{") // and what was good stays, with its VIP
		w.restart()
		objects := w.folder.store.objects()
		if len(objects.Attachments) != 1 {
			t.Fatalf("%s: %d attachments", status, len(objects.Attachments))
		}
		s := objects.Attachments[0].Status
		if s.Domain != "" || len(s.Sources) > 0 || s.ExternalService != nil {
			t.Errorf("%s: more than the VIP was read: %+v", status, s)
		}
		if s.AppsIngressStatus == nil {
			return ""
		}
		if got, want := *s.AppsIngressStatus, (v1alpha1.AppsIngressStatus{ExternalIP: s.AppsIngressStatus.ExternalIP}); got != want {
			t.Errorf("%s: more than the VIP was read: %+v", status, got)
		}
		return s.AppsIngressStatus.ExternalIP
	}
	for status, want := range map[string]string{
		`{}`: "",
		`{appsIngressStatus: {externalIP: 192.0.2.200}}`: "192.0.2.200",
		`{domain: x, sources: [{machine: m, address: 192.0.2.9}], externalService: {port: 1}, appsIngressStatus: {phase: Degraded, externalIP: 192.0.2.200}}`: "192.0.2.200",
		`{appsIngressStatus: null}`:                                "",
		`{sources: 7, appsIngressStatus: {phase: Ready}}`:          "",
		`{appsIngressStatus: {phase: 7, externalIP: 192.0.2.200}}`: "192.0.2.200",
		`[]`: "",
	} {
		if got := vip(status); got != want {
			t.Errorf("%s: the VIP is %q, want %q", status, got, want)
		}
	}
}

// world is a folder with a clock that stands until somebody moves it.
type world struct {
	t        testing.TB
	dir      string
	stateDir string
	folder   *folder
	now      time.Time
}

func newWorld(t testing.TB, pairs ...string) *world {
	t.Helper()
	w := &world{t: t, dir: t.TempDir(), stateDir: t.TempDir(), now: time.Unix(1e9, 0)}
	write(t, w.dir, pairs...)
	w.restart()
	return w
}

// restart is a new process over the same folder and state.
func (w *world) restart() {
	w.t.Helper()
	st, err := openState(w.stateDir)
	if err != nil {
		w.t.Fatal(err)
	}
	w.folder = newFolder(w.dir, testDecoder(w.t), st, slog.New(slog.DiscardHandler))
	if err := w.folder.start(w.now); err != nil {
		w.t.Fatal(err)
	}
}

// write writes in place, as echo does, and lets the folder see it.
func (w *world) write(pairs ...string) {
	w.t.Helper()
	write(w.t, w.dir, pairs...)
	for i := 0; i < len(pairs); i += 2 {
		w.folder.glance(pairs[i], w.now, true)
	}
}

func (w *world) remove(name string) {
	w.t.Helper()
	if err := os.Remove(filepath.Join(w.dir, name)); err != nil {
		w.t.Fatal(err)
	}
	w.folder.glance(name, w.now, true)
}

// pass lets time go by; every moment at which the folder wants to be asked, it is.
func (w *world) pass(d time.Duration) {
	w.t.Helper()
	end := w.now.Add(d)
	for {
		_, next := w.folder.step(w.now)
		w.folder.save()
		if next.IsZero() || next.After(end) {
			w.now = end
			return
		}
		w.now = next
	}
}

// names are the objects in force, "kind/name=address" for Services, which have something to change.
func (w *world) names() string {
	var all []string
	o := w.folder.store.objects()
	for _, s := range o.Services {
		all = append(all, s.Name+"="+strings.TrimPrefix(s.Spec.ClusterIP, "10.0.0."))
	}
	return strings.Join(all, " ")
}

func (w *world) want(names string, problems ...string) {
	w.t.Helper()
	if got := w.names(); got != names {
		w.t.Errorf("in force: %s, want %s", got, names)
	}
	var got []string
	for _, p := range w.folder.problems() {
		got = append(got, strings.ReplaceAll(p.Error(), w.dir+"/", ""))
	}
	if !slices.Equal(got, problems) {
		w.t.Errorf("problems:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(problems, "\n"))
	}
}

// services is a file with Services: name, last number of the cluster IP, name, last number…
func services(pairs ...string) string {
	var b strings.Builder
	for i := 0; i < len(pairs); i += 2 {
		fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata:\n  name: %s\n  namespace: n1\nspec:\n  clusterIP: 10.0.0.%s\n---\n", pairs[i], pairs[i+1])
	}
	return b.String()
}

const (
	soon   = 60 * time.Millisecond   // long enough to be read
	later  = 900 * time.Millisecond  // not long enough to be believed when something is missing
	settle = 1100 * time.Millisecond // long enough for everything
)

func TestEdit(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"))
	w.want("a=1 b=2")
	w.write("a.yaml", services("a", "3", "b", "2"))
	w.pass(40 * time.Millisecond)
	w.want("a=1 b=2") // it may still be written to
	w.pass(20 * time.Millisecond)
	w.want("a=3 b=2")
	w.write("a.yaml", services("a", "3", "b", "2", "c", "4"))
	w.pass(soon)
	w.want("a=3 b=2 c=4")
	w.write("b.yaml", services("d", "5"))
	w.pass(soon)
	w.want("a=3 b=2 c=4 d=5")
}

func TestWriterThatDoesNotStop(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	for i := range 20 {
		w.write("a.yaml", services("a", fmt.Sprint(100+i)))
		w.pass(30 * time.Millisecond)
		w.want("a=1")
	}
	w.pass(soon)
	w.want("a=119")
}

func TestObjectLeavesWhenTheFileHasBeenStill(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2", "c", "3"))
	w.write("a.yaml", services("a", "9", "c", "3"))
	w.pass(later)
	w.want("a=9 b=2 c=3") // the change is there, what is missing stays
	w.pass(settle - later)
	w.want("a=9 c=3")
	w.write("a.yaml", "# nothing\n")
	w.pass(later)
	w.want("a=9 c=3")
	w.pass(settle - later)
	w.want("")
}

func TestLastLineWithoutItsEnd(t *testing.T) {
	w := newWorld(t, "a.yaml", strings.TrimSuffix(services("a", "1"), "\n---\n"))
	w.want("a=1") // at the start nothing can be taken away
	w.write("a.yaml", strings.TrimSuffix(services("a", "10"), "\n---\n"))
	w.pass(later)
	w.want("a=1")
	w.pass(settle - later)
	w.want("a=10")
}

func TestTruncatedAndWrittenAgain(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	w.write("a.yaml", "")
	w.pass(20 * time.Millisecond)
	w.want("a=1")
	w.write("a.yaml", services("a", "2"))
	w.pass(soon)
	w.want("a=2")
}

func TestEmptyFile(t *testing.T) {
	const empty = "a.yaml: is empty, as a write that was cut short leaves it: write the objects, or a comment if it shall have none"
	w := newWorld(t, "a.yaml", services("a", "1"))
	w.write("a.yaml", "")
	w.pass(time.Hour)
	w.want("a=1", empty+" (its object stays in force as it was last good)")
	w.write("a.yaml", services("a", "2"))
	w.pass(soon)
	w.want("a=2")
}

func TestBrokenFile(t *testing.T) {
	const problem = "a.yaml:2: is indented by a tab, which YAML does not allow: use spaces (its 2 objects stay in force as they were last good)"
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"), "b.yaml", services("c", "3"))
	w.write("a.yaml", "a:\n\tb: c\n", "b.yaml", services("c", "4"))
	w.pass(time.Hour)
	w.want("a=1 b=2 c=4", problem)
	w.restart() // the state is in the state folder
	w.want("a=1 b=2 c=4", problem)
	w.write("a.yaml", services("b", "5"))
	w.pass(settle)
	w.want("b=5 c=4")
}

func TestBrokenObjectKeepsItsLastGoodState(t *testing.T) {
	const problem = "a.yaml:7: Service n1/a: spec.clusterIP: must be a text, not a list (the object stays in force as it was last good)"
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"))
	w.write("a.yaml", strings.Replace(services("a", "1", "b", "3"), "10.0.0.1", "[10.0.0.1]", 1))
	w.pass(time.Hour)
	w.want("a=1 b=3", problem)
	w.restart()
	w.want("a=1 b=3", problem)
	w.write("a.yaml", services("a", "1", "b", "3"))
	w.pass(soon)
	w.want("a=1 b=3")
}

func TestInfraThatDoesNotValidate(t *testing.T) {
	page, err := os.ReadFile("testdata/page/page.yaml")
	if err != nil {
		t.Fatal(err)
	}
	good := string(page)
	bad := strings.Replace(good, "rangeEnd: 192.0.2.199", "rangeEnd: 192.0.2.9", 1)
	end := func(w *world) string { return w.folder.store.objects().Infras[0].Spec.InfraComponents.DHCP.RangeEnd }

	w := newWorld(t, "a.yaml", good)
	w.write("a.yaml", bad)
	w.pass(time.Hour)
	const what = "a.yaml:18: Infra clusters/tenant-vlan100: spec.infraComponents.dhcp.rangeEnd: 192.0.2.9 is below rangeStart 192.0.2.100: exchange the two"
	w.want("", what+" (the object stays in force as it was last good)")
	if end(w) != "192.0.2.199" {
		t.Errorf("range end %s", end(w))
	}
	w.restart()
	if end(w) != "192.0.2.199" {
		t.Errorf("after a restart: range end %s", end(w))
	}

	// With nothing better known the plan gets it, so that it can say on the Infra what is wrong.
	w = newWorld(t, "a.yaml", bad)
	w.want("", what)
	if end(w) != "192.0.2.9" {
		t.Errorf("range end %s", end(w))
	}
	w.write("a.yaml", good)
	w.pass(soon)
	w.want("")
	if end(w) != "192.0.2.199" {
		t.Errorf("range end %s", end(w))
	}
}

func TestNamelessObjectTakesNothingAway(t *testing.T) {
	const problem = "a.yaml:9: Service: metadata.name: is missing: give the object a name"
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"))
	w.write("a.yaml", services("a", "1")+"apiVersion: v1\nkind: Service\nmetadata: {namespace: n1}\n")
	w.pass(time.Hour)
	w.want("a=1 b=2", strings.Replace(problem, ":9:", ":11:", 1))
	w.restart()
	w.want("a=1 b=2", strings.Replace(problem, ":9:", ":11:", 1))
}

func TestDeletedFile(t *testing.T) {
	const gone = "a.yaml: the file is gone, its 2 objects stay in force: to remove on purpose, write a file with only a comment in its place, or restart"
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"), "z.yaml", services("z", "9"))
	w.remove("a.yaml")
	w.pass(time.Hour)
	w.want("a=1 b=2 z=9", gone)
	// Another file takes over what it has; the rest stays where it was.
	w.write("z.yaml", services("z", "9", "a", "3"))
	w.pass(settle)
	w.want("a=3 b=2 z=9", "a.yaml: the file is gone, its object stays in force: to remove on purpose, write a file with only a comment in its place, or restart")
	// Gone on purpose.
	w.write("a.yaml", "# nothing\n")
	w.pass(settle)
	w.want("a=3 z=9")
}

func TestDeletedFileAfterARestart(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"), "z.yaml", services("z", "9"))
	w.remove("a.yaml")
	w.pass(settle)
	w.restart()
	w.want("z=9")
	w.write("a.yaml", "")
	w.pass(settle)
	w.want("z=9", "a.yaml: is empty, as a write that was cut short leaves it: write the objects, or a comment if it shall have none")
}

func TestRenamedFile(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"))
	if err := os.Rename(filepath.Join(w.dir, "a.yaml"), filepath.Join(w.dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := w.folder.look(w.now); err != nil {
		t.Fatal(err)
	}
	w.pass(soon)
	w.want("a=1 b=2")
	w.restart()
	w.want("a=1 b=2")
}

func TestFileReplacedByARename(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	write(t, w.dir, ".a.yaml.swp", services("a", "2"))
	if err := os.Rename(filepath.Join(w.dir, ".a.yaml.swp"), filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := w.folder.look(w.now); err != nil {
		t.Fatal(err)
	}
	w.pass(soon)
	w.want("a=2")
}

func TestObjectMovesToAnotherFile(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1", "b", "2"), "z.yaml", services("z", "9"))
	w.write("a.yaml", services("b", "2"), "z.yaml", services("z", "9", "a", "1"))
	w.pass(soon)
	w.want("a=1 b=2 z=9") // and nobody calls it a duplicate
	w.pass(settle)
	w.want("a=1 b=2 z=9")
}

func TestTouched(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	held := w.folder.store.held[key{"", "Service", "n1", "a"}].object
	w.write("a.yaml", services("a", "1"))
	w.pass(settle)
	w.want("a=1")
	if w.folder.store.held[held.key].object != held {
		t.Error("read again")
	}
	w.write("a.yaml", "")
	w.pass(settle)
	w.write("a.yaml", services("a", "1"))
	w.pass(settle)
	w.want("a=1") // and the problem is gone
}

func TestDuplicates(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"), "b.yaml", services("a", "2", "b", "2"))
	w.want("a=1 b=2", "b.yaml:1: Service n1/a: is in a.yaml:1 as well, which stays in force: remove one of the two")
	// Who is in force stays, even when a name before it turns up.
	w.write("0.yaml", services("a", "0"))
	w.pass(settle)
	w.want("a=1 b=2",
		"0.yaml:1: Service n1/a: is in a.yaml:1 as well, which stays in force: remove one of the two",
		"b.yaml:1: Service n1/a: is in a.yaml:1 as well, which stays in force: remove one of the two")
	// Its file gives it up: the next has it.
	w.write("a.yaml", "# none\n", "0.yaml", "# none\n")
	w.pass(settle)
	w.want("a=2 b=2")
	// Twice in one file: what is in force stays.
	w.write("b.yaml", services("a", "3", "a", "2", "b", "2"))
	w.pass(settle)
	w.want("a=2 b=2", "b.yaml:1: Service n1/a: is on line 9 of this file as well, which counts: remove one of the two")
}

func TestUnreadable(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"), "b.yaml", services("b", "2"))
	if err := os.Remove(filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("nowhere", filepath.Join(w.dir, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	w.folder.glance("a.yaml", w.now, true)
	w.pass(time.Hour)
	w.want("a=1 b=2", "a.yaml: cannot be read: no such file or directory (its object stays in force as it was last good)")
	w.restart()
	w.want("a=1 b=2", "a.yaml: cannot be read: no such file or directory (its object stays in force as it was last good)")
}

func TestTooLarge(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	if err := os.Truncate(filepath.Join(w.dir, "a.yaml"), maxFileSize+1); err != nil {
		t.Fatal(err)
	}
	w.folder.glance("a.yaml", w.now, true)
	w.pass(settle)
	w.want("a=1", "a.yaml: cannot be read: it has 67108865 bytes, more than 67108864: split it (its object stays in force as it was last good)")
}

func TestFolderGoneAndBack(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	away := w.dir + ".away"
	if err := os.Rename(w.dir, away); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(away) })
	if err := w.folder.look(w.now); err == nil {
		t.Error("no error without the folder")
	}
	w.pass(time.Hour)
	w.want("a=1")
	if err := os.Rename(away, w.dir); err != nil {
		t.Fatal(err)
	}
	w.write("a.yaml", services("a", "2"))
	w.pass(soon)
	w.want("a=2")
}

func TestFolderMissingAtTheStart(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "nowhere"))
	if err == nil || !strings.Contains(err.Error(), "does not exist: create it") {
		t.Error(err)
	}
}

func TestOtherThingsInTheFolder(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"), ".hidden.yaml", services("b", "2"), "notes.txt", "text", "c.yaml~", "x", "d.yml", services("d", "4"),
		"e.json", `{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "e", "namespace": "n1"}, "spec": {"clusterIP": "10.0.0.5"}}`)
	if err := os.Mkdir(filepath.Join(w.dir, "folder.yaml"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := w.folder.look(w.now); err != nil {
		t.Fatal(err)
	}
	w.pass(settle)
	w.want("a=1 d=4 e=5")
}

func TestCorruptState(t *testing.T) {
	w := newWorld(t, "a.yaml", services("a", "1"))
	kept := w.folder.state.file("a.yaml")
	raw, err := os.ReadFile(kept)
	if err != nil {
		t.Fatal(err)
	}
	for _, corrupt := range []string{"", "{", strings.Replace(string(raw), `10.0.0.1`, `10.0.0.7`, 1), string(raw[:len(raw)/2])} {
		if err := os.WriteFile(kept, []byte(corrupt), 0o600); err != nil {
			t.Fatal(err)
		}
		w.write("a.yaml", "")
		w.restart()
		if w.names() != "" {
			t.Errorf("%q: %s", corrupt, w.names())
		}
		if p := w.folder.problems(); len(p) != 2 || !strings.Contains(p[0].Error()+p[1].Error(), "corrupt") {
			t.Errorf("%q: %v", corrupt, p)
		}
		w.write("a.yaml", services("a", "1"))
		w.pass(soon)
		w.want("a=1") // kept anew, so the trouble is over
	}
}

// TestEveryPrefix cuts manifests short at every byte, as an interrupted write does, and leaves them so for nearly a
// second: no object may be missing, nor be anything but its last good or its new state.
func TestEveryPrefix(t *testing.T) {
	page, err := os.ReadFile("testdata/page/page.yaml")
	if err != nil {
		t.Fatal(err)
	}
	neighbours, err := os.ReadFile("testdata/neighbours.yaml")
	if err != nil {
		t.Fatal(err)
	}
	before := string(page) + "---\n" + string(neighbours)
	for name, after := range map[string]string{
		"the same again": before,
		"values changed": strings.NewReplacer("198.51.100.53", "198.51.100.54", "192.0.2.199", "192.0.2.189", "baseDomain: clusters", "baseDomain: tenants", "192.0.2.117", "192.0.2.118").Replace(before),
		"fields added": strings.NewReplacer("  - 198.51.100.53\n", "  - 198.51.100.53\n      - 198.51.100.54\n",
			"    baseDomain: clusters.example.com\n", "    baseDomain: clusters.example.com\n  controlPlaneNamespace: elsewhere\n").Replace(before),
		"fields removed": strings.NewReplacer("      internalProxyService: tenant-vlan100-proxy.clusters.svc.cluster.local\n", "",
			"  - type: InternalIP\n    address: 192.0.2.118\n", "").Replace(before),
		"a cluster added": strings.Replace(before, "name: example-hcp-b\n  namespace", "name: example-hcp-c\n  namespace", 1) + "---\n" +
			string(page)[strings.LastIndex(string(page), "---\n")+4:],
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a.yaml", before)
			w.folder.state = nil // nothing is restarted here
			old, start := w.raws(), w.folder.store
			w.folder.store = start.clone()
			w.write("a.yaml", after)
			w.pass(settle)
			if p := w.folder.problems(); len(p) > 0 {
				t.Fatal(p)
			}
			full := w.raws()
			// The file stays open, and is not truncated to nothing: file systems wait for the disk then.
			file, err := os.OpenFile(filepath.Join(w.dir, "a.yaml"), os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = file.Close() })
			overwrite := func(content string) {
				t.Helper()
				_, err := file.WriteAt([]byte(content), 0)
				if err := errors.Join(err, file.Truncate(int64(len(content)))); err != nil {
					t.Fatal(err)
				}
				w.folder.glance("a.yaml", w.now, true)
			}
			check := func(n int) {
				t.Helper()
				overwrite(after[:n])
				w.pass(later)
				got := w.folder.store.held
				for k, raw := range old {
					now, there := got[k]
					if !there {
						t.Fatalf("prefix of %d bytes: %s is missing:\n%s", n, k, after[:n])
					}
					if string(now.object.raw) != raw && string(now.object.raw) != full[k] {
						t.Fatalf("prefix of %d bytes: %s is neither old nor new: %s", n, k, now.object.raw)
					}
				}
				for k, now := range got {
					if old[k] == "" && string(now.object.raw) != full[k] {
						t.Fatalf("prefix of %d bytes: %s is not the new one: %s", n, k, now.object.raw)
					}
				}
			}
			// A slow writer: one byte after the other.
			w.folder.store = start.clone()
			for n := range len(after) {
				check(n)
			}
			// A writer that was cut off at the end of a line, and tries again. (Within a line, nothing was read above.)
			for n := range len(after) {
				if n > 0 && after[n-1] != '\n' {
					continue
				}
				w.folder.store = start.clone()
				check(n)
				if n%10 != 0 {
					continue
				}
				overwrite(after)
				w.pass(settle)
				if !maps.Equal(w.raws(), full) {
					t.Fatalf("after a prefix of %d bytes the full file does not give the new state", n)
				}
			}
		})
	}
}

// clone is a store that can go its own way.
func (s *store) clone() *store {
	c := newStore()
	maps.Copy(c.held, s.held)
	for path, f := range s.files {
		own := *f
		own.objects = maps.Clone(f.objects)
		c.files[path] = &own
	}
	return c
}

func (w *world) raws() map[key]string {
	all := map[key]string{}
	for k, h := range w.folder.store.held {
		all[k] = string(h.object.raw)
	}
	return all
}

func TestNeighbours(t *testing.T) {
	dir := t.TempDir()
	raw, err := os.ReadFile("testdata/neighbours.yaml")
	if err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", string(raw))
	r, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range r.Problems {
		t.Error(p.Error())
	}
	o := r.Objects
	if len(o.HostedClusters) != 1 || len(o.NodePools) != 1 || len(o.Machines) != 3 || len(o.VMIs) != 1 || len(o.Services) != 1 || len(o.Endpoints) != 1 {
		t.Fatalf("%+v", o)
	}
	if got := strings.Join(o.Namespaces, " "); got != "clusters clusters-example-hcp-a empty only-a-secret" {
		t.Errorf("namespaces %s", got)
	}
	want := plan.Machine{Namespace: "clusters-example-hcp-a", Name: "m1", UID: "clusters-example-hcp-a/m1", NodePool: "clusters/pool-a", Addresses: []string{"192.0.2.117", "worker-1"}}
	if fmt.Sprint(*o.Machines[0]) != fmt.Sprint(want) {
		t.Errorf("got  %+v\nwant %+v", *o.Machines[0], want)
	}
	if o.Machines[1].UID != "u2" {
		t.Errorf("uid %s", o.Machines[1].UID)
	}
	if got := fmt.Sprint(o.VMIs[0].Interfaces); got != "[{52:54:00:12:34:56 [192.0.2.117 10.0.0.9]}]" {
		t.Errorf("interfaces %s", got)
	}
	if got := strings.Join(o.Endpoints[0].Addresses, " "); o.Endpoints[0].Service != "kube-apiserver" || got != "10.128.0.7 10.128.0.9" {
		t.Errorf("endpoints of %s: %s", o.Endpoints[0].Service, got)
	}
}
