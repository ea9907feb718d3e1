package vlan_test

import (
	"bytes"
	"context"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/dhcpserver/vlan"
)

// dhcp is a DHCP server that can be stopped and started again on the same lease file.
type dhcp struct {
	t      *testing.T
	leases string
	server *dhcpserver.Server
	// metrics since the last start.
	metrics *prometheus.Registry
	stop    func()
	log     output
}

func (d *dhcp) start() {
	d.t.Helper()
	child := &v1alpha1.DHCPServer{}
	child.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{CIDR: "192.0.2.0/24", Gateway: "192.0.2.1", ServerIP: "192.0.2.2", DNSServers: []string{"192.0.2.3"}}
	child.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "192.0.2.100", RangeEnd: "192.0.2.199", LeaseTime: "1h"}
	child.Spec.Options = []v1alpha1.DHCPOption{{Code: 26, Value: "1400"}, {Code: 119, Value: "example.com,lab.example.com"}}
	child.Spec.Reservations = []v1alpha1.DHCPReservation{{MAC: "52:54:00:00:00:03", IP: "192.0.2.50", Hostname: "worker-three"}}
	model, err := dhcpserver.Build(child)
	if err != nil {
		d.t.Fatal(err)
	}
	file, err := dhcpserver.OpenBolt(d.leases)
	if err != nil {
		d.t.Fatal(err)
	}
	log := slog.New(slog.NewTextHandler(&d.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	d.metrics = prometheus.NewRegistry()
	d.server, err = dhcpserver.NewServer(dhcpserver.Config{Log: log, Registerer: d.metrics, Store: file.Infra("clusters/tenant")})
	if err != nil {
		d.t.Fatal(err)
	}
	d.server.Apply(model)
	conns, err := vlan.Open(log, "vlan100", netip.MustParseAddr("192.0.2.2"))
	if err != nil {
		d.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- d.server.Run(ctx, conns...) }()
	d.stop = func() {
		cancel()
		if err := <-done; err != nil {
			d.t.Error(err)
		}
		if err := file.Close(); err != nil {
			d.t.Error(err)
		}
		d.stop = func() {}
	}
}

func serve(t *testing.T) *dhcp {
	t.Helper()
	d := &dhcp{t: t, leases: filepath.Join(t.TempDir(), "leases.db")}
	d.start()
	t.Cleanup(func() {
		d.stop()
		if t.Failed() {
			t.Logf("log of the server:\n%s", &d.log)
		}
	})
	return d
}

// lease returns the state of the lease of an address, and its client.
func (d *dhcp) lease(addr string) (dhcpserver.State, string) {
	for _, l := range d.server.Leases() {
		if l.Address.String() == addr {
			return l.State, l.MAC.String()
		}
	}
	return "", ""
}

// hasAddress tells whether eth0 of a worker has an address.
func hasAddress(t *testing.T, worker, cidr string) bool {
	t.Helper()
	return strings.Contains(run(t, "ip -n "+worker+" -4 -o addr show dev eth0"), " "+cidr+" ")
}

// client is a real DHCP client in a worker's namespace.
type client interface {
	// start gets an address, with a new life of the client if it lived before.
	start(t *testing.T, worker string)
	// bound waits until the client has taken its n-th lease since it started and returns the address.
	bound(t *testing.T, n int) string
	// renew has the client renew its lease.
	renew(t *testing.T)
	// release has the client give its lease back, and ends it.
	release(t *testing.T)
	// crash ends the client without a word, as a power cut does.
	crash(t *testing.T)
}

const busyboxHook = `
case $1 in
bound|renew) ip addr replace $ip/$mask dev $interface; echo bound $ip mask=$mask router=$router dns=$dns lease=$lease mtu=$mtu search=$search hostname=$hostname serverid=$serverid >>EVENTS ;;
deconfig) ip -4 addr flush dev $interface; echo deconfig >>EVENTS ;;
nak) echo nak >>EVENTS ;;
esac
`

type udhcpc struct {
	process *process
	events  string
}

func (c *udhcpc) start(t *testing.T, worker string) {
	script, events := hook(t, busyboxHook)
	c.events = events
	c.process = start(t, worker, tool(t, "udhcpc", "udhcpc"), "-f", "-i", "eth0", "-s", script, "-t", "20", "-T", "1", "-O", "search", "-O", "mtu", "-O", "hostname")
}

func (c *udhcpc) bound(t *testing.T, n int) string {
	return strings.Fields(awaitEvent(t, c.events, "bound ", n))[1]
}
func (c *udhcpc) renew(t *testing.T) { c.process.signal(t, syscall.SIGUSR1) }
func (c *udhcpc) release(t *testing.T) {
	c.process.signal(t, syscall.SIGUSR2)
	awaitEvent(t, c.events, "deconfig", 2) // the first is at the start
	c.process.signal(t, syscall.SIGTERM)
}
func (c *udhcpc) crash(t *testing.T) { c.process.signal(t, syscall.SIGKILL) }

const dhclientHook = `
case $reason in
BOUND|RENEW|REBIND|REBOOT) ip addr replace $new_ip_address/$new_subnet_mask dev $interface; echo bound $new_ip_address $reason >>EVENTS ;;
RELEASE|EXPIRE|FAIL|STOP) ip -4 addr flush dev $interface; echo $reason >>EVENTS ;;
esac
`

type dhclient struct {
	worker  string
	files   string // where it remembers its lease
	process *process
	script  string
	events  string
}

func (c *dhclient) start(t *testing.T, worker string) {
	if c.files == "" {
		c.files = t.TempDir()
	}
	c.worker = worker
	c.script, c.events = hook(t, dhclientHook)
	c.process = start(t, worker, c.args(t, "-d")...)
}

func (c *dhclient) args(t *testing.T, extra ...string) []string {
	return append([]string{
		tool(t, "dhclient", "isc-dhcp-client"), "-v", "-lf", filepath.Join(c.files, "leases"), "-pf", filepath.Join(c.files, "pid"), "-sf", c.script, "eth0",
	}, extra...)
}

func (c *dhclient) bound(t *testing.T, n int) string {
	return strings.Fields(awaitEvent(t, c.events, "bound ", n))[1]
}

// renew starts it again: the client has no signal for it, and asks for its lease by INIT-REBOOT.
func (c *dhclient) renew(t *testing.T) {
	c.crash(t)
	events := c.events
	c.script, _ = hook(t, strings.ReplaceAll(dhclientHook, "EVENTS", events))
	c.process = start(t, c.worker, c.args(t, "-d")...)
}

func (c *dhclient) release(t *testing.T) {
	run(t, "ip netns exec "+c.worker+" "+strings.Join(c.args(t, "-r"), " "))
	awaitEvent(t, c.events, "RELEASE", 1)
}
func (c *dhclient) crash(t *testing.T) { c.process.signal(t, syscall.SIGKILL) }

type dhcpcd struct {
	worker  string
	process *process
	events  string
}

const dhcpcdHook = `
case $reason in
BOUND|RENEW|REBIND|REBOOT) echo bound $new_ip_address $reason >>EVENTS ;;
RELEASE|STOP|EXPIRE|NAK) echo $reason >>EVENTS ;;
esac
`

func (c *dhcpcd) start(t *testing.T, worker string) {
	script, events := hook(t, dhcpcdHook)
	c.worker, c.events = worker, events
	// It checks by ARP for five seconds that nobody has the address.
	c.process = start(t, worker, tool(t, "dhcpcd", "dhcpcd-base"), "-B", "-4", "-d", "-f", "/dev/null", "-c", script, "eth0")
}

func (c *dhcpcd) bound(t *testing.T, n int) string {
	return strings.Fields(awaitEvent(t, c.events, "bound ", n))[1]
}
func (c *dhcpcd) renew(t *testing.T) { run(t, "ip netns exec "+c.worker+" dhcpcd -4 -N eth0") }
func (c *dhcpcd) release(t *testing.T) {
	run(t, "ip netns exec "+c.worker+" dhcpcd -4 -k eth0")
	awaitEvent(t, c.events, "STOP", 1)
}
func (c *dhcpcd) crash(t *testing.T) { c.process.signal(t, syscall.SIGKILL) }

func TestRealClients(t *testing.T) {
	for name, c := range map[string]client{"udhcpc": &udhcpc{}, "dhclient": &dhclient{}, "dhcpcd": &dhcpcd{}} {
		t.Run(name, func(t *testing.T) {
			bridge(t, "vlan100", "192.0.2.2/24")
			worker(t, "one", "vlan100", "52:54:00:00:00:01")
			worker(t, "two", "vlan100", "52:54:00:00:00:02")
			server := serve(t)

			c.start(t, "one")
			if got := c.bound(t, 1); got != "192.0.2.100" {
				t.Fatalf("the client got %s", got)
			}
			eventually(t, "the address on eth0", func() bool { return hasAddress(t, "one", "192.0.2.100/24") })

			other := &udhcpc{}
			other.start(t, "two")
			if got := other.bound(t, 1); got != "192.0.2.101" {
				t.Fatalf("the second client got %s", got)
			}

			server.stop()
			server.start()
			before := server.server.Leases()[0].Expires
			restarted := time.Now()
			eventually(t, "the next second: leases end at whole ones", func() bool { return time.Since(restarted) > time.Second })
			c.renew(t) // so early that it is told what is left
			if got := c.bound(t, 2); got != "192.0.2.100" {
				t.Fatalf("after renewal the client has %s", got)
			}
			if after := server.server.Leases()[0].Expires; !after.Equal(before) {
				t.Errorf("the lease ends at %s, want %s as before", after, before)
			}
			if state, mac := server.lease("192.0.2.100"); state != dhcpserver.StateActive || mac != "52:54:00:00:00:01" {
				t.Errorf("the server says %s of %s", state, mac)
			}

			c.release(t)
			eventually(t, "the lease to be released", func() bool {
				state, _ := server.lease("192.0.2.100")
				return state == dhcpserver.StateReleased
			})
			if state, _ := server.lease("192.0.2.101"); state != dhcpserver.StateActive {
				t.Errorf("the second client's lease is %s", state)
			}
		})
	}
}

func TestClientsUseWhatTheyAreTold(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.2/24")
	worker(t, "three", "vlan100", "52:54:00:00:00:03")
	serve(t)
	c := &udhcpc{}
	c.start(t, "three")
	const want = "bound 192.0.2.50 mask=24 router=192.0.2.1 dns=192.0.2.3 lease=3600 mtu=1400 search=example.com lab.example.com hostname=worker-three serverid=192.0.2.2"
	if got := awaitEvent(t, c.events, "bound ", 1); got != want {
		t.Errorf("the client was told\n%s\nwant\n%s", got, want)
	}
}

func TestTheInterfaceGoesAwayAndComesBack(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.2/24")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	server := serve(t)

	run(t, "ip link set vlan100 down")
	eventually(t, "a word about it in the log", func() bool { return strings.Contains(server.log.String(), "cannot receive DHCP messages") })
	run(t, "ip link set vlan100 up")
	c := &udhcpc{}
	c.start(t, "one")
	if got := c.bound(t, 1); got != "192.0.2.100" {
		t.Fatalf("the client got %s", got)
	}

	// Another interface of the same name: what was bound to the old one is of no use.
	run(t, "ip link del vlan100")
	run(t, "ip link add vlan100 type bridge")
	run(t, "ip addr add 192.0.2.2/24 dev vlan100")
	run(t, "ip link set vlan100 up")
	run(t, "ip link set p-one master vlan100")
	c.crash(t)
	again := &udhcpc{}
	again.start(t, "one")
	if got := again.bound(t, 1); got != "192.0.2.100" {
		t.Fatalf("the client got %s", got)
	}
	if n := bytes.Count([]byte(server.log.String()), []byte("cannot receive DHCP messages")); n > 2 {
		t.Errorf("the log complains %d times about two events", n)
	}
}
