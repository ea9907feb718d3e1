// Package workload is the pure builder of what runs one Infra in a cluster: the Deployment of its VLAN pods and all that
// belongs to it.
//
// An Infra, the control-plane namespaces of its attachments and the settings of the installation go in; the complete
// objects come out, in the order in which they are to be written. There is no clock, no client and no log in here. The hub
// applies what comes out and deletes what came out before and comes out no longer.
//
// The template of the pods never depends on attachments: adding a cluster to a VLAN must not start the pods anew, which
// would cut all others.
package workload
