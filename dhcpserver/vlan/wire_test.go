package vlan_test

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// informTo tells the test binary to be a client with the address 192.0.2.77 that sends a DHCPINFORM
// to an address from a plain UDP socket, and prints the answer.
const informTo = "OOOI_TEST_INFORM_TO"

func inform(to string) (err error) {
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(192, 0, 2, 77), Port: 68})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, socket.Close()) }()
	m, err := dhcpv4.NewInform(net.HardwareAddr{0x52, 0x54, 0, 0, 0, 0x77}, net.IPv4(192, 0, 2, 77))
	if err != nil {
		return err
	}
	if err := socket.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
		return err
	}
	if _, err := socket.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.ParseIP(to), Port: 67}); err != nil {
		return err
	}
	buf := make([]byte, 1500)
	n, from, err := socket.ReadFrom(buf)
	if err != nil {
		return err
	}
	answer, err := dhcpv4.FromBytes(buf[:n])
	if err != nil {
		return err
	}
	fmt.Printf("%s from %s\n", answer.MessageType(), from)
	return nil
}

// count returns the sum of a counter over its labels.
func (d *dhcp) count(t *testing.T, name string) float64 {
	t.Helper()
	families, err := d.metrics.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue()
			}
		}
	}
	return sum
}

// A message of a neighbour on the same host has no checksum yet, and must be heard all the same: once,
// whichever way it comes.
func TestEachMessageIsHeardOnce(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.2/24")
	worker(t, "one", "vlan100", "52:54:00:00:00:77")
	run(t, "ip -n one addr add 192.0.2.77/24 dev eth0")
	run(t, "ip -n one route add default dev eth0")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	server := serve(t)
	for n, to := range []string{"255.255.255.255", "192.0.2.255", "192.0.2.2"} {
		client := start(t, "one", "env", informTo+"="+to, self)
		<-client.ended
		if got := strings.TrimSpace(client.output.String()); got != "ACK from 192.0.2.2:67" {
			t.Errorf("INFORM to %s: the client got %q", to, got)
		}
		if got := server.count(t, "oooi_dhcp_messages_total"); got != float64(n+1) {
			t.Errorf("INFORM to %s: the server heard %v messages, want %d", to, got, n+1)
		}
		if got := server.count(t, "oooi_dhcp_replies_total"); got != float64(n+1) {
			t.Errorf("INFORM to %s: the server sent %v answers, want %d", to, got, n+1)
		}
	}
}

// The interface may carry other VLANs with a tag, whose clients are not ours.
func TestOtherVLANsOfTheInterfaceAreNotServed(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.2/24")
	run(t, "ip link add port type veth peer name wire")
	run(t, "ip link set port master vlan100 up")
	run(t, "ip link set wire up")
	server := serve(t)
	m, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1})
	if err != nil {
		t.Fatal(err)
	}
	packet := vlan.Datagram(netip.MustParseAddrPort("0.0.0.0:68"), netip.MustParseAddrPort("255.255.255.255:67"), m.ToBytes())
	want := 0.0
	addresses := []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x52, 0x54, 0, 0, 0, 1}
	for _, test := range []struct {
		name   string
		header []byte
		heard  bool
	}{
		{"of VLAN 5", []byte{0x81, 0, 0, 5, 8, 0}, false},
		{"without a tag", []byte{8, 0}, true},
		{"of VLAN 5 once more", []byte{0x81, 0, 0, 5, 8, 0}, false},
		{"with a priority only", []byte{0x81, 0, 0x20, 0, 8, 0}, true},
	} {
		transmit(t, "wire", slices.Concat(addresses, test.header, packet))
		if !test.heard {
			continue
		}
		// Frames arrive in order: had the one before been heard, there would be one more.
		want++
		eventually(t, "a message "+test.name, func() bool { return server.count(t, "oooi_dhcp_messages_total") >= want })
		if got := server.count(t, "oooi_dhcp_messages_total"); got != want {
			t.Errorf("%s: the server heard %v messages, want %v", test.name, got, want)
		}
	}
}

// transmit sends a frame as it is.
func transmit(t *testing.T, ifname string, frame []byte) {
	t.Helper()
	iface, err := net.InterfaceByName(ifname)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: iface.Index}), unix.Close(fd)); err != nil {
		t.Fatal(err)
	}
}

func TestTheServerMayStartBeforeItsAddress(t *testing.T) {
	bridge(t, "vlan100", "")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	serve(t)
	if err := claim(t, "vlan100", "192.0.2.2"); err != nil {
		t.Fatal(err)
	}
	c := &udhcpc{}
	c.start(t, "one")
	c.bound(t, 1)
	c.renew(t)
	if got := c.bound(t, 2); got != "192.0.2.100" {
		t.Errorf("the client has %s", got)
	}
}
