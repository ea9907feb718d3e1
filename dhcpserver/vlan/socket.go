package vlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"syscall"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

var broadcastMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// packetSocket sends and receives the packets of one protocol on one interface. The kernel writes and removes the
// Ethernet header, and so knows the interface's own address at any time.
type packetSocket struct {
	file     *os.File
	raw      syscall.RawConn
	ifindex  int
	protocol uint16
	// taking is true from before a packet is taken until receive is called again and there is none.
	taking atomic.Bool
}

// received says how a packet arrived.
type received struct {
	n         int
	kind      uint8 // unix.PACKET_HOST, …
	from      [6]byte
	checksum  bool // the checksums of the packet can be checked
	otherVLAN bool // the frame had the tag of a VLAN below this interface
}

// interfaceByName returns an interface that is up.
func interfaceByName(name string) (*net.Interface, error) {
	iface, err := net.InterfaceByName(name)
	if err != nil {
		return nil, fmt.Errorf("interface %s: not found%s", name, others())
	}
	if iface.Flags&net.FlagUp == 0 {
		return nil, fmt.Errorf("interface %s: is down: set it up, for example by: ip link set %s up", name, name)
	}
	return iface, nil
}

// others lists the interfaces that there are, for who mistyped one.
func others() string {
	ifaces, err := net.Interfaces()
	if err != nil || len(ifaces) == 0 {
		return ""
	}
	names := make([]string, len(ifaces))
	for i := range ifaces {
		names[i] = ifaces[i].Name
	}
	return " (there are " + strings.Join(names, ", ") + ")"
}

func openPacketSocket(iface *net.Interface, protocol uint16, filter []bpf.Instruction) (*packetSocket, error) {
	// Protocol 0 receives nothing: no packet can come in before the filter is there.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if errors.Is(err, unix.EPERM) {
		return nil, fmt.Errorf("interface %s: packet socket: %w (it takes CAP_NET_RAW)", iface.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("interface %s: packet socket: %w", iface.Name, err)
	}
	if err := setUp(fd, iface.Index, protocol, filter); err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: packet socket: %w", iface.Name, err), unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), iface.Name)
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: packet socket: %w", iface.Name, err), file.Close())
	}
	return &packetSocket{file: file, raw: raw, ifindex: iface.Index, protocol: protocol}, nil
}

// receiveBuffer is room for the burst of a whole VLAN that boots at once.
const receiveBuffer = 4 << 20

func setUp(fd, ifindex int, protocol uint16, filter []bpf.Instruction) error {
	if len(filter) > 0 {
		if err := attach(fd, filter); err != nil {
			return err
		}
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_AUXDATA, 1); err != nil {
		return err
	}
	// The kernel caps it at net.core.rmem_max for who may not force it.
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err != nil {
			return err
		}
	}
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: networkOrder(protocol), Ifindex: ifindex})
}

// attach puts a filter on a socket, in place of the one that it has.
func attach(fd int, filter []bpf.Instruction) error {
	program, err := bpf.Assemble(filter)
	if err != nil {
		return err
	}
	code := make([]unix.SockFilter, len(program))
	for i, in := range program {
		code[i] = unix.SockFilter{Code: in.Op, Jt: in.Jt, Jf: in.Jf, K: in.K}
	}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(code)), Filter: &code[0]}); err != nil {
		return fmt.Errorf("attach filter: %w", err)
	}
	return nil
}

// filter replaces the filter of an open socket.
func (s *packetSocket) filter(filter []bpf.Instruction) error {
	var attached error
	if err := s.raw.Control(func(fd uintptr) { attached = attach(int(fd), filter) }); err != nil {
		return err
	}
	return attached
}

// shrink makes the room for what was not received yet smaller, in bytes.
func (s *packetSocket) shrink(room int) error {
	var set error
	if err := s.raw.Control(func(fd uintptr) { set = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, room) }); err != nil {
		return err
	}
	return set
}

// lost tells whether packets found no room since it was called the last time.
func (s *packetSocket) lost() (bool, error) {
	var stats *unix.TpacketStats
	var got error
	// The kernel starts to count anew with each answer.
	if err := s.raw.Control(func(fd uintptr) {
		stats, got = unix.GetsockoptTpacketStats(int(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS)
	}); err != nil {
		return false, err
	}
	if got != nil {
		return false, fmt.Errorf("packet socket: %w", got)
	}
	return stats.Drops > 0, nil
}

// pending tells whether there are packets that receive has not returned yet, or that are still worked on by who called it.
func (s *packetSocket) pending() bool {
	there := true
	// In this order: what is taken meanwhile shows in the second.
	err := s.raw.Control(func(fd uintptr) {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		there = err != nil || n > 0
	})
	return err != nil || there || s.taking.Load()
}

func networkOrder(n uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, n))
}

// receive waits for the next packet. It fails when the interface goes down or away, and then for ever.
func (s *packetSocket) receive(buf []byte) (received, error) {
	var (
		oob     [64]byte
		n, oobn int
		from    unix.Sockaddr
		err     error
	)
	waitErr := s.raw.Read(func(fd uintptr) bool {
		for {
			s.taking.Store(true)
			n, oobn, _, from, err = unix.Recvmsg(int(fd), buf, oob[:], 0)
			if err != unix.EINTR {
				s.taking.Store(err != unix.EAGAIN)
				return err != unix.EAGAIN
			}
		}
	})
	if waitErr != nil {
		return received{}, waitErr
	}
	if err != nil {
		return received{}, err
	}
	r := received{n: n, checksum: true}
	if link, ok := from.(*unix.SockaddrLinklayer); ok {
		r.kind = link.Pkttype
		r.from = [6]byte(link.Addr[:6])
	}
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	if err != nil {
		return received{}, err
	}
	for _, m := range messages {
		if m.Header.Level == unix.SOL_PACKET && m.Header.Type == unix.PACKET_AUXDATA && len(m.Data) >= 20 {
			status, tag := binary.NativeEndian.Uint32(m.Data), binary.NativeEndian.Uint16(m.Data[16:])
			// VALID: the kernel or the hardware has checked it already.
			r.checksum = status&(unix.TP_STATUS_CSUMNOTREADY|unix.TP_STATUS_CSUM_VALID) == 0
			r.otherVLAN = status&unix.TP_STATUS_VLAN_VALID != 0 && tag&0xfff != 0
		}
	}
	return r, nil
}

// send sends one packet in a frame to a hardware address.
func (s *packetSocket) send(packet []byte, to [6]byte) error {
	target := &unix.SockaddrLinklayer{Protocol: networkOrder(s.protocol), Ifindex: s.ifindex, Halen: 6}
	copy(target.Addr[:], to[:])
	var err error
	waitErr := s.raw.Write(func(fd uintptr) bool {
		for {
			err = unix.Sendto(int(fd), packet, 0, target)
			if err != unix.EINTR {
				return err != unix.EAGAIN
			}
		}
	})
	if waitErr != nil {
		return waitErr
	}
	return err
}

func (s *packetSocket) close() error { return s.file.Close() }
