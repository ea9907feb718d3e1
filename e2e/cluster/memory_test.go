package cluster

import (
	"context"
	"fmt"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// testMemory holds oooi to product rule 10: a Machine that still exists keeps its last known addresses.
func testMemory(t *testing.T, p *page) {
	worker := refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-a/moody")
	// seen waits until a change that was made before is planned, by another one made after it.
	marks := 0
	seen := func() {
		t.Helper()
		marks++
		p.apply(t, machine("mark", "example-hcp-b", p.address(170+marks)))
		within(t, "the changes to be seen", p.owns("b", 170+marks))
	}

	p.apply(t, machine("moody", "example-hcp-a", p.address(150)))
	within(t, "the worker", p.owns("a", 150))
	p.apply(t, machine("moody", "example-hcp-a"))
	seen()
	within(t, "the rebooting worker to keep its routes", p.owns("a", 150))
	p.apply(t, machine("moody", "example-hcp-a", "10.132.0.2"))
	seen()
	within(t, "the worker with a cluster-internal address to keep its routes", p.owns("a", 150))

	// What is remembered is in the status of the attachment, and a restart forgets nothing.
	within(t, "the memory", p.remembers("example-hcp-a", p.address(150), true))
	p.oooi.restart(t)
	within(t, "the page after the restart", p.untouched("a"), p.untouched("b"), p.owns("a", 150), p.wholly())

	// A new Machine of the same name is another one.
	p.remove(t, worker)
	p.apply(t, machine("moody", "example-hcp-a"))
	within(t, "the new Machine to inherit nothing", p.owns("", 150), p.remembers("example-hcp-a", p.address(150), false))

	// A remembered address yields at once to a Machine that shows it, of whichever cluster.
	p.apply(t, machine("moody", "example-hcp-a", p.address(151)))
	within(t, "the worker", p.owns("a", 151))
	p.apply(t, machine("moody", "example-hcp-a"))
	seen()
	p.apply(t, machine("heir", "example-hcp-b", p.address(151)))
	within(t, "the heir to have the address", p.owns("b", 151), p.says("Infra", infra, v1alpha1.ConditionSourcesUnique, "True None"))

	// An address moves while both show it for a moment: nobody's, then the second one's.
	p.apply(t, machine("moody", "example-hcp-a", p.address(152)))
	within(t, "the worker", p.owns("a", 152))
	p.apply(t, machine("heir", "example-hcp-b", p.address(151), p.address(152)))
	within(t, "the address to be nobody's", p.owns("", 152), p.says("Infra", infra, v1alpha1.ConditionSourcesUnique, "False DuplicateSourceIP", p.address(152)))
	p.apply(t, machine("moody", "example-hcp-a", p.address(153)))
	within(t, "the address to have moved", p.owns("b", 152), p.owns("a", 153), p.says("Infra", infra, v1alpha1.ConditionSourcesUnique, "True None"))

	p.remove(t, worker, refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/heir"), refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/mark"))
	within(t, "everything as before", p.owns("", 152), p.owns("", 153), p.untouched("a"), p.untouched("b"), p.wholly())
}

// remembers is a condition: whether an attachment's status holds an address.
func (p *page) remembers(name, address string, want bool) check {
	return func(ctx context.Context) error {
		a, err := read[v1alpha1.InfraClusterAttachment](ctx, p.site, "InfraClusterAttachment", "clusters/"+name)
		if err != nil {
			return err
		}
		holds := false
		for _, s := range a.Status.Sources {
			holds = holds || s.Address == address && s.UID != "" && s.Machine != ""
		}
		if holds != want {
			return fmt.Errorf("sources of %s are %v; %s among them: %v, want %v", name, a.Status.Sources, address, holds, want)
		}
		return nil
	}
}
