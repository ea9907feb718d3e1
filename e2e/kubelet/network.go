package kubelet

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/densityops/oooi/e2e/stack"
)

// Addresses of the world around the pods.
var (
	// NodeAddress is where the API server and the nodes are.
	NodeAddress = netip.MustParseAddr("10.0.0.1")
	// PodCIDR is the pod network.
	PodCIDR = netip.MustParsePrefix("10.128.0.0/16")
	// ServiceCIDR holds the ClusterIPs.
	ServiceCIDR = netip.MustParsePrefix("172.30.0.0/16")
	// gateway is every pod's router, on the other end of its eth0.
	gateway = netip.MustParseAddr("169.254.1.1")
)

// Switch is the network namespace with the bridges of the VLANs. They are not among the nodes' own interfaces, so that
// no packet of a VLAN passes through kube-proxy's rules.
const Switch stack.Host = "switch"

// Network is the pod network and the VLANs. All of it is in the network namespace of this process and in those that are
// made in it.
type Network struct {
	mu      sync.Mutex
	next    netip.Addr
	ports   int
	bridges map[string]bool
}

// NewNetwork builds the network of the nodes: no pods and no VLANs yet. There is one for each process.
func NewNetwork() (*Network, error) {
	n := &Network{next: PodCIDR.Addr().Next(), bridges: map[string]bool{}}
	for range 9 {
		n.next = n.next.Next() // from .10 on
	}
	if err := addNamespace(Switch); err != nil {
		return nil, err
	}
	err := batch(
		fmt.Sprintf("addr add %s/32 dev lo", NodeAddress),
		// Every pod's gateway is here, whichever interface it asks on.
		fmt.Sprintf("addr add %s/32 dev lo scope link", gateway),
		// A packet to a Service must have a way before kube-proxy's rules give it another one.
		fmt.Sprintf("route add %s dev lo src %s", ServiceCIDR, NodeAddress),
	)
	if err != nil {
		return nil, err
	}
	return n, os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0)
}

// podAddress is an address that no pod has had.
func (n *Network) podAddress() netip.Addr {
	n.mu.Lock()
	defer n.mu.Unlock()
	address := n.next
	n.next = address.Next()
	return address
}

// port is the name of an interface that no other one has.
func (n *Network) port() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ports++
	return fmt.Sprintf("port%d", n.ports)
}

// bridge makes the bridge of a VLAN unless it is there.
func (n *Network) bridge(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.bridges[name] {
		return nil
	}
	err := batchOn(Switch,
		fmt.Sprintf("link add %s type bridge", name),
		fmt.Sprintf("link set %s up", name),
	)
	if err != nil {
		return err
	}
	n.bridges[name] = true
	return nil
}

// Worker plugs a machine into a VLAN: a network namespace of that name with the one interface vlan0, which has that
// hardware address and no IP address.
func (n *Network) Worker(name, bridge, mac string) (stack.Host, error) {
	if err := n.bridge(bridge); err != nil {
		return "", err
	}
	host := stack.Host(name)
	if err := addNamespace(host); err != nil {
		return "", err
	}
	_, err := n.plug(host, "vlan0", bridge, mac)
	return host, err
}

// Uplink gives a host an interface eth0 on the pod network besides, as a virtual machine's first interface is, and returns its
// address. It makes sense once for each host.
func (n *Network) Uplink(host stack.Host) (netip.Addr, error) {
	address := n.podAddress()
	return address, onPodNetwork(host, n.port(), address)
}

// Join puts the nodes themselves on a VLAN, with an interface of that name and that address.
func (n *Network) Join(name, bridge string, address netip.Prefix) error {
	if err := n.bridge(bridge); err != nil {
		return err
	}
	port := n.port()
	if err := batch(
		fmt.Sprintf("link add %s type veth peer name %s netns %s", name, port, Switch),
		fmt.Sprintf("addr add %s dev %s", address, name),
		fmt.Sprintf("link set %s up", name),
	); err != nil {
		return err
	}
	return batchOn(Switch, fmt.Sprintf("link set %s master %s up", port, bridge))
}

// Address gives an interface of a host an address.
func (n *Network) Address(host stack.Host, name string, address netip.Prefix) error {
	return batchOn(host, fmt.Sprintf("addr replace %s dev %s", address, name))
}

// Remove removes a host that Worker made. Its interfaces go with its last process.
func (n *Network) Remove(host stack.Host) error { return removeNamespace(host) }

// onPodNetwork makes a host's eth0, with the nodes' end of that name.
func onPodNetwork(host stack.Host, link string, address netip.Addr) error {
	if err := batch(
		fmt.Sprintf("link add %s type veth peer name eth0 netns %s", link, host),
		fmt.Sprintf("link set %s up", link),
		fmt.Sprintf("route add %s/32 dev %s src %s", address, link, NodeAddress),
	); err != nil {
		return err
	}
	return batchOn(host,
		fmt.Sprintf("addr add %s/32 dev eth0", address),
		"link set eth0 up",
		fmt.Sprintf("route add %s dev eth0 scope link", gateway),
		fmt.Sprintf("route add default via %s dev eth0 src %s", gateway, address),
	)
}

// plug makes an interface in a namespace that is on a VLAN, and returns the port of the bridge that it is plugged into. With
// no hardware address it gets a random one.
func (n *Network) plug(host stack.Host, name, bridge, mac string) (port string, err error) {
	port = n.port()
	peer := fmt.Sprintf("peer name %s netns %s", name, host)
	if mac != "" {
		peer = fmt.Sprintf("peer name %s address %s netns %s", name, mac, host)
	}
	err = batchOn(Switch,
		fmt.Sprintf("link add %s type veth %s", port, peer),
		fmt.Sprintf("link set %s master %s up", port, bridge),
	)
	if err == nil {
		err = batchOn(host, fmt.Sprintf("link set %s up", name))
	}
	return port, err
}

// Outside makes an address of the world outside of the cluster, for what a test listens on.
func (n *Network) Outside(address netip.Addr) error {
	return batch(fmt.Sprintf("addr replace %s/32 dev lo", address))
}

// cutRules drop what passes between the API server and the Pods that are cut off from it. Its ClusterIP has become its address by
// then. What a probe sends is another port's.
const cutRules = `
table inet cut {
	set pods { type ifname; }
	chain input {
		type filter hook input priority 0;
		iifname @pods tcp dport PORT drop
	}
	chain output {
		type filter hook output priority 0;
		oifname @pods tcp sport PORT drop
	}
}
`

// cuttable makes it possible to cut Pods off from the API server at a port.
func (n *Network) cuttable(port string) error {
	return netfilter("add table inet cut; delete table inet cut;" + strings.ReplaceAll(cutRules, "PORT", port))
}

// netfilter gives rules to nft.
func netfilter(rules string) error {
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("nft: %w: %s", err, out)
	}
	return nil
}

// addNamespace makes a network namespace with its loopback interface up.
func addNamespace(h stack.Host) error {
	if err := batch("netns add " + string(h)); err != nil {
		return err
	}
	return batchOn(h, "link set lo up")
}

// removeNamespace removes the name of a network namespace. The namespace itself goes when nobody is in it any more.
func removeNamespace(h stack.Host) error { return batch("netns delete " + string(h)) }

// batch lets iproute2 do commands here.
func batch(commands ...string) error { return batchOn("", commands...) }

// batchOn lets iproute2 do commands on a host.
func batchOn(h stack.Host, commands ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for _, command := range commands {
		args := strings.Fields(command)
		if h != "" {
			args = append([]string{"-n", string(h)}, args...)
		}
		var stderr bytes.Buffer
		cmd := exec.CommandContext(ctx, "ip", args...)
		cmd.Stderr = &stderr
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
		}
	}
	return nil
}
