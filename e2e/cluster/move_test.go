package cluster

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// testMove moves a cluster from one Infra to another, and its worker with it.
func testMove(t *testing.T, s *site) {
	from, to := s.vlan(74), s.vlan(75)
	onto := func(infra, text string) string {
		return strings.NewReplacer("namespace: "+infra+"}", "namespace: clusters}", "networkAttachmentDefinition: vlan", "networkAttachmentDefinition: "+infra).Replace(text)
	}
	s.apply(t, namespace("clusters"), onto("left", s.plainInfra("left", from)), onto("right", s.plainInfra("right", to)))
	around := s.anotherCluster(t, from, "example-hcp-c", 3, 130)
	// Any ClusterIP will do, and the API server may have given away the ones that were thought of.
	around = regexp.MustCompile(`(?m)^ *clusterIP: .*\n`).ReplaceAllString(around, "")
	s.apply(t, strings.ReplaceAll(around, "tenant-vlan100", "left"))
	within(t, "the cluster on the first Infra", s.routes("clusters/left", 10), s.routes("clusters/right", 0), s.counts("clusters/left", 1, 1),
		s.says("InfraClusterAttachment", "clusters/example-hcp-c", v1alpha1.ConditionSourcesDiscovered, "True Discovered"))
	s.patch(t, ours("InfraClusterAttachment", "clusters/example-hcp-c"), `{"spec":{"infraRef":{"name":"right"}}}`)
	within(t, "the cluster on the second Infra", s.routes("clusters/left", 0), s.routes("clusters/right", 5), s.counts("clusters/left", 0, 0), s.counts("clusters/right", 1, 1),
		s.says("InfraClusterAttachment", "clusters/example-hcp-c", v1alpha1.ConditionSourcesDiscovered, "False NoneInCIDR", from.address(130)))
	s.apply(t, machine("example-hcp-c-worker-0", "example-hcp-c", to.address(130)))
	within(t, "its worker", s.routes("clusters/right", 10))
	s.remove(t, ours("Infra", "clusters/left"), ours("Infra", "clusters/right"), ours("InfraClusterAttachment", "clusters/example-hcp-c"))
}

// counts is a condition: how many attachments an Infra counts, and how many of them are ready.
func (s *site) counts(infra string, total, ready int32) check {
	return func(ctx context.Context) error {
		i, err := read[v1alpha1.Infra](ctx, s, "Infra", infra)
		if want := (v1alpha1.AttachmentCount{Total: total, Ready: ready}); err == nil && i.Status.Attachments != want {
			err = fmt.Errorf("attachments of Infra %s: %+v, want %+v", infra, i.Status.Attachments, want)
		}
		return err
	}
}
