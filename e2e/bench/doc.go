// Command bench measures oooi against what bounds it from below. It is run by the bench targets of the Makefile, never by
// the tests: figures of a shared machine count as ratios within one run.
//
//	bench watch    from a Machine's status write in a real kube-apiserver to Envoy's acknowledgement
//
// Between oooi and a real Envoy stands a tap, which hands on the bytes of the xDS stream and notes when what passes.
// A second Envoy gets the same updates from a replay of them, with nothing else to do: Envoy's own floor.
package main
