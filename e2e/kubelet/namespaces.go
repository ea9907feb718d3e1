package kubelet

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// inside tells this program that it runs in its own namespaces.
const inside = "OOOI_TEST_KUBELET"

// InNamespaces is for TestMain, before anything else. It runs this program again in network, mount and PID namespaces of its
// own, where all that the nodes need can be made without touching this machine and ends with the program. There, run is called.
// Before that, outside, prepare can build what needs the machine's network. A container's first process, which is this
// program too, never comes back.
func InNamespaces(prepare func() (cleanup func(), err error), run func()) {
	if len(os.Args) > 0 && os.Args[0] == containerName {
		containerMain()
	}
	if os.Getenv(inside) != "" {
		if err := enter(); err != nil {
			fmt.Fprintln(os.Stderr, "preparing the namespaces of the nodes:", err)
			os.Exit(1)
		}
		run()
		return
	}
	os.Exit(outside(prepare))
}

// outside prepares, runs this program again, and returns its exit status.
func outside(prepare func() (func(), error)) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the test kubelet gives containers users and capabilities: run these tests as root")
		return 1
	}
	cleanup, err := prepare()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer cleanup()
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Args[0] = os.Args[0]
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit):
		return max(exit.ExitCode(), 1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "these tests need namespaces of their own:", err)
		return 1
	}
	return 0
}

// enter makes the namespaces fit to be lived in.
func enter() error {
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := syscall.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, folder := range []string{"/run", "/var/lib/dhcpcd"} {
		if err := syscall.Mount("tmpfs", folder, "tmpfs", 0, ""); err != nil && !errors.Is(err, syscall.ENOENT) {
			return fmt.Errorf("mount %s: %w", folder, err)
		}
	}
	return batch("link set lo up")
}
