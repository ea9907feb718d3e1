package kubelet

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// containerName is argv[0] of the process that turns itself into a container.
const containerName = "kubelet-container"

// Descriptors of that process.
const (
	fdOrder  = 3 // the order, as JSON
	fdFailed = 4 // why there is no container; closed without a word once there is one
)

// order says which container to become.
type order struct {
	Hostname string
	// Image is the folder of the image's files, Folder an empty one to mount things in.
	Image, Folder   string
	Mounts          []mount
	ReadOnlyRoot    bool
	Argv, Env       []string
	Dir             string
	UID, GID        int
	Groups          []int
	Capabilities    []int
	NoNewPrivileges bool
}

// mount is a file or a folder of the machine that the container sees.
type mount struct {
	Source, Target string
	ReadOnly       bool
}

// containerMain is the whole life of this program as a container's first process: it becomes what the order says.
func containerMain() {
	// Capabilities and users belong to a thread, and the one that calls exec decides.
	runtime.LockOSThread()
	failed := os.NewFile(fdFailed, "failed")
	err := func() error {
		// Neither descriptor may reach the container.
		for _, fd := range []int{fdOrder, fdFailed} {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
				return err
			}
		}
		var o order
		if err := json.NewDecoder(os.NewFile(fdOrder, "order")).Decode(&o); err != nil {
			return err
		}
		return o.become()
	}()
	_, _ = failed.WriteString(err.Error()) // the other end may be gone; then nobody wants to know
	os.Exit(1)
}

// become turns this process into the container. It only returns when that fails.
func (o *order) become() error {
	if err := o.root(); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(o.Hostname)); err != nil {
		return fmt.Errorf("host name: %w", err)
	}
	if err := os.Chdir(o.Dir); err != nil {
		return fmt.Errorf("working directory: %w", err)
	}
	program, err := o.program()
	if err != nil {
		return err
	}
	// Runtimes give the container's user its own output, so that it can open /dev/stdout.
	for fd := range 3 {
		if err := unix.Fchown(fd, o.UID, -1); err != nil {
			return fmt.Errorf("owner of descriptor %d: %w", fd, err)
		}
	}
	if err := o.credentials(); err != nil {
		return err
	}
	return fmt.Errorf("exec %s: %w", program, unix.Exec(program, o.Argv, o.Env))
}

// program finds the program in the container's PATH.
func (o *order) program() (string, error) {
	name := o.Argv[0]
	if strings.Contains(name, "/") {
		return name, nil
	}
	for i := len(o.Env) - 1; i >= 0; i-- {
		folders, found := strings.CutPrefix(o.Env[i], "PATH=")
		if !found {
			continue
		}
		for _, folder := range filepath.SplitList(folders) {
			if file, err := exec.LookPath(filepath.Join(folder, name)); err == nil {
				return file, nil
			}
		}
		break
	}
	return "", fmt.Errorf("exec: %q: executable file not found in $PATH", name)
}

// devices that every container has.
var devices = []string{"null", "zero", "full", "random", "urandom", "tty"}

// hidden and readOnly are parts of /proc and /sys that runtimes keep from containers.
var (
	hidden   = []string{"/proc/acpi", "/proc/asound", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware"}
	readOnly = []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
)

// root mounts the container's files and makes them its root.
func (o *order) root() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", o.Folder, "tmpfs", 0, "mode=755"); err != nil {
		return fmt.Errorf("mount tmpfs: %w", err)
	}
	root := filepath.Join(o.Folder, "root")
	upper, work := filepath.Join(o.Folder, "upper"), filepath.Join(o.Folder, "work")
	for _, folder := range []string{root, upper, work} {
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
	}
	layers := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", o.Image, upper, work)
	if err := unix.Mount("overlay", root, "overlay", 0, layers); err != nil {
		return fmt.Errorf("mount the image %s: %w", o.Image, err)
	}
	if err := system(root); err != nil {
		return err
	}
	for _, m := range o.Mounts {
		if err := m.bind(root); err != nil {
			return err
		}
	}
	old := filepath.Join(root, ".old")
	if err := os.Mkdir(old, 0o700); err != nil {
		return err
	}
	if err := unix.PivotRoot(root, old); err != nil {
		return fmt.Errorf("pivot_root: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	if err := unix.Unmount("/.old", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount the machine's files: %w", err)
	}
	if err := os.Remove("/.old"); err != nil {
		return err
	}
	if err := protect(); err != nil {
		return err
	}
	if o.ReadOnlyRoot {
		if err := unix.Mount("", "/", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
			return fmt.Errorf("make the root read-only: %w", err)
		}
	}
	return nil
}

// system mounts /proc, /sys and /dev below a root.
func system(root string) error {
	const safe = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	for _, m := range []struct {
		kind, target, options string
		flags                 uintptr
	}{
		{"proc", "proc", "", safe},
		{"sysfs", "sys", "", safe | unix.MS_RDONLY},
		{"tmpfs", "dev", "mode=755", unix.MS_NOSUID},
		{"tmpfs", "dev/shm", "mode=1777", safe},
	} {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mount /%s: %w", m.target, err)
		}
	}
	for _, device := range devices {
		if err := (mount{Source: "/dev/" + device, Target: "/dev/" + device}).bind(root); err != nil {
			return err
		}
	}
	for link, target := range map[string]string{"fd": "fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink("/proc/self/"+target, filepath.Join(root, "dev", link)); err != nil {
			return err
		}
	}
	return nil
}

// protect hides what runtimes hide of /proc and /sys.
func protect() error {
	for _, path := range hidden {
		info, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil && info.IsDir() {
			err = unix.Mount("tmpfs", path, "tmpfs", unix.MS_RDONLY, "")
		} else if err == nil {
			err = unix.Mount("/dev/null", path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("hide %s: %w", path, err)
		}
	}
	for _, path := range readOnly {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := (mount{Source: path, Target: path, ReadOnly: true}).bind("/"); err != nil {
			return err
		}
	}
	return nil
}

// bind makes the mount below a root; where the image has nothing at its place, the place is made.
func (m mount) bind(root string) error {
	target := filepath.Join(root, m.Target)
	info, err := os.Stat(m.Source)
	if err != nil {
		return fmt.Errorf("mount %s: %w", m.Target, err)
	}
	if info.IsDir() {
		err = os.MkdirAll(target, 0o755)
	} else if err = os.MkdirAll(filepath.Dir(target), 0o755); err == nil {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE, 0o644); err == nil {
			err = f.Close()
		}
	}
	if err == nil {
		err = unix.Mount(m.Source, target, "", unix.MS_BIND|unix.MS_REC, "")
	}
	if err == nil && m.ReadOnly {
		// The flags that are there must be named again.
		var at unix.Statfs_t
		if err = unix.Statfs(target, &at); err == nil {
			keep := uintptr(at.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
			err = unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|keep, "")
		}
	}
	if err != nil {
		return fmt.Errorf("mount %s at %s: %w", m.Source, m.Target, err)
	}
	return nil
}

// credentials gives up everything but the user, the groups and the capabilities of the container, in the order in which
// runtimes do. The kernel then drops the effective ones of a user that is not root when the program starts: there are no
// ambient capabilities in Kubernetes.
func (o *order) credentials() error {
	var keep [2]uint32
	for _, number := range o.Capabilities {
		keep[number/32] |= 1 << (number % 32)
	}
	for number := range capabilities {
		if keep[number/32]&(1<<(number%32)) != 0 {
			continue
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, uintptr(number), 0, 0, 0); err != nil {
			return fmt.Errorf("drop capability %s: %w", capabilities[number], err)
		}
	}
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("keep capabilities: %w", err)
	}
	if err := setUser(o.UID, o.GID, o.Groups); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	data := [2]unix.CapUserData{
		{Effective: keep[0], Permitted: keep[0]},
		{Effective: keep[1], Permitted: keep[1]},
	}
	if err := unix.Capset(&header, &data[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	if o.NoNewPrivileges {
		if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
			return fmt.Errorf("no new privileges: %w", err)
		}
	}
	// A change of the user takes this back.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("parent-death signal: %w", err)
	}
	return nil
}

// setUser changes user and groups of this thread alone: Go's own functions change those of all threads, and the others lack
// the capability to by now.
func setUser(uid, gid int, groups []int) error {
	ids := make([]uint32, len(groups)+1) // one more, so that it has an address
	for i, g := range groups {
		ids[i] = uint32(g)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(unsafe.Pointer(&ids[0])), 0); errno != 0 {
		return fmt.Errorf("set groups: %w", errno)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), uintptr(gid)); errno != 0 {
		return fmt.Errorf("set group %d: %w", gid, errno)
	}
	if _, _, errno := syscall.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return fmt.Errorf("set user %d: %w", uid, errno)
	}
	return nil
}
