package kubelet

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// capabilities are the names of the kernel's capabilities, by number (linux/capability.h).
var capabilities = []string{
	"CHOWN", "DAC_OVERRIDE", "DAC_READ_SEARCH", "FOWNER", "FSETID", "KILL", "SETGID", "SETUID", "SETPCAP", "LINUX_IMMUTABLE",
	"NET_BIND_SERVICE", "NET_BROADCAST", "NET_ADMIN", "NET_RAW", "IPC_LOCK", "IPC_OWNER", "SYS_MODULE", "SYS_RAWIO", "SYS_CHROOT",
	"SYS_PTRACE", "SYS_PACCT", "SYS_ADMIN", "SYS_BOOT", "SYS_NICE", "SYS_RESOURCE", "SYS_TIME", "SYS_TTY_CONFIG", "MKNOD", "LEASE",
	"AUDIT_WRITE", "AUDIT_CONTROL", "SETFCAP", "MAC_OVERRIDE", "MAC_ADMIN", "SYSLOG", "WAKE_ALARM", "BLOCK_SUSPEND", "AUDIT_READ",
	"PERFMON", "BPF", "CHECKPOINT_RESTORE",
}

// usual are the capabilities that containerd gives a container whose Pod says nothing about them.
var usual = []string{
	"CHOWN", "DAC_OVERRIDE", "FSETID", "FOWNER", "MKNOD", "NET_RAW", "SETGID", "SETUID", "SETFCAP", "SETPCAP", "NET_BIND_SERVICE",
	"SYS_CHROOT", "KILL", "AUDIT_WRITE",
}

// granted are the numbers of the capabilities that a container runtime puts into the bounding set of a container: the usual
// ones, without those to drop, with those to add. What to add wins, and ALL comes before single names.
func granted(c *corev1.Capabilities) ([]int, error) {
	names := slices.Clone(usual)
	if c != nil {
		if slices.Contains(c.Add, "ALL") {
			names = slices.Clone(capabilities)
		}
		if slices.Contains(c.Drop, "ALL") {
			names = nil
		}
		names = slices.DeleteFunc(names, func(name string) bool {
			return slices.ContainsFunc(c.Drop, func(drop corev1.Capability) bool { return bare(drop) == name })
		})
		for _, add := range c.Add {
			if add != "ALL" {
				names = append(names, bare(add))
			}
		}
	}
	var numbers []int
	for _, name := range names {
		number := slices.Index(capabilities, name)
		if number < 0 {
			return nil, fmt.Errorf("capability %q does not exist", name)
		}
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	return slices.Compact(numbers), nil
}

// bare is a capability's name without the prefix that container runtimes let people write.
func bare(c corev1.Capability) string { return strings.TrimPrefix(strings.ToUpper(string(c)), "CAP_") }
