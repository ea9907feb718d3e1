// Package dhcpserver is the DHCPv4 server of one VLAN (RFC 2131).
//
// A DHCPServer child goes through Build and becomes an immutable Model; Server.Apply swaps it in
// while the server runs. Messages come in through Conns (the VLAN interface of dhcpserver/vlan, or
// a UDP socket for relayed and unicast messages) and flow through
//
//	Conn.Receive -> parse -> protocol (decides, over the lease table) -> answer, or
//	                                                                  -> commit queue -> Store -> answer
//
// One goroutine reads each Conn and never waits for a disk. One goroutine commits: while it writes
// one batch of leases the next one gathers, so that many clients share one fsync.
//
// # Identity and addresses
//
// A client is its hardware address: the initrd and the real root of one machine use different
// client identifiers, and cloned machines share one. A client gets its reservation, else the
// address it has or had, else the one it asks for, else one that nobody ever had, else the one
// whose lease ran out longest ago. An excluded address is nobody's, reserved or not.
//
// The server is authoritative for its VLAN: it refuses (DHCPNAK) what it knows to be wrong.
// INIT-REBOOT for anything but the client's own lease is refused, that of an unknown client
// included. RENEWING for a free address of the pool is granted even when the lease is unknown: the
// client is using that address, and giving it to somebody else would be worse. REBINDING of a lease
// that is not known here is ignored (RFC 2131 section 4.3.2).
//
// # Promises
//
// A lease is durable before its ACK leaves; when it cannot be written the server is silent, and the
// client tries again. Offers live in memory for 60 seconds, their number is bounded, and the oldest
// unconfirmed one makes room first; a lease never does. A declined address is kept from everybody
// for 10 minutes. A released or expired lease keeps its binding until the address is needed, or, where leases are
// objects that somebody has to look at (Config.Forget), for a day and ten lease times. A
// changed pool deletes no lease: renewals of addresses that are no longer in it are refused.
//
// Writes are bounded, since every host of the VLAN can ask for one. A client that asks again for what it got less than a tenth of the lease time
// ago, under the same name and client identifier, is told how long that still lasts, and nothing is written; unless there is any doubt
// about the lease, as after Hold. One client changes its lease ten times at once and three times a minute after; who wants more keeps the lease and
// the end that it has, and if it has none its message is dropped ("too many changes" in oooi_dhcp_dropped_total). Clients that nothing is known
// of get a thousand leases at once, or four times the pool if that is more, and ten a second after ("too many new clients").
//
// Where several servers share a store (SharedStore), one after the other, the store has the last word: what it refuses
// because somebody else was there first (ConflictError) is taken over from it, and the client is left to ask again.
// Leases that another server may have renewed while it was cut off from the store are held (Server.Hold).
//
// What a disk did to the lease file is noticed before anything is served: OpenBolt checks every page and every
// lease. One unreadable lease costs its own address only, which nobody gets but the client that renews it; if
// leases are missing, or it cannot be told which they are, the file is refused.
//
// Times are wall-clock times, so that they mean the same after a restart. When that clock is set while the server runs (WallClock),
// nothing changes for clients. Forward: what was active is held for one lease time, and written anew with the times that it has by
// the clock of now (a SharedStore keeps the hold instead). Back: a lease ends when it would have; one that may be of another clock
// after a day or ten lease times at the latest. Both are for the server only until the client renews. Leases are not
// forgotten for a day and ten lease times after.
//
// What happens to the clock while no server runs is not noticed when it is set forward: leases are over then, and their addresses
// are the last to be given again, after those that nobody had. The same goes for leases that were loaded and begin later than a
// step forward came from: they are held, and a restart forgets it. A clock that is behind the beginning of loaded leases is noticed
// and logged; they too end after a day or ten lease times.
//
// The package must never hand out the network, broadcast, gateway or server address, or an excluded
// range; never let a message crash it; never answer what it cannot parse; never know about
// Kubernetes.
package dhcpserver
