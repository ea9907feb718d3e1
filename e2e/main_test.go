package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/densityops/oooi/e2e/stack"
)

var (
	// oooiBinary is built by TestMain from the tree as it is.
	oooiBinary string
	root       string
)

func TestMain(m *testing.M) {
	// A program with the race detector waits a second before it exits, for races that come late; the tests run
	// oooi a few hundred times.
	err := os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	var folder string
	if err == nil {
		folder, err = os.MkdirTemp("", "oooi-e2e-")
	}
	if err == nil {
		err = build(folder)
	}
	if err != nil {
		_ = os.RemoveAll(folder) // a folder of the temporary one
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(folder) // a folder of the temporary one
		os.Exit(code)
	}))
}

func build(folder string) error {
	var err error
	if root, err = stack.Root(); err != nil {
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
