// Package hub brings the objects of a cluster to the plan, and writes back what it decides.
//
//	informers ─> world ─> plan ─> reconciler ─> children + statuses   (only the leader writes)
//	                        ├─> package workloads ─> VLAN pods and what belongs to them
//	                        └─> package appsingress ─> what apps ingress needs inside hosted clusters
//
// What the processes that serve an Infra do it reads from the children's statuses and from their Leases (package process);
// the leases of workers it reads as objects. It runs none of the servers, and a process that serves needs no hub beside it.
//
// A steady state makes no API write but the renewal of the leader's Lease. One Infra that cannot be written never holds up
// another one. The package decides nothing about names, routes or addresses.
package hub
