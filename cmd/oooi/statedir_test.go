package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStateDirHasOneOwner(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	first, err := lockStateDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lockStateDir(dir); err == nil || !strings.Contains(err.Error(), "another oooi uses it") {
		t.Errorf("a second owner: %v", err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := lockStateDir(dir)
	if err != nil {
		t.Fatalf("after the first owner has gone: %v", err)
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}

	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := lockStateDir(file); err == nil || !strings.Contains(err.Error(), "choose another one with --state-dir") {
		t.Errorf("a state folder that is a file: %v", err)
	}
}
