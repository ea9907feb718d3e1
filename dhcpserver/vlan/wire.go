package vlan

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

const (
	// etherType is "Local Experimental Ethertype 1" (RFC 7042, appendix B).
	etherType = 0x88b5
	// sendTimeout is how long a send may wait for room: who sends holds addresses, and must not hang.
	sendTimeout = 20 * time.Millisecond
	// wireBuffer, in bytes, is room for some hundred packets: what is heard must be new, and what is too much must be known to be lost.
	wireBuffer = 128 << 10
	// MaxWatched is how many addresses a Wire can watch.
	MaxWatched = 32
)

// Sighting is an ARP packet that shows who has, or is about to have, a watched address.
type Sighting struct {
	Address netip.Addr
	MAC     [6]byte
	// Probe: that host only asks whether it may have the address (RFC 5227 section 1.1). Otherwise it says that it has it.
	Probe bool
}

// Wire is what the holder of addresses sends and hears on a VLAN: ARP about its addresses, and frames of
// its own to other holders. A Wire is done for when its interface goes down or away: Receive… and Send… fail, and it is to be
// closed and opened anew. Its methods may be called at the same time.
type Wire struct {
	link   *Link
	own    [6]byte
	arp    *packetSocket
	frames *packetSocket
}

// OpenWire opens the interface, which must be up. Frames are told from others of their EtherType by their first four
// bytes. It takes CAP_NET_RAW.
func OpenWire(link *Link, magic [4]byte) (*Wire, error) {
	if len(link.MAC) != 6 {
		return nil, fmt.Errorf("interface %s: is not Ethernet: addresses can be announced on Ethernet only", link.Name)
	}
	w := &Wire{link: link, own: [6]byte(link.MAC)}
	iface := &net.Interface{Name: link.Name, Index: link.Index}
	var err error
	if w.arp, err = openPacketSocket(iface, unix.ETH_P_ARP, watchFilter(nil)); err != nil {
		return nil, err
	}
	if w.frames, err = openPacketSocket(iface, etherType, magicFilter(magic)); err != nil {
		return nil, errors.Join(err, w.arp.close())
	}
	if err := errors.Join(w.arp.shrink(wireBuffer), w.frames.shrink(wireBuffer)); err != nil {
		return nil, errors.Join(fmt.Errorf("interface %s: %w", link.Name, err), w.Close())
	}
	return w, nil
}

// Lost tells whether packets for Receive… were lost since it was called the last time, because more came than were received. While
// that is so, silence means nothing.
func (w *Wire) Lost() (bool, error) {
	arp, err := w.arp.lost()
	frames, framesErr := w.frames.lost()
	if err = errors.Join(err, framesErr); err != nil {
		return false, fmt.Errorf("interface %s: %w", w.link.Name, err)
	}
	return arp || frames, nil
}

// Pending tells whether something has arrived that who calls Receive… has not worked off, up to the next call. While that is so, silence
// means nothing: this process may have had no processor for a while.
func (w *Wire) Pending() bool { return w.arp.pending() || w.frames.pending() }

// Watch says which addresses ReceiveARP is about, at most MaxWatched, instead of those before.
func (w *Wire) Watch(addrs []netip.Addr) error {
	if len(addrs) > MaxWatched {
		return fmt.Errorf("interface %s: %d addresses are to be watched: at most %d can be", w.link.Name, len(addrs), MaxWatched)
	}
	if err := w.arp.filter(watchFilter(addrs)); err != nil {
		return fmt.Errorf("interface %s: watch ARP: %w", w.link.Name, err)
	}
	return nil
}

// ReceiveARP waits for the next ARP packet of another host about a watched address.
func (w *Wire) ReceiveARP() (Sighting, error) {
	buf := make([]byte, 64)
	for {
		r, err := w.arp.receive(buf)
		if err != nil {
			return Sighting{}, fmt.Errorf("interface %s: receive ARP: %w", w.link.Name, err)
		}
		if r.otherVLAN {
			continue
		}
		if p, ok := parseARP(buf[:r.n]); ok {
			if addr, about := p.conflict(w.own); about {
				return Sighting{Address: addr, MAC: p.senderMAC, Probe: p.senderIP.IsUnspecified()}, nil
			}
		}
	}
}

// ReceiveFrame waits for the next frame that another host sent with SendFrame, and returns its length and its sender's MAC.
func (w *Wire) ReceiveFrame(buf []byte) (int, [6]byte, error) {
	for {
		r, err := w.frames.receive(buf)
		if err != nil {
			return 0, [6]byte{}, fmt.Errorf("interface %s: receive frame: %w", w.link.Name, err)
		}
		if !r.otherVLAN && r.from != w.own {
			return r.n, r.from, nil
		}
	}
}

// SendFrame sends a frame to everybody on the VLAN. It must begin with the four bytes that OpenWire was told.
func (w *Wire) SendFrame(payload []byte) error {
	return w.send(w.frames, "frame", func() error { return w.frames.send(payload, broadcastMAC) })
}

// Ask asks who has an address, in a way that changes nobody's table. The answer is a Sighting, if the address is watched.
func (w *Wire) Ask(addr netip.Addr) error {
	return w.send(w.arp, "ARP probe", func() error { return w.arp.ask(w.own, addr) })
}

// Announce tells everybody that the address is here now (RFC 5227 section 2.3).
func (w *Wire) Announce(addr netip.Addr) error {
	return w.send(w.arp, "ARP announcement", func() error { return w.arp.announce(w.own, addr) })
}

func (w *Wire) send(socket *packetSocket, what string, send func() error) error {
	err := socket.file.SetWriteDeadline(time.Now().Add(sendTimeout))
	if err == nil {
		err = send()
	}
	if err != nil {
		return fmt.Errorf("interface %s: send %s: %w", w.link.Name, what, err)
	}
	return nil
}

// Close ends what waits in Receive….
func (w *Wire) Close() error { return errors.Join(w.arp.close(), w.frames.close()) }

// watchFilter lets through ARP packets whose sender has one of the addresses, or wants one of them (RFC 5227 section 2.1.1).
func watchFilter(addrs []netip.Addr) []bpf.Instruction {
	const sender, target = 14, 24
	program := []bpf.Instruction{bpf.LoadAbsolute{Off: sender, Size: 4}}
	// A sender that is one of them: over the other instructions, to the end.
	n := len(addrs)
	for i, addr := range addrs {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number(addr), SkipTrue: uint8(n - 1 - i + 2 + n + 1)})
	}
	program = append(program,
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: 0, SkipTrue: uint8(1 + n)},
		bpf.LoadAbsolute{Off: target, Size: 4})
	for i, addr := range addrs {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpEqual, Val: number(addr), SkipTrue: uint8(n - 1 - i + 1)})
	}
	return append(program, bpf.RetConstant{Val: 0}, bpf.RetConstant{Val: 1 << 16})
}

func magicFilter(magic [4]byte) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadAbsolute{Off: 0, Size: 4},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: binary.BigEndian.Uint32(magic[:]), SkipFalse: 1},
		bpf.RetConstant{Val: 1 << 16},
		bpf.RetConstant{Val: 0},
	}
}

func number(addr netip.Addr) uint32 {
	b := addr.As4()
	return binary.BigEndian.Uint32(b[:])
}
