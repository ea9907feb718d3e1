// Package workloads brings VLAN pods, and all that belongs to them, to what the hub's plan wants: it applies what package
// deploy/workload builds, and takes away what is wanted no longer.
//
//	plan ─Planned─> wanted objects ─┐
//	                                ├─> queue of Infras ─> apply, or remove   (only the leader writes)
//	informers ─> objects there ─────┘         └─Changed─> Condition, Unwritten ─> the next plan and the statuses
//
// It has a queue and watches of its own: whatever is wrong here, or may not be read, the hub's children and statuses are
// written as ever. An object of a needed name that is somebody else's is never touched. Upgrades of an installation go one
// Infra at a time (rollout.go).
//
// The package knows nothing of the hub, and decides nothing about what is in a pod: that is package deploy/workload's.
package workloads
