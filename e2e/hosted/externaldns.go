package hosted

import (
	"strconv"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// ExternalDNS is the real ExternalDNS, on the host of the name server and for the test to start: it publishes the host names of a cluster's
// LoadBalancer Services at the name server, looks every second, and takes away what it has published (policy sync, TXT records of
// the owner). The name is its owner's and its log's. The arguments are added: namespaces, filters.
func ExternalDNS(name, folder, kubeconfig string, server *NameServer, args ...string) (*controlplane.Part, error) {
	binary, err := stack.ExternalDNS()
	if err != nil {
		return nil, err
	}
	ports, err := controlplane.FreePorts(1)
	if err != nil {
		return nil, err
	}
	metrics := "127.0.0.1:" + ports[0]
	return controlplane.NewPart(server.host, folder, name, "http://"+metrics+"/healthz", append([]string{
		binary, "--kubeconfig=" + kubeconfig, "--source=service", "--service-type-filter=LoadBalancer", "--metrics-address=" + metrics,
		"--provider=rfc2136", "--rfc2136-host=" + server.Address.Addr().String(), "--rfc2136-port=" + strconv.Itoa(int(server.Address.Port())),
		"--rfc2136-zone=" + server.Zone, "--domain-filter=" + server.Zone, "--rfc2136-tsig-keyname=" + updateKey, "--rfc2136-tsig-secret=" + server.secret,
		"--rfc2136-tsig-secret-alg=hmac-sha256", "--rfc2136-tsig-axfr", "--rfc2136-min-ttl=60s",
		"--registry=txt", "--txt-owner-id=" + name, "--policy=sync", "--interval=1s",
	}, args...)...), nil
}
