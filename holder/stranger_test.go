package holder_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/holder"
)

const strangerMAC = "52:54:00:00:00:99"

// stranger makes a tenant's network namespace on the VLAN, and returns its name.
func (v *vlan) stranger(t *testing.T) string {
	t.Helper()
	name := v.bridge + "x"
	run(t, "ip netns add "+name)
	t.Cleanup(func() {
		run(t, "ip link del p-"+name)
		run(t, "ip netns del "+name)
	})
	run(t, fmt.Sprintf("ip link add p-%s type veth peer name eth0 address %s netns %s", name, strangerMAC, name))
	run(t, fmt.Sprintf("ip link set p-%s master %s up", name, v.bridge))
	run(t, "ip -n "+name+" link set eth0 up")
	return name
}

// transmit sends a frame from the bridge, as if it came from one of its ports.
func (v *vlan) transmit(t *testing.T, frame []byte) {
	t.Helper()
	bridge, err := net.InterfaceByName(v.bridge)
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing could be lost
	if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: bridge.Index}); err != nil {
		t.Fatal(err)
	}
}

// claims is an ARP reply to everybody that says that the stranger has the address.
func claims(addr netip.Addr) []byte {
	mac, everybody := must(net.ParseMAC(strangerMAC)), []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	return slices.Concat(everybody, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 2}, mac, addr.AsSlice(), everybody, addr.AsSlice())
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// announcements counts what a pod announced of an address.
func (c *capture) announcements(p *pod, addr netip.Addr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.events {
		if e.mac == p.mac && e.addr == addr && e.what == "announcement" {
			n++
		}
	}
	return n
}

func TestFirstClaimIsProbed(t *testing.T) {
	t.Parallel()
	v, a, b := makeVLAN(t, holder.Record{}, "192.0.2.2", "192.0.2.3")
	began := time.Now()
	a.start(t)
	b.start(t)
	first := v.settled(t, a, b)
	v.capture.changed(t, first)
	answered := v.capture.runs(v.served()[0])[0].first.Sub(began)
	t.Logf("first claimed after %v", answered)
	if answered < 4*time.Second {
		t.Errorf("claimed after %v: three probes and the wait after them take 4 to 7 s (RFC 5227 section 1.1)", answered)
	}
	eventually(t, "the record has the addresses", func() bool { return len(v.lock.current().Addresses) == 2 })
}

func TestAddressOfAStranger(t *testing.T) {
	t.Parallel()
	v, a, b := makeVLAN(t, heldBefore("192.0.2.2"), "192.0.2.2", "192.0.2.3")
	stranger := v.stranger(t)
	run(t, "ip -n "+stranger+" addr add 192.0.2.3/24 dev eth0")
	a.start(t)
	want := "interface vlan0: address 192.0.2.3 is in use by " + strangerMAC + ": take it away from that host, or choose another"
	if got := a.problem(t, holder.AddressInUse, true); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	b.start(t)
	if got := a.addresses(t); got != "192.0.2.2/32" {
		t.Errorf("a has %s", got)
	}
	run(t, "ip -n "+stranger+" addr del 192.0.2.3/24 dev eth0")
	v.settled(t, a)
	a.problem(t, holder.AddressInUse, false)
	v.capture.changed(t, a)
	if got := b.addresses(t); got != "" {
		t.Errorf("b has %s", got)
	}
}

func TestStrangerClaimsLater(t *testing.T) {
	v, a, _ := pair(t)
	addr := v.served()[1]
	eventually(t, "all announcements", func() bool { return v.capture.announcements(a, addr) == 6 })
	for range 20 {
		v.transmit(t, claims(addr))
	}
	want := "interface vlan0: address 192.0.2.3 is claimed by " + strangerMAC + " as well: it is held and defended; take it away from that host"
	if got := a.problem(t, holder.AddressContested, true); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	a.problem(t, holder.AddressContested, false)
	v.capture.changed(t, a)
	// One announcement is a request and a reply.
	if got := v.capture.announcements(a, addr); got != 8 {
		t.Errorf("%d announcements, want the 6 of the claim and 2 in defence", got)
	}
}

// A stranger who has the addresses, however it got them, keeps nobody from taking over what this Infra held.
func TestStrangerAtATakeover(t *testing.T) {
	v, a, b := pair(t)
	stranger := v.stranger(t)
	for _, addr := range v.served() {
		run(t, "ip -n "+stranger+" addr add "+addr.String()+"/32 dev eth0")
	}
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	b.problem(t, holder.AddressContested, true)
	for _, addr := range v.served() {
		run(t, "ip -n "+stranger+" addr del "+addr.String()+"/32 dev eth0")
	}
	b.problem(t, holder.AddressContested, false)
	v.capture.changed(t, a, b)
}

// A stranger answers with the MAC of the dead holder: the record decides.
func TestStrangerAnswersAsTheDeadHolder(t *testing.T) {
	v, a, b := pair(t)
	stranger := v.stranger(t)
	run(t, "ip link set p-"+stranger+" down")
	run(t, "ip -n "+stranger+" link set eth0 address "+a.mac)
	for _, addr := range v.served() {
		run(t, "ip -n "+stranger+" addr add "+addr.String()+"/32 dev eth0")
	}
	a.signal(t, syscall.SIGSTOP)
	run(t, "ip link set p-"+stranger+" up")
	run(t, "ip link del "+a.port())
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	b.problem(t, holder.AddressContested, true)
	v.capture.changed(t, a, b)
}

func TestWantedAddressesChange(t *testing.T) {
	v, a, b := pair(t)
	v.serve("192.0.2.2", "192.0.2.3", "192.0.2.4")
	for _, p := range v.pods {
		p.want(t, "192.0.2.2", "192.0.2.3", "192.0.2.4")
	}
	v.settled(t, a)
	eventually(t, "it is in the record", func() bool { return len(v.lock.current().Addresses) == 3 })
	v.serve("192.0.2.3", "192.0.2.4")
	for _, p := range v.pods {
		p.want(t, "192.0.2.4", "192.0.2.3")
	}
	eventually(t, "one is taken off", func() bool { return a.addresses(t) == "192.0.2.3/32 192.0.2.4/32" })
	v.capture.changed(t, a)
	a.signal(t, syscall.SIGTERM)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	// Nothing is wanted any more.
	v.serve()
	b.want(t)
	eventually(t, "all are taken off", func() bool { return b.addresses(t) == "" && v.lock.current().Holder == "" })
}

func TestInterfaceIsLate(t *testing.T) {
	t.Parallel()
	v, a, _ := makeVLAN(t, heldBefore("192.0.2.2"), "192.0.2.2")
	run(t, "ip link del "+a.port())
	a.start(t)
	if got := a.problem(t, holder.InterfaceMissing, true); !strings.HasPrefix(got, "interface vlan0: not found (there are lo") {
		t.Errorf("problem %q", got)
	}
	v.plug(t, a)
	v.capture.listen(t, a)
	v.settled(t, a)
	v.capture.changed(t, a)
	if s := a.State(); len(s.Problems) > 0 {
		t.Errorf("problems %v", s.Problems)
	}
	// It is taken away, and made anew.
	run(t, "ip link del "+a.port())
	a.problem(t, holder.InterfaceMissing, true)
	eventually(t, "a is not the holder", func() bool { return !a.State().Holding })
	v.plug(t, a)
	v.capture.listen(t, a)
	v.settled(t, a)
	v.capture.changed(t, a)
}

func TestInterfaceHasAddresses(t *testing.T) {
	t.Parallel()
	v, a, _ := makeVLAN(t, heldBefore("192.0.2.2"), "192.0.2.2")
	run(t, "ip -n "+a.namespace()+" addr add 192.0.2.99/24 dev vlan0")
	a.start(t)
	want := "interface vlan0: has 192.0.2.99/24, which oooi did not put there: the NetworkAttachmentDefinition must have no IPAM"
	if got := a.problem(t, holder.InterfaceHasAddresses, true); got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	v.settled(t, a)
	v.capture.changed(t, a)
	run(t, "ip -n "+a.namespace()+" addr del 192.0.2.99/24 dev vlan0")
	a.problem(t, holder.InterfaceHasAddresses, false)
	a.signal(t, syscall.SIGTERM)
	if got := a.addresses(t); got != "" {
		t.Errorf("a has %s", got)
	}
}

// What a crashed run left, and the kernel has not taken off yet, is not this pod's any more.
func TestLeftovers(t *testing.T) {
	t.Parallel()
	record := heldBefore("192.0.2.2", "192.0.2.7")
	record.Holder = "b"
	v, a, b := makeVLAN(t, record, "192.0.2.2")
	b.start(t)
	v.settled(t, b)
	v.capture.changed(t, b)
	for _, addr := range []string{"192.0.2.2", "192.0.2.7"} {
		run(t, "ip -n "+a.namespace()+" addr add "+addr+"/32 dev vlan0 valid_lft 600 preferred_lft 600")
	}
	a.start(t)
	eventually(t, "they are taken off", func() bool { return a.addresses(t) == "" })
}

// In a flood what the holder says is lost, frames and ARP. Nobody takes its silence for its end.
func TestFlood(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "a", "b")
	bridge, err := net.InterfaceByName(v.bridge)
	if err != nil {
		t.Fatal(err)
	}
	source := must(net.ParseMAC(strangerMAC))
	frame := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, source, []byte{0x88, 0xb5}, []byte("oooi"), make([]byte, 60))
	reply := claims(v.served()[0])
	done := make(chan struct{})
	var floods sync.WaitGroup
	for _, packet := range [][]byte{frame, reply} {
		floods.Go(func() {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Error(err)
				return
			}
			defer func() { _ = unix.Close(fd) }() // nothing could be lost
			for {
				select {
				case <-done:
					return
				default:
				}
				for range 100 {
					_ = unix.Sendto(fd, packet, 0, &unix.SockaddrLinklayer{Ifindex: bridge.Index}) // a full queue is what is wanted
				}
			}
		})
	}
	took := false
	for began := time.Now(); time.Since(began) < 6*time.Second; time.Sleep(10 * time.Millisecond) {
		took = took || b.State().Holding
	}
	close(done)
	floods.Wait()
	if took {
		t.Error("b took the addresses from a, which lives")
	}
	v.settled(t, a, b)
	if !a.State().Holding {
		t.Error("a lost the addresses")
	}
	a.signal(t, syscall.SIGKILL)
	eventually(t, "b holds when the flood is over and a is gone", func() bool { return b.State().Holding })
}
