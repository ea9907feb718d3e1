package dhcpserver

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
)

// converse plays a script. A line is "> MESSAGE", as say reads it, "< ANSWER", as describe writes
// it, or something that happens: "after DURATION", "restart", "pool FIRST LAST",
// "reserve CLIENT ADDRESS", "store fails", "store works", "damage ADDRESS" (in the store), "lease-time DURATION", "hold DURATION" (what
// is active now, for so long). "lasts DURATION" is what the last answer said, "writes N" how many leases were written since the line before
// that begins so.
func converse(t *testing.T, script string) {
	v := newVLAN(t, child())
	var answers []sent
	puts := 0
	for n, line := range strings.Split(script, "\n") {
		line = strings.TrimSpace(line)
		words := strings.Fields(line)
		if line == "" {
			continue
		}
		switch words[0] {
		case ">":
			answers = v.say(strings.TrimPrefix(line, "> "))
		case "<":
			if got, want := describe(answers), strings.TrimPrefix(line, "< "); got != want {
				t.Fatalf("line %d: the server answered %q, want %q", n+1, got, want)
			}
		case "after":
			d, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatal(err)
			}
			v.now = v.now.Add(d)
		case "restart":
			v.restart()
		case "pool":
			v.child.Spec.LeaseConfig.RangeStart, v.child.Spec.LeaseConfig.RangeEnd = words[1], words[2]
			v.server.Apply(model(t, v.child))
		case "reserve":
			v.child.Spec.Reservations = append(v.child.Spec.Reservations, v1alpha1.DHCPReservation{MAC: mac(words[1]).String(), IP: words[2]})
			v.server.Apply(model(t, v.child))
		case "lease-time":
			v.child.Spec.LeaseConfig.LeaseTime = words[1]
			v.server.Apply(model(t, v.child))
		case "hold":
			d, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatal(err)
			}
			v.server.Hold(v.now, v.now.Add(d))
		case "lasts":
			want, err := time.ParseDuration(words[1])
			if err != nil {
				t.Fatal(err)
			}
			m := answers[0].message
			t1, t2 := m.IPAddressRenewalTime(0), m.IPAddressRebindingTime(0)
			if got := m.IPAddressLeaseTime(0); got != want || t1 != (want/2).Truncate(time.Second) || t2 != (want*7/8).Truncate(time.Second) {
				t.Fatalf("line %d: the lease lasts %s, to be renewed after %s and %s; want %s", n+1, got, t1, t2, want)
			}
		case "writes":
			if got := fmt.Sprint(v.store.puts - puts); got != words[1] {
				t.Fatalf("line %d: %s leases were written, want %s", n+1, got, words[1])
			}
			puts = v.store.puts
		case "damage":
			addr := netip.MustParseAddr(words[1])
			v.store.leases[addr] = Lease{Address: addr, State: StateDamaged}
		case "store":
			v.store.fail = nil
			if words[1] == "fails" {
				v.store.fail = errors.New("disk full")
			}
		default:
			t.Fatalf("line %d: unknown: %s", n+1, line)
		}
	}
}

func TestConversations(t *testing.T) {
	// lease is how client 01 gets 192.0.2.100.
	const lease = `
		> 01 DISCOVER
		< OFFER 192.0.2.100 -> 01
		> 01 REQUEST server=192.0.2.2 requested=192.0.2.100
		< ACK 192.0.2.100 -> 01
	`
	for name, script := range map[string]string{
		"a client gets an address": lease,
		"a second client gets another address": lease + `
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.101
			< ACK 192.0.2.101 -> 02
		`,
		"who asks again is offered the same": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
		`,
		"the address that the client asks for": `
			> 01 DISCOVER requested=192.0.2.102
			< OFFER 192.0.2.102 -> 01
		`,
		"unless it is not to be had": lease + `
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
			> 03 DISCOVER requested=192.0.2.103
			< OFFER 192.0.2.102 -> 03
		`,
		"answers to who wants broadcasts": `
			> 01 DISCOVER broadcast-flag
			< OFFER 192.0.2.100 -> everybody
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100 broadcast-flag
			< ACK 192.0.2.100 -> everybody
		`,
		"a lost ACK is repeated": lease + `
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"selecting another server frees the offer": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			> 01 REQUEST server=192.0.2.9 requested=192.0.2.77
			< silence
			> 02 DISCOVER
			< OFFER 192.0.2.100 -> 02
		`,
		"selecting what was offered to another": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.100
			< NAK -> everybody
		`,
		"selecting after a restart in between": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			restart
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"selecting an address outside of the pool": `
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.2
			< NAK -> everybody
		`,
		"an offer that nobody takes is over after a minute": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			after 60s
			> 02 DISCOVER
			< OFFER 192.0.2.100 -> 02
		`,
		"a full pool takes back the oldest offer, never a lease": lease + `
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 03 DISCOVER
			< OFFER 192.0.2.102 -> 03
			> 04 DISCOVER
			< OFFER 192.0.2.101 -> 04
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.101
			< NAK -> everybody
			> 04 REQUEST server=192.0.2.2 requested=192.0.2.101
			< ACK 192.0.2.101 -> 04
		`,
		"nor the lease of who looks for an address again": lease + `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			> 02 DISCOVER
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.101
			< ACK 192.0.2.101 -> 02
			> 03 DISCOVER
			> 03 REQUEST server=192.0.2.2 requested=192.0.2.102
			< ACK 192.0.2.102 -> 03
			> 04 DISCOVER
			< silence
			after 30m
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
			after 31m
			> 04 DISCOVER
			< OFFER 192.0.2.101 -> 04
		`,
		"a move that cannot be written leaves the old lease": lease + `
			reserve 01 192.0.2.60
			> 01 DISCOVER
			< OFFER 192.0.2.60 -> 01
			store fails
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.60
			< silence
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			store works
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,

		"INIT-REBOOT": lease + `
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"INIT-REBOOT after a restart": lease + `
			restart
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"INIT-REBOOT after the lease has ended": lease + `
			after 48h
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"INIT-REBOOT with another address": lease + `
			> 01 REQUEST requested=192.0.2.101
			< NAK -> everybody
		`,
		"INIT-REBOOT with an address of another network": `
			> 01 REQUEST requested=198.51.100.7
			< NAK -> everybody
		`,
		"INIT-REBOOT of a client that is not known": `
			> 01 REQUEST requested=192.0.2.100
			< NAK -> everybody
		`,
		"INIT-REBOOT with an address that another has": lease + `
			> 02 REQUEST requested=192.0.2.100
			< NAK -> everybody
		`,
		"INIT-REBOOT through a relay": `
			> 01 REQUEST requested=198.51.100.7 giaddr=192.0.2.1
			< NAK -> 192.0.2.1:67
		`,

		"RENEWING": lease + `
			after 30m
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
			after 45m
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
		`,
		"RENEWING over a restart": lease + `
			restart
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,
		"RENEWING a lease that was lost": `
			> 01 REQUEST ciaddr=192.0.2.102 to=192.0.2.2:67 from=192.0.2.102:68
			< ACK 192.0.2.102 -> 192.0.2.102:68
		`,
		"RENEWING the address of another": lease + `
			> 02 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< NAK -> everybody
		`,
		"RENEWING what has fallen out of the pool": lease + `
			pool 192.0.2.101 192.0.2.110
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< NAK -> everybody
			> 01 DISCOVER
			< OFFER 192.0.2.101 -> 01
		`,
		"a pool that comes back finds its leases": lease + `
			pool 192.0.2.101 192.0.2.110
			pool 192.0.2.100 192.0.2.110
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,

		"REBINDING": lease + `
			after 55m
			> 01 REQUEST ciaddr=192.0.2.100 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,
		"REBINDING through a relay": lease + `
			> 01 REQUEST ciaddr=192.0.2.100 giaddr=192.0.2.1
			< ACK 192.0.2.100 -> 192.0.2.1:67
		`,
		"REBINDING a lease that is not ours": `
			> 01 REQUEST ciaddr=192.0.2.100 from=192.0.2.100:68
			< silence
		`,
		"REBINDING the address of another": lease + `
			> 02 REQUEST ciaddr=192.0.2.100 from=192.0.2.100:68
			< NAK -> everybody
		`,

		"RELEASE keeps the binding": lease + `
			> 01 RELEASE ciaddr=192.0.2.100 server=192.0.2.2 to=192.0.2.2:67
			< silence
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
		`,
		"but not against need": lease + `
			> 01 RELEASE ciaddr=192.0.2.100 server=192.0.2.2 to=192.0.2.2:67
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 03 DISCOVER
			< OFFER 192.0.2.102 -> 03
			> 04 DISCOVER
			< OFFER 192.0.2.100 -> 04
		`,
		"RELEASE by somebody else": lease + `
			> 02 RELEASE ciaddr=192.0.2.100 server=192.0.2.2 to=192.0.2.2:67
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
		`,
		"RELEASE to another server": lease + `
			> 01 RELEASE ciaddr=192.0.2.100 server=192.0.2.9
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
		`,

		"DECLINE quarantines the address for ten minutes": lease + `
			> 01 DECLINE requested=192.0.2.100 server=192.0.2.2
			< silence
			> 01 DISCOVER
			< OFFER 192.0.2.101 -> 01
			restart
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
			after 10m
			> 03 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.100 -> 03
		`,
		"DECLINE by somebody else": lease + `
			> 02 DECLINE requested=192.0.2.100 server=192.0.2.2
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
			> 02 DECLINE requested=192.0.2.102 server=192.0.2.2
			> 03 DISCOVER requested=192.0.2.102
			< OFFER 192.0.2.102 -> 03
		`,
		"DECLINE of a mere offer takes nothing out of the pool": `
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
			> 01 DECLINE requested=192.0.2.100 server=192.0.2.2
			< silence
			after 2m
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.100 -> 02
		`,
		"DECLINE without an address": lease + `
			> 01 DECLINE server=192.0.2.2
			< silence
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,

		"INFORM": `
			> 01 INFORM ciaddr=192.0.2.77 from=192.0.2.77:68
			< ACK -> 192.0.2.77:68
			> 01 INFORM ciaddr=198.51.100.7 from=198.51.100.7:68
			< silence
			> 01 INFORM
			< silence
		`,

		"the same address after the lease has ended": lease + `
			> 02 DISCOVER
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.101
			after 48h
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 01 DISCOVER
			< OFFER 192.0.2.100 -> 01
		`,
		"addresses that nobody had, then the one that ended first": `
			> 01 DISCOVER requested=192.0.2.102
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.102
			after 1m
			> 02 DISCOVER
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.100
			after 48h
			> 03 DISCOVER
			< OFFER 192.0.2.101 -> 03
			> 04 DISCOVER
			< OFFER 192.0.2.102 -> 04
			> 05 DISCOVER
			< OFFER 192.0.2.100 -> 05
		`,

		"a reservation outside of the pool": `
			> 0a DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.50 -> 0a
			> 0a REQUEST server=192.0.2.2 requested=192.0.2.50
			< ACK 192.0.2.50 -> 0a
			> 0a REQUEST ciaddr=192.0.2.50 to=192.0.2.2:67 from=192.0.2.50:68
			< ACK 192.0.2.50 -> 192.0.2.50:68
		`,
		"a reservation is for nobody else": `
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.50
			< NAK -> everybody
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.103
			< NAK -> everybody
			> 0b DISCOVER
			< OFFER 192.0.2.103 -> 0b
		`,
		"a reservation that comes later takes effect at the next boot": lease + `
			reserve 01 192.0.2.60
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
			> 01 REQUEST requested=192.0.2.100
			< NAK -> everybody
			> 01 DISCOVER
			< OFFER 192.0.2.60 -> 01
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.60
			< ACK 192.0.2.60 -> 01
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.100 -> 02
		`,
		"a reservation waits for who has the address": lease + `
			reserve 02 192.0.2.100
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< NAK -> everybody
			after 1h
			> 02 DISCOVER
			< OFFER 192.0.2.100 -> 02
		`,

		"relayed": `
			> 01 DISCOVER giaddr=192.0.2.1
			< OFFER 192.0.2.100 -> 192.0.2.1:67
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100 giaddr=192.0.2.1
			< ACK 192.0.2.100 -> 192.0.2.1:67
		`,
		"a relay on another network": `
			> 01 DISCOVER giaddr=198.51.100.1
			< silence
		`,
		"without privileges answers go where the message came from": `
			> 01 DISCOVER giaddr=192.0.2.9 from=192.0.2.9:10067 to=192.0.2.2:10067
			< OFFER 192.0.2.100 -> 192.0.2.9:10067
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100 giaddr=192.0.2.9 from=192.0.2.9:10067 to=192.0.2.2:10067
			< ACK 192.0.2.100 -> 192.0.2.9:10067
			> 01 REQUEST ciaddr=192.0.2.100 from=192.0.2.100:10068 to=192.0.2.2:10067
			< ACK 192.0.2.100 -> 192.0.2.100:10068
			> 01 REQUEST ciaddr=192.0.2.2 from=192.0.2.100:10068 to=192.0.2.2:10067
			< NAK -> 192.0.2.100:10068
		`,

		"no ACK for a lease that cannot be written": `
			> 01 DISCOVER
			store fails
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100
			< silence
			> 02 DISCOVER
			< OFFER 192.0.2.101 -> 02
			store works
			> 01 REQUEST server=192.0.2.2 requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"a renewal that cannot be written ends with the lease": lease + `
			after 30m
			store fails
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< silence
			store works
			after 31m
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.100 -> 02
		`,
		"the address of a damaged lease is for the client that uses it": lease + `
			damage 192.0.2.100
			restart
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
			> 02 REQUEST server=192.0.2.2 requested=192.0.2.100
			< NAK -> everybody
			after 48h
			> 03 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 03
			> 04 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.102 -> 04
			> 05 DISCOVER
			< OFFER 192.0.2.101 -> 05
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
			> 02 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< NAK -> everybody
			restart
			> 01 REQUEST requested=192.0.2.100
			< ACK 192.0.2.100 -> 01
		`,
		"it gets it back when it asks all servers, too": lease + `
			damage 192.0.2.100
			restart
			> 01 REQUEST ciaddr=192.0.2.100
			< ACK 192.0.2.100 -> 192.0.2.100:68
			> 02 REQUEST ciaddr=192.0.2.100
			< NAK -> everybody
		`,
		"when its renewal cannot be written it is still nobody else's": lease + `
			damage 192.0.2.100
			restart
			store fails
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< silence
			store works
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.101 -> 02
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,
		"a damaged lease and a changed reservation": lease + `
			damage 192.0.2.100
			restart
			reserve 02 192.0.2.100
			> 01 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< NAK -> everybody
			> 02 REQUEST ciaddr=192.0.2.100 to=192.0.2.2:67 from=192.0.2.100:68
			< ACK 192.0.2.100 -> 192.0.2.100:68
		`,
		"a damaged lease is over when no lease could last": lease + `
			damage 192.0.2.100
			restart
			after 8760h
			> 02 DISCOVER requested=192.0.2.100
			< OFFER 192.0.2.100 -> 02
		`,
		"a server's message from a client": `
			> 01 OFFER server=192.0.2.9
			< silence
		`,
		"a request for nothing": `
			> 01 REQUEST
			< silence
		`,
	} {
		t.Run(name, func(t *testing.T) { converse(t, script) })
	}
}
