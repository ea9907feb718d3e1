package files

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// FuzzRead feeds files to the decoder: it must neither fail nor be slow, must account for what it read, and must
// understand again what it keeps over a restart.
func FuzzRead(f *testing.F) {
	manifests, err := filepath.Glob("testdata/*/*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range append(manifests, "testdata/neighbours.yaml") {
		raw, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw, false)
	}
	for _, name := range []string{"testdata/bad/syntax.txtar", "testdata/bad/objects.txtar"} {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range archive.Files {
			f.Add(file.Data, filepath.Ext(file.Name) == ".json")
		}
	}
	f.Add([]byte(`{"apiVersion":"v1","kind":"Service","metadata":{"name":"\ud83d\ude00"},"spec":{"ports":[{"port":1e3}]}} {"kind":"List","items":[1]}`), true)
	f.Add([]byte("apiVersion: v1\nkind: List\nitems: &i [*i]\n"), false)
	f.Add([]byte("a: &a {<<: [*a, {b: 1}]}\n"), false)
	f.Add([]byte("\ufeffapiVersion: v1\r\nkind: Namespace\r\nmetadata: {name: on}\r\n"), false)
	d, err := newDecoder()
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, raw []byte, isJSON bool) {
		path := "f.yaml"
		if isJSON {
			path = "f.json"
		}
		c := d.read(path, raw)
		if (c.broken || c.nameless || len(c.failed) > 0) && len(c.problems) == 0 {
			t.Error("something failed, and no problem says so")
		}
		if c.broken && len(c.objects) > 0 {
			t.Error("objects of a broken file")
		}
		for _, p := range c.problems {
			if p.Line < 0 || p.Message == "" {
				t.Errorf("problem %+v", p)
			}
		}
		for _, o := range c.objects {
			again := d.read("again.json", o.raw)
			if len(again.objects) != 1 || again.objects[0].key != o.key || string(again.objects[0].raw) != string(o.raw) {
				t.Errorf("%s does not come back from %s: %v", o.key, o.raw, again.problems)
			}
		}
	})
}
