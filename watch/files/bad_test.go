package files

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
	yaml "go.yaml.in/yaml/v3"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

var update = flag.Bool("update", false, "rewrite what the tables of bad manifests expect")

var sharedDecoder = sync.OnceValues(newDecoder)

// testDecoder is one for all tests: it has no state of its own, and takes long to make under the race detector.
func testDecoder(t testing.TB) *decoder {
	t.Helper()
	d, err := sharedDecoder()
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// loadErrors are the lines that a folder gives, with the paths below it.
func loadErrors(t *testing.T, dir string) string {
	t.Helper()
	r, err := load(dir, testDecoder(t))
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, p := range r.Problems {
		fmt.Fprintln(&b, strings.ReplaceAll(p.Error(), dir+"/", ""))
	}
	for _, p := range r.Warnings {
		fmt.Fprintln(&b, "warning: "+strings.ReplaceAll(p.Error(), dir+"/", ""))
	}
	return b.String()
}

// TestBadFields sets every field of every kind to something wrong, one after the other. A table testdata/bad/KIND.txt
// has records "path = wrong value", each followed by the exact errors that KIND.yaml gives then.
func TestBadFields(t *testing.T) {
	tables, err := filepath.Glob("testdata/bad/*.txt")
	if err != nil || len(tables) == 0 {
		t.Fatal("no tables", err)
	}
	for _, table := range tables {
		kind := strings.TrimSuffix(filepath.Base(table), ".txt")
		t.Run(kind, func(t *testing.T) {
			base, err := os.ReadFile(strings.TrimSuffix(table, ".txt") + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			write(t, dir, kind+".yaml", string(base))
			if got := loadErrors(t, dir); got != "" {
				t.Fatalf("the base is not good: %s", got)
			}
			raw, err := os.ReadFile(table)
			if err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			for _, r := range records(string(raw)) {
				write(t, dir, kind+".yaml", set(t, string(base), r.path, r.value))
				got := loadErrors(t, dir)
				if got == "" {
					t.Errorf("%s = %s: no error", r.path, r.value)
				}
				if !*update && got != r.want {
					t.Errorf("%s = %s:\ngot  %swant %s", r.path, r.value, got, r.want)
				}
				fmt.Fprintf(&out, "%s = %s\n\t%s\n", r.path, r.value, strings.ReplaceAll(strings.TrimSuffix(got, "\n"), "\n", "\n\t"))
			}
			if *update {
				write(t, "testdata/bad", kind+".txt", out.String())
			}
		})
	}
}

type record struct{ path, value, want string }

func records(text string) []record {
	var all []record
	for line := range strings.Lines(text) {
		if want, ok := strings.CutPrefix(line, "\t"); ok {
			all[len(all)-1].want += want
			continue
		}
		path, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " = ")
		all = append(all, record{path: path, value: value})
	}
	return all
}

// set replaces the value of one field in the text of a manifest.
func set(t *testing.T, text, path, value string) string {
	t.Helper()
	var doc yaml.Node
	if err := yaml.Unmarshal([]byte(text), &doc); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(text, "\n")
	at := lineOf(doc.Content[0], path) - 1
	line := lines[at]
	indent := len(line) - len(strings.TrimLeft(line, " "))
	var replaced string
	if strings.HasSuffix(path, "]") {
		replaced = line[:indent] + "- " + value
	} else {
		name := path[strings.LastIndex(path, ".")+1:]
		if strings.Contains(path, ".io/") { // the name has dots of its own
			name = strings.TrimLeft(line[:strings.Index(line, ": ")], " -")
		}
		key := strings.Index(line, name+":")
		if key < 0 {
			t.Fatalf("%s is not on line %d: %s", path, at+1, line)
		}
		indent = key
		replaced = line[:key] + name + ": " + value
	}
	end := at + 1
	for end < len(lines) {
		below := len(lines[end]) - len(strings.TrimLeft(lines[end], " "))
		isItem := strings.HasPrefix(strings.TrimLeft(lines[end], " "), "- ")
		if below < indent || below == indent && (!isItem || strings.HasSuffix(path, "]")) || lines[end] == "" {
			break
		}
		end++
	}
	return strings.Join(append(append(append([]string{}, lines[:at]...), replaced), lines[end:]...), "\n")
}

// TestEveryFieldIsInTheTable walks the Go types and wants each field of each spec that is read to be set wrong in its
// table at least once.
func TestEveryFieldIsInTheTable(t *testing.T) {
	for kind, types := range map[string]map[string]reflect.Type{
		"Infra":                  {"spec": reflect.TypeFor[v1alpha1.InfraSpec]()},
		"InfraClusterAttachment": {"spec": reflect.TypeFor[v1alpha1.InfraClusterAttachmentSpec]()},
		"HostedCluster":          {"spec": reflect.TypeFor[hypershift.HostedClusterSpec](), "status": reflect.TypeFor[hypershift.HostedClusterStatus]()},
		"NodePool":               {"spec": reflect.TypeFor[hypershift.NodePoolSpec]()},
		"Machine":                {"": reflect.TypeFor[machine]()},
		"VirtualMachineInstance": {"": reflect.TypeFor[instance]()},
	} {
		raw, err := os.ReadFile("testdata/bad/" + kind + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		covered := map[string]bool{}
		for _, r := range records(string(raw)) {
			covered[r.path] = true
		}
		for path, typ := range types {
			for _, field := range fieldsOf(path, typ) {
				if !covered[field] {
					t.Errorf("%s: no record sets %s wrong", kind, field)
				}
			}
		}
	}
}

func fieldsOf(path string, t reflect.Type) []string {
	var all []string
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		all = append(all, path+"[0]")
		return append(all, fieldsOf(path+"[0]", t.Elem())...)
	case t.Kind() != reflect.Struct || strings.HasSuffix(t.PkgPath(), "/runtime"):
		return nil
	}
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if strings.Contains(options, "inline") {
			all = append(all, fieldsOf(path, f.Type)...)
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		all = append(all, at)
		all = append(all, fieldsOf(at, f.Type)...)
	}
	return all
}

var goQuote = regexp.MustCompile(`\\x[0-9a-f]{2}`)

// TestBadFiles loads the files of each testdata/bad/*.txtar and wants the errors of its file "want". In the names of
// files, and in lines that start with "!", \xNN stands for a byte.
func TestBadFiles(t *testing.T) {
	archives, err := filepath.Glob("testdata/bad/*.txtar")
	if err != nil || len(archives) == 0 {
		t.Fatal("no archives", err)
	}
	for _, name := range archives {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			dir, want := t.TempDir(), ""
			for i, f := range archive.Files {
				if f.Name == "want" {
					want = string(f.Data)
					archive.Files = append(archive.Files[:i:i], archive.Files[i+1:]...)
					break
				}
			}
			for _, f := range archive.Files {
				data := goQuote.ReplaceAllFunc(f.Data, func(q []byte) []byte {
					var b byte
					if _, err := fmt.Sscanf(string(q), `\x%02x`, &b); err != nil {
						t.Fatal(err)
					}
					return []byte{b}
				})
				write(t, dir, f.Name, string(bytes.TrimSuffix(data, []byte("<no newline>\n"))))
			}
			got := loadErrors(t, dir)
			if *update {
				archive.Files = append(archive.Files, txtar.File{Name: "want", Data: []byte(got)})
				if err := os.WriteFile(name, txtar.Format(archive), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if got != want {
				t.Errorf("got\n%swant\n%s", got, want)
			}
		})
	}
}
