package serving

import (
	"testing"
	"time"

	"github.com/densityops/oooi/watch/process"
)

// What tenants can change at will is not written at will.
func TestWordsOfAVLANAreWrittenSeldom(t *testing.T) {
	contested := func(mac string) *process.VLAN {
		return &process.VLAN{Holding: true, Holder: "pod-1", Problems: []process.VLANProblem{{Reason: "AddressContested", Message: mac}}}
	}
	last := &reported{vlan: contested("52:54:00:00:00:01")}
	for _, c := range []struct {
		name string
		vlan *process.VLAN
		want time.Duration
	}{
		{"the same", contested("52:54:00:00:00:01"), renewPeriod},
		{"another word", contested("52:54:00:00:00:02"), wordPeriod},
		{"no holder any more", &process.VLAN{Holder: "pod-2"}, 0},
	} {
		if got := last.renewAfter(c.vlan); got != c.want {
			t.Errorf("%s: after %s, want %s", c.name, got, c.want)
		}
	}
}
