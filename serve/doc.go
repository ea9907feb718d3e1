// Package serve runs the servers of each Infra from its children.
//
// Children come in as a complete set (Server.Apply); each Infra has a publisher of
// its own that brings them to the servers in the order in which nobody is sent to a
// door that is not there: names that go are withdrawn before their routes, names
// that are new are published after Envoy acknowledged their routes (or after two
// seconds, and at once when no Envoy is connected). Answers that do not lead to the
// proxy (apps, on the VLAN) wait for nothing.
//
//	Children ─> publisher ─┬─> DHCP server
//	                       ├─> DNS server (names withdrawn)
//	                       ├─> xDS ─ADS─> Envoy
//	                       └─> DNS server (names published)
//
// Nothing listens before the first complete set of children. One Infra never waits for
// another, and one server that cannot start (an address that is not there yet) is
// tried again while the others serve. The package decides nothing about names, routes or
// addresses: that is the plan's.
package serve
