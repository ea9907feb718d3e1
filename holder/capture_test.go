package holder_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// capture is what the pods sent from the server addresses: ARP in which they say that they have them, and IP packets. It hears them at
// the ports of the bridge, and asks for the addresses all the time.
type capture struct {
	vlan *vlan
	done chan struct{}

	mu     sync.Mutex
	events []sent
	fds    map[int]string
}

// sent is one packet.
type sent struct {
	// at is the kernel's time of its arrival.
	at   time.Time
	mac  string
	addr netip.Addr
	what string
}

const allEther = unix.ETH_P_ALL<<8&0xff00 | unix.ETH_P_ALL>>8

func startCapture(t *testing.T, v *vlan) *capture {
	t.Helper()
	c := &capture{vlan: v, done: make(chan struct{}), fds: map[int]string{}}
	for _, p := range v.pods {
		c.listen(t, p)
	}
	asker, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := net.InterfaceByName(v.bridge)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	go func() {
		defer close(c.done)
		ticker := time.NewTicker(10 * time.Millisecond)
		defer ticker.Stop()
		for {
			select {
			case <-stop:
				return
			case <-ticker.C:
			}
			for _, addr := range v.served() {
				_ = unix.Sendto(asker, whoHas(bridge.HardwareAddr, addr), 0, &unix.SockaddrLinklayer{Ifindex: bridge.Index}) // the bridge may be gone
			}
			c.read()
		}
	}()
	t.Cleanup(func() {
		close(stop)
		<-c.done
		_ = unix.Close(asker)
		for fd := range c.fds {
			_ = unix.Close(fd)
		}
		if t.Failed() || testing.Verbose() {
			t.Logf("captured:\n%s", c)
		}
	})
	return c
}

// listen captures at the port of a pod.
func (c *capture) listen(t *testing.T, p *pod) {
	t.Helper()
	port, err := net.InterfaceByName(p.port())
	if err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_TIMESTAMPNS, 1),
		unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: allEther, Ifindex: port.Index}))
	if err != nil {
		t.Fatal(err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.fds[fd] = p.name
}

func whoHas(mac net.HardwareAddr, addr netip.Addr) []byte {
	b := slices.Concat([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac, []byte{8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, mac, []byte{192, 0, 2, 250}, make([]byte, 6), addr.AsSlice())
	return b
}

func (c *capture) read() {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf, oob := make([]byte, 2048), make([]byte, 128)
	for fd := range c.fds {
		for {
			n, oobn, _, from, err := unix.Recvmsg(fd, buf, oob, 0)
			if err != nil {
				break
			}
			if link, ok := from.(*unix.SockaddrLinklayer); !ok || link.Pkttype == unix.PACKET_OUTGOING {
				continue
			}
			if e, ok := c.parse(buf[:n]); ok {
				e.at = arrival(oob[:oobn])
				c.events = append(c.events, e)
			}
		}
	}
}

func (c *capture) parse(b []byte) (sent, bool) {
	if len(b) < 42 {
		return sent{}, false
	}
	e := sent{mac: net.HardwareAddr(b[6:12]).String()}
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_ARP:
		e.addr, e.what = netip.AddrFrom4([4]byte(b[28:])), "arp"
		e.mac = net.HardwareAddr(b[22:28]).String()
		if e.addr == netip.AddrFrom4([4]byte(b[38:])) {
			e.what = "announcement"
		}
	case unix.ETH_P_IP:
		e.addr, e.what = netip.AddrFrom4([4]byte(b[26:])), "ip"
	}
	return e, slices.Contains(c.vlan.served(), e.addr)
}

func arrival(oob []byte) time.Time {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return time.Time{}
	}
	for _, m := range messages {
		if m.Header.Type == unix.SO_TIMESTAMPNS && len(m.Data) >= 16 {
			return time.Unix(int64(binary.NativeEndian.Uint64(m.Data)), int64(binary.NativeEndian.Uint64(m.Data[8:])))
		}
	}
	return time.Time{}
}

// run is an unbroken row of packets from one MAC for one address.
type captureRun struct {
	mac         string
	first, last time.Time
	packets     int
}

// runs are those of our pods for an address, in the order of time.
func (c *capture) runs(addr netip.Addr) []captureRun {
	c.mu.Lock()
	defer c.mu.Unlock()
	var events []sent
	for _, e := range c.events {
		if e.addr == addr && slices.ContainsFunc(c.vlan.pods, func(p *pod) bool { return p.mac == e.mac }) {
			events = append(events, e)
		}
	}
	slices.SortStableFunc(events, func(a, b sent) int { return a.at.Compare(b.at) })
	var runs []captureRun
	for _, e := range events {
		if n := len(runs); n == 0 || runs[n-1].mac != e.mac {
			runs = append(runs, captureRun{mac: e.mac, first: e.at})
		}
		r := &runs[len(runs)-1]
		r.last = e.at
		r.packets++
	}
	return runs
}

func (c *capture) String() string {
	var b strings.Builder
	for _, addr := range c.vlan.served() {
		for _, r := range c.runs(addr) {
			fmt.Fprintf(&b, "%s: %s from %s to %s, %d packets\n", addr, r.mac, r.first.Format("05.000"), r.last.Format("05.000"), r.packets)
		}
	}
	return b.String()
}

// changed waits until the pod answers for all addresses, and checks that they went through the given pods, in this order, and never had
// two MACs at a time: had they, there would be more changes than these. It logs how long nobody answered.
func (c *capture) changed(t *testing.T, pods ...*pod) {
	t.Helper()
	want := make([]string, len(pods))
	for i, p := range pods {
		want[i] = p.mac
	}
	for _, addr := range c.vlan.served() {
		eventually(t, fmt.Sprintf("%s answers for %s\n%s", pods[len(pods)-1].name, addr, c), func() bool {
			runs := c.runs(addr)
			return len(runs) >= len(pods) && runs[len(runs)-1].mac == want[len(want)-1] && runs[len(runs)-1].packets > 3
		})
		var got []string
		runs := c.runs(addr)
		for i, r := range runs {
			got = append(got, r.mac)
			if i > 0 {
				t.Logf("%s: nobody answered for %.3f s", addr, r.first.Sub(runs[i-1].last).Seconds())
			}
			if after := r.first.Sub(c.vlan.struck); i == len(runs)-1 && after > 0 && !c.vlan.struck.IsZero() {
				t.Logf("%s: the next one answered after %.3f s", addr, after.Seconds())
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s was at %v, want %v:\n%s", addr, got, want, c)
		}
	}
}
