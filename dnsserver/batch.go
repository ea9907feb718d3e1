package dnsserver

import (
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	// batchSize is how many packets one system call moves.
	batchSize = 32
	// packetSize is the longest query taken over UDP. A longer one is cut, and then malformed.
	packetSize = 4096
	// controlSize has room for one IP_PKTINFO message.
	controlSize = 64
)

// mmsghdr is struct mmsghdr of recvmmsg(2).
type mmsghdr struct {
	header unix.Msghdr
	length uint32
}

// batch reads and writes UDP packets in batches. The packages that do so too make two objects for
// the address of each packet; here the kernel's own form of it goes back as it came.
type batch struct {
	raw     syscall.RawConn
	control bool

	packets  [batchSize][packetSize]byte
	names    [batchSize]unix.RawSockaddrInet4
	controls [batchSize][controlSize]byte
	vectors  [batchSize]unix.Iovec
	in, out  [batchSize]mmsghdr

	used int // how many headers have to be set up again

	// Arguments and results of the two callbacks, which are bound once.
	received   int
	send       []mmsghdr
	sent       int
	errno      syscall.Errno
	onReadable func(fd uintptr) bool
	onWritable func(fd uintptr) bool
}

func newBatch(conn *net.UDPConn, control bool) (*batch, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &batch{raw: raw, control: control, used: batchSize}
	b.onReadable, b.onWritable = b.recvmmsg, b.sendmmsg
	return b, nil
}

// read waits for packets and returns how many there are.
func (b *batch) read() (int, error) {
	// The kernel and reply change only the headers that were in use.
	for i := range b.used {
		b.vectors[i].Base = &b.packets[i][0]
		b.vectors[i].SetLen(packetSize)
		h := &b.in[i].header
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Namelen = unix.SizeofSockaddrInet4
		h.Iov = &b.vectors[i]
		h.SetIovlen(1)
		if b.control {
			h.Control = &b.controls[i][0]
			h.SetControllen(controlSize)
		}
	}
	if err := b.raw.Read(b.onReadable); err != nil {
		return 0, err
	}
	if b.errno != 0 {
		return 0, os.NewSyscallError("recvmmsg", b.errno)
	}
	b.used = b.received
	return b.received, nil
}

func (b *batch) recvmmsg(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.in[0])), batchSize, 0, 0, 0)
		if errno != syscall.EINTR {
			b.received, b.errno = int(n), errno
			return errno != syscall.EAGAIN
		}
	}
}

// packet is the i-th packet that read received: its buffer and its length.
func (b *batch) packet(i int) ([]byte, int) { return b.packets[i][:], int(b.in[i].length) }

// client is the sender of the i-th packet.
func (b *batch) client(i int) netip.AddrPort {
	name := &b.names[i]
	port := *(*[2]byte)(unsafe.Pointer(&name.Port))
	return netip.AddrPortFrom(netip.AddrFrom4(name.Addr), uint16(port[0])<<8|uint16(port[1]))
}

// source is the control message that sends an answer to the i-th packet from the address it was
// sent to; nil when the socket has one address only.
func (b *batch) source(i int) []byte {
	n := int(b.in[i].header.Controllen)
	if !b.control || n < unix.CmsgLen(unix.SizeofInet4Pktinfo) {
		return nil
	}
	c := b.controls[i][:n]
	header := (*unix.Cmsghdr)(unsafe.Pointer(&c[0]))
	if header.Level != unix.IPPROTO_IP || header.Type != unix.IP_PKTINFO {
		return nil
	}
	// The route back is the kernel's choice, not the interface that the query came in by.
	info := (*unix.Inet4Pktinfo)(unsafe.Pointer(&c[unix.CmsgLen(0)]))
	info.Ifindex = 0
	return c
}

// reply puts the first length bytes of the i-th packet's buffer into the outgoing batch at position
// k, back to where the packet came from.
func (b *batch) reply(k, i, length int) {
	b.vectors[i].SetLen(length)
	out := &b.out[k].header
	*out = b.in[i].header
	out.Flags = 0
	if b.source(i) == nil {
		out.Control = nil
		out.SetControllen(0)
	}
}

// write sends the first n replies and returns how many the kernel did not take.
func (b *batch) write(n int) (failed int, err error) {
	for b.send = b.out[:n]; len(b.send) > 0; b.send = b.send[b.sent:] {
		if err := b.raw.Write(b.onWritable); err != nil {
			return failed + len(b.send), err
		}
		if b.errno != 0 {
			// The first one of the rest cannot be sent; the others may.
			failed++
			b.sent = 1
		}
	}
	return failed, nil
}

func (b *batch) sendmmsg(fd uintptr) bool {
	for {
		n, _, errno := syscall.Syscall6(unix.SYS_SENDMMSG, fd, uintptr(unsafe.Pointer(&b.send[0])), uintptr(len(b.send)), 0, 0, 0)
		if errno != syscall.EINTR {
			b.sent, b.errno = int(n), errno
			return errno != syscall.EAGAIN
		}
	}
}
