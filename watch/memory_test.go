package watch

import (
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/plan"
)

func TestMemoryOutlivesTheProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	sources := []v1alpha1.Source{{Machine: "worker-0", UID: "u1", Address: "192.0.2.117", MAC: "52:54:00:00:01:17"}}

	m := openMemory(t, dir)
	if err := m.Keep(planWith("a", sources)); err != nil {
		t.Fatal(err)
	}
	attachment := &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "a"}}
	objects := plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attachment}}
	openMemory(t, dir).Recall(&objects)
	if d := cmp.Diff(sources, objects.Attachments[0].Status.Sources); d != "" {
		t.Errorf("after a restart (-kept +recalled):\n%s", d)
	}
	if e := objects.Attachments[0].Status.ExternalService; e == nil || e.Port != 20007 {
		t.Errorf("the port of the public listener after a restart: %v", e)
	}
	if attachment.Status.Sources != nil || attachment.Status.ExternalService != nil {
		t.Error("Recall changed the object that it was given")
	}

	if err := m.Keep(planWith("a", nil)); err != nil {
		t.Fatal(err)
	}
	objects = plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{attachment}}
	openMemory(t, dir).Recall(&objects)
	if got := objects.Attachments[0].Status; len(got.Sources) != 0 || got.ExternalService != nil {
		t.Errorf("what the plan dropped came back: %v", got)
	}
}

func TestMemoryThatIsCorruptIsPutAside(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "attachments.json")
	if err := os.WriteFile(path, []byte(`{"clusters/a": [`), 0o600); err != nil {
		t.Fatal(err)
	}
	m := openMemory(t, dir)
	if _, err := os.Stat(path + ".corrupt"); err != nil {
		t.Errorf("the corrupt file is not kept for a look: %v", err)
	}
	if err := m.Keep(planWith("a", []v1alpha1.Source{{Machine: "m", Address: "192.0.2.1"}})); err != nil {
		t.Fatal(err)
	}
	if got := openMemory(t, dir).attachments["clusters/a"].Sources; len(got) != 1 {
		t.Errorf("memory does not work after a corrupt file: %v", got)
	}
}

func openMemory(t *testing.T, dir string) *Memory {
	t.Helper()
	m, err := OpenMemory(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func planWith(name string, sources []v1alpha1.Source) *plan.Result {
	a := &plan.Attachment{Object: &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}}
	a.Status.Sources = sources
	if len(sources) > 0 {
		a.Status.ExternalService = &v1alpha1.ExternalServiceStatus{Port: 20007}
	}
	return &plan.Result{Infras: []*plan.Infra{{
		Object:      &v1alpha1.Infra{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "vlan"}},
		Attachments: []*plan.Attachment{a},
	}}}
}

// The first that shows an address keeps it, over a restart too.
func TestAPublishedVIPIsKept(t *testing.T) {
	dir := t.TempDir()
	infra := &v1alpha1.Infra{
		ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: "vlan"},
		Spec: v1alpha1.InfraSpec{
			NetworkConfig: v1alpha1.NetworkConfig{CIDR: "192.0.2.0/24", Gateway: "192.0.2.1", NetworkAttachmentDefinition: "vlan"},
			InfraComponents: v1alpha1.InfraComponents{
				DHCP:  v1alpha1.DHCPComponent{ServerIP: "192.0.2.2", RangeStart: "192.0.2.100", RangeEnd: "192.0.2.150"},
				DNS:   v1alpha1.DNSComponent{ServerIP: "192.0.2.3"},
				Proxy: v1alpha1.ProxyComponent{ServerIP: "192.0.2.4"},
			},
		},
	}
	objects := plan.Objects{Infras: []*v1alpha1.Infra{infra}}
	for name, vip := range map[string]string{"a": "192.0.2.210", "b": "192.0.2.200"} {
		a := &v1alpha1.InfraClusterAttachment{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}}
		a.Spec.InfraRef.Name, a.Spec.HostedClusterRef.Name = "vlan", name
		a.Spec.DNS = v1alpha1.AttachmentDNS{ClusterName: name, BaseDomain: "example.com"}
		a.Spec.AppsIngress = &v1alpha1.AppsIngress{Enabled: true, MetalLB: v1alpha1.AppsMetalLB{AddressPoolName: "apps"}}
		a.Status.AppsIngressStatus = &v1alpha1.AppsIngressStatus{ExternalIP: vip}
		objects.Attachments = append(objects.Attachments, a)
		objects.HostedClusters = append(objects.HostedClusters, &hypershift.HostedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "clusters", Name: name}})
	}
	published := func() map[string]string {
		t.Helper()
		m := openMemory(t, dir) // as after a restart
		result := plan.Plan(plan.Input{Objects: objects, Published: m.Published(), NobodyLooks: true})
		if err := m.Keep(result); err != nil {
			t.Fatal(err)
		}
		vips := map[string]string{}
		for _, a := range result.Infras[0].Attachments {
			if a.VIP().IsValid() {
				vips[a.Object.Name] = a.VIP().String()
			}
		}
		return vips
	}
	if d := cmp.Diff(map[string]string{"a": "192.0.2.210", "b": "192.0.2.200"}, published()); d != "" {
		t.Fatalf("at first (-want +got):\n%s", d)
	}
	for _, a := range objects.Attachments { // b is given the address of a
		a.Status.AppsIngressStatus.ExternalIP = "192.0.2.210"
	}
	for range 2 {
		if d := cmp.Diff(map[string]string{"a": "192.0.2.210"}, published()); d != "" {
			t.Errorf("both show one address (-want +got):\n%s", d)
		}
	}
}

// What cannot be written is known all the same, and written as soon as it can be.
func TestMemoryThatCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "state")
	m := openMemory(t, dir)
	if err := os.WriteFile(dir, nil, 0o600); err != nil { // where the folder would be
		t.Fatal(err)
	}
	now := planWith("a", []v1alpha1.Source{{Machine: "m", Address: "192.0.2.1"}})
	for range 2 {
		if err := m.Keep(now); err == nil {
			t.Error("it is said to be durable")
		}
	}
	objects := plan.Objects{Attachments: []*v1alpha1.InfraClusterAttachment{now.Infras[0].Attachments[0].Object}}
	if m.Recall(&objects); len(objects.Attachments[0].Status.Sources) != 1 {
		t.Error("the next plan does not know what the last one said")
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := m.Keep(now); err != nil {
		t.Fatal(err)
	}
	if got := openMemory(t, dir).attachments["clusters/a"].Sources; len(got) != 1 {
		t.Errorf("it was not written when it could be: %v", got)
	}
}
