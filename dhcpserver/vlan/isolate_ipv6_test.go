package vlan_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

// advertisement is a frame with a router advertisement (RFC 4861 section 4.2) that makes its sender the default router and has one prefix to make
// addresses from, and one that is only said to be on the link. Tags are EtherTypes and what comes behind them.
func advertisement(makes, onLink netip.Prefix, tags ...uint16) []byte {
	source, everybody := netip.MustParseAddr("fe80::99").As16(), netip.MustParseAddr("ff02::1").As16()
	message := []byte{134, 0, 0, 0, 64, 0, 0x07, 0x08, 0, 0, 0, 0, 0, 0, 0, 0}
	for flags, prefix := range map[byte]netip.Prefix{0xc0: makes, 0x80: onLink} {
		message = append(message, 3, 4, byte(prefix.Bits()), flags)
		message = binary.BigEndian.AppendUint32(message, 86400)
		message = binary.BigEndian.AppendUint32(message, 14400)
		message = append(message, 0, 0, 0, 0)
		addr := prefix.Addr().As16()
		message = append(message, addr[:]...)
	}
	// RFC 4443 section 2.3.
	pseudo := slices.Concat(source[:], everybody[:], []byte{0, 0, 0, byte(len(message)), 0, 0, 0, 58}, message)
	var sum uint32
	for i := 0; i < len(pseudo); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(pseudo[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(message[2:], ^uint16(sum))

	frame := []byte{0x33, 0x33, 0, 0, 0, 1, 0x52, 0x54, 0, 0, 0, 1}
	for _, tag := range tags {
		frame = binary.BigEndian.AppendUint16(frame, tag)
	}
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(message)), 58, 255)
	return slices.Concat(frame, source[:], everybody[:], message)
}

// within runs something in a worker's network namespace.
func within(t *testing.T, worker string, do func()) {
	t.Helper()
	entered := make(chan error)
	go func() {
		// The thread is not given back, and ends with this goroutine.
		runtime.LockOSThread()
		fd, err := unix.Open("/run/netns/"+worker, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Setns(fd, unix.CLONE_NEWNET), unix.Close(fd))
		}
		if err == nil {
			do()
		}
		entered <- err
	}()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
}

// setting sets what the kernel does about IPv6 on an interface.
func setting(t *testing.T, ifname, name, value string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", ifname, name), []byte(value), 0o644); err != nil {
		t.Fatal(err)
	}
}

// filters returns the program that shows them. At the end of the test there are none.
func filters(t *testing.T) (nft string) {
	t.Helper()
	nft = tool(t, "nft", "nftables")
	t.Cleanup(func() { run(t, nft+" flush ruleset") })
	return nft
}

func TestIsolateIPv6(t *testing.T) {
	nft := filters(t)
	bridge(t, "vlan100", "192.0.2.2/24")
	setting(t, "vlan100", "disable_ipv6", "0")
	setting(t, "vlan100", "accept_ra", "2")
	setting(t, "vlan100", "autoconf", "1")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	run(t, "ip -n one addr add 192.0.2.77/24 dev eth0")
	pods := netip.MustParsePrefix("fd00:10:244::/64")
	frames := map[string][]byte{
		"2001:db8:1::": advertisement(netip.MustParsePrefix("2001:db8:1::/64"), pods),
		// VLAN 0 is a priority and no VLAN: the kernel looks for what is in there, twice.
		"2001:db8:2::": advertisement(netip.MustParsePrefix("2001:db8:2::/64"), pods, 0x8100, 0),
		"2001:db8:3::": advertisement(netip.MustParsePrefix("2001:db8:3::/64"), pods, 0x8100, 0, 0x8100, 0),
	}
	advertise := func() {
		within(t, "one", func() {
			for _, frame := range frames {
				transmit(t, "eth0", frame)
			}
		})
		// What is sent now comes after them.
		run(t, "ip netns exec one busybox ping -c 1 -W 5 192.0.2.2")
	}
	state := func() string {
		return run(t, "ip -6 addr show dev vlan100") + run(t, "ip -6 route show table all dev vlan100")
	}
	wanted := []string{"default via fe80::99", "fd00:10:244::/64"}
	for prefix := range frames {
		wanted = append(wanted, prefix, prefix+"/64")
	}
	rerouted := func() {
		t.Helper()
		eventually(t, "advertisements are followed where nothing keeps them out", func() bool {
			advertise()
			got := state()
			return !slices.ContainsFunc(wanted, func(part string) bool { return !strings.Contains(got, part) })
		})
	}
	// Twice, as for an interface that comes back: the filter is then put in the place of the one that is there.
	for range 2 {
		rerouted()
		for range 2 {
			if err := vlan.Isolate("vlan100"); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				got := state()
				for _, part := range wanted {
					if strings.Contains(got, part) {
						t.Errorf("there is %s after Isolate:\n%s", part, got)
					}
				}
				advertise()
			}
		}
		rules := run(t, nft+" list table ip6 oooi")
		if n := strings.Count(rules, "drop"); n != 1 || !strings.Contains(rules, `iifname "vlan100" drop`) {
			t.Errorf("%d rules, want one:\n%s", n, rules)
		}
		if !strings.Contains(state(), "inet6 fe80::") {
			t.Errorf("the address of the link is gone, which the kernel makes:\n%s", state())
		}
		// It was the filter, and not luck.
		run(t, nft+" delete table ip6 oooi")
	}
	rerouted()
}

func TestIsolateWithoutIPv6(t *testing.T) {
	nft := filters(t)
	bridge(t, "vlan100", "192.0.2.2/24")
	setting(t, "vlan100", "disable_ipv6", "1")
	if err := vlan.Isolate("vlan100"); err != nil {
		t.Fatal(err)
	}
	if got := run(t, nft+" list ruleset"); got != "" {
		t.Errorf("there are filters where IPv6 is disabled:\n%s", got)
	}
}

// TestIsolateSeveral: nothing of one interface is another one's.
func TestIsolateSeveral(t *testing.T) {
	nft := filters(t)
	names := []string{"vlan100", "a.very-long_nam"}
	for i, name := range names {
		bridge(t, name, fmt.Sprintf("192.0.%d.2/24", i+2))
		setting(t, name, "disable_ipv6", "0")
		if err := vlan.Isolate(name); err != nil {
			t.Fatal(err)
		}
	}
	rules := run(t, nft+" list table ip6 oooi")
	for _, name := range names {
		if !strings.Contains(rules, `iifname "`+name+`" drop`) {
			t.Errorf("nothing keeps IPv6 from %s:\n%s", name, rules)
		}
	}
}

func TestIsolateSaysThatItCannot(t *testing.T) {
	nft := filters(t)
	bridge(t, "vlan100", "192.0.2.2/24")
	setting(t, "vlan100", "disable_ipv6", "0")
	// A chain that is in use cannot be replaced.
	run(t, nft+" add table ip6 oooi")
	run(t, nft+" add chain ip6 oooi no-ipv6-vlan100")
	run(t, nft+" add chain ip6 oooi other")
	run(t, nft+" add rule ip6 oooi other jump no-ipv6-vlan100")
	const want = "interface vlan100: keep IPv6 out with nftables: device or resource busy: load the module nf_tables on the node, or let the CNI plugin tuning set"
	if err := vlan.Isolate("vlan100"); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("error %v, want %s", err, want)
	}
}
