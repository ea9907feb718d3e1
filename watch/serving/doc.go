// Package serving is what a process that serves Infras of a cluster has to do with that cluster: it brings the children to
// the servers, and tells what they do.
//
//	children ─> Watcher ─> the servers; what they do ─> Reporter ─> the children's statuses, the Lease of this process
//	               └─> state folder
//	Lease of the VLAN <─> VLANLease <─> package holder ─> PodMark ─> label of the holder on its pod
//
// It reads nothing but the children and Leases, so that a VLAN pod needs no rights beyond its own namespace; what it served
// last is kept in the state folder, for a start without the API. The DHCP leases, which the pods of a VLAN share as objects, are
// package leases' matter.
//
// A steady state makes no API write but the renewal of Leases. The package knows neither the hub nor the plan, and not what
// the servers make of the children.
package serving
