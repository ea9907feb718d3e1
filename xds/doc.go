// Package xds programs Envoy: it turns the ProxyServer of an Infra into Envoy resources and keeps
// every Envoy of that Infra at them.
//
//	ProxyServer ─Build (pure)─> Snapshot ─Server.Apply─> publisher, one an Envoy ─ADS─> Envoy
//	                                                                    └─ACK, NACK─> Status, metrics, CSDS
//
// Build gives one immutable filter chain and one cluster per attachment and target Service. Names
// and addresses stand only in the listener's matcher, so that a new worker or a new name changes
// no chain and drains no connection. Port 80 has no TLS to tell names by: there Envoy speaks HTTP, and one virtual host a
// target, which comes by RDS, takes the place of the chain. As Envoy drains chains and listeners, but no virtual hosts, the
// requests of a target go through an internal listener of the target's name, with a chain as above, to the cluster of its address.
//
// Chains and clusters are named after the attachment, which can become another tenant's while Envoy has the clusters of
// one state and the listeners of another. So both carry the owner, the control-plane namespace: the endpoints in their
// metadata, the chain (or the route) in what it accepts. Where they disagree Envoy finds no endpoint and closes the connection,
// or answers 503 (flag UH in the access log). That holds in whatever order updates arrive, whatever Envoy refuses, and for an Envoy that comes back
// with an old state; the publisher's order is for availability only. What a listener says of names and sources is always
// of one state, as Envoy takes a listener as a whole.
//
// Envoy never accepts a connection that an Envoy of oooi opened: what it sends to targets starts with a TTL that its listeners
// refuse. A target that leads back to a listener, by whatever Service, costs one connection until it times out, and no other
// client anything.
//
// A publisher has one response in flight (but for endpoints, which Envoy needs before it acknowledges their clusters, and routes,
// which a listener may wait for): clusters first, then endpoints, listeners, routes, and only when Envoy acknowledged those, what
// is no longer needed goes: internal listeners, then clusters. What Envoy refuses is found by halving the
// response, left at its last good version, and tried again by the next Apply, never before.
//
// The package must never send a part of a snapshot as if it were the whole, never push what Envoy has
// already, never block Apply on an Envoy, never let the state of one Infra show in another, and never give a chain or an
// endpoint without its owner.
package xds
