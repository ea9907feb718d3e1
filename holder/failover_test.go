package holder_test

import (
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/densityops/oooi/holder"
)

// heldBefore is a record that says that the addresses were held before, so that nobody has to probe for them.
func heldBefore(addresses ...string) holder.Record {
	r := holder.Record{Epoch: 7, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Version: "1"}
	for _, a := range addresses {
		r.Addresses = append(r.Addresses, netip.MustParseAddr(a))
	}
	return r
}

// pair starts two pods of which a is the holder.
func pair(t *testing.T) (v *vlan, a, b *pod) {
	t.Helper()
	t.Parallel()
	v, a, b = makeVLAN(t, heldBefore("192.0.2.2", "192.0.2.3"), "192.0.2.2", "192.0.2.3")
	a.start(t)
	v.settled(t, a)
	b.start(t)
	eventually(t, "b hears a", func() bool { return b.State().Holder == "a" })
	eventually(t, "both know both", func() bool {
		v.lock.mu.Lock()
		defer v.lock.mu.Unlock()
		return len(v.lock.peers) == 2
	})
	// b has listened long enough to take over when a has answered for a while.
	v.goesOn(t, a, time.Second)
	v.capture.changed(t, a)
	return v, a, b
}

// goesOn waits until a pod has answered for a while, and nobody else has.
func (v *vlan) goesOn(t *testing.T, p *pod, during time.Duration) {
	t.Helper()
	began := time.Now()
	eventually(t, p.name+" goes on", func() bool {
		runs := v.capture.runs(v.served()[0])
		return len(runs) > 0 && runs[len(runs)-1].mac == p.mac && runs[len(runs)-1].last.Sub(began) > during
	})
}

func TestStop(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGTERM)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	if got := b.State(); got.PreviousRenewed.IsZero() || got.Epoch != 9 || len(got.Problems) > 0 {
		t.Errorf("b is in state %+v", got)
	}
	b.signal(t, syscall.SIGTERM)
	if got := v.lock.current(); got.Holder != "" || got.Epoch != 9 {
		t.Errorf("the last one to stop left the record %+v", got)
	}
}

func TestKilled(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	a.start(t)
	v.goesOn(t, b, 3*time.Second)
	v.capture.changed(t, a, b)
}

func TestKilledAndStartedAgain(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGKILL)
	a.start(t)
	v.settled(t, a, b)
	v.goesOn(t, a, 3*time.Second)
	v.capture.changed(t, a)
	if got := a.State(); got.Epoch != 9 {
		t.Errorf("the epoch is %d, want one later", got.Epoch)
	}
}

func TestPodGone(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGKILL)
	run(t, "ip link del "+a.port())
	v.settled(t, b)
	v.capture.changed(t, a, b)
}

func TestFrozen(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGSTOP)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	a.signal(t, syscall.SIGCONT)
	eventually(t, "a knows", func() bool { return !a.State().Holding && a.State().Holder == "b" })
	v.goesOn(t, b, time.Second)
	v.capture.changed(t, a, b)
	if got := a.addresses(t); got != "" {
		t.Errorf("a has %s", got)
	}
}

// A standby that was frozen has heard nothing for a while, as if the holder were silent.
func TestFrozenStandby(t *testing.T) {
	v, a, b := pair(t)
	b.signal(t, syscall.SIGSTOP)
	v.goesOn(t, a, 3*time.Second)
	b.signal(t, syscall.SIGCONT)
	v.goesOn(t, a, 3*time.Second)
	v.capture.changed(t, a)
	if got := v.lock.current(); got.Holder != "a" {
		t.Errorf("the record is that of %s", got.Holder)
	}
}

func TestLinkDown(t *testing.T) {
	v, a, b := pair(t)
	v.struck = time.Now()
	run(t, "ip link set "+a.port()+" down")
	v.settled(t, b)
	v.capture.changed(t, a, b)
	if got, want := a.problem(t, holder.InterfaceDown, true), "interface vlan0: has no carrier"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	run(t, "ip link set "+a.port()+" up")
	a.problem(t, holder.InterfaceDown, false)
	v.goesOn(t, b, 2*time.Second)
	b.signal(t, syscall.SIGTERM)
	v.settled(t, a)
	v.capture.changed(t, a, b, a)
}

func TestLinkOfTheStandbyDown(t *testing.T) {
	v, a, b := pair(t)
	run(t, "ip -n "+b.namespace()+" link set vlan0 down")
	if got, want := b.problem(t, holder.InterfaceDown, true), "interface vlan0: is down"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	v.goesOn(t, a, 3*time.Second)
	run(t, "ip -n "+b.namespace()+" link set vlan0 up")
	b.problem(t, holder.InterfaceDown, false)
	v.goesOn(t, a, 3*time.Second)
	v.capture.changed(t, a)
}

func TestUnhealthy(t *testing.T) {
	v, a, b := pair(t)
	a.healthy(t, false)
	v.settled(t, b)
	if got, want := a.problem(t, holder.NotHealthy, true), "the test says so"; got != want {
		t.Errorf("problem %q, want %q", got, want)
	}
	v.capture.changed(t, a, b)
	// Nobody is better: what there is, is kept.
	b.healthy(t, false)
	b.problem(t, holder.NotHealthy, true)
	v.goesOn(t, b, 3*time.Second)
	v.capture.changed(t, a, b)
	a.healthy(t, true)
	v.settled(t, a)
	v.capture.changed(t, a, b, a)
}

func TestLockAwayForTheHolder(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "a")
	v.goesOn(t, a, 8*time.Second)
	v.capture.changed(t, a)
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	v.capture.changed(t, a, b)
}

func TestLockAwayForTheHolderThatIsFrozen(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "a")
	a.signal(t, syscall.SIGSTOP)
	v.settled(t, b)
	v.capture.changed(t, a, b)
	a.signal(t, syscall.SIGCONT)
	eventually(t, "a knows", func() bool { return !a.State().Holding && a.State().Holder == "b" })
	v.goesOn(t, b, 3*time.Second)
	v.lock.set(false, "a")
	v.goesOn(t, b, 3*time.Second)
	v.capture.changed(t, a, b)
}

func TestLockAwayForTheStandby(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "b")
	v.goesOn(t, a, 3*time.Second)
	a.signal(t, syscall.SIGTERM)
	v.settled(t, b)
	b.problem(t, holder.NoLease, true)
	v.capture.changed(t, a, b)
	v.lock.set(false, "b")
	b.problem(t, holder.NoLease, false)
	if got := v.lock.current(); got.Holder != "b" {
		t.Errorf("the record is that of %q", got.Holder)
	}
	v.capture.changed(t, a, b)
}

func TestLockAwayForBoth(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "a", "b")
	v.goesOn(t, a, 17*time.Second) // longer than the record is valid
	v.capture.changed(t, a)
	a.signal(t, syscall.SIGSTOP)
	v.settled(t, b)
	b.problem(t, holder.NoLease, true)
	a.signal(t, syscall.SIGCONT)
	eventually(t, "a knows", func() bool { return !a.State().Holding && a.State().Holder == "b" })
	v.goesOn(t, b, time.Second)
	// A process that knows nothing but what is in its state folder.
	a.signal(t, syscall.SIGKILL)
	a.start(t)
	eventually(t, "a knows", func() bool { return !a.State().Holding && a.State().Holder == "b" })
	v.goesOn(t, b, 3*time.Second)
	v.capture.changed(t, a, b)
	v.lock.set(false, "a", "b")
	b.problem(t, holder.NoLease, false)
	if got := v.lock.current(); got.Holder != "b" {
		t.Errorf("the record is that of %q", got.Holder)
	}
	v.goesOn(t, b, time.Second)
	v.capture.changed(t, a, b)
}

// Two pods that never saw the record, and know no key.
func TestStartedWithoutLock(t *testing.T) {
	t.Parallel()
	v, a, b := makeVLAN(t, holder.Record{}, "192.0.2.2", "192.0.2.3")
	v.lock.set(true, "a", "b")
	a.start(t)
	b.start(t)
	first := v.settled(t, a, b)
	second := a
	if first == a {
		second = b
	}
	v.goesOn(t, first, 10*time.Second)
	v.capture.changed(t, first)
	v.lock.set(false, "a", "b")
	eventually(t, "the record is that of the holder", func() bool { return v.lock.current().Holder == first.name })
	first.problem(t, holder.NoLease, false)
	eventually(t, "the other knows", func() bool { return second.State().Holder == first.name })
	v.capture.changed(t, first)
}

// cut lets the bridge let nothing through between the pods, or everything. What the capture asks reaches both all the time, so that it
// sees both sides of the cut.
func (v *vlan) cut(t *testing.T, isolated string) {
	t.Helper()
	for _, p := range v.pods {
		run(t, "bridge link set dev "+p.port()+" isolated "+isolated)
	}
}

func TestVLANCutBetweenThePods(t *testing.T) {
	v, a, b := pair(t)
	v.cut(t, "on")
	eventually(t, "b took over, and a knows", func() bool { return b.State().Holding && !a.State().Holding && a.addresses(t) == "" })
	began := time.Now()
	v.goesOn(t, b, 6*time.Second)
	v.cut(t, "off")
	v.goesOn(t, b, 6*time.Second)
	for _, r := range v.lock.written() {
		if r.Renewed.After(began) && r.Holder != "b" {
			t.Errorf("after b had taken the record, %q took it", r.Holder)
		}
	}
	b.signal(t, syscall.SIGTERM)
	v.settled(t, a)
}

// Each took the other for gone, and nobody could be asked.
func TestTwoHoldersMeet(t *testing.T) {
	v, a, b := pair(t)
	v.lock.set(true, "a", "b")
	v.cut(t, "on")
	eventually(t, "both hold", func() bool { return a.State().Holding && b.State().Holding })
	b.problem(t, holder.NoLease, true)
	v.cut(t, "off")
	eventually(t, "the one with the record stays", func() bool { return a.State().Holding && !b.State().Holding && b.addresses(t) == "" })
	v.goesOn(t, a, 2*time.Second)
	v.lock.set(false, "a", "b")
	v.goesOn(t, a, 6*time.Second)
	if got := v.lock.current(); got.Holder != "a" || got.Epoch != 8 {
		t.Errorf("the record is %+v", got)
	}
	if got := b.addresses(t); got != "" {
		t.Errorf("b has %s", got)
	}
}

// ARP is heard, and the frames of the other pod are not believed: its key is not known.
func TestFramesAreNotHeard(t *testing.T) {
	t.Parallel()
	v, a, b := makeVLAN(t, heldBefore("192.0.2.2", "192.0.2.3"), "192.0.2.2", "192.0.2.3")
	v.lock.mu.Lock()
	v.lock.stranger = true
	v.lock.mu.Unlock()
	a.start(t)
	v.settled(t, a)
	b.start(t)
	v.goesOn(t, a, 5*time.Second)
	v.capture.changed(t, a)
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	v.capture.changed(t, a, b)
}

func TestRecordDeletedByHand(t *testing.T) {
	v, a, _ := pair(t)
	v.lock.mu.Lock()
	v.lock.record = holder.Record{}
	v.lock.version++
	v.lock.notify()
	v.lock.mu.Unlock()
	eventually(t, "the record is there again", func() bool { return v.lock.current().Holder == "a" })
	v.capture.changed(t, a)
}
