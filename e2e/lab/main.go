package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// inUserNamespace is set in the environment of the program once it runs in a user namespace of its own.
const inUserNamespace = "OOOI_LAB_USER_NAMESPACE"

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer cancel()
	if err := run(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "lab:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	may, err := mayMakeNetworks()
	if err != nil {
		return err
	}
	if !may {
		return enterUserNamespace()
	}
	enter := func(h stack.Host) string { return "ip netns exec " + string(h) }
	if os.Getenv(inUserNamespace) != "" {
		// /run is root's; named network namespaces need one that is ours.
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			return fmt.Errorf("mounting a /run of our own in the user namespace: %w", err)
		}
		enter = func(h stack.Host) string {
			return fmt.Sprintf("nsenter --preserve-credentials -U -m -t %d nsenter --net=/run/netns/%s", os.Getpid(), h)
		}
	}
	root, err := stack.Root()
	if err != nil {
		return err
	}
	starting, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	l, err := netlab.Start(starting, netlab.Config{Prefix: "oooi", Binary: filepath.Join(root, "bin", "oooi")})
	if err != nil {
		return err
	}
	return errors.Join(show(starting, ctx, l, enter, out), l.Stop())
}

// mayMakeNetworks tells whether this process has what network namespaces take: root has, unless somebody took it away.
func mayMakeNetworks() (bool, error) {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return false, fmt.Errorf("reading this process's capabilities: %w", err)
	}
	const needed = 1<<unix.CAP_SYS_ADMIN | 1<<unix.CAP_NET_ADMIN | 1<<unix.CAP_NET_RAW
	return data[0].Effective&needed == needed, nil
}

// enterUserNamespace starts the program again as root of a user namespace, in this process's place.
func enterUserNamespace() error {
	if os.Getenv(inUserNamespace) != "" {
		return errors.New("this user namespace gives no power over networks: run as root")
	}
	const needed = "needs root, or a kernel that lets users make user namespaces (unshare -Urnm)"
	if out, err := exec.Command("unshare", "-Urnm", "true").CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %s", needed, strings.TrimSpace(string(out)))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	unshare, err := exec.LookPath("unshare")
	if err != nil {
		return err
	}
	return unix.Exec(unshare, []string{"unshare", "-Urnm", self}, append(os.Environ(), inUserNamespace+"=1"))
}

// show lets the workers boot, prints what to try, and waits for the end.
func show(starting, ctx context.Context, l *netlab.Lab, enter func(stack.Host) string, out io.Writer) error {
	fmt.Fprintf(out, "The VLAN is a bridge, its hosts are network namespaces. Manifests: %s (edit them, oooi follows). Logs: %s\n\n",
		l.Manifests, l.Logs())
	for _, worker := range []struct {
		host    stack.Host
		client  netlab.Client
		request string
		owner   string
	}{
		{l.WorkerA, netlab.Udhcpc, netlab.WorkerA, "a worker of example-hcp-a"},
		{l.WorkerB, netlab.Dhclient, netlab.WorkerB, "a worker of example-hcp-b"},
		{l.Stranger, netlab.Udhcpc, netlab.Stranger, "a machine of nobody"},
	} {
		lease, err := l.DHCP(starting, worker.host, worker.client, worker.request)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s, %s, got %s by %s: router %s, DNS %s, %s s\n",
			worker.host, worker.owner, lease.Address, worker.client, lease.Router, lease.DNS, lease.Seconds)
	}
	fmt.Fprintln(out)
	const domain = "example-hcp-a.clusters.example.com"
	curl := func(h stack.Host, name string) string {
		return fmt.Sprintf("%s curl -sS --cacert %s/ca.pem --resolve %s:443:%s https://%s/", enter(h), l.Folder, name, netlab.Proxy, name)
	}
	for _, t := range [][3]string{
		{"A worker asks for its API server: the proxy on the VLAN", enter(l.WorkerA) + " dig +short @" + netlab.DNSServer + " api." + domain, netlab.Proxy},
		{"A pod asks for the same: the proxy's ClusterIP", enter(l.Client) + " dig +short @" + netlab.DNSServer + " api." + domain, netlab.ClusterIP},
		{"By name, from anywhere", curl(l.Stranger, "api."+domain), "cluster example-hcp-a, service kube-apiserver"},
		{"By alias, to one's own cluster", curl(l.WorkerA, "kubernetes.default.svc"), "cluster example-hcp-a, service kube-apiserver"},
		{"", curl(l.WorkerB, "kubernetes.default.svc"), "cluster example-hcp-b, service kube-apiserver"},
		{"By alias, from nobody's machine", curl(l.Stranger, "kubernetes.default.svc") + " 2>/dev/null || echo closed", "closed"},
		{"Without a server name", enter(l.WorkerB) + " curl -sSk https://" + netlab.Proxy + ":6443/", "cluster example-hcp-b, service kube-apiserver"},
		{"Why", enter(l.Pod) + " " + l.Oooi.Binary + " explain --source " + netlab.WorkerA + " --sni kubernetes.default.svc", "…routed to clusters-example-hcp-a/kube-apiserver:6443 of attachment example-hcp-a…"},
		{"The leases", enter(l.Pod) + " " + l.Oooi.Binary + " leases", "…" + netlab.WorkerA + "…"},
	} {
		if t[0] != "" {
			fmt.Fprintln(out, t[0]+":")
		}
		fmt.Fprintf(out, "  $ %s\n  %s\n\n", t[1], t[2])
	}
	fmt.Fprintln(out, "Ctrl-C stops everything.")

	select {
	case <-ctx.Done():
		fmt.Fprintln(out, "stopping")
		return nil
	case <-l.Oooi.Process().Done():
		return fmt.Errorf("oooi ended:\n%s", l.Oooi.Process().Tail(20))
	case <-l.Envoy.Process().Done():
		return fmt.Errorf("envoy ended:\n%s", l.Envoy.Process().Tail(20))
	}
}
