package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/densityops/oooi/e2e/stack"
)

// oooiBinary is built by TestMain from the tree as it is.
var oooiBinary string

func TestMain(m *testing.M) {
	// A program with the race detector waits a second before it exits, for races that come late.
	err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var folder string
	if err == nil {
		folder, err = os.MkdirTemp("", "oooi-cluster-")
	}
	if err == nil {
		err = build(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e/cluster:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(folder) // a folder of the temporary one
		os.Exit(code)
	}))
}

func build(folder string) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	oooiBinary = filepath.Join(folder, "oooi")
	args := []string{"build", "-o", oooiBinary}
	if raceDetector {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, "./cmd/oooi")...)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building oooi: %w\n%s", err, out)
	}
	return nil
}
