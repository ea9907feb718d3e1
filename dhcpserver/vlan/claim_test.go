package vlan_test

import (
	"context"
	"encoding/binary"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

var quiet = slog.New(slog.DiscardHandler)

func claim(t *testing.T, ifname string, addrs ...string) error {
	t.Helper()
	var parsed []netip.Addr
	for _, a := range addrs {
		parsed = append(parsed, netip.MustParseAddr(a))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	return vlan.Claim(ctx, quiet, ifname, netip.MustParsePrefix("192.0.2.0/24"), parsed)
}

func addresses(t *testing.T, ifname string) string {
	t.Helper()
	var found []string
	for line := range strings.Lines(run(t, "ip -4 -o addr show dev "+ifname)) {
		found = append(found, strings.Fields(line)[3])
	}
	return strings.Join(found, " ")
}

func routes(t *testing.T, ifname string) string {
	t.Helper()
	return strings.Join(strings.Fields(run(t, "ip -4 route show dev "+ifname)), " ")
}

func TestClaim(t *testing.T) {
	bridge(t, "vlan100", "")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	run(t, "ip -n one addr add 192.0.2.77/24 dev eth0")
	announced := arps(t, "vlan100")

	if err := claim(t, "vlan100", "192.0.2.2", "192.0.2.3"); err != nil {
		t.Fatal(err)
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.2/32 192.0.2.3/32" {
		t.Errorf("addresses %s", got)
	}
	if got := routes(t, "vlan100"); got != "192.0.2.0/24 scope link" {
		t.Errorf("routes %s", got)
	}
	for _, addr := range []string{"192.0.2.2", "192.0.2.3"} {
		announced.await(t, "an announcement of "+addr, func(p []byte) bool {
			return net.IP(p[14:18]).String() == addr && net.IP(p[24:28]).String() == addr
		})
	}
	// A worker reaches an address, and gets an answer.
	echo(t, "one", "192.0.2.3")

	if err := claim(t, "vlan100", "192.0.2.2", "192.0.2.3"); err != nil {
		t.Errorf("claiming again: %v", err)
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.2/32 192.0.2.3/32" {
		t.Errorf("claimed again: addresses %s", got)
	}
}

func TestRelease(t *testing.T) {
	bridge(t, "vlan100", "")
	run(t, "ip addr add 192.0.2.9/24 dev vlan100")
	if err := claim(t, "vlan100", "192.0.2.2", "192.0.2.3"); err != nil {
		t.Fatal(err)
	}
	if !vlan.Holds("vlan100", netip.MustParseAddr("192.0.2.2")) {
		t.Error("a claimed address is not held")
	}
	for _, a := range []string{"192.0.2.2", "192.0.2.2", "192.0.2.9", "192.0.2.77"} {
		if err := vlan.Release(quiet, "vlan100", netip.MustParseAddr(a)); err != nil {
			t.Errorf("release %s: %v", a, err)
		}
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.9/24 192.0.2.3/32" {
		t.Errorf("addresses %s, want the one of the administrator and the one that is still claimed", got)
	}
	if vlan.Holds("vlan100", netip.MustParseAddr("192.0.2.2")) || vlan.Holds("nowhere", netip.MustParseAddr("192.0.2.3")) {
		t.Error("an address that is not there is held")
	}
}

func TestClaimLeavesAloneWhatIsThere(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.2/24")
	before := routes(t, "vlan100")
	if err := claim(t, "vlan100", "192.0.2.2", "192.0.2.3"); err != nil {
		t.Fatal(err)
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.2/24 192.0.2.3/32" {
		t.Errorf("addresses %s", got)
	}
	if got := routes(t, "vlan100"); got != before {
		t.Errorf("routes were %s, are %s", before, got)
	}
}

func TestClaimOfAnAddressThatAnotherHostHas(t *testing.T) {
	bridge(t, "vlan100", "")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	run(t, "ip -n one addr add 192.0.2.3/24 dev eth0")

	err := claim(t, "vlan100", "192.0.2.2", "192.0.2.3")
	var inUse *vlan.AddressInUseError
	if !errors.As(err, &inUse) || inUse.Address.String() != "192.0.2.3" || inUse.MAC.String() != "52:54:00:00:00:01" {
		t.Errorf("error %v", err)
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.2/32" {
		t.Errorf("addresses %s", got)
	}
}

func TestClaimThatCannotBe(t *testing.T) {
	bridge(t, "vlan100", "")
	bridge(t, "other", "192.0.2.9/24")
	for _, test := range []struct{ ifname, addr, want string }{
		{"vlan7", "192.0.2.2", "interface vlan7: not found (there are "},
		{"vlan100", "192.0.2.9", "interface vlan100: address 192.0.2.9 is on interface other of this host already"},
		{"vlan100", "192.0.2.2", "interface vlan100: 192.0.2.0/24 leads to interface other of this host already"},
	} {
		if err := claim(t, test.ifname, test.addr); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("claim of %s on %s: error %v, want %q", test.addr, test.ifname, err, test.want)
		}
	}
	run(t, "ip link set vlan100 down")
	if err := claim(t, "vlan100", "192.0.2.2"); err == nil || !strings.Contains(err.Error(), "interface vlan100: is down") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	run(t, "ip link set vlan100 up")
	if err := vlan.Claim(ctx, quiet, "vlan100", netip.MustParsePrefix("192.0.2.0/24"), []netip.Addr{netip.MustParseAddr("192.0.2.4")}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	if _, err := vlan.Open(quiet, "vlan7", netip.MustParseAddr("192.0.2.2")); err == nil || !strings.Contains(err.Error(), "interface vlan7: not found") {
		t.Errorf("error %v", err)
	}
	bridge(t, "vlan100", "192.0.2.2/24")
	taken, err := net.ListenPacket("udp4", "192.0.2.2:67")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := taken.Close(); err != nil {
			t.Error(err)
		}
	}()
	if _, err := vlan.Open(quiet, "vlan100", netip.MustParseAddr("192.0.2.2")); err == nil || !strings.Contains(err.Error(), "192.0.2.2:67") {
		t.Errorf("error %v", err)
	}
}

// arpWatch collects the ARP packets on an interface.
type arpWatch struct {
	fd   int
	seen [][]byte
}

func arps(t *testing.T, ifname string) *arpWatch {
	t.Helper()
	iface, err := net.InterfaceByName(ifname)
	if err != nil {
		t.Fatal(err)
	}
	// ETH_P_ALL shows what this host itself sends.
	all := binary.NativeEndian.Uint16([]byte{0, unix.ETH_P_ALL})
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK, int(all))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Close(fd); err != nil {
			t.Error(err)
		}
	})
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: iface.Index}); err != nil {
		t.Fatal(err)
	}
	return &arpWatch{fd: fd}
}

func (w *arpWatch) await(t *testing.T, what string, match func(packet []byte) bool) {
	t.Helper()
	eventually(t, what, func() bool {
		for {
			buf := make([]byte, 2048)
			n, _, err := unix.Recvfrom(w.fd, buf, 0)
			if err != nil {
				break
			}
			if n >= 28 && [4]byte(buf) == [4]byte{0, 1, 8, 0} {
				w.seen = append(w.seen, buf[:n])
			}
		}
		for _, packet := range w.seen {
			if match(packet) {
				return true
			}
		}
		return false
	})
}

// echo has a worker send a datagram to an address here, and waits for it.
func echo(t *testing.T, worker, addr string) {
	t.Helper()
	socket, err := net.ListenPacket("udp4", net.JoinHostPort(addr, "7"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := socket.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	asker := start(t, worker, "bash", "-c", "exec 3<>/dev/udp/"+addr+"/7; echo hello >&3; echo got $(timeout 30 dd bs=100 count=1 status=none <&3)")
	buf := make([]byte, 100)
	n, from, err := socket.ReadFrom(buf)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := socket.WriteTo(buf[:n], from); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the answer to a worker", func() bool { return strings.Contains(asker.output.String(), "got hello") })
}
