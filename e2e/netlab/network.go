package netlab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// network is the namespaces and the links between them.
type network struct {
	prefix string
	made   []stack.Host
}

// host names a namespace of the lab by its role.
func (n *network) host(role string) stack.Host { return stack.Host(n.prefix + "-" + role) }

// roles that have an interface vlan0, and its hardware address.
var onVLAN = map[string]string{
	"pod":      "52:54:00:00:02:01",
	"worker-a": "52:54:00:00:02:0a",
	"worker-b": "52:54:00:00:02:0b",
	"stranger": "52:54:00:00:02:0c",
}

func (n *network) start(ctx context.Context) error {
	roles := []string{"switch", "pod", "worker-a", "worker-b", "stranger", "cluster", "client"}
	if err := n.clear(ctx, roles); err != nil {
		return err
	}
	for _, role := range roles {
		if err := n.add(ctx, n.host(role)); err != nil {
			return err
		}
	}
	script := []string{
		"-n SWITCH link add vlan100 type bridge",
		"-n SWITCH link set vlan100 up",
	}
	for role, mac := range onVLAN {
		script = append(script,
			fmt.Sprintf("-n SWITCH link add port-%s type veth peer name vlan0 address %s netns %s", role, mac, n.host(role)),
			fmt.Sprintf("-n SWITCH link set port-%s master vlan100 up", role),
			fmt.Sprintf("-n %s link set vlan0 up", n.host(role)),
		)
	}
	script = append(script,
		"-n CLUSTER link add to-pod type veth peer name pod0 netns POD",
		"-n CLUSTER addr add 10.128.0.1/24 dev to-pod",
		"-n CLUSTER link set to-pod up",
		"-n POD addr add 10.128.0.2/24 dev pod0",
		"-n POD link set pod0 up",
		"-n POD route add default via 10.128.0.1",
		"-n CLUSTER link add to-client type veth peer name eth0 netns CLIENT",
		"-n CLUSTER addr add 10.128.1.1/24 dev to-client",
		"-n CLUSTER link set to-client up",
		"-n CLIENT addr add 10.128.1.2/24 dev eth0",
		"-n CLIENT link set eth0 up",
		"-n CLIENT route add default via 10.128.1.1",
		// An address that is neither on the VLAN nor in a pod network.
		"-n CLIENT addr add "+Foreign+"/32 dev eth0",
		"-n CLUSTER route add "+Foreign+"/32 via 10.128.1.2",
		// What kube-proxy does for the shared proxy's ClusterIP, and for the DNS server's.
		"-n POD addr add 172.30.0.4/32 dev lo",
		"-n CLUSTER route add 172.30.0.4/32 via 10.128.0.2",
		"-n CLUSTER route add 192.0.2.3/32 via 10.128.0.2",
		"-n CLUSTER addr add 198.51.100.53/32 dev lo",
	)
	names := strings.NewReplacer("SWITCH", string(n.host("switch")), "CLUSTER", string(n.host("cluster")),
		"CLIENT", string(n.host("client")), "POD", string(n.host("pod")))
	for _, line := range script {
		if err := ip(ctx, names.Replace(line)); err != nil {
			return err
		}
	}
	return n.host("cluster").Do(func() error {
		// /proc/sys/net shows the namespace of the thread that opens it.
		return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
	})
}

func (n *network) add(ctx context.Context, h stack.Host) error {
	if err := ip(ctx, "netns add "+string(h)); err != nil {
		return err
	}
	n.made = append(n.made, h)
	return ip(ctx, "-n "+string(h)+" link set lo up")
}

// clear removes the namespaces that a killed lab of the same name left behind. If there is a process in any of
// them they are another lab's, and stay.
func (n *network) clear(ctx context.Context, roles []string) error {
	var left []stack.Host
	for _, role := range roles {
		h := n.host(role)
		if _, err := os.Stat(filepath.Join("/run/netns", string(h))); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		pids, err := stack.Host("").Run(ctx, "ip", "netns", "pids", string(h))
		if err != nil {
			return err
		}
		if pids != "" {
			return fmt.Errorf("network namespace %s is in use by the processes %s: does another lab run?", h, strings.Join(strings.Fields(pids), " "))
		}
		left = append(left, h)
	}
	for _, h := range left {
		if err := ip(ctx, "netns delete "+string(h)); err != nil {
			return err
		}
	}
	return nil
}

// stop removes the namespaces, and with them their links.
func (n *network) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	var errs []error
	for _, h := range n.made {
		errs = append(errs, ip(ctx, "netns delete "+string(h)))
	}
	return errors.Join(errs...)
}

// ip runs one command of iproute2.
func ip(ctx context.Context, args string) error {
	_, err := stack.Host("").Run(ctx, append([]string{"ip"}, strings.Fields(args)...)...)
	return err
}
