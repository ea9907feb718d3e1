// Package vlanpods tests the shipped manifests as a cluster runs them: `kubectl apply -k deploy/`, then an Infra. The hub runs
// from its image on two nodes, it writes the VLAN pods, and these serve a VLAN on which workers boot by DHCP, ask for names and
// open TLS connections. Package kubelet runs the pods, with a real scheduler and kube-proxy; TLS servers of package stack
// stand in for hosted control planes, behind Services as HyperShift makes them.
//
// For apps ingress and public names there are real hosted clusters, name servers, ExternalDNS and MetalLB of package hosted, for the time of the tests
// that need them.
//
// The world is set up once for all tests (newWorld), and settle brings it to its resting state before each: two VLAN pods that are
// ready, of which one is the holder. There are tests only.
package vlanpods
