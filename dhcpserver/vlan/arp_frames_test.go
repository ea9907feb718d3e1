package vlan_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// wire opens both ends of a pair of interfaces, and returns what the second one hears.
func wire(t *testing.T) (near, far *vlan.Wire) {
	t.Helper()
	run(t, "ip link add near address 52:54:00:00:00:01 type veth peer name far address 52:54:00:00:00:02")
	t.Cleanup(func() { run(t, "ip link del near") })
	run(t, "ip link set near up")
	run(t, "ip link set far up")
	// The kernel answers for no address here: what is heard is what the test sends.
	for _, name := range []string{"near", "far"} {
		run(t, "ip link set "+name+" arp off")
	}
	open := func(name string) *vlan.Wire {
		eventually(t, name+" is up", func() bool { return look(t, name).Up })
		w, err := vlan.OpenWire(look(t, name), [4]byte([]byte("test")))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := w.Close(); err != nil {
				t.Error(err)
			}
		})
		return w
	}
	return open("near"), open("far")
}

func TestWireFrames(t *testing.T) {
	near, far := wire(t)
	for _, payload := range []string{"else", "tes", "test", "test and more"} {
		if err := near.SendFrame([]byte(payload)); err != nil {
			t.Fatal(err)
		}
	}
	buf := make([]byte, 100)
	// A short one is filled up to the least that Ethernet carries, or not, as the interface likes.
	for _, want := range []string{"test", "test and more"} {
		n, from, err := far.ReceiveFrame(buf)
		if err != nil || !strings.HasPrefix(string(buf[:n]), want) || net.HardwareAddr(from[:]).String() != "52:54:00:00:00:01" {
			t.Errorf("received %q from %v, %v; want %q", buf[:n], from, err, want)
		}
	}
	run(t, "ip link set far down")
	if _, _, err := far.ReceiveFrame(buf); err == nil || !strings.HasPrefix(err.Error(), "interface far: receive frame: ") {
		t.Errorf("received on an interface that is down: %v", err)
	}
}

func TestWireARP(t *testing.T) {
	near, far := wire(t)
	var watched []netip.Addr
	for i := range vlan.MaxWatched {
		watched = append(watched, netip.AddrFrom4([4]byte{192, 0, 2, byte(10 + i)}))
	}
	if err := far.Watch(watched); err != nil {
		t.Fatal(err)
	}
	others := []string{"192.0.2.9", "192.0.2.42", "0.0.0.0", "198.51.100.10"}
	for _, addr := range others {
		if err := near.Ask(netip.MustParseAddr(addr)); err != nil {
			t.Fatal(err)
		}
		if err := near.Announce(netip.MustParseAddr(addr)); err != nil {
			t.Fatal(err)
		}
	}
	var want, got []string
	for _, addr := range watched {
		if err := near.Ask(addr); err != nil {
			t.Fatal(err)
		}
		if err := near.Announce(addr); err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprint(addr, " true"), fmt.Sprint(addr, " false"), fmt.Sprint(addr, " false"))
	}
	for range want {
		s, err := far.ReceiveARP()
		if err != nil {
			t.Fatal(err)
		}
		if net.HardwareAddr(s.MAC[:]).String() != "52:54:00:00:00:01" {
			t.Errorf("from %v", s.MAC)
		}
		got = append(got, fmt.Sprint(s.Address, " ", s.Probe))
	}
	if !slices.Equal(got, want) {
		t.Errorf("heard %v, want %v", got, want)
	}
	if err := far.Watch(append(watched, netip.MustParseAddr("192.0.2.9"))); err == nil || err.Error() != "interface far: 33 addresses are to be watched: at most 32 can be" {
		t.Errorf("error %v", err)
	}
}

func TestWireNeedsEthernet(t *testing.T) {
	if _, err := vlan.OpenWire(look(t, "lo"), [4]byte{}); err == nil || !strings.HasPrefix(err.Error(), "interface lo: is not Ethernet: ") {
		t.Errorf("error %v", err)
	}
}
