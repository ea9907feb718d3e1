// Package e2e tests oooi from outside, as its users meet it: the binary, fed with manifests, among a real
// Envoy, dig, TLS clients and DHCP clients. The parts are started by the packages stack and netlab.
//
// Tests that disturb nobody share one lab; those that break things do so one after the other, while streams
// held open through every filter chain show whom it concerned.
package e2e
