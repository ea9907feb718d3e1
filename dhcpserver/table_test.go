package dhcpserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Whatever clients do, and through restarts, changed pools and a store that fails, nobody is given
// what another client holds.
func TestNobodyGetsAnAddressTwice(t *testing.T) {
	for seed := range uint64(20) {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) { randomDay(t, seed, 1000) })
	}
}

// held is what a client believes to have.
type held struct {
	mac   string
	until time.Time
}

func randomDay(t *testing.T, seed uint64, steps int) {
	random := rand.New(rand.NewPCG(seed, 0))
	v := newVLAN(t, child())
	holds := map[string]held{}     // by address, as the clients believe
	offered := map[string]string{} // by client, the last address offered
	forget := func(addr string) { delete(holds, addr) }
	own := func(mac string) string {
		for addr, h := range holds {
			if h.mac == mac && v.now.Before(h.until) {
				return addr
			}
		}
		return ""
	}
	for step := range steps {
		mac := fmt.Sprintf("%02x", 1+random.IntN(12)) // three of them have reservations
		line := ""
		switch random.IntN(14) {
		case 0, 1, 2:
			line = mac + " DISCOVER"
			if random.IntN(3) == 0 {
				line += fmt.Sprintf(" requested=192.0.2.%d", 98+random.IntN(8))
			}
		case 3, 4, 5, 6:
			if addr := offered[mac]; addr != "" {
				line = mac + " REQUEST server=192.0.2.2 requested=" + addr
			}
		case 7, 8:
			if addr := own(mac); addr != "" {
				line = fmt.Sprintf("%s REQUEST ciaddr=%s to=192.0.2.2:67 from=%s:68", mac, addr, addr)
			}
		case 9:
			if addr := own(mac); addr != "" {
				line = mac + " REQUEST requested=" + addr
			}
		case 10:
			if addr := own(mac); addr != "" {
				line = fmt.Sprintf("%s RELEASE ciaddr=%s to=192.0.2.2:67", mac, addr)
				forget(addr)
			}
		case 11:
			if addr := own(mac); addr != "" && random.IntN(4) == 0 {
				line = fmt.Sprintf("%s DECLINE requested=%s", mac, addr)
				forget(addr)
			}
		case 12:
			v.now = v.now.Add(time.Duration(random.IntN(40)) * time.Minute)
		case 13:
			switch random.IntN(7) {
			case 0:
				v.restart()
			case 1:
				v.child.Spec.LeaseConfig.RangeEnd = fmt.Sprintf("192.0.2.%d", 101+random.IntN(4))
				v.server.Apply(model(t, v.child))
			case 2:
				v.store.fail = errors.New("disk full")
			case 3, 4:
				v.store.fail = nil
			case 5:
				v.server.Hold(v.now.Add(-time.Duration(random.IntN(90))*time.Minute), v.now.Add(time.Duration(random.IntN(90))*time.Minute))
			case 6:
				v.now = v.now.Add(time.Duration(random.IntN(30)) * time.Hour)
				v.server.forgetOld(t.Context())
			}
		}
		if line != "" {
			for _, a := range v.say(line) {
				addr := a.message.YourIPAddr.String()
				switch a.message.MessageType() {
				case dhcpv4.MessageTypeNak:
					if o := own(mac); o != "" {
						forget(o) // the client stops using it
					}
					continue
				case dhcpv4.MessageTypeOffer:
					offered[mac] = addr
				case dhcpv4.MessageTypeAck:
					if o := own(mac); o != "" {
						forget(o)
					}
				}
				if h, taken := holds[addr]; taken && h.mac != mac && v.now.Before(h.until) {
					t.Fatalf("step %d: %s: %s went to %s, and %s has it until %s", step, line, addr, mac, h.mac, h.until)
				}
				if a.message.MessageType() == dhcpv4.MessageTypeAck {
					lasts := a.message.IPAddressLeaseTime(0)
					if lasts <= 0 || lasts > time.Hour {
						t.Fatalf("step %d: %s: a lease for %s", step, line, lasts)
					}
					holds[addr] = held{mac: mac, until: v.now.Add(lasts)}
					if stored := v.store.leases[netip.MustParseAddr(addr)]; !stored.Live(v.now.Add(lasts-time.Nanosecond)) || stored.MAC.String()[15:] != mac {
						t.Fatalf("step %d: %s: the store has %v", step, line, stored)
					}
				}
			}
		}
		if err := v.server.table.check(); err != nil {
			t.Fatalf("step %d: %s: %v", step, line, err)
		}
	}
}

// check tells whether the parts of the table agree.
func (t *table) check() error {
	inHeap, offers := 0, 0
	for addr, b := range t.byAddr {
		switch inPool := t.model.pool.contains(addr); {
		case b.addr != addr:
			return fmt.Errorf("%s is under %s", b.addr, addr)
		case b.lease == nil && b.offer == nil:
			return fmt.Errorf("%s is bound to nothing", addr)
		case inPool && t.fresh.contains(addr):
			return fmt.Errorf("%s is in use, and in what nobody had", addr)
		case inPool && b.lease != nil != (b.index >= 0):
			return fmt.Errorf("%s is at %d of the heap, with lease %v", addr, b.index, b.lease)
		case b.index >= 0 && t.used[b.index] != b:
			return fmt.Errorf("%s is not at %d of the heap", addr, b.index)
		}
		if b.index >= 0 {
			inHeap++
		}
		if b.offer != nil {
			offers++
			if t.offers[b.offer.mac] != b.offer || b.offer.binding != b {
				return fmt.Errorf("the offer of %s is not its client's", addr)
			}
		}
	}
	for mac, b := range t.byMAC {
		if b.lease == nil || b.lease.MAC != mac || t.byAddr[b.addr] != b {
			return fmt.Errorf("client %s has %s, which is not its own", mac, b.addr)
		}
	}
	if inHeap != len(t.used) || offers != len(t.offers) || offers != t.offerAge.Len() {
		return fmt.Errorf("%d of %d in the heap, %d offers of %d and %d", inHeap, len(t.used), offers, len(t.offers), t.offerAge.Len())
	}
	size := 0
	for free := t.fresh.clone(); ; size++ {
		addr, _, ok := free.lowest(0)
		if !ok {
			break
		}
		if first, _, _ := t.fresh.lowest(t.freshWord); size == 0 && first != addr {
			return fmt.Errorf("the search for what nobody had starts behind %s", addr)
		}
		free.remove(addr, addr)
	}
	if size != t.fresh.size {
		return fmt.Errorf("%d addresses that nobody had, counted %d", size, t.fresh.size)
	}
	return nil
}

func TestOffersAreBounded(t *testing.T) {
	d := child()
	d.Spec.NetworkConfig.CIDR, d.Spec.LeaseConfig.RangeStart, d.Spec.LeaseConfig.RangeEnd = "192.0.0.0/16", "192.0.3.0", "192.0.255.254"
	v := newVLAN(t, d)
	now := v.now
	table := v.server.table
	for i := range maxOffers + 10 {
		mac := MAC{2, 0, 0, byte(i >> 16), byte(i >> 8), byte(i)}
		addr, ok := table.choose(mac, netip.Addr{}, now)
		if !ok {
			t.Fatalf("no address for client %d", i)
		}
		table.offer(mac, addr, now)
	}
	if len(table.offers) != maxOffers || len(table.byAddr) != maxOffers {
		t.Errorf("%d offers, %d addresses", len(table.offers), len(table.byAddr))
	}
	if table.offers[MAC{2, 0, 0, 0, 0, 9}] != nil || table.offers[MAC{2, 0, 0, 0, 0, 10}] == nil {
		t.Error("it was not the oldest offers that went")
	}
	if err := table.check(); err != nil {
		t.Error(err)
	}
}
