package main

import (
	"fmt"
	"io"
	"strings"
)

// try is a command that shows something, and what it prints. "…" in an expected line stands for any text.
type try struct {
	about   string
	command string
	prints  string
}

// guide prints what to try. The end-to-end tests run every command and compare.
func guide(out io.Writer, folder string) {
	const (
		clusterA = "example-hcp-a.clusters.example.com"
		workerA  = "127.0.2.117"
		workerB  = "127.0.2.118"
		stranger = "127.0.2.119"
	)
	https, kubeAPI := port(443), port(6443)
	dig := func(source, name string) string {
		return fmt.Sprintf("dig +short -b %s @%s -p %s %s", source, dnsServer, port(53), name)
	}
	curl := func(source, name, service string) string {
		return fmt.Sprintf("curl -sS --interface %s --cacert %s/ca.pem --resolve %s:%s:%s https://%s:%s/",
			source, folder, name, service, proxy, name, service)
	}
	answer := func(cluster, service string) string { return fmt.Sprintf("cluster %s, service %s", cluster, service) }

	fmt.Fprintf(out, `Two hosted clusters share the VLAN 127.0.2.0/24. Worker %s belongs to example-hcp-a, %s to
example-hcp-b, and %s to nobody. Ports are %d higher than in a cluster.
Manifests: %s/manifests (edit them, oooi follows)
Logs:      %s/logs

`, workerA, workerB, stranger, portOffset, folder, folder)

	for _, t := range []try{
		{
			"On the VLAN the names of both clusters lead to the one proxy:",
			dig(workerA, "api."+clusterA), proxy,
		},
		{
			"Outside the VLAN, as pods see it, to the proxy's ClusterIP:",
			dig("127.0.0.1", "api."+clusterA), "127.30.0.4",
		},
		{
			"A name that is not ours goes to the upstream resolver:",
			dig(workerA, "www.example.org"), "203.0.113.80",
		},
		{
			"By server name, each name reaches its own cluster, from anywhere:",
			curl(stranger, "api."+clusterA, https), answer("example-hcp-a", "kube-apiserver"),
		},
		{
			"The other services as well:",
			curl(workerB, "ignition.example-hcp-b.clusters.example.com", https), answer("example-hcp-b", "ignition-server-proxy"),
		},
		{
			"The alias kubernetes.default.svc leads to the cluster that the caller belongs to:",
			curl(workerA, "kubernetes.default.svc", https), answer("example-hcp-a", "kube-apiserver"),
		},
		{
			"",
			curl(workerB, "kubernetes.default.svc", https), answer("example-hcp-b", "kube-apiserver"),
		},
		{
			"So does TLS without a server name, which is what curl does with an address:",
			fmt.Sprintf("curl -sSk --interface %s https://%s:%s/", workerB, proxy, kubeAPI), answer("example-hcp-b", "kube-apiserver"),
		},
		{
			"The certificate tells, since nobody between ends TLS:",
			fmt.Sprintf("openssl s_client -connect %s:%s -bind %s:0 -noservername </dev/null 2>/dev/null | openssl x509 -noout -subject",
				proxy, kubeAPI, workerA), "subject=…example-hcp-a…kube-apiserver",
		},
		{
			"A caller that belongs to nobody is cut off:",
			curl(stranger, "kubernetes.default.svc", https) + " 2>/dev/null || echo closed", "closed",
		},
		{
			"Where a connection goes, and why:",
			fmt.Sprintf("bin/oooi explain --source %s --sni kubernetes.default.svc --server http://%s", workerA, httpListen),
			workerA + " -> proxy of " + infra + ":443, server name kubernetes.default.svc\n" +
				"  routed to clusters-example-hcp-a/kube-apiserver:6443 of attachment example-hcp-a (127.30.1.1)\n…",
		},
		{
			"",
			fmt.Sprintf("bin/oooi explain --source %s --sni kubernetes.default.svc --server http://%s", stranger, httpListen),
			stranger + " -> proxy of " + infra + ":443, server name kubernetes.default.svc\n  closed\n…",
		},
		{
			"A DHCP relay asks for an address for a new worker:",
			"bin/oooi-run dhcp 52:54:00:00:00:01", "address 127.0.2.1…, DNS " + dnsServer + ", router 127.0.2.1, for 1h0m0s",
		},
		{
			"The lease is kept:",
			"bin/oooi leases --server http://" + httpListen, "…127.0.2.1…52:54:00:00:00:01…",
		},
		{
			"What Envoy is served, by reflection, with no proto files:",
			fmt.Sprintf("$(e2e/tools/build grpcurl) -plaintext %s list | grep discovery", xdsListen),
			"…envoy.service.discovery.v3.AggregatedDiscoveryService…",
		},
	} {
		if t.about != "" {
			fmt.Fprintln(out, t.about)
		}
		fmt.Fprintf(out, "  $ %s\n", t.command)
		for line := range strings.Lines(t.prints) {
			fmt.Fprintf(out, "  %s\n", strings.TrimSuffix(line, "\n"))
		}
		fmt.Fprintln(out)
	}
	fmt.Fprintln(out, "Ctrl-C stops everything.")
}
