package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
	"github.com/densityops/oooi/examples"
)

// Ports with the offset that every process here has.
const (
	portOffset  = "24000"
	portDNS     = 24053
	portDHCP    = 24067
	portHTTPS   = 24443
	portKubeAPI = 30443
)

// site is a control plane, with what stands in for hosted clusters around it.
type site struct {
	*controlplane.ControlPlane
	*stack.Site
	// kubeconfig of the admin.
	kubeconfig string
	// services and vlans are the first two octets of the cluster IPs and of everything else, with a dot.
	services, vlans string
	// upstream is a DNS server that knows an address for every name.
	upstream *stack.Upstream

	processes int
}

// newSite starts a control plane with all definitions but those of the neighbours, which the test installs when
// it wants them. The flags are added to kube-apiserver's.
func newSite(t *testing.T, flags ...string) *site {
	t.Helper()
	s := &site{}
	var err error
	if s.Site, err = stack.NewSite(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Site.Stop(); err != nil {
			t.Errorf("stopping the site: %v", err)
		}
	})
	s.takeNetworks(t)
	// The cluster IPs are those of the loopback interface where backends can listen.
	flags = append(flags, "--service-cluster-ip-range="+s.services+"0.0/16")
	if s.ControlPlane, err = controlplane.Start(t.Context(), t.TempDir(), flags...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			for _, part := range []*controlplane.Part{s.APIServer, s.ControllerManager} {
				if tail := part.Tail(10); tail != "" {
					t.Logf("the end of a log of the control plane:\n%s", tail)
				}
			}
		}
		if err := s.ControlPlane.Stop(); err != nil {
			t.Error(err)
		}
	})
	if err := s.InstallOwn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.kubeconfig, err = s.AdminKubeconfig(); err != nil {
		t.Fatal(err)
	}
	return s
}

// takeNetworks finds networks of the loopback interface that no other site has, of this run or of another one. Whoever has
// the address of the upstream DNS server has them.
func (s *site) takeNetworks(t *testing.T) {
	t.Helper()
	var err error
	for i := range 64 {
		network := (os.Getpid() + i) % 64
		s.services, s.vlans = fmt.Sprintf("127.%d.", 64+network), fmt.Sprintf("127.%d.", 128+network)
		if s.upstream, err = s.StartUpstream("", s.upstreamAddress()); err == nil {
			return
		}
	}
	t.Fatal(err)
}

// withNeighbours installs the definitions of all neighbours.
func (s *site) withNeighbours(t *testing.T) *site {
	t.Helper()
	if err := s.InstallNeighbours(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *site) upstreamAddress() string { return s.vlans + "0.53:5353" }

// vlan is a network for one Infra: the example's 192.0.2.0/24, moved.
type vlan struct {
	prefix string // with a dot
}

// vlan numbers the networks of a site: 1 to 255.
func (s *site) vlan(number int) vlan { return vlan{prefix: fmt.Sprintf("%s%d.", s.vlans, number)} }

func (v vlan) address(host int) string { return fmt.Sprintf("%s%d", v.prefix, host) }

func (v vlan) dns() string { return fmt.Sprintf("%s3:%d", v.prefix, portDNS) }

// on moves a text of the example to a VLAN and to the cluster IPs of the site.
func (s *site) on(v vlan, text string) string {
	return strings.NewReplacer("192.0.2.", v.prefix, "172.30.", s.services, "198.51.100.53", s.upstreamAddress()).Replace(text)
}

// page is the manifests of the source page: an Infra and two attachments.
func (s *site) page(t *testing.T, v vlan) string { return s.on(v, exampleFile(t, "infra.yaml")) }

// neighbours are what HyperShift and Cluster API write for the example's two clusters, and the Services.
func (s *site) neighbours(t *testing.T, v vlan) string {
	return s.on(v, exampleFile(t, "neighbours.yaml"))
}

func exampleFile(t *testing.T, name string) string {
	t.Helper()
	text, err := examples.TwoClusters.ReadFile("two-clusters/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// anotherCluster is the manifests of one more cluster on the example's Infra: its attachment, and what stands around it.
// Its Services have the cluster IPs <services><number>.1 to .4.
func (s *site) anotherCluster(t *testing.T, v vlan, name string, number, worker int) string {
	t.Helper()
	text, err := stack.AnotherCluster(name, number, v.address(worker))
	if err != nil {
		t.Fatal(err)
	}
	return s.on(v, text)
}

// startBackends starts the TLS servers of a hosted cluster at the cluster IPs <services><number>.1 to .4.
func (s *site) startBackends(t *testing.T, cluster string, number int) {
	t.Helper()
	services := stack.Services(netip.MustParseAddr(fmt.Sprintf("%s%d.1", s.services, number)))
	if err := s.StartControlPlane("", cluster, services); err != nil {
		t.Fatal(err)
	}
}

// process is a running `oooi serve`, or one to be started.
type process struct {
	stack.Oooi
	site  *site
	name  string
	state string
	env   []string // added to the environment, as NAME=value
	run   *stack.Process
}

// newProcess makes a process with addresses and a state folder of its own. The arguments are added to serve's. It
// is stopped with the test, and its log is looked at for what must never be in it.
func (s *site) newProcess(t *testing.T, arguments ...string) *process {
	t.Helper()
	s.processes++
	p := &process{site: s, name: fmt.Sprintf("oooi-%d", s.processes)}
	p.state = filepath.Join(s.Folder, "state", p.name)
	p.Oooi = stack.Oooi{
		Binary: oooiBinary,
		HTTP:   fmt.Sprintf("%s0.%d:28101", s.vlans, 100+s.processes), XDS: fmt.Sprintf("%s0.%d:28100", s.vlans, 100+s.processes),
		Args: append([]string{
			"--kubeconfig", s.kubeconfig, "--state-dir", p.state, "--port-offset", portOffset,
			"--proxy-bind", "server-ip", "--log-level", "debug",
		}, arguments...),
	}
	t.Cleanup(func() {
		if err := p.run.Stop(); err != nil {
			t.Error(err)
		}
		if p.run == nil {
			return
		}
		log := p.run.Log()
		for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
			if i := strings.Index(log, sign); i >= 0 {
				t.Errorf("the log of %s: %s", p.name, log[i:min(len(log), i+4000)])
			}
		}
		if t.Failed() {
			t.Logf("the log of %s:\n%s", p.name, p.run.Tail(60))
		}
	})
	return p
}

// launch starts the process and waits for nothing.
func (p *process) launch(t *testing.T) {
	t.Helper()
	argv := slices.Concat([]string{"env"}, p.env, []string{p.Binary, "serve", "--http-listen", p.HTTP, "--xds-listen", p.XDS}, p.Args)
	var err error
	if p.run, err = p.Host.Start(p.site.Logs(), p.name, argv...); err != nil {
		t.Fatal(err)
	}
}

// start starts the process and waits until it is ready.
func (p *process) start(t *testing.T) *process {
	t.Helper()
	p.launch(t)
	within(t, p.name+" to be ready", p.ready)
	return p
}

func (p *process) ready(ctx context.Context) error {
	select {
	case <-p.run.Done():
		return stack.Final(fmt.Errorf("%s ended:\n%s", p.name, p.run.Tail(20)))
	default:
	}
	_, err := p.Get(ctx, "/readyz")
	return err
}

// restart stops the process and starts it again.
func (p *process) restart(t *testing.T) {
	t.Helper()
	if err := p.run.Stop(); err != nil {
		t.Fatal(err)
	}
	p.start(t)
}

// kill ends the process at once, as a crash would.
func (p *process) kill(t *testing.T) {
	t.Helper()
	if err := p.run.Kill(); err != nil {
		t.Fatal(err)
	}
}

// signal sends a signal.
func (p *process) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := p.run.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// startEnvoy starts an Envoy that gets its routes of an Infra, as namespace/name, from a process.
func (s *site) startEnvoy(t *testing.T, p *process, infra, name string) *stack.Envoy {
	t.Helper()
	e := s.newEnvoy(t, p, infra, name)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := s.StartEnvoy(ctx, e); err != nil {
		t.Fatal(err)
	}
	return e
}

// newEnvoy makes an Envoy that is to be started with StartEnvoy.
func (s *site) newEnvoy(t *testing.T, p *process, infra, name string) *stack.Envoy {
	t.Helper()
	binary, err := stack.EnvoyBinary()
	if err != nil {
		t.Fatal(err)
	}
	s.processes++
	return &stack.Envoy{
		Binary: binary, Oooi: &p.Oooi, Infra: infra, Name: name,
		Admin: fmt.Sprintf("%s0.%d:29901", s.vlans, 100+s.processes), Args: []string{"--drain-time-s", "1"},
	}
}

// patience is how long a test waits for something that should be there within a second: machines are busy.
const patience = 30 * time.Second

// within runs a condition until it holds or patience ends.
func within(t *testing.T, what string, conditions ...func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Until(ctx, what, all(conditions...)); err != nil {
		t.Fatal(err)
	}
}
