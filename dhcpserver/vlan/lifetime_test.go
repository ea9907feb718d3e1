package vlan_test

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/dhcpserver/vlan"
)

func look(t *testing.T, ifname string) *vlan.Link {
	t.Helper()
	link, err := vlan.Look(ifname)
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// has tells whether the interface had the address as the /32 of Keep.
func has(link *vlan.Link, addr netip.Addr) bool {
	return slices.ContainsFunc(link.Addresses, func(a vlan.Address) bool { return a.Addr() == addr && a.Bits() == 32 })
}

func TestKeep(t *testing.T) {
	bridge(t, "vlan100", "")
	worker(t, "one", "vlan100", "52:54:00:00:00:01")
	run(t, "ip -n one addr add 192.0.2.77/24 dev eth0")
	link, addr := look(t, "vlan100"), netip.MustParseAddr("192.0.2.2")

	began := vlan.Boottime()
	until, err := link.Keep(addr, began+time.Second)
	if err != nil {
		t.Fatal(err)
	}
	if err := link.Lead(netip.MustParsePrefix("192.0.2.0/24")); err != nil {
		t.Fatal(err)
	}
	if until < began+vlan.Lifetime-200*time.Millisecond || until > vlan.Boottime()+vlan.Lifetime {
		t.Errorf("kept until %v, %v after the call", until, until-began)
	}
	link = look(t, "vlan100")
	if !has(link, addr) || len(link.Addresses) != 1 || !link.Addresses[0].Expires {
		t.Errorf("addresses %+v", link.Addresses)
	}
	if got := routes(t, "vlan100"); got != "192.0.2.0/24 scope link" {
		t.Errorf("routes %s", got)
	}
	echo(t, "one", "192.0.2.2")

	// Whoever wrote the CIDR too wide at first has mended it.
	run(t, "ip route add 198.51.100.0/24 via 192.0.2.77 dev vlan100") // somebody's own
	for _, cidr := range []string{"192.0.0.0/16", "192.0.2.0/24"} {
		if err := link.Lead(netip.MustParsePrefix(cidr)); err != nil {
			t.Fatal(err)
		}
		if got := routes(t, "vlan100"); got != cidr+" scope link 198.51.100.0/24 via 192.0.2.77" {
			t.Errorf("routes %s", got)
		}
	}

	// It is there for as long as it is kept, and not longer.
	eventually(t, "it is kept for two lifetimes", func() bool {
		if until, err = link.Keep(addr, until); err != nil {
			t.Fatal(err)
		}
		if !has(look(t, "vlan100"), addr) {
			t.Fatal("a kept address is gone")
		}
		return vlan.Boottime() >= began+2*vlan.Lifetime
	})
	eventually(t, "the kernel takes it off", func() bool { return addresses(t, "vlan100") == "" })
	if now := vlan.Boottime(); now < until {
		t.Errorf("taken off %v before the end", until-now)
	}
	if got := routes(t, "vlan100"); got != "" {
		t.Errorf("the route is left: %s", got)
	}
}

// Who comes too late puts nothing on, and leaves nothing.
func TestKeepTooLate(t *testing.T) {
	bridge(t, "vlan100", "")
	link, addr := look(t, "vlan100"), netip.MustParseAddr("192.0.2.2")
	_, err := link.Keep(addr, vlan.Boottime()-time.Second)
	var late *vlan.LateError
	if !errors.As(err, &late) || late.Address != addr || late.By < time.Second {
		t.Errorf("error %v", err)
	}
	if got := addresses(t, "vlan100"); got != "" {
		t.Errorf("addresses %s", got)
	}
	if _, err := link.Keep(addr, vlan.Boottime()+time.Second); err != nil {
		t.Fatal(err)
	}
	if _, err := link.Keep(addr, vlan.Boottime()-1); !errors.As(err, &late) {
		t.Errorf("error %v", err)
	}
	if got := addresses(t, "vlan100"); got != "" {
		t.Errorf("addresses %s after it was too late to keep them", got)
	}
}

func TestDrop(t *testing.T) {
	bridge(t, "vlan100", "192.0.2.9/24")
	link := look(t, "vlan100")
	if _, err := link.Keep(netip.MustParseAddr("192.0.2.2"), vlan.Boottime()+time.Minute); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"192.0.2.2", "192.0.2.2", "192.0.2.9"} {
		if err := link.Drop(netip.MustParseAddr(a)); err != nil {
			t.Errorf("drop %s: %v", a, err)
		}
	}
	if got := addresses(t, "vlan100"); got != "192.0.2.9/24" {
		t.Errorf("addresses %s", got)
	}
}

func TestLook(t *testing.T) {
	if _, err := vlan.Look("vlan7"); !errors.Is(err, vlan.ErrMissing) || !strings.HasPrefix(err.Error(), "interface vlan7: not found (there are lo") {
		t.Errorf("error %v", err)
	}
	run(t, "ip link add near type veth peer name far")
	t.Cleanup(func() { run(t, "ip link del near") })
	run(t, "ip addr add 192.0.2.9/24 dev near")
	run(t, "ip link set near up")
	if link := look(t, "near"); link.Up || link.Down != "has no carrier" {
		t.Errorf("the other end is down: %+v", link)
	}
	run(t, "ip link set far up")
	eventually(t, "it is up", func() bool { return look(t, "near").Up })
	if link := look(t, "near"); len(link.MAC) != 6 || len(link.Addresses) != 1 || link.Addresses[0].Expires || link.Addresses[0].String() != "192.0.2.9/24" {
		t.Errorf("%+v", link)
	}
	run(t, "ip link set near down")
	if link := look(t, "near"); link.Up || link.Down != "is down" {
		t.Errorf("set down: %+v", link)
	}
}
