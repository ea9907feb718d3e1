package kubelet

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/densityops/oooi/e2e/stack"
)

// safeSysctls are the sysctls of the network namespace that a kubelet lets a Pod set without a flag of its own.
var safeSysctls = []string{
	"net.ipv4.ip_local_port_range", "net.ipv4.tcp_syncookies", "net.ipv4.ping_group_range", "net.ipv4.ip_unprivileged_port_start",
	"net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout", "net.ipv4.tcp_keepalive_intvl",
	"net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// sandbox is what the containers of a Pod share: the network namespace with its interfaces. It outlives containers.
type sandbox struct {
	network *Network
	host    stack.Host
	address netip.Addr
	// link is the nodes' end of eth0.
	link string

	mu          sync.Mutex
	attachments []attachment
	// ports are the bridges' ends of the interfaces that are plugged in, by the interface's name.
	ports map[string]string
	cut   bool
	gone  bool
}

// newSandbox makes the sandbox of a Pod on the pod network, and on its VLANs unless those come later.
func (n *Network) newSandbox(p *corev1.Pod, attachments []attachment, late bool) (*sandbox, error) {
	s := &sandbox{
		network: n, host: stack.Host("pod-" + string(p.UID)[:8]), address: n.podAddress(), link: n.port(),
		attachments: attachments, ports: map[string]string{},
	}
	if err := addNamespace(s.host); err != nil {
		return nil, err
	}
	err := s.build(p, late)
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return s, nil
}

func (s *sandbox) build(p *corev1.Pod, late bool) error {
	if err := onPodNetwork(s.host, s.link, s.address); err != nil {
		return err
	}
	if !late {
		for _, a := range s.attachments {
			if err := s.plug(a.Interface); err != nil {
				return err
			}
		}
	}
	if p.Spec.SecurityContext == nil {
		return nil
	}
	for _, sysctl := range p.Spec.SecurityContext.Sysctls {
		if !slices.Contains(safeSysctls, sysctl.Name) {
			return fmt.Errorf("sysctl %s is forbidden: it is not among those that are safe", sysctl.Name)
		}
		file := "/proc/sys/" + strings.ReplaceAll(sysctl.Name, ".", "/")
		if err := s.host.Do(func() error { return os.WriteFile(file, []byte(sysctl.Value), 0) }); err != nil {
			return fmt.Errorf("sysctl: %w", err)
		}
	}
	return nil
}

// plug makes an interface of the Pod's that is not there.
func (s *sandbox) plug(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return errors.New("the Pod is gone")
	}
	if s.ports[name] != "" {
		return nil
	}
	i := slices.IndexFunc(s.attachments, func(a attachment) bool { return a.Interface == name })
	if i < 0 {
		return fmt.Errorf("the Pod asks for no interface %s", name)
	}
	a := s.attachments[i]
	if err := s.network.bridge(a.Bridge); err != nil {
		return err
	}
	port, err := s.network.plug(s.host, name, a.Bridge, a.MAC)
	if err != nil {
		return err
	}
	s.ports[name] = port
	for _, prefix := range a.Addresses {
		if err := batchOn(s.host, fmt.Sprintf("addr add %s dev %s", prefix, name)); err != nil {
			return err
		}
	}
	return nil
}

// unplug takes an interface away.
func (s *sandbox) unplug(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	port, there := s.ports[name]
	if !there {
		return nil
	}
	delete(s.ports, name)
	return batchOn(Switch, "link del "+port)
}

// carrier pulls the cable of an interface, or puts it back: the interface stays and says NO-CARRIER.
func (s *sandbox) carrier(name string, on bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	port, there := s.ports[name]
	if !there {
		return fmt.Errorf("interface %s is not plugged in", name)
	}
	state := "down"
	if on {
		state = "up"
	}
	return batchOn(Switch, fmt.Sprintf("link set %s %s", port, state))
}

// cutAPI drops what the Pod and the API server send to one another, without a word to either, or lets it through again.
func (s *sandbox) cutAPI(cut bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone || s.cut == cut {
		return nil
	}
	s.cut = cut
	verb := "delete"
	if cut {
		verb = "add"
	}
	return netfilter(fmt.Sprintf("%s element inet cut pods { %q }", verb, s.link))
}

// isolate pulls every cable: from now on nothing leaves the Pod.
func (s *sandbox) isolate() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	var errs []error
	for _, port := range s.ports {
		errs = append(errs, batchOn(Switch, fmt.Sprintf("link set %s down", port)))
	}
	return errors.Join(append(errs, batch(fmt.Sprintf("link set %s down", s.link)))...)
}

// remove ends the sandbox. Every interface goes now, and not when the kernel gets round to it after the end of the namespace.
func (s *sandbox) remove() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone {
		return nil
	}
	s.gone = true
	var errs []error
	if s.cut {
		errs = append(errs, netfilter(fmt.Sprintf("delete element inet cut pods { %q }", s.link)))
	}
	for name, port := range s.ports {
		errs = append(errs, batchOn(Switch, "link del "+port))
		delete(s.ports, name)
	}
	if _, err := net.InterfaceByName(s.link); err == nil { // it may not have come that far
		errs = append(errs, batch("link del "+s.link))
	}
	return errors.Join(append(errs, removeNamespace(s.host))...)
}
