package cluster

import (
	"fmt"
	"strings"
)

// baseDomain is the example's.
const baseDomain = "clusters.example.com"

// attachment is the manifest of an attachment in namespace clusters to the example's Infra; the last argument is more of
// its spec, in YAML's flow style, and begins with a comma unless it is empty.
func attachment(name, hostedCluster, clusterName, more string) string {
	return fmt.Sprintf(`apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata: {name: %s, namespace: clusters}
spec: {infraRef: {name: tenant-vlan100}, hostedClusterRef: {name: %s, namespace: clusters}, dns: {clusterName: %q, baseDomain: clusters.example.com}%s}
---
`, name, hostedCluster, clusterName, more)
}

// machine is the manifest of a worker of a hosted cluster in namespace clusters, with the addresses that it shows.
func machine(name, cluster string, addresses ...string) string {
	var status strings.Builder
	for _, a := range addresses {
		fmt.Fprintf(&status, "\n    - {type: InternalIP, address: %q}", a)
	}
	if len(addresses) == 0 {
		status.WriteString(" []")
	}
	return fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: %s
  namespace: clusters-%s
  annotations:
    hypershift.openshift.io/nodePool: clusters/%s
spec:
  clusterName: %s
  bootstrap: {dataSecretName: user-data}
  infrastructureRef: {apiGroup: infrastructure.cluster.x-k8s.io, kind: KubevirtMachine, name: %s}
status:
  addresses:%s
---
`, name, cluster, cluster, cluster, name, status.String())
}

// namespace is the manifest of a namespace.
func namespace(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n---\n"
}

// documents keeps the documents of a stream that hold all of the texts.
func documents(stream string, texts ...string) string {
	var kept []string
	for document := range strings.SplitSeq(stream, "\n---\n") {
		all := true
		for _, text := range texts {
			all = all && strings.Contains(document, text)
		}
		if all {
			kept = append(kept, document)
		}
	}
	return strings.Join(kept, "\n---\n")
}
