package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// TestNeighboursComeLate starts in a cluster that has neither HyperShift nor Cluster API nor KubeVirt. What does not need
// them works; the rest begins by itself.
func TestNeighboursComeLate(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	p := &page{site: s, vlan: s.vlan(80)}
	s.startBackends(t, "example-hcp-a", 1)
	s.startBackends(t, "example-hcp-b", 2)
	p.oooi = s.newProcess(t).start(t)
	neighbours := s.neighbours(t, p.vlan)
	s.apply(t, namespace("clusters"), s.page(t, p.vlan), documents(neighbours, "kind: Namespace\n"), documents(neighbours, "kind: Service\n"))
	p.envoy = s.startEnvoy(t, p.oooi, infra, "envoy-1")
	missing := func(texts ...string) check {
		return s.says("Infra", infra, v1alpha1.ConditionNeighboursServed, "False KindsMissing", texts...)
	}
	within(t, "a cluster without neighbours",
		missing("HostedCluster.hypershift.openshift.io", "NodePool.hypershift.openshift.io", "Machine.cluster.x-k8s.io", "VirtualMachineInstance.kubevirt.io"),
		s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"),
		p.named("a"), p.named("b"), p.resolves("kubernetes", "NXDOMAIN"), p.owns("", workers["a"]),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionReady, "True Ready"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionSourcesDiscovered, "False NoNodePools"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionPublishedHere, "Unknown HostedClusterNotFound"),
	)
	p.leases(t)

	install := func(names ...string) {
		t.Helper()
		if err := s.InstallNeighbours(t.Context(), names...); err != nil {
			t.Fatal(err)
		}
	}
	install("hypershift.openshift.io_hostedclusters", "hypershift.openshift.io_nodepools")
	s.apply(t, documents(neighbours, "kind: HostedCluster\n"), documents(neighbours, "kind: NodePool\n"))
	within(t, "HyperShift",
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionSourcesDiscovered, "False NoMachines"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionPublishedHere, "True AsServed"), missing("Machine.cluster.x-k8s.io"))

	// An old Cluster API, which knows Machines of v1beta1 only.
	if err := s.InstallDefinitions(t.Context(), machines(served{"v1beta1", true, true})); err != nil {
		t.Fatal(err)
	}
	oldMachine := func(cluster string, host int) string {
		return strings.Replace(machine(cluster+"-old", cluster, p.address(host)), "cluster.x-k8s.io/v1beta2", "cluster.x-k8s.io/v1beta1", 1)
	}
	s.apply(t, oldMachine("example-hcp-a", workers["a"]))
	within(t, "a Machine of v1beta1", p.untouched("a"), p.named("b"), missing("VirtualMachineInstance.kubevirt.io"))
	install("kubevirt.io_virtualmachineinstances")
	within(t, "all neighbours", s.saysNot("Infra", infra, v1alpha1.ConditionNeighboursServed))

	p.oooi.restart(t)
	s.apply(t, oldMachine("example-hcp-b", workers["b"]))
	within(t, "the same after a restart", p.untouched("a"), p.untouched("b"), p.wholly())

	// A newer one, then one that has given up v1beta1.
	for _, versions := range [][]served{
		{{"v1beta1", true, false}, {"v1beta2", true, true}},
		{{"v1beta1", false, false}, {"v1beta2", true, true}},
	} {
		if err := s.InstallDefinitions(t.Context(), machines(versions...)); err != nil {
			t.Fatal(err)
		}
	}
	s.apply(t, machine("new", "example-hcp-b", p.address(130)))
	within(t, "a Machine of v1beta2", p.owns("b", 130), p.untouched("a"), p.untouched("b"))

	// HyperShift goes, and comes back.
	if err := s.RemoveDefinition(t.Context(), "nodepools.hypershift.openshift.io"); err != nil {
		t.Fatal(err)
	}
	within(t, "the cluster without NodePools", p.named("a"), p.named("b"),
		s.says("InfraClusterAttachment", "clusters/example-hcp-a", v1alpha1.ConditionSourcesDiscovered, "False NoNodePools"))
	install("hypershift.openshift.io_nodepools")
	s.apply(t, documents(neighbours, "kind: NodePool\n"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := stack.Until(ctx, "NodePools again", all(p.untouched("a"), p.untouched("b"), p.wholly())); err != nil {
		t.Fatal(err)
	}
}

// leases gets an address by DHCP, and again after DHCP was switched off and on.
func (p *page) leases(t *testing.T) {
	t.Helper()
	relay := stack.Relay{Address: mustAddrPort(p.address(20), portDHCP), Server: mustAddrPort(p.address(2), portDHCP)}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	mac := net.HardwareAddr{0x52, 0x54, 0, 0, 0, 1}
	first, err := relay.Lease(ctx, mac)
	if err != nil {
		t.Fatal(err)
	}
	if got := first.DNS(); len(got) != 1 || got[0].String() != p.address(3) {
		t.Errorf("the lease names the DNS servers %v", got)
	}
	within(t, "the count of leases", func(ctx context.Context) error {
		d, err := read[v1alpha1.DHCPServer](ctx, p.site, "DHCPServer", infra+"-dhcp")
		if err == nil && (d.Status.ActiveLeases != 1 || d.Status.TotalLeases != 1) {
			err = fmt.Errorf("status of the DHCPServer: %+v", d.Status)
		}
		return err
	})
	p.patch(t, ours("Infra", infra), `{"spec":{"infraComponents":{"dhcp":{"enabled":false}}}}`)
	within(t, "the DHCPServer to go", p.gone(ours("DHCPServer", infra+"-dhcp")))
	p.patch(t, ours("Infra", infra), `{"spec":{"infraComponents":{"dhcp":{"enabled":true}}}}`)
	within(t, "DHCP again", p.says("DHCPServer", infra+"-dhcp", v1alpha1.ConditionReady, "True Ready"))
	again, err := relay.Lease(ctx, mac)
	if err != nil {
		t.Fatal(err)
	}
	if !again.YourIPAddr.Equal(first.YourIPAddr) {
		t.Errorf("the client had %s and got %s after DHCP was switched off and on", first.YourIPAddr, again.YourIPAddr)
	}
}

// served is a version of a definition.
type served struct {
	name            string
	served, storage bool
}

// machines is a definition of Cluster API's Machines in some versions.
func machines(versions ...served) []byte {
	text := `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: machines.cluster.x-k8s.io}
spec:
  group: cluster.x-k8s.io
  scope: Namespaced
  names: {kind: Machine, listKind: MachineList, plural: machines, singular: machine}
  versions:
`
	for _, v := range versions {
		text += fmt.Sprintf(`  - name: %s
    served: %v
    storage: %v
    subresources: {status: {}}
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`, v.name, v.served, v.storage)
	}
	return []byte(text)
}
