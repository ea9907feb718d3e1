// Package kube brings the objects of a cluster to the plan, writes back what it decides, and brings the children to
// the servers.
//
// A process can have both parts, or one of them:
//
//	hub      informers ─> world ─> plan ─> reconciler ─> children + statuses   (only the leader writes)
//	                                  ├─> package workloads ─> VLAN pods and what belongs to them
//	                                  └─> package appsingress ─> what apps ingress needs inside hosted clusters
//	serving  children's informers ─> the servers; what they do ─> the children's statuses
//
// The serving part reads nothing but the children, so that a VLAN pod needs no rights beyond its own
// namespace; what it served last is kept in the state folder, for a start without the API. Its DHCP leases are objects,
// which the pods of a VLAN share and the hub reads (package leases).
//
// A steady state makes no API write but the renewal of Leases. One Infra that cannot be written never holds up
// another one. The package decides nothing about names, routes or addresses.
package kube
