package vlanpods

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/e2e/kubelet"
)

// claim is an ARP packet by which a machine says that an address is its own (RFC 826): a reply, an announcement, or a request
// that it sends.
type claim struct {
	at      time.Time
	address netip.Addr
	mac     string
}

// capture listens to all ARP of the VLAN, on the bridge.
type capture struct {
	socket *os.File
	done   chan struct{}

	mu     sync.Mutex
	claims []claim
	probed map[netip.Addr]int
}

// probes is how often it was asked for an address by hosts without one.
func (c *capture) probes(address string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.probed[netip.MustParseAddr(address)]
}

// captureARP listens until the end of the test.
func captureARP(t testing.TB) *capture {
	t.Helper()
	c := &capture{done: make(chan struct{}), probed: map[netip.Addr]int{}}
	err := kubelet.Switch.Do(func() error {
		link, err := net.InterfaceByName(bridge)
		if err != nil {
			return err
		}
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return err
		}
		c.socket = os.NewFile(uintptr(fd), "arp")
		promiscuous := &unix.PacketMreq{Ifindex: int32(link.Index), Type: unix.PACKET_MR_PROMISC}
		return errors.Join(
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index}),
			unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, promiscuous),
		)
	})
	if err != nil {
		t.Fatal(err)
	}
	go c.listen()
	t.Cleanup(func() {
		_ = c.socket.Close() // it only reads
		<-c.done
	})
	return c
}

func (c *capture) listen() {
	defer close(c.done)
	frame := make([]byte, 2048)
	for {
		n, err := c.socket.Read(frame)
		if err != nil {
			return // closed
		}
		// 14 octets of Ethernet; then the sender's hardware address at 8, its address at 14.
		if n < 14+28 {
			continue
		}
		arp := frame[14:n]
		address, _ := netip.AddrFromSlice(arp[14:18])
		c.mu.Lock()
		if address.IsUnspecified() { // a probe claims nothing (RFC 5227)
			probed, _ := netip.AddrFromSlice(arp[24:28])
			c.probed[probed]++
			c.mu.Unlock()
			continue
		}
		c.claims = append(c.claims, claim{at: time.Now(), address: address, mac: net.HardwareAddr(arp[8:14]).String()})
		c.mu.Unlock()
	}
}

// holders are the hardware addresses that have claimed an address, one after the other.
func (c *capture) holders(address string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var macs []string
	for _, claim := range c.claims {
		if claim.address.String() == address && (len(macs) == 0 || macs[len(macs)-1] != claim.mac) {
			macs = append(macs, claim.mac)
		}
	}
	return macs
}

// handedOver is when an address was first claimed by the machine that has it now.
func (c *capture) handedOver(t *testing.T, address string) time.Time {
	t.Helper()
	macs := c.holders(address)
	if len(macs) == 0 {
		t.Fatalf("nobody has claimed %s", address)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.claims, func(a claim) bool { return a.address.String() == address && a.mac == macs[len(macs)-1] })
	return c.claims[i].at
}

// history is all that was claimed of an address, a line each.
func (c *capture) history(address string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var lines strings.Builder
	for _, claim := range c.claims {
		if claim.address.String() == address {
			fmt.Fprintf(&lines, "%s %s\n", claim.at.Format("15:04:05.000"), claim.mac)
		}
	}
	return lines.String()
}

// oneAtATime holds the server addresses to one machine at a time: none that another one has followed claims one again. The last one
// is the holder; where it is a new one it has claimed them all.
func (c *capture) oneAtATime(t testing.TB, holder string, isNew bool) {
	t.Helper()
	for _, address := range []string{addressDHCP, addressDNS, addressProxy} {
		macs := c.holders(address)
		if isNew && len(macs) == 0 {
			t.Errorf("nobody has claimed %s", address)
		}
		if len(macs) > 0 && macs[len(macs)-1] != holder {
			t.Errorf("%s is claimed by %s, and the holder is %s:\n%s", address, macs[len(macs)-1], holder, c.history(address))
		}
		seen := map[string]bool{}
		for _, mac := range macs {
			if seen[mac] {
				t.Errorf("%s is claimed by %s again after another one had it:\n%s", address, mac, c.history(address))
				break
			}
			seen[mac] = true
		}
	}
}
