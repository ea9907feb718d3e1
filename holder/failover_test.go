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
	began := time.Now()
	eventually(t, "a goes on", func() bool {
		runs := v.capture.runs(v.addresses[0])
		return len(runs) == 1 && runs[0].last.Sub(began) > time.Second
	})
	v.capture.changed(t, a)
	return v, a, b
}

func TestStopHandsOver(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGTERM)
	v.settled(t, b)
	v.capture.changed(t, a, b)
}

func TestKillTakesOver(t *testing.T) {
	v, a, b := pair(t)
	a.signal(t, syscall.SIGKILL)
	v.settled(t, b)
	v.capture.changed(t, a, b)
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
	v.settled(t, a, b)
	v.capture.changed(t, a, b)
}
