package dhcpserver

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// keep makes the server keep its leases in a file, and log; it starts anew at each call.
func (v *vlan) keep(store Store, log *lines) {
	v.t.Helper()
	server, err := NewServer(Config{
		Log: slog.New(slog.NewTextHandler(log, nil)), Registerer: prometheus.NewRegistry(), Store: store,
		Clock: func() time.Time { return v.now }, Boottime: v.boottime,
	})
	if err != nil {
		v.t.Fatal(err)
	}
	v.server = server
	server.Apply(model(v.t, v.child))
}

// tick is what the server does while nobody asks.
func (v *vlan) tick() {
	v.t.Helper()
	v.server.Leases()
	for v.server.commit(context.Background()) {
	}
	if err := v.server.table.check(); err != nil {
		v.t.Fatal(err)
	}
}

func newKept(t *testing.T) (*vlan, Store, *lines) {
	t.Helper()
	v, log := newVLAN(t, child()), &lines{}
	file, err := OpenBolt(filepath.Join(t.TempDir(), "leases.db"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	})
	store := file.Infra("clusters/tenant")
	v.keep(store, log)
	return v, store, log
}

func renewal(client, addr string) string {
	return fmt.Sprintf("%s REQUEST ciaddr=%s to=192.0.2.2:67 from=%s:68", client, addr, addr)
}

func TestAClockThatIsSetForwardEndsNoLease(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, 366 * 24 * time.Hour, 56 * 365 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			v, store, log := newKept(t)
			v.get("04", "192.0.2.102")
			v.now = v.now.Add(61 * time.Minute) // over, in truth
			v.get("01", "192.0.2.100")
			v.get("02", "192.0.2.101")
			v.now = v.now.Add(20 * time.Minute)
			v.step(by)
			v.expect("03 DISCOVER requested=192.0.2.100", "OFFER 192.0.2.102 -> 03")
			v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
			v.expect(renewal("01", "192.0.2.100"), "ACK 192.0.2.100 -> 192.0.2.100:68")
			if n := log.count("the clock was set forward"); n != 1 {
				t.Errorf("it was logged %d times", n)
			}
			// A restart forgets nothing of it.
			v.keep(store, log)
			v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
			v.now = v.now.Add(39 * time.Minute)
			v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
			v.now = v.now.Add(2 * time.Minute) // its client never came back
			v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.101", "ACK 192.0.2.101 -> 03")
			v.expect("05 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
		})
	}
}

// The clock of a host without one of its own starts long ago, and is set when the network is there.
func TestAClockThatStartsLongAgo(t *testing.T) {
	v, store, log := newKept(t)
	v.get("01", "192.0.2.100")
	v.now = v.now.Add(10 * time.Minute)
	v.step(-56 * 365 * 24 * time.Hour)
	v.keep(store, log)
	if n := log.count("DHCP leases begin in the future"); n != 1 {
		t.Errorf("it was logged %d times", n)
	}
	v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
	v.get("02", "192.0.2.101")
	v.step(56 * 365 * 24 * time.Hour)
	v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
	v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
	v.now = v.now.Add(61 * time.Minute)
	v.expect("03 REQUEST server=192.0.2.2 requested=192.0.2.100", "ACK 192.0.2.100 -> 03")
}

func TestAClockThatIsSetBackMakesNoLeaseLonger(t *testing.T) {
	const year = 365 * 24 * time.Hour
	for what, restart := range map[string]bool{"running": false, "restarted": true} {
		t.Run(what, func(t *testing.T) {
			v, store, log := newKept(t)
			v.child.Spec.LeaseConfig.RangeEnd = "192.0.2.105"
			v.server.Apply(model(t, v.child))
			v.step(year) // nobody has a lease yet
			v.get("01", "192.0.2.100")
			v.get("02", "192.0.2.101")
			v.expect("03 DISCOVER", "OFFER 192.0.2.102 -> 03")
			v.step(-year)
			v.expect("04 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
			v.now = v.now.Add(2 * time.Minute)
			v.expect("04 DISCOVER requested=192.0.2.102", "OFFER 192.0.2.102 -> 04") // the offer was over
			v.expect(renewal("02", "192.0.2.101"), "ACK 192.0.2.101 -> 192.0.2.101:68")
			if n := log.count("the clock was set back"); n != 1 {
				t.Errorf("it was logged %d times", n)
			}
			// Who renewed has what every lease has.
			v.now = v.now.Add(59 * time.Minute)
			v.expect("04 REQUEST server=192.0.2.2 requested=192.0.2.101", "NAK -> everybody")
			v.now = v.now.Add(2 * time.Minute)
			v.expect("04 REQUEST server=192.0.2.2 requested=192.0.2.101", "ACK 192.0.2.101 -> 04")
			// Who did not may have been given its lease by a clock that was right.
			if restart {
				v.keep(store, log)
			}
			v.expect("05 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
			v.now = v.now.Add(24 * time.Hour)
			v.expect("05 REQUEST server=192.0.2.2 requested=192.0.2.100", "ACK 192.0.2.100 -> 05")
		})
	}
}

// A clock that is wrong for an hour, and right again.
func TestAClockThatIsSetForthAndBack(t *testing.T) {
	for _, by := range []time.Duration{3 * time.Hour, -3 * time.Hour, 365 * 24 * time.Hour, -365 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			v, _, _ := newKept(t)
			v.child.Spec.LeaseConfig.RangeEnd = "192.0.2.104"
			v.server.Apply(model(t, v.child))
			v.get("01", "192.0.2.100")
			v.get("02", "192.0.2.101")
			v.now = v.now.Add(10 * time.Minute)
			v.step(by)
			v.tick()
			v.now = v.now.Add(10 * time.Minute)
			v.say(renewal("01", "192.0.2.100"))
			v.get("03", "192.0.2.102")
			v.now = v.now.Add(20 * time.Minute)
			v.step(-by)
			v.tick()
			for _, addr := range []string{"192.0.2.100", "192.0.2.101", "192.0.2.102"} {
				v.expect("04 REQUEST server=192.0.2.2 requested="+addr, "NAK -> everybody")
			}
			// A client that moves is where it went, not where it was.
			v.get("01", "192.0.2.104")
			v.expect("01 REQUEST requested=192.0.2.104", "ACK 192.0.2.104 -> 01")
			v.now = v.now.Add(24*time.Hour + time.Minute)
			for _, addr := range []string{"192.0.2.100", "192.0.2.101", "192.0.2.102"} {
				v.expect("04 REQUEST server=192.0.2.2 requested="+addr, "ACK "+addr+" -> 04")
			}
		})
	}
}

// What was held when the clock is set is held on, and not for ever.
func TestAHoldAndASetClock(t *testing.T) {
	for _, by := range []time.Duration{2 * time.Hour, -365 * 24 * time.Hour} {
		t.Run(by.String(), func(t *testing.T) {
			v, _ := newShared(t)
			v.get("01", "192.0.2.100")
			since := v.now
			v.now = v.now.Add(2 * time.Hour) // over, and held
			v.server.Hold(since, v.now.Add(time.Hour))
			v.step(by)
			v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
			v.now = v.now.Add(59 * time.Minute)
			v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
			v.now = v.now.Add(2 * time.Minute)
			if by < 0 { // the lease may have been given by a clock that was right, and last
				v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
				v.now = v.now.Add(23 * time.Hour)
			}
			v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "ACK 192.0.2.100 -> 02")
		})
	}
}

func TestADamagedLeaseAndASetClock(t *testing.T) {
	for _, by := range []time.Duration{2 * maxLeaseTime, -2 * maxLeaseTime} {
		v := newVLAN(t, child())
		addr := netip.MustParseAddr("192.0.2.100")
		v.store.leases[addr] = Lease{Address: addr, State: StateDamaged}
		v.restart()
		v.step(by)
		v.expect("02 REQUEST server=192.0.2.2 requested=192.0.2.100", "NAK -> everybody")
		v.expect(renewal("01", "192.0.2.100"), "ACK 192.0.2.100 -> 192.0.2.100:68")
	}
}

func TestNothingIsForgottenAfterTheClockWasSet(t *testing.T) {
	v := newForgetful(t)
	v.get("01", "192.0.2.100")
	v.now = v.now.Add(25 * time.Hour)
	v.step(365 * 24 * time.Hour)
	v.server.forgetOld(context.Background())
	v.now = v.now.Add(23 * time.Hour)
	v.server.forgetOld(context.Background())
	if len(v.store.leases) != 1 {
		t.Fatal("the lease was forgotten")
	}
	v.now = v.now.Add(time.Hour)
	v.server.forgetOld(context.Background())
	if len(v.store.leases) != 0 {
		t.Error("the lease is never forgotten")
	}
}

// The clocks of the host, which nobody sets here: they must not come apart by themselves.
func TestWallClockOfTheHost(t *testing.T) {
	c := NewWallClock(nil, nil)
	for range 1000 {
		before := time.Now()
		now, step := c.Look()
		if step.By != 0 || now.Before(before.Round(0)) || now.After(time.Now()) {
			t.Fatalf("at %s it is %s, step %v", before, now, step)
		}
	}
}

func TestWallClockTellsAStepOnce(t *testing.T) {
	wall, boot := began, time.Duration(0)
	stop := time.Duration(0) // of the process, while it reads
	c := NewWallClock(func() time.Time { boot, wall = boot+stop, wall.Add(stop); return wall }, func() time.Duration { return boot })
	var told []string
	look := func(passed, set time.Duration) {
		boot, wall = boot+passed, wall.Add(passed+set)
		now, step := c.Look()
		if !now.Equal(wall) {
			t.Errorf("it is %s, want %s", now, wall)
		}
		if step.By != 0 {
			told = append(told, step.By.String())
			if !step.Before.Add(step.By).Equal(now) {
				t.Errorf("before %s, by %s, now %s", step.Before, step.By, now)
			}
		}
	}
	look(time.Hour, 0)
	look(time.Hour, 3*time.Hour)
	look(time.Hour, 0)
	look(0, -time.Second) // a leap second
	look(0, -time.Second) // and one that is none
	look(0, 0)
	stop = time.Minute
	look(0, time.Hour) // it cannot be told now
	stop = 0
	look(0, 0)
	if got := strings.Join(told, " "); got != "3h0m0s -2s 1h0m0s" {
		t.Errorf("told %s", got)
	}
}
