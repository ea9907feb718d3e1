package holder

import (
	"testing"
	"time"
)

// Whoever floods the VLAN from ever new MACs changes no word.
func TestStrangerStaysNamed(t *testing.T) {
	var a address
	now := time.Minute
	first, another := [6]byte{2, 0, 0, 0, 0, 1}, [6]byte{2, 0, 0, 0, 0, 2}
	a.name(first, now)
	for i := range 100 {
		now += 10 * time.Millisecond
		a.name([6]byte{2, 1, 0, 0, 0, byte(i)}, now)
		a.name(first, now)
	}
	if a.stranger != first {
		t.Errorf("named %x, want the first, %x", a.stranger, first)
	}
	a.name(another, now+uncontestedAfter)
	if a.stranger != another {
		t.Errorf("named %x, want the one that is there now, %x", a.stranger, another)
	}
}
