package hosted

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/densityops/oooi/e2e/stack"
)

// AskARP asks on an interface of a host who has an address, once, and waits for answers for so long (RFC 826). It returns the hardware
// addresses of all who answer, in the order of their answers. The host needs no address itself.
func AskARP(ctx context.Context, host stack.Host, name string, address netip.Addr, wait time.Duration) ([]string, error) {
	var socket *os.File
	var mac net.HardwareAddr
	if err := host.Do(func() error {
		link, err := net.InterfaceByName(name)
		if err != nil {
			return err
		}
		mac = link.HardwareAddr
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return err
		}
		socket = os.NewFile(uintptr(fd), "arp")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
	}); err != nil {
		if socket != nil {
			err = errors.Join(err, socket.Close())
		}
		return nil, fmt.Errorf("ARP on %s of %s: %w", name, host, err)
	}
	defer func() { _ = socket.Close() }() // nothing is buffered

	frame := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, mac...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4, 0, 1) // Ethernet, IPv4, request
	frame = append(append(frame, mac...), 0, 0, 0, 0)
	frame = append(append(frame, 0, 0, 0, 0, 0, 0), address.AsSlice()...)
	if err := socket.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return nil, err
	}
	defer context.AfterFunc(ctx, func() { _ = socket.SetReadDeadline(time.Unix(1, 0)) })()
	if _, err := socket.Write(frame); err != nil {
		return nil, err
	}
	var macs []string
	answer := make([]byte, 2048)
	for {
		n, err := socket.Read(answer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return macs, ctx.Err()
		}
		if err != nil {
			return nil, err
		}
		const reply = 2
		if n < 14+28 || binary.BigEndian.Uint16(answer[20:]) != reply {
			continue
		}
		if sender, ok := netip.AddrFromSlice(answer[28:32]); ok && sender == address {
			macs = append(macs, net.HardwareAddr(answer[22:28]).String())
		}
	}
}
