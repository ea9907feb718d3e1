// Package stack starts the real parts that oooi works among, and looks at them from outside: the oooi binary,
// Envoy, TLS servers in place of hosted control planes, an upstream DNS server, DHCP clients, and the network
// namespaces of a small lab. `make run`, `make lab` and the end-to-end tests are built from it.
//
// Manifests go in as files, as a user would edit them; everything that comes out is read over the network or
// from a command's output. The package never reaches into oooi's code: it must find what a user would find.
// Whatever it starts it also stops, and the kernel stops it should this process die first.
package stack
