package files

import (
	"fmt"
	"strings"
	"testing"
)

// big is the manifest of n attachments and m Machines.
func big(n, m int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `apiVersion: hostedcluster.densityops.com/v1alpha1
kind: InfraClusterAttachment
metadata:
  name: hcp-%d
  namespace: clusters
spec:
  infraRef:
    name: tenant-vlan100
  hostedClusterRef:
    name: hcp-%d
  dns:
    clusterName: hcp-%d
    baseDomain: clusters.example.com
---
`, i, i, i)
	}
	for i := range m {
		fmt.Fprintf(&b, `apiVersion: cluster.x-k8s.io/v1beta2
kind: Machine
metadata:
  name: worker-%d
  namespace: clusters-hcp-%d
  annotations:
    hypershift.openshift.io/nodePool: clusters/hcp-%d
spec:
  clusterName: hcp-%d
status:
  addresses:
  - type: InternalIP
    address: 10.%d.%d.%d
  - type: ExternalIP
    address: 10.%d.%d.%d
---
`, i, i%max(n, 1), i%max(n, 1), i%max(n, 1), i>>16, i>>8&255, i&255, i>>16, i>>8&255, i&255)
	}
	return b.String()
}

func BenchmarkLoad(b *testing.B) {
	dir := b.TempDir()
	write(b, dir, "big.yaml", big(1000, 10000))
	for b.Loop() {
		r, err := Load(dir)
		if err != nil || len(r.Problems) > 0 || len(r.Objects.Machines) != 10000 {
			b.Fatal(err, r.Problems)
		}
	}
}

func BenchmarkDecode1000Attachments(b *testing.B) {
	d, err := newDecoder()
	if err != nil {
		b.Fatal(err)
	}
	docs, fail := parse("a.yaml", []byte(big(1000, 0)))
	if fail != nil {
		b.Fatal(fail)
	}
	for b.Loop() {
		c := &content{index: map[key]*object{}, failed: map[key]int{}}
		for _, doc := range docs {
			d.document(c, "a.yaml", doc)
		}
		if len(c.problems) > 0 || len(c.objects) != 1000 {
			b.Fatal(c.problems)
		}
	}
}
