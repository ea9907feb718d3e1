// Package process is what the hub and the processes that serve an Infra agree on: the Lease by which a process says that it
// lives, what it knows and what it has on the VLAN, and that each of them writes a share of a status, under a name of its own.
//
//	serving process ─Word─> its Lease ──> hub, and the other pods of the VLAN
//
// Processes of several releases meet in a cluster: what stands in a Lease keeps its form.
package process
