package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

func mustAddrPort(address string, port uint16) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), port)
}

// testInside looks at the live process as the engineer on call does.
func testInside(t *testing.T, p *page) {
	t.Run("explain", func(t *testing.T) {
		for _, q := range []struct {
			args []string
			want []string
		}{
			{[]string{"--source", p.address(117), "--sni", "kubernetes.default.svc"}, []string{"example-hcp-a", "kube-apiserver", "example-hcp-a-worker-0"}},
			{[]string{"--source", p.address(118), "--port", "6443"}, []string{"example-hcp-b", "kube-apiserver"}},
			{[]string{"--source", p.address(9), "--sni", "kubernetes"}, []string{"closed"}},
			{[]string{"--source", p.address(9), "--sni", "oauth." + domain("b")}, []string{"example-hcp-b", "oauth-openshift"}},
			{[]string{"--source", p.address(9), "--dns", "api." + domain("a")}, []string{p.address(4), "vlan"}},
			{[]string{"--source", p.pod(), "--dns", "api." + domain("a")}, []string{p.services + "0.4", "pods"}},
		} {
			text, err := p.oooi.Ask(t.Context(), append([]string{"explain"}, q.args...)...)
			if err != nil {
				t.Error(err)
			}
			for _, want := range q.want {
				if !strings.Contains(text, want) {
					t.Errorf("explain %v says %q, which lacks %q", q.args, text, want)
				}
			}
		}
	})
	t.Run("metrics", func(t *testing.T) {
		text, err := p.oooi.Get(t.Context(), "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{
			"oooi_plan_seconds_count", "oooi_write_queue_length", `oooi_infra_sources_disputed{infra="clusters/tenant-vlan100"} 0`, "oooi_api_writes_total", "oooi_api_write_failures_total 0",
			`oooi_infra_left_out_attachments{infra="clusters/tenant-vlan100"} 0`,
			`oooi_attachment_sources{attachment="clusters/example-hcp-a",infra="clusters/tenant-vlan100"} 1`,
			`oooi_attachment_newest_source_age_seconds{attachment="clusters/example-hcp-a",infra="clusters/tenant-vlan100"}`,
			"oooi_xds_ack_seconds", "oooi_dns_queries_total", "oooi_dhcp_commit_seconds",
		} {
			if !strings.Contains(text, want) {
				t.Errorf("/metrics lacks %s", want)
			}
		}
		if t.Failed() {
			for line := range strings.Lines(text) {
				if strings.HasPrefix(line, "# HELP oooi") {
					t.Log(strings.TrimSpace(line))
				}
			}
		}
	})
	t.Run("status", func(t *testing.T) {
		text, err := p.oooi.Get(t.Context(), "/status")
		if err != nil {
			t.Fatal(err)
		}
		var s struct {
			Leading bool `json:"leading"`
			Stale   bool `json:"stale"`
			Infras  []struct {
				Infra  string               `json:"infra"`
				Status v1alpha1.InfraStatus `json:"status"`
			} `json:"infras"`
		}
		if err := json.Unmarshal([]byte(text), &s); err != nil {
			t.Fatal(err)
		}
		if !s.Leading || s.Stale || len(s.Infras) != 2 || s.Infras[0].Infra != infra || !s.Infras[0].Status.ComponentStatus.ProxyReady {
			t.Errorf("/status: %s", text)
		}
	})
	for _, list := range []struct {
		resource string
		name     string
		want     map[string]string
	}{
		{"infras", "tenant-vlan100", map[string]string{
			"CIDR": p.address(0) + "/24", "VLAN": "vlan100", "DHCP": p.address(2), "DNS": p.address(3), "Proxy": p.address(4),
			"Attachments": "2", "Ready": "True", "Reason": "Ready",
		}},
		{"infraclusterattachments", "example-hcp-a", map[string]string{
			"Infra": "tenant-vlan100", "HostedCluster": "example-hcp-a", "Domain": domain("a"), "Ready": "True", "Reason": "Ready", "Sources": "True",
		}},
		{"proxyservers", "tenant-vlan100-proxy", map[string]string{"Server": p.address(4), "Backends": "14", "Programmed": "True", "Ready": "True"}},
		{"dnsservers", "tenant-vlan100-dns", map[string]string{"Server": p.address(3), "CIDR": p.address(0) + "/24", "Proxy": p.address(4), "Ready": "True"}},
		{"dhcpservers", "tenant-vlan100-dhcp", map[string]string{"Server": p.address(2), "First": p.address(100), "Last": p.address(199), "Active": "0", "Ready": "True"}},
	} {
		t.Run("columns of "+list.resource, func(t *testing.T) {
			row, err := p.row(t.Context(), "clusters", list.resource, list.name)
			if err != nil {
				t.Fatal(err)
			}
			for column, want := range list.want {
				if row[column] != want {
					t.Errorf("column %s of %s: got %q, want %q, of %v", column, list.name, row[column], want, row)
				}
			}
			if row["Age"] == "" {
				t.Errorf("no age: %v", row)
			}
		})
	}
}

// testReady starts a process while the API server answers nobody: it is healthy, and not ready before it has served the
// first complete state.
func testReady(t *testing.T, p *page) {
	other := p.newProcess(t, "--roles", "xds")
	if err := p.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceFunc(func() {
		if err := p.APIServer.Thaw(); err != nil {
			t.Error(err)
		}
	})
	defer thaw()
	other.launch(t)
	within(t, "the process to be healthy", func(ctx context.Context) error {
		_, err := other.Get(ctx, "/healthz")
		return err
	})
	for _, path := range []string{"/readyz", "/explain?source=" + p.address(117) + "&sni=kubernetes"} {
		if text, err := other.Get(t.Context(), path); err == nil {
			t.Errorf("%s without a complete state says %q", path, text)
		}
	}
	bootstrap, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	conn, err := stack.Host("").Dial(bootstrap, netip.Addr{}, other.XDS)
	if err == nil {
		_ = conn.Close()
		t.Error("the xDS server listens before there is a complete state")
	}
	thaw()
	within(t, "the process to be ready", other.ready)
	if err := other.run.Stop(); err != nil {
		t.Fatal(err)
	}
	within(t, "everything as before", p.untouched("a"), p.wholly())
}

// row is what kubectl prints of an object, by column.
func (s *site) row(ctx context.Context, namespace, resource, name string) (map[string]string, error) {
	config := s.AdminConfig()
	config.GroupVersion, config.APIPath = &v1alpha1.GroupVersion, "/apis"
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	http, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, err
	}
	defer http.CloseIdleConnections()
	client, err := rest.RESTClientForConfigAndClient(config, http)
	if err != nil {
		return nil, err
	}
	raw, err := client.Get().Namespace(namespace).Resource(resource).Name(name).
		SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var table metav1.Table
	if err := json.Unmarshal(raw, &table); err != nil {
		return nil, err
	}
	row := map[string]string{}
	for i, column := range table.ColumnDefinitions {
		row[column.Name] = fmt.Sprint(table.Rows[0].Cells[i])
	}
	return row, nil
}

// metric is the value of a metric without labels.
func metric(t *testing.T, text, name string) float64 {
	t.Helper()
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}
