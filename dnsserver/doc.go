// Package dnsserver answers the DNS questions of one VLAN and of the pods beside it.
//
// The spec of one DNSServer goes in, DNS answers come out:
//
//	DNSServerSpec -> Build -> Model (immutable: one table per view, answers packed)
//	                            |  Apply (atomic swap)
//	socket -> recvmmsg -> Model.respond -> sendmmsg          owned names, no allocation
//	                            └-> forwarder -> upstreams   every other name, bounded goroutines
//
// A client's address gives its view: inside secondaryNetworkCIDR it is vlan, inside one of the pod
// networks it is pods, and anybody else is refused. The server owns names, not domains: each owned
// name is a zone of its own, with a SOA of its own, and what is not owned is forwarded, names below
// an owned name included. The one exception is a wildcard, whose parent is a zone in the full sense
// of RFC 4592: everything below it is answered here.
//
// Model.Explain and Model.Records run the very code that answers packets, so they cannot disagree
// with it.
//
// The package never forwards any type of an owned name, never answers a client outside its views,
// never answers before the first Apply, never lets a slow upstream delay an owned name, and reads
// nothing of the cluster: what is not in the DNSServer does not exist for it.
package dnsserver
