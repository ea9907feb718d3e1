// Package cluster tests oooi as it runs in a cluster, against a real kube-apiserver, real Envoys and real DNS queries.
//
// Objects go in as people, HyperShift and Cluster API would write them; what oooi does with them is read where a
// user would look: children and statuses from the API server, answers over the network, writes from the audit
// log. VLANs and Services are networks of the loopback interface.
package cluster
