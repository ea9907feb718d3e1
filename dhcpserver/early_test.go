package dhcpserver

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestEarlyRenewals(t *testing.T) {
	const (
		lease = `
			> 01 DISCOVER name=worker id=a
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100 name=worker id=a
			< ACK 192.0.2.100 -> 01
			lasts 1h
			writes 1
		`
		renew = `
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68 name=worker id=a
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`
	)
	for name, script := range map[string]string{
		"renewing": lease + `
			after 359s` + renew + `
			lasts 54m1s
			writes 0
		`,
		"after a tenth of the lease time": lease + `
			after 6m` + renew + `
			lasts 1h
			writes 1
			after 5m` + renew + `
			lasts 55m
			writes 0
		`,
		"rebinding": lease + `
			after 1m
			> 01 REQUEST ciaddr=192.0.2.100 from=192.0.2.100:68 name=worker id=a
			< ACK 192.0.2.100 -> 192.0.2.100:68
			lasts 59m
			writes 0
		`,
		"booting": lease + `
			after 1m
			> 01 REQUEST requested=192.0.2.100 name=worker id=a
			< ACK 192.0.2.100 -> 01
			lasts 59m
			writes 0
		`,
		"selecting": lease + `
			after 1m
			> 01 DISCOVER name=worker id=a
			< OFFER 192.0.2.100 -> 01
			lasts 1h
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100 name=worker id=a
			< ACK 192.0.2.100 -> 01
			lasts 59m
			writes 0
		`,
		"a part of a second does not count": lease + `
			after 1500ms` + renew + `
			lasts 59m58s
			writes 0
		`,
		"another client identifier": lease + `
			> 01 REQUEST requested=192.0.2.100 name=worker id=b
			< ACK 192.0.2.100 -> 01
			lasts 1h
			writes 1
		`,
		"another name": lease + `
			> 01 REQUEST requested=192.0.2.100 name=other id=a
			< ACK 192.0.2.100 -> 01
			writes 1
		`,
		"another client": lease + `
			> 02 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68 name=worker id=a
			< NAK -> everybody
			writes 0
		`,
		"released": lease + `
			> 01 RELEASE ciaddr=192.0.2.100 to=192.0.2.2:67
			writes 1` + renew + `
			lasts 1h
			writes 1
		`,
		"declined": lease + `
			> 01 DECLINE requested=192.0.2.100
			writes 1
			> 01 REQUEST requested=192.0.2.100 name=worker id=a
			< NAK -> everybody
			writes 0
		`,
		"damaged": lease + `
			damage 192.0.2.100
			restart` + renew + `
			lasts 1h
			writes 1
		`,
		"after a restart": lease + `
			restart
			after 1m` + renew + `
			lasts 59m
			writes 0
		`,
		"held: somebody else may have renewed it": lease + `
			after 1m
			hold 1h` + renew + `
			lasts 1h
			writes 1
			after 1m` + renew + `
			lasts 59m
			writes 0
		`,
		"a longer lease time": lease + `
			lease-time 2h` + renew + `
			lasts 2h
			writes 1
		`,
		"a shorter lease time": lease + `
			lease-time 30m` + renew + `
			lasts 30m
			writes 1
			after 1m` + renew + `
			lasts 29m
			writes 0
		`,
		"a reservation that came later": lease + `
			reserve 01 192.0.2.60
			> 01 REQUEST requested=192.0.2.100 name=worker id=a
			< NAK -> everybody
			writes 0
		`,
		"what has fallen out of the pool": lease + `
			pool 192.0.2.101 192.0.2.103
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 name=worker id=a
			< NAK -> everybody
			writes 0
		`,
		"one whose last renewal was perhaps written": lease + `
			after 10m` + renew + `
			writes 1
			after 10m
			store fails
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 name=other id=a
			< silence
			writes 1
			store works
			after -5m` + renew + `
			lasts 1h
			writes 1
		`,
		"the name of a reservation": `
			> 0c DISCOVER name=one
			> 0c REQUEST server=192.0.2.2 requested=192.0.2.100 name=one
			writes 1
			> 0c REQUEST server=192.0.2.2 requested=192.0.2.100 name=two
			< ACK 192.0.2.100 -> 0c
			writes 0
		`,
	} {
		t.Run(name, func(t *testing.T) { converse(t, script) })
	}
}

// What only a state folder has is written: the API may be back, and know better.
func TestAnEarlyRenewalOfWhatTheStoreIsNotSureOf(t *testing.T) {
	v, store := newShared(t)
	v.get("01", "192.0.2.100")
	addr := netip.MustParseAddr("192.0.2.100")
	for _, test := range []struct {
		unsure bool
		writes int
	}{{false, 0}, {true, 1}, {false, 0}} {
		store.unsure = map[netip.Addr]bool{addr: test.unsure}
		before := store.puts
		v.expect(renewal("01", "192.0.2.100"), "ACK 192.0.2.100 -> 192.0.2.100:68")
		if got := store.puts - before; got != test.writes {
			t.Errorf("unsure %t: %d writes, want %d", test.unsure, got, test.writes)
		}
	}
	store.foreign[addr] = Lease{Address: addr, MAC: MAC{2, 0, 0, 0, 0, 99}, State: StateActive, Start: v.now, Expires: v.now.Add(time.Hour)}
	store.unsure = map[netip.Addr]bool{addr: true}
	v.expect(renewal("01", "192.0.2.100"), "silence")
	v.expect(renewal("01", "192.0.2.100"), "NAK -> everybody")
}

// Who asks again while his lease is being written waits for that, and for nothing more.
func TestWhatIsBeingWrittenIsWrittenOnce(t *testing.T) {
	for _, fails := range []error{nil, errors.New("disk full")} {
		store, conn := newSlow(), newPipe()
		s := serve(t, store, conn)
		conn.in <- take(t, 1, "192.0.2.100")
		within(t, "the store", store.puts)
		const again = 50
		for range again {
			conn.in <- take(t, 1, "192.0.2.100")
		}
		conn.in <- message(t, 2, dhcpv4.MessageTypeDiscover)
		within(t, "an offer", conn.out)
		store.proceed <- fails
		conn.in <- take(t, 2, "192.0.2.101") // the store is asked again
		if batch := within(t, "the store", store.puts); len(batch) != 1 || batch[0].MAC != MAC(mac("02")) {
			t.Errorf("the store fails: %v; the second commit is %v", fails, batch)
		}
		store.proceed <- nil
		want := again + 2
		if fails != nil {
			want = 1
		}
		for range want {
			if m := within(t, "an ACK", conn.out); m.message.MessageType() != dhcpv4.MessageTypeAck {
				t.Errorf("answer %s", m.message.Summary())
			}
		}
		s.stop()
		if n := len(conn.out); n != 0 {
			t.Errorf("the store fails: %v; %d answers too many", fails, n)
		}
	}
}

// A client that changes what it is called all the time keeps its address, and makes few writes.
func TestOneClientCannotMakeTheServerWrite(t *testing.T) {
	v := newVLAN(t, child())
	v.get("01", "192.0.2.100")
	for n := range 200 {
		v.expect(fmt.Sprintf("01 REQUEST requested=192.0.2.100 name=name-%d", n), "ACK 192.0.2.100 -> 01")
	}
	if v.store.puts != changeBurst {
		t.Errorf("%d writes, want %d", v.store.puts, changeBurst)
	}
	// Nor by giving its address back and taking it again. It gets it as soon as it may.
	v.expect("01 RELEASE ciaddr=192.0.2.100 to=192.0.2.2:67", "silence")
	if got := testutil.ToFloat64(v.server.metrics.dropped.WithLabelValues(dropTooOften)); got != 1 {
		t.Errorf("%v dropped", got)
	}
	v.now = v.now.Add(changeEvery)
	v.say("01 RELEASE ciaddr=192.0.2.100 to=192.0.2.2:67")
	if got := v.store.leases[netip.MustParseAddr("192.0.2.100")].State; got != StateReleased {
		t.Errorf("the lease is %s", got)
	}
	v.expect("01 REQUEST requested=192.0.2.100", "silence")
	v.get("02", "192.0.2.101") // others do not suffer
	v.now = v.now.Add(changeEvery)
	v.expect("01 REQUEST requested=192.0.2.100", "ACK 192.0.2.100 -> 01")
	v.expect("01 DECLINE requested=192.0.2.100", "silence")
	if got := v.store.leases[netip.MustParseAddr("192.0.2.100")].State; got != StateActive {
		t.Errorf("the lease is %s", got)
	}
	// Its renewals do not wait for that, and are not lost by what it did.
	v.now = v.now.Add(30 * time.Minute)
	v.expect(renewal("01", "192.0.2.100"), "ACK 192.0.2.100 -> 192.0.2.100:68")
	// A clock that was set back stops nobody.
	for n := range 20 {
		v.say(fmt.Sprintf("01 REQUEST requested=192.0.2.100 name=name-%d", n))
	}
	v.step(-48 * time.Hour)
	puts := v.store.puts
	v.expect("01 REQUEST requested=192.0.2.100 name=after", "ACK 192.0.2.100 -> 01")
	if v.store.puts != puts+1 {
		t.Error("it was not written")
	}
}

// boot makes a client that is a number get an address; false: it gets none.
func (v *vlan) boot(client int) (string, bool) {
	v.t.Helper()
	hw := net.HardwareAddr{2, 1, 0, byte(client >> 16), byte(client >> 8), byte(client)}
	exchange := func(modifiers ...dhcpv4.Modifier) *dhcpv4.DHCPv4 {
		m, err := dhcpv4.New(append(modifiers, dhcpv4.WithHwAddr(hw))...)
		if err != nil {
			v.t.Fatal(err)
		}
		answers := v.deliver(m.ToBytes(), noAddress, everyClient)
		if len(answers) == 0 {
			return nil
		}
		return answers[0].message
	}
	offer := exchange(dhcpv4.WithMessageType(dhcpv4.MessageTypeDiscover))
	if offer == nil {
		return "", false
	}
	ack := exchange(dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(192, 0, 2, 2))),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(offer.YourIPAddr)))
	if ack == nil || ack.MessageType() != dhcpv4.MessageTypeAck {
		return "", false
	}
	return ack.YourIPAddr.String(), true
}

// All workers of a VLAN may boot at once. Clients that somebody makes up, each of which gives its address back for the next one, may not go on.
func TestNewClientsAreBounded(t *testing.T) {
	d := child()
	d.Spec.NetworkConfig.CIDR, d.Spec.LeaseConfig.RangeStart, d.Spec.LeaseConfig.RangeEnd = "192.0.0.0/16", "192.0.4.0", "192.0.5.43"
	v := newVLAN(t, d)
	const workers = 300
	addrs := map[string]int{}
	for n := range workers {
		addr, ok := v.boot(n)
		if !ok {
			t.Fatalf("worker %d got no address", n)
		}
		addrs[addr] = n
	}
	if len(addrs) != workers {
		t.Fatalf("%d addresses", len(addrs))
	}
	v.now = v.now.Add(2 * time.Hour) // all are off
	v.server.Apply(model(t, d))      // as it was: nothing begins anew
	made, refused := 0, 0
	for n := range 3 * newTimes * workers {
		addr, ok := v.boot(workers + n)
		if !ok {
			refused++
			continue
		}
		made++
		hw := net.HardwareAddr{2, 1, 0, byte((workers + n) >> 16), byte((workers + n) >> 8), byte(workers + n)}
		release, err := dhcpv4.New(dhcpv4.WithHwAddr(hw), dhcpv4.WithMessageType(dhcpv4.MessageTypeRelease), dhcpv4.WithClientIP(net.ParseIP(addr)))
		if err != nil {
			t.Fatal(err)
		}
		v.deliver(release.ToBytes(), noAddress, everyClient)
	}
	if most := newTimes * (workers + 2); made < workers || made > most || refused == 0 {
		t.Errorf("%d made up clients got an address, %d did not; want at most %d", made, refused, most)
	}
	if got := testutil.ToFloat64(v.server.metrics.dropped.WithLabelValues(dropManyNew)); got != float64(refused) {
		t.Errorf("%v dropped, want %d", got, refused)
	}
	// Who has a reservation does not suffer.
	v.get("0a", "192.0.2.50")
	// New ones get their turn.
	v.now = v.now.Add(time.Second)
	if _, ok := v.boot(1 << 20); !ok {
		t.Error("a new client got no address a second later")
	}
	// Nor does who is known.
	v.now = v.now.Add(2 * offerTime)
	for v.server.table.limits.fresh.AllowN(v.now, 1) {
	}
	var known *Lease
	for _, b := range v.server.table.byMAC {
		if b.lease.State == StateReleased {
			known = b.lease
			break
		}
	}
	request, err := dhcpv4.New(dhcpv4.WithHwAddr(net.HardwareAddr(known.MAC[:])), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(known.Address.AsSlice())))
	if err != nil {
		t.Fatal(err)
	}
	if got := v.deliver(request.ToBytes(), noAddress, everyClient); len(got) != 1 || got[0].message.MessageType() != dhcpv4.MessageTypeAck {
		t.Errorf("a client that was here is answered %s", describe(got))
	}
	if n := len(v.server.table.limits.byMAC); n > 2*newTimes*(workers+2) {
		t.Errorf("%d clients are remembered", n)
	}
	v.now = v.now.Add(time.Hour)
	for n := range sweepFrom {
		v.boot(1<<21 + n)
	}
	if n := len(v.server.table.limits.byMAC); n > 2*sweepFrom {
		t.Errorf("%d clients are still remembered", n)
	}
}
