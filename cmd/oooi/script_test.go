package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"oooi": func() { os.Exit(run()) }})
}

// TestScript runs testdata/script, which read like terminal sessions.
func TestScript(t *testing.T) {
	example, err := filepath.Abs("../../examples/two-clusters")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:           "testdata/script",
		UpdateScripts: os.Getenv("UPDATE_SCRIPTS") != "",
		Setup: func(env *testscript.Env) error {
			env.Setenv("EXAMPLE", example)
			return nil
		},
	})
}
