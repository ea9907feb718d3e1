package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// machine is one more worker of a cluster of the example, as a manifest.
func machine(name, cluster, address string) string {
	return fmt.Sprintf(`apiVersion: cluster.x-k8s.io/v1beta1
kind: Machine
metadata:
  name: %s
  namespace: clusters-%s
  uid: uid-of-%s
  annotations:
    hypershift.openshift.io/nodePool: clusters/%s
spec:
  clusterName: %s
status:
  addresses:
    - {type: InternalIP, address: %s}
    - {type: InternalIP, address: 10.132.0.2}
`, name, cluster, name, cluster, cluster, address)
}

// nothing is a manifest of an object that oooi reads and that asks for nothing: a file whose own objects have
// left it needs some content, lest it look half-written.
const nothing = "apiVersion: v1\nkind: Namespace\nmetadata:\n  name: nothing\n"

// counters that tell what Envoy did with its listeners.
func (l *lab) counters(t *testing.T) map[string]int64 {
	t.Helper()
	var counters map[string]int64
	within(t, "Envoy's counters", func(ctx context.Context) (err error) {
		counters, err = l.Envoy.Counters(ctx)
		return err
	})
	return counters
}

// notDraining checks that no listener drains, and that none ever did: each change since was in place.
func (l *lab) notDraining(t *testing.T, before map[string]int64) {
	t.Helper()
	after := l.counters(t)
	for _, name := range []string{
		"listener_manager.total_listeners_draining", "listener_manager.total_filter_chains_draining",
	} {
		if after[name] != 0 {
			t.Errorf("%s is %d: something drains", name, after[name])
		}
	}
	for _, name := range []string{
		"listener_manager.listener_removed", "listener_manager.listener_added",
		"listener_manager.lds.update_rejected", "cluster_manager.cds.update_rejected",
	} {
		if after[name] != before[name] {
			t.Errorf("%s went from %d to %d: the change was not made in place", name, before[name], after[name])
		}
	}
	if after["listener_manager.listener_in_place_updated"] <= before["listener_manager.listener_in_place_updated"] {
		t.Error("listener_manager.listener_in_place_updated did not move: Envoy saw no change at all")
	}
}

func testWorkerAppears(t *testing.T, l *lab) {
	before := l.counters(t)
	stranger := l.stranger.String()
	alias := call(l.Stranger, stranger, "kubernetes", 443)
	noName := call(l.Stranger, stranger, "", 6443)
	within(t, "the stranger is nobody's", all(l.answers(alias, "closed"), l.answers(noName, "closed")))

	write(t, l.Manifests, "more.yaml", machine("late", "example-hcp-b", stranger))
	within(t, "the new worker of cluster b", all(
		l.answers(alias, "example-hcp-b/kube-apiserver"), l.answers(noName, "example-hcp-b/kube-apiserver")))
	l.explains(t, route{l.Stranger, stranger, "kubernetes", 443, "example-hcp-b/kube-apiserver"})

	// It reboots: for a while its Machine shows no address on the VLAN. The other Machine of the same change tells
	// when oooi has seen that.
	write(t, l.Manifests, "more.yaml", machine("late", "example-hcp-b", "10.132.0.2")+"---\n"+machine("mark", "example-hcp-b", "192.0.2.151"))
	within(t, "the change to be seen", func(ctx context.Context) error {
		text, err := l.Oooi.Ask(ctx, "explain", "--source", "192.0.2.151", "--sni", "kubernetes")
		if err == nil && !strings.Contains(text, "Machine mark") {
			err = fmt.Errorf("explain says %s", text)
		}
		return err
	})
	within(t, "the rebooting worker to keep its routes", l.bySource("example-hcp-b/kube-apiserver"))

	write(t, l.Manifests, "more.yaml", nothing)
	within(t, "the worker is gone", all(l.answers(alias, "closed"), l.answers(noName, "closed")))
	l.notDraining(t, before)
}

func write(t *testing.T, m stack.Manifests, file, text string) {
	t.Helper()
	if err := m.Write(file, text); err != nil {
		t.Fatal(err)
	}
}

// withoutAttachment is manifests without their InfraClusterAttachment.
func withoutAttachment(text string) string {
	var kept []string
	for document := range strings.SplitSeq(text, "\n---\n") {
		if !strings.Contains(document, "kind: InfraClusterAttachment") {
			kept = append(kept, document)
		}
	}
	return strings.Join(kept, "\n---\n")
}

func testAttachmentComesAndGoes(t *testing.T, l *lab) {
	stranger := l.stranger.String()
	manifests := l.addCluster(t, "example-hcp-c", 3, stranger)
	before := l.counters(t)
	// At first its worker shows no address: names lead to the cluster all the same, the alias does not.
	write(t, l.Manifests, "cluster-c.yaml", strings.ReplaceAll(manifests, "address: "+stranger, "address: 10.132.0.3"))
	within(t, "the third cluster, without a worker", all(
		l.cluster("example-hcp-c", true), l.bySource("closed"),
		l.attachmentCondition("clusters/example-hcp-c", v1alpha1.ConditionSourcesDiscovered,
			"False "+v1alpha1.ReasonNoneInCIDR, "10.132.0.3"),
	))
	write(t, l.Manifests, "cluster-c.yaml", manifests)
	alias := call(l.Stranger, stranger, "kubernetes.default", 443)
	named := call(l.Stranger, stranger, "oauth."+domainC, 443)
	within(t, "the third cluster", all(
		l.resolves(l.WorkerA, "api."+domainC, netlab.Proxy),
		l.resolves(l.Client, "api."+domainC, netlab.ClusterIP),
		l.answers(named, "example-hcp-c/oauth-openshift"),
		l.answers(alias, "example-hcp-c/kube-apiserver"),
	))
	l.notDraining(t, before)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	stream, _, err := named.Hold(ctx, l.CA)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if err := stream.Alive(); err != nil {
		t.Fatal(err)
	}

	write(t, l.Manifests, "cluster-c.yaml", withoutAttachment(manifests))
	within(t, "the third cluster is gone", all(
		l.resolves(l.WorkerA, "api."+domainC, stack.UpstreamAnswer), // a name like any other
		l.answers(named, "closed"), l.answers(alias, "closed"),
	))
	within(t, "its stream ends with the drain time", func(context.Context) error {
		if stream.Alive() == nil {
			return errors.New("the stream of the removed attachment goes on")
		}
		return nil
	})
	within(t, "Envoy has done draining", func(ctx context.Context) error {
		counters, err := l.Envoy.Counters(ctx)
		if n := counters["listener_manager.total_filter_chains_draining"]; err == nil && n != 0 {
			err = fmt.Errorf("%d filter chains drain", n)
		}
		return err
	})
}

// addCluster starts the control plane of a hosted cluster unless it runs, and gives the cluster's manifests, with
// one worker.
func (l *lab) addCluster(t *testing.T, name string, number int, worker string) string {
	t.Helper()
	if !l.added[name] {
		if err := l.StartControlPlane(name, netip.MustParseAddr(fmt.Sprintf("172.30.%d.1", number))); err != nil {
			t.Fatal(err)
		}
		l.added[name] = true
	}
	manifests, err := stack.AnotherCluster(name, number, worker)
	if err != nil {
		t.Fatal(err)
	}
	return manifests
}

// cluster is a condition: a cluster's names resolve and lead to it, or they do neither.
func (l *lab) cluster(name string, served bool) func(context.Context) error {
	domain := name + ".clusters.example.com"
	address, answer := netlab.Proxy, name+"/oauth-openshift"
	if !served {
		address, answer = stack.UpstreamAnswer, "closed" // names like any other
	}
	return all(
		l.resolves(l.WorkerA, "oauth."+domain, address),
		l.answers(call(l.WorkerA, netlab.WorkerA, "oauth."+domain, 443), answer),
	)
}

// bySource is a condition: who the stranger reaches by alias and without a server name.
func (l *lab) bySource(want string) func(context.Context) error {
	stranger := l.stranger.String()
	return all(
		l.answers(call(l.Stranger, stranger, "kubernetes.default.svc.cluster.local", 443), want),
		l.answers(call(l.Stranger, stranger, "", 6443), want),
	)
}

// untouched is a condition: the two clusters of the example are served as ever.
func (l *lab) untouched() func(context.Context) error {
	return all(
		l.cluster("example-hcp-a", true), l.cluster("example-hcp-b", true),
		l.answers(call(l.WorkerA, netlab.WorkerA, "kubernetes", 443), "example-hcp-a/kube-apiserver"),
		l.answers(call(l.WorkerB, netlab.WorkerB, "", 6443), "example-hcp-b/kube-apiserver"),
	)
}

// testConflict adds two clusters c and d, changes a text of d's manifests so that the two conflict, and changes it back.
func testConflict(t *testing.T, l *lab, reason, before, after string) {
	stranger := l.stranger.String()
	c, d := l.addCluster(t, "example-hcp-c", 3, stranger), l.addCluster(t, "example-hcp-d", 4, "192.0.2.150")
	if !strings.Contains(d, before) {
		t.Fatalf("the manifests of cluster d lack %q", before)
	}
	write(t, l.Manifests, "cluster-c.yaml", c)
	write(t, l.Manifests, "cluster-d.yaml", d)
	both := all(l.cluster("example-hcp-c", true), l.cluster("example-hcp-d", true),
		l.bySource("example-hcp-c/kube-apiserver"), l.infraCondition(v1alpha1.ConditionReady, "True Ready"))
	within(t, "both clusters", both)

	write(t, l.Manifests, "cluster-d.yaml", strings.Replace(d, before, after, 1))
	within(t, "both clusters to be left out", all(
		l.cluster("example-hcp-c", false), l.bySource("closed"), l.untouched(),
		l.resolves(l.WorkerA, "oauth."+domainD, stack.UpstreamAnswer),
		l.answers(call(l.WorkerA, netlab.WorkerA, "oauth."+domainD, 443), "closed"),
		l.infraCondition(v1alpha1.ConditionReady, "False "+reason, "example-hcp-c", "example-hcp-d"),
		l.attachmentCondition("clusters/example-hcp-c", v1alpha1.ConditionReady, "False "+reason),
		l.attachmentCondition("clusters/example-hcp-d", v1alpha1.ConditionReady, "False "+reason),
		l.attachmentCondition("clusters/example-hcp-a", v1alpha1.ConditionReady, "True Ready"),
	))
	l.explains(t, route{l.WorkerA, netlab.WorkerA, "oauth." + domainC, 443, "closed"})
	l.explains(t, route{l.Stranger, stranger, "kubernetes", 443, "closed"})

	write(t, l.Manifests, "cluster-d.yaml", d)
	within(t, "both clusters to be back", all(both, l.untouched()))
}

func testDuplicateDomain(t *testing.T, l *lab) {
	// Names compare as DNS compares them.
	testConflict(t, l, v1alpha1.ReasonDuplicateHostname,
		"dns:\n    clusterName: example-hcp-d\n    baseDomain: clusters.example.com",
		"dns:\n    clusterName: Example-HCP-c\n    baseDomain: clusters.example.com.")
}

func testDuplicateHostedCluster(t *testing.T, l *lab) {
	testConflict(t, l, v1alpha1.ReasonDuplicateHostedCluster,
		"hostedClusterRef:\n    name: example-hcp-d", "hostedClusterRef:\n    name: example-hcp-c")
}

// testDuplicateSource lets a Machine of cluster a show the address that one of cluster c shows.
func testDuplicateSource(t *testing.T, l *lab) {
	stranger := l.stranger.String()
	within(t, "the stranger to belong to cluster c", l.bySource("example-hcp-c/kube-apiserver"))
	write(t, l.Manifests, "more.yaml", machine("twin", "example-hcp-a", stranger))
	within(t, "the address to be nobody's", all(
		l.bySource("closed"), l.untouched(), l.cluster("example-hcp-c", true),
		l.infraCondition(v1alpha1.ConditionSourcesUnique, "False "+v1alpha1.ReasonDuplicateSourceIP, stranger),
	))
	l.explains(t, route{l.Stranger, stranger, "kubernetes", 443, "closed"})
	write(t, l.Manifests, "more.yaml", nothing)
	within(t, "the address to be that of cluster c again", l.bySource("example-hcp-c/kube-apiserver"))
}

// testBrokenManifests breaks one file after the other; whatever is wrong with it, all that was served goes on.
func testBrokenManifests(t *testing.T, l *lab) {
	for _, c := range []struct {
		name, file string
		damage     func(path, text string) error
	}{
		{"cut off in the middle of an object", "infra.yaml", func(path, text string) error {
			// In place, as a slow writer does.
			return os.WriteFile(path, []byte(text[:strings.LastIndex(text, "dns:")]), 0o600)
		}},
		{"no YAML", "neighbours.yaml", func(path, text string) error {
			return os.WriteFile(path, []byte(strings.Replace(text, "kind: Machine\n", "kind: [Machine\n", 1)), 0o600)
		}},
		{"a field that there is none of", "infra.yaml", func(path, text string) error {
			return os.WriteFile(path, []byte(strings.Replace(text, "dnsServers:", "dnsServer:", 1)), 0o600)
		}},
		{"empty", "infra.yaml", func(path, _ string) error { return os.WriteFile(path, nil, 0o600) }},
		{"deleted", "neighbours.yaml", func(path, _ string) error { return os.Remove(path) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			good, err := l.Manifests.Read(c.file)
			if err != nil {
				t.Fatal(err)
			}
			before, logged := l.counters(t), len(l.Oooi.Process().Log())
			if err := c.damage(filepath.Join(string(l.Manifests), c.file), good); err != nil {
				t.Fatal(err)
			}
			within(t, "the problem to be reported", func(ctx context.Context) error {
				s, err := readStatus(ctx, l.Oooi)
				if err == nil && !strings.Contains(fmt.Sprint(s.Problems), c.file) {
					err = fmt.Errorf("the problems of /status do not name %s: %v", c.file, s.Problems)
				}
				return err
			})
			within(t, "everything to go on", all(l.untouched(), l.cluster("example-hcp-c", true)))
			write(t, l.Manifests, c.file, good)
			within(t, "the problem to be gone", func(ctx context.Context) error {
				s, err := readStatus(ctx, l.Oooi)
				if err == nil && len(s.Problems) > 0 {
					err = fmt.Errorf("there still are problems: %v", s.Problems)
				}
				return err
			})
			var complaints []string
			for line := range strings.Lines(l.Oooi.Process().Log()[logged:]) {
				if strings.Contains(line, "level=ERROR") || strings.Contains(line, "level=WARN") {
					complaints = append(complaints, line)
				}
			}
			if len(complaints) != 1 || !strings.Contains(complaints[0], c.file) {
				t.Errorf("one clear error was due, naming %s; got:\n%s", c.file, strings.Join(complaints, ""))
			}
			l.sameConfiguration(t, before)
		})
	}
}

// sameConfiguration checks that Envoy was sent nothing since the counters were taken.
func (l *lab) sameConfiguration(t *testing.T, before map[string]int64) {
	t.Helper()
	after := l.counters(t)
	for _, name := range []string{
		"listener_manager.lds.update_success", "cluster_manager.cds.update_success",
		"listener_manager.listener_in_place_updated", "listener_manager.listener_modified", "listener_manager.listener_added",
		"cluster_manager.cluster_added", "cluster_manager.cluster_modified", "cluster_manager.cluster_removed",
	} {
		if _, known := after[name]; !known {
			t.Errorf("Envoy has no counter %s", name)
		}
		if after[name] != before[name] {
			t.Errorf("%s went from %d to %d though nothing had changed", name, before[name], after[name])
		}
	}
}

// leases that oooi lists, hardware addresses by address.
func (l *lab) leases(t *testing.T) map[string]string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, err := l.Oooi.Ask(ctx, "leases", "-o", "json")
	if err != nil {
		t.Fatal(err)
	}
	var list []struct {
		Address string `json:"address"`
		MAC     string `json:"mac"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("oooi leases -o json: %v\n%s", err, out)
	}
	leases := map[string]string{}
	for _, lease := range list {
		if other, taken := leases[lease.Address]; taken {
			t.Errorf("%s is given to %s and to %s", lease.Address, other, lease.MAC)
		}
		leases[lease.Address] = lease.MAC
	}
	return leases
}

// testKilled kills oooi as a crash would, and starts it again.
func testKilled(t *testing.T, l *lab) {
	leases, counters := l.leases(t), l.counters(t)
	if err := l.Oooi.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	for _, r := range l.routes() {
		if r.source != l.stranger.String() { // it belongs to cluster c by now
			within(t, "the route without oooi", l.answers(call(r.host, r.source, r.sni, r.port), r.want))
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := l.Oooi.Start(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, "Envoy to be connected again", func(ctx context.Context) error {
		counters, err := l.Envoy.Counters(ctx)
		if err == nil && counters["control_plane.connected_state"] != 1 {
			err = errors.New("it is not connected")
		}
		return err
	})
	within(t, "everything as before", all(
		l.untouched(), l.cluster("example-hcp-c", true), l.infraCondition(v1alpha1.ConditionReady, "True Ready")))
	l.sameConfiguration(t, counters)

	for address, mac := range l.leases(t) {
		if leases[address] != mac {
			t.Errorf("after the restart %s has %s; before, %q had", mac, address, leases[address])
		}
		delete(leases, address)
	}
	if len(leases) > 0 {
		t.Errorf("leases that were lost: %v", leases)
	}
	again, err := l.DHCP(ctx, l.WorkerA, netlab.Udhcpc, "")
	if err != nil {
		t.Fatal(err)
	}
	if again.Address != netlab.WorkerA {
		t.Errorf("worker A had %s and got %s after the restart", netlab.WorkerA, again.Address)
	}
	known := l.leases(t)
	if err := l.HardwareAddress(ctx, l.Stranger, "52:54:00:00:02:0d"); err != nil {
		t.Fatal(err)
	}
	fresh, err := l.DHCP(ctx, l.Stranger, netlab.Udhcpc, "")
	if err != nil {
		t.Fatal(err)
	}
	if mac, taken := known[fresh.Address]; taken {
		t.Errorf("a new machine got %s, which %s has", fresh.Address, mac)
	}
}

// testEnvoyKilled kills Envoy and starts it again: it gets everything that it had.
func testEnvoyKilled(t *testing.T, l *lab) {
	if err := l.Envoy.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	within(t, "the loss to be noticed", func(ctx context.Context) error {
		s, err := readStatus(ctx, l.Oooi)
		if err == nil && s.Infras[0].Status.ComponentStatus.ProxyReady {
			err = errors.New("componentStatus.proxyReady is still true")
		}
		return err
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	if err := l.Envoy.Start(ctx); err != nil {
		t.Fatal(err)
	}
	within(t, "everything as before", all(
		l.untouched(), l.cluster("example-hcp-c", true), l.infraCondition(v1alpha1.ConditionReady, "True Ready")))
	for _, r := range l.routes() {
		if r.source != l.stranger.String() { // it belonged to cluster c
			within(t, "the route", l.answers(call(r.host, r.source, r.sni, r.port), r.want))
		}
	}
}
