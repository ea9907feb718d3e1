package plan_test

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

// attachmentsOf are all attachments of a result, wherever they ended up.
func attachmentsOf(r *plan.Result) []*plan.Attachment {
	var all []*plan.Attachment
	for _, infra := range r.Infras {
		all = append(all, infra.Attachments...)
	}
	return append(append(all, r.Orphans...), r.Deleting...)
}

func attachmentOf(t *testing.T, r *plan.Result, name string) *plan.Attachment {
	t.Helper()
	for _, a := range attachmentsOf(r) {
		if a.Object.Name == name {
			return a
		}
	}
	t.Fatalf("there is no attachment %s", name)
	return nil
}

// TestNobodyLooks: without a cluster a person says the VIP, and what a look would need counts for nothing.
func TestNobodyLooks(t *testing.T) {
	for name, want := range map[string]string{
		"rule06-vip":                     "Ready 192.0.2.200: Service openshift-ingress/oooi-ingress has an address",
		"rule15-no-kubeconfig":           "Pending invalid IP: no VIP is known, and nobody looks into the hosted cluster: write it into status.appsIngressStatus.externalIP",
		"rule15-no-api-server-known-vip": "Ready 192.0.2.200: Service openshift-ingress/oooi-ingress has the VIP 192.0.2.200",
		"rule15-no-hosted-cluster":       "Pending invalid IP: HostedCluster clusters/example-hcp-a does not exist",
	} {
		changed := change(t, readExample(t), "testdata/"+name+".in.yaml")
		a := attachmentOf(t, plan.Plan(plan.Input{Objects: changed.objects, NobodyLooks: true}), "example-hcp-a")
		s := a.Status.AppsIngressStatus
		if got := fmt.Sprintf("%s %s: %s", s.Phase, a.VIP(), s.Message); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

// TestAppsWork has one record a line: the case of testdata, and what is to be done in the hosted cluster of
// example-hcp-a: the way there, then what keeps from it.
func TestAppsWork(t *testing.T) {
	const way = "clusters/example-hcp-a-admin-kubeconfig by 172.30.1.1:6443"
	for _, record := range []string{
		"rule06-vip => " + way,
		"rule06-vip-outside-range => " + way,
		"rule15-pending => " + way,
		"rule15-no-kubeconfig => / by 172.30.1.1:6443, waiting: HostedCluster clusters/example-hcp-a has no kubeconfig in its status yet",
		"rule15-no-hosted-cluster => / by 172.30.1.1:6443, waiting: HostedCluster clusters/example-hcp-a does not exist",
		"rule15-no-api-server => clusters/example-hcp-a-admin-kubeconfig by :6443, waiting: no way to the API server of HostedCluster clusters/example-hcp-a",
		"rule15-range-conflict => " + way + ", hold: the apps range 192.0.2.200-192.0.2.210 overlaps",
		"rule15-left-out => " + way + ", hold: attachments example-hcp-a, example-hcp-b declare the domain",
		"rule15-orphan => " + way + ", hold: no Infra missing in namespace clusters",
		"rule15-disabled => nothing",
		"rule15-disabled-removing => " + way + ", remove",
		"rule15-hosted-cluster-deleting => " + way + ", remove",
		"rule15-hosted-cluster-deleting-clean => " + way + ", waiting: HostedCluster clusters/example-hcp-a is being deleted",
		"rule15-hosted-cluster-gone => / by 172.30.1.1:6443, remove, gone, waiting: HostedCluster clusters/example-hcp-a does not exist",
		"rule15-attachment-deleting => " + way + ", remove",
		"rule15-attachment-deleting-clean => nothing",
		"rule16-oauth => nothing",
	} {
		name, want, _ := strings.Cut(record, " => ")
		t.Run(name, func(t *testing.T) {
			r := change(t, readExample(t), "testdata/"+name+".in.yaml").result()
			if got := showWork(attachmentOf(t, r, "example-hcp-a").Apps); !strings.HasPrefix(got, want) || want == "nothing" && got != want {
				t.Errorf("\n got %s\nwant %s", got, want)
			}
		})
	}
}

func showWork(w *plan.AppsWork) string {
	if w == nil {
		return "nothing"
	}
	text := fmt.Sprintf("%s by %s:%d", w.Kubeconfig, strings.Join(w.Addresses, ","), w.Port)
	for _, flag := range []struct {
		set  bool
		text string
	}{
		{w.Remove, "remove"},
		{w.Gone, "gone"},
		{w.Waiting != "", "waiting: " + w.Waiting},
		{w.Hold != "", "hold: " + w.Hold},
	} {
		if flag.set {
			text += ", " + flag.text
		}
	}
	return text
}

// TestHostedClustersNotServed: while the kind is not served, nobody knows that a HostedCluster is gone, and its VIP is
// remembered.
func TestHostedClustersNotServed(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule15-hosted-cluster-gone.in.yaml")
	s.objects.MissingKinds = []string{"HostedCluster.hypershift.openshift.io"}
	a := attachmentOf(t, s.result(), "example-hcp-a")
	if a.Apps.Remove || a.Apps.Gone || a.Apps.Waiting == "" {
		t.Errorf("got %s, want to wait", showWork(a.Apps))
	}
	if ip := a.Status.AppsIngressStatus.ExternalIP; ip != "192.0.2.200" {
		t.Errorf("the VIP is %q, want the one that was known", ip)
	}
}

// TestStatusIsMemory: the statuses of a plan, taken as the statuses of before, give the same plan again. A hub that starts
// anew has nothing else to go by.
func TestStatusIsMemory(t *testing.T) {
	cases, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases: %v", err)
	}
	for _, path := range cases {
		s := change(t, readExample(t), path)
		first := s.render(t)
		for _, a := range attachmentsOf(s.result()) {
			a.Object.Status = *a.Status.DeepCopy()
		}
		if again := s.render(t); string(again) != string(first) {
			t.Errorf("%s: planned again:\n%s", path, gocmp.Diff(string(first), string(again)))
		}
	}
}

// TestExternals has one record a line: the case of testdata, and the ports of the public Services that are wanted.
func TestExternals(t *testing.T) {
	for _, record := range []string{
		"rule16-oauth => example-hcp-a 27413",
		"rule16-published => example-hcp-a 20000, example-hcp-b 20001",
		"rule16-port-kept => example-hcp-a 27413, example-hcp-b 20000",
		"rule16-port-collision => example-hcp-a 20000, example-hcp-b 24556",
		"rule16-port-of-moved => example-hcp-a 27413, example-hcp-b 20000",
		"rule16-port-of-disabled => example-hcp-b 24556",
		"rule16-port-of-deleting => example-hcp-b 24556",
		"rule16-port-of-service => example-hcp-b 20007",
		"rule16-left-out => none",
		"rule16-proxy-disabled => none",
		"rule16-orphan => none",
		"rule06-vip => none",
	} {
		name, want, _ := strings.Cut(record, " => ")
		s := change(t, readExample(t), "testdata/"+name+".in.yaml")
		if got := showExternals(s.result()); got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
}

func showExternals(r *plan.Result) string {
	var wanted []string
	for _, a := range attachmentsOf(r) {
		if a.External != nil {
			wanted = append(wanted, fmt.Sprintf("%s %d", a.Object.Name, a.External.Port))
		}
	}
	return cmp.Or(strings.Join(wanted, ", "), "none")
}

// TestExternalOfARefusedProxy: a mistake of the Infra leaves listeners and Services as they are, and gives no new ports.
func TestExternalOfARefusedProxy(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule16-port-kept.in.yaml")
	s.objects.Infras[0].Spec.InfraComponents.Proxy.ServerIP = s.objects.Infras[0].Spec.InfraComponents.DNS.ServerIP
	if got, want := showExternals(s.result()), "example-hcp-b 20000"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestNoPortLeft: Services of attachments that are gone hold every port.
func TestNoPortLeft(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule16-port-of-service.in.yaml")
	for _, service := range s.objects.Services {
		if service.Name != "example-hcp-a-proxy-external" {
			continue
		}
		port := service.Spec.Ports[0]
		service.Spec.Ports = service.Spec.Ports[:0]
		for n := int32(v1alpha1.ExternalPortFirst); n <= v1alpha1.ExternalPortLast; n++ {
			port.TargetPort.IntVal = n
			service.Spec.Ports = append(service.Spec.Ports, port)
		}
	}
	for _, service := range s.objects.Services {
		if service.Name == "example-hcp-b-proxy-external" {
			service.OwnerReferences = nil
		}
	}
	a := attachmentOf(t, s.result(), "example-hcp-b")
	if a.External != nil {
		t.Errorf("port %d is given, which leads to another", a.External.Port)
	}
	if ready := a.Status.Conditions[0]; ready.Status != "False" || ready.Reason != v1alpha1.ReasonNoPortLeft {
		t.Errorf("Ready is %s, %s: %s", ready.Status, ready.Reason, ready.Message)
	}
}

// TestPublicServiceOfAnotherUID: a Service of an Infra that was deleted and made anew is not this Infra's.
func TestPublicServiceOfAnotherUID(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule16-published.in.yaml")
	for uid, want := range map[types.UID]string{"": "203.0.113.10", "1": "203.0.113.10", "2": ""} {
		s.objects.Infras[0].UID = uid
		if got := attachmentOf(t, s.result(), "example-hcp-a").Status.ExternalService.IP; got != want {
			t.Errorf("UID %q: the public VIP is %q, want %q", uid, got, want)
		}
	}
}

// TestWhoHadTheVIPKeepsIt: a tenant decides which address the Service in its hosted cluster shows, and which its workers show. Neither takes
// the apps of another one away that were there before.
func TestWhoHadTheVIPKeepsIt(t *testing.T) {
	a, b := types.NamespacedName{Namespace: "clusters", Name: "example-hcp-a"}, types.NamespacedName{Namespace: "clusters", Name: "example-hcp-b"}
	for _, tc := range []struct {
		change    string
		published map[types.NamespacedName]netip.Addr
		want      string
	}{
		{"rule06-vip-of-two", nil, "none"},
		{"rule06-vip-of-two", map[types.NamespacedName]netip.Addr{a: netip.MustParseAddr("192.0.2.220")}, "example-hcp-a"},
		{"rule06-vip-of-two", map[types.NamespacedName]netip.Addr{b: netip.MustParseAddr("192.0.2.220"), a: netip.MustParseAddr("192.0.2.221")}, "example-hcp-b"},
		{"rule06-vip-is-worker", nil, "none"},
		{"rule06-vip-is-worker", map[types.NamespacedName]netip.Addr{a: netip.MustParseAddr("192.0.2.220")}, "example-hcp-a"},
	} {
		s := change(t, readExample(t), "testdata/"+tc.change+".in.yaml")
		var published []string
		for _, attachment := range attachmentsOf(plan.Plan(plan.Input{Objects: s.objects, Published: tc.published})) {
			if attachment.VIP().IsValid() {
				published = append(published, attachment.Object.Name)
			}
		}
		if got := cmp.Or(strings.Join(published, ", "), "none"); got != tc.want {
			t.Errorf("%s after %v: published are the apps of %s, want %s", tc.change, tc.published, got, tc.want)
		}
	}
}

// TestPort80WaitsForOldServers: a server of an older release would refuse all routes of its Infra because of one by Host.
func TestPort80WaitsForOldServers(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule06-vip.in.yaml")
	for _, old := range []bool{false, true} {
		r := plan.Plan(plan.Input{Objects: s.objects, ByHostUnknown: map[types.NamespacedName]bool{{Namespace: "clusters", Name: "tenant-vlan100"}: old}})
		ports := map[int32]bool{}
		for _, b := range r.Infras[0].Proxy.Spec.Backends {
			for _, port := range b.Ports {
				ports[port] = ports[port] || strings.HasPrefix(b.Hostname, "*.apps.")
			}
		}
		if !ports[443] || ports[80] == old {
			t.Errorf("with servers of before %v: apps on 443 %v, on 80 %v", old, ports[443], ports[80])
		}
		c := meta.FindStatusCondition(attachmentOf(t, r, "example-hcp-a").Status.Conditions, v1alpha1.ConditionAppsIngressReady)
		if said := strings.Contains(c.Message, "port 80"); said != old {
			t.Errorf("with servers of before %v: %s", old, c.Message)
		}
	}
}

// TestARefusedInfraGetsNoNewListener, at no later plan either: Envoy does not listen on a port that is new.
func TestARefusedInfraGetsNoNewListener(t *testing.T) {
	s := change(t, readExample(t), "testdata/rule16-oauth.in.yaml")
	for round := range 3 {
		a := attachmentOf(t, plan.Plan(plan.Input{Objects: s.objects, Limits: plan.Limits{Bytes: 1}}), "example-hcp-a")
		if a.External != nil || a.Status.ExternalService != nil {
			t.Errorf("plan %d: a public Service %v, status %+v", round, a.External, a.Status.ExternalService)
		}
		a.Object.Status = *a.Status.DeepCopy()
	}
}
