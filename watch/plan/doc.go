// Package plan decides: objects in, children and statuses out.
//
// Plan is a pure function. It has no clock, no client and no log: the same
// objects, memory and leases always give the same result, whatever order they
// came in. The reconciler, oooi serve --config-dir, oooi render, oooi explain
// and every test call the same one.
//
// Data flows one way through it:
//
//	Objects ─> index ─> conflicts (who is left out) ─> sources ─> VIPs, ports ─> children + statuses
//	                                                                        └─> work in hosted clusters, public Services
//
// The statuses of attachments are the memory: the addresses of workers, what was seen in hosted clusters, the ports of public
// listeners. Whoever knows something newer lays it over them before. Planned again from its own statuses, a plan is the same.
//
// It must never guess: an attachment in a conflict has no names and no routes,
// an address of two clusters belongs to nobody, a target that does not exist
// has no route, a VIP that something else may have is not published, a port that led to one attachment
// leads to no other while anything still knows it. Problems are data in the result, never errors or panics.
package plan
