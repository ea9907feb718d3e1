// Package plan decides: objects in, children and statuses out.
//
// Plan is a pure function. It has no clock, no client and no log: the same
// objects, memory and leases always give the same result, whatever order they
// came in. The reconciler, oooi serve --config-dir, oooi render, oooi explain
// and every test call the same one.
//
// Data flows one way through it:
//
//	Objects ─> index ─> conflicts (who is left out) ─> sources ─> children + statuses
//
// It must never guess: an attachment in a conflict has no names and no routes,
// an address of two clusters belongs to nobody, a target that does not exist
// has no route. Problems are data in the result, never errors or panics.
package plan
