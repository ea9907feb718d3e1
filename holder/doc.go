// Package holder decides which of the pods of an Infra has the server addresses on the VLAN, and puts them there (Linux).
//
// Exactly one pod, the holder, has them. The others stand by, and one of them takes over when the holder stops, breaks or is not there
// any more. Who is the holder is written in one record (Lock, in a cluster a Lease); what the pods do while that
// cannot be reached, and how fast they act, is decided by what they hear of each other on the VLAN:
//
//	Lock.Seen, Get, Put ──> record ──┐                       ┌──> addresses: put on for 2 s at a time, probed, announced, defended
//	signed frames ──> peers ─────────┼──> facts ─ decide ────┤
//	ARP answers ──> asked, contested ┤           (pure)      ├──> record: taken, renewed, given back
//	interface, health, clock ────────┘                       └──> frames: what this pod does
//
// # What is certain, and why
//
// An address is on an interface for two seconds at a time: the kernel takes it off when its pod is frozen or dead. A pod that wakes up late
// does not prolong what it had, because the clock (CLOCK_BOOTTIME) is read right before and right after. So an address whose holder
// is silent and does not answer ARP is nobody's of this Infra. That is what a pod waits for before it takes the record and puts the
// address on: two pods that hear each other's ARP never have one address at the same time, whatever happens to the API, to the frames
// or to one of the processes.
//
// A whole host that is paused keeps its clocks, and so its addresses, until it runs again; then its pod hears the new holder within 200 ms.
//
// A holder that stops says so in a frame when the addresses are off; then nobody waits for anything.
//
// # When the record cannot be had
//
// The holder stays the holder. A standby takes over without the record under the same conditions. When two holders meet, the one of the record stays, then the
// one of the later epoch, then the first by name; the other lets go at once. A pod that never saw the record, and so knows the key of no
// other, probes for all addresses (RFC 5227) as if they had never been held.
//
// # When the VLAN is cut between the pods
//
// Both reach the record, each is silent for the other: the standby takes it, once, and the other lets go when it sees that. It leaves the record alone for 10 s, the
// next time 20 s, and so on, as long as the new one renews it.
//
// # Who is believed
//
// Tenants share the VLAN. A frame counts when its signature is that of a pod whose public key stands in the cluster, when its counter is
// new, and when it echoes the random number of this start of this process, so that no recorded frame ever counts. What is verified in a second is limited.
//
// In a flood what other pods say is lost. A pod that notices (its sockets had no room, or more came than anybody has to say) concludes nothing from silence
// for as long as that lasts: only a record that is not renewed for 15 s lets it take over. What is lost before it comes to this host cannot be noticed: a
// tenant who fills the whole wire can have the record change hands, or, while the API is away, make two pods answer for one address until they hear
// each other again.
//
// ARP cannot be believed: an answer with another MAC than those of this Infra's pods holds nobody up. One that comes with the MAC
// of a dead holder delays the take-over until the record has expired.
//
// The package must never keep an address that another pod of this Infra may have, never let a failing API end a tenure, never block on
// anything while it holds, and never believe a frame or an ARP packet more than is said here.
package holder
