package xds

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
)

var update = flag.Bool("update", false, "write the golden files anew")

// testdata/NAME.in.yaml is a ProxyServer, NAME.out.json what its Envoys get.
func TestGolden(t *testing.T) {
	inputs, err := filepath.Glob("testdata/*.in.yaml")
	if err != nil || len(inputs) == 0 {
		t.Fatalf("no inputs: %v", err)
	}
	for _, input := range inputs {
		t.Run(strings.TrimSuffix(filepath.Base(input), ".in.yaml"), func(t *testing.T) {
			text, err := os.ReadFile(input)
			if err != nil {
				t.Fatal(err)
			}
			proxy := &v1alpha1.ProxyServer{}
			if err := yaml.UnmarshalStrict(text, proxy); err != nil {
				t.Fatal(err)
			}
			compact, err := json.Marshal(mustBuild(t, proxy, Options{}))
			if err != nil {
				t.Fatal(err)
			}
			var got bytes.Buffer
			if err := json.Indent(&got, compact, "", "  "); err != nil {
				t.Fatal(err)
			}
			got.WriteByte('\n')
			output := strings.TrimSuffix(input, ".in.yaml") + ".out.json"
			if *update {
				if err := os.WriteFile(output, got.Bytes(), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(output)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Errorf("%s (-want +got; -update writes it anew):\n%s", output, diff)
			}
		})
	}
}

func TestBuildDoesNotDependOnOrder(t *testing.T) {
	want := mustBuild(t, page("a", "b", "c"), Options{})
	for seed := range uint64(20) {
		proxy := page("a", "b", "c")
		rnd := rand.New(rand.NewPCG(seed, 1))
		rnd.Shuffle(len(proxy.Spec.Backends), func(i, j int) {
			proxy.Spec.Backends[i], proxy.Spec.Backends[j] = proxy.Spec.Backends[j], proxy.Spec.Backends[i]
		})
		if got := mustBuild(t, proxy, Options{}); got.Version() != want.Version() {
			t.Fatalf("seed %d: version %s, want %s", seed, got.Version(), want.Version())
		}
	}
}

// Envoy drains the connections of a chain whose proto changes: workers, names, addresses and other attachments must leave
// it as it is, byte for byte.
func TestChainsAreImmutable(t *testing.T) {
	before := mustBuild(t, withApps(page("a"), "a"), Options{})
	proxy := withApps(page("a", "b"), "a", "b")
	for i := range proxy.Spec.Backends {
		b := &proxy.Spec.Backends[i]
		b.Addresses, b.TimeoutSeconds, b.TargetPort = []string{"203.0.113.9"}, 7, 1234
		if len(b.SourcePrefixRanges) > 0 {
			b.SourcePrefixRanges = []string{fmt.Sprintf("192.0.2.%d/32", b.Attachment[0]-10)}
		} else {
			b.AlternateHostnames = []string{fmt.Sprintf("other-%d.example.com", i)}
		}
	}
	after := mustBuild(t, proxy, Options{})
	for _, name := range append(bothListeners, "apps-http", "clusters/a/oooi-ingress/http") {
		now := map[string]proto.Message{}
		for _, chain := range chainsOf(t, after, name) {
			now[chain.GetName()] = chain
		}
		for _, chain := range chainsOf(t, before, name) {
			if !proto.Equal(chain, now[chain.GetName()]) {
				t.Errorf("listener %s: chain %s changed", name, chain.GetName())
			}
		}
	}
}

// A chain must not follow an attachment to another tenant: it changes with the owner, and no chain of others does.
func TestChainsChangeWithTheirOwner(t *testing.T) {
	before := mustBuild(t, withApps(page("a", "b"), "a", "b"), Options{})
	proxy := withApps(page("a", "b"), "a", "b")
	for i := range proxy.Spec.Backends {
		if b := &proxy.Spec.Backends[i]; b.Attachment == "a" {
			b.TargetNamespace = "clusters-c"
		}
	}
	after := mustBuild(t, proxy, Options{})
	for _, name := range append(bothListeners, "apps-http", "clusters/a/oooi-ingress/http", "clusters/b/oooi-ingress/http") {
		then, now := chainsOf(t, before, name), chainsOf(t, after, name)
		for i := range then {
			changed := !proto.Equal(then[i], now[i])
			if ofA := strings.HasPrefix(then[i].GetName(), "clusters/a/"); changed != ofA || then[i].GetName() != now[i].GetName() {
				t.Errorf("listener %s: chain %s is now %s, changed %t", name, then[i].GetName(), now[i].GetName(), changed)
			}
		}
	}
}

// Envoy must know where an HTTP target's connections go to before it takes the cluster of its requests anew: it takes clusters in order.
func TestTheClusterOfAnAddressComesFirst(t *testing.T) {
	snap := mustBuild(t, withApps(page("a"), "a"), Options{})
	var names []string
	for _, r := range snap.sets[clusterType].sorted {
		if strings.HasPrefix(r.GetName(), "clusters/a/oooi-ingress/") {
			names = append(names, r.GetName())
		}
	}
	if want := []string{"clusters/a/oooi-ingress/address", "clusters/a/oooi-ingress/http"}; !slices.Equal(names, want) {
		t.Errorf("clusters %q, want %q", names, want)
	}
}

func TestBuildBinds(t *testing.T) {
	for _, c := range []struct {
		opts Options
		want []string
	}{
		{Options{}, []string{`"address":"192.0.2.4","portValue":443`, `"portValue":6443`, `"freebind":true`}},
		{Options{AnyAddress: true}, []string{`"address":"0.0.0.0","portValue":443`, `"freebind":false`}},
		{Options{PortOffset: 20000}, []string{`"address":"192.0.2.4","portValue":20443`, `"portValue":26443`}},
	} {
		text, err := json.Marshal(mustBuild(t, page("a"), c.opts))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range c.want {
			if !strings.Contains(string(text), want) {
				t.Errorf("%+v: no %s in the listeners", c.opts, want)
			}
		}
	}
}

func TestBuildRefuses(t *testing.T) {
	const api, alias, nameless = 0, 5, 6 // in attachment()
	for _, c := range []struct {
		name   string
		change func(spec *v1alpha1.ProxyServerSpec)
		opts   Options
		want   string // after "ProxyServer clusters/tenant-vlan100-proxy: "
	}{
		{
			"a server address that is none", func(s *v1alpha1.ProxyServerSpec) { s.NetworkConfig.ServerIP = "proxy" },
			Options{},
			`networkConfig.serverIP "proxy" is not an IPv4 address`,
		},
		{
			"an IPv6 server address", func(s *v1alpha1.ProxyServerSpec) { s.NetworkConfig.ServerIP = "2001:db8::1" },
			Options{},
			`networkConfig.serverIP "2001:db8::1" is not an IPv4 address`,
		},
		{
			"a name in two attachments", func(s *v1alpha1.ProxyServerSpec) { s.Backends[7].Hostname = "API.a.clusters.example.com." },
			Options{},
			`backend "b-kube-apiserver": hostname "api.a.clusters.example.com" leads to clusters/a/kube-apiserver already`,
		},
		{
			"a name with two targets", func(s *v1alpha1.ProxyServerSpec) { s.Backends[2].Hostname = s.Backends[api].Hostname },
			Options{},
			`backend "a-oauth-openshift": hostname "api.a.clusters.example.com" leads to clusters/a/kube-apiserver already`,
		},
		{
			"a source in two attachments", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[7+alias].SourcePrefixRanges = s.Backends[alias].SourcePrefixRanges
			},
			Options{},
			`backend "b-kubernetes-hostname": source 192.0.2.97/32 belongs to attachment "a" already`,
		},
		{"a source with two targets", func(s *v1alpha1.ProxyServerSpec) {
			s.Backends[3].Hostname, s.Backends[3].SourcePrefixRanges = "", s.Backends[alias].SourcePrefixRanges
		}, Options{}, `listener "https": source 192.0.2.97 leads to both clusters/a/ignition-server-proxy and clusters/a/kube-apiserver`},
		{
			"an alias for every source", func(s *v1alpha1.ProxyServerSpec) { s.Backends[7+alias].SourcePrefixRanges = nil },
			Options{},
			`backend "b-kubernetes-hostname": hostname "kubernetes" leads to clusters/a/kube-apiserver by source already`,
		},
		{
			"an alias for every source, first", func(s *v1alpha1.ProxyServerSpec) { s.Backends[alias].SourcePrefixRanges = nil },
			Options{},
			`backend "b-kubernetes-hostname": hostname "kubernetes" leads to clusters/a/kube-apiserver from any source already`,
		},
		{
			"a source range", func(s *v1alpha1.ProxyServerSpec) { s.Backends[nameless].SourcePrefixRanges = []string{"192.0.2.0/24"} },
			Options{},
			`backend "a-kubernetes-ip": source "192.0.2.0/24" is not an IPv4 /32`,
		},
		{
			"a source without a length", func(s *v1alpha1.ProxyServerSpec) { s.Backends[nameless].SourcePrefixRanges = []string{"192.0.2.7"} },
			Options{},
			`backend "a-kubernetes-ip": source "192.0.2.7" is not an IPv4 /32`,
		},
		{
			"an IPv6 source", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[nameless].SourcePrefixRanges = []string{"2001:db8::7/32"}
			},
			Options{},
			`backend "a-kubernetes-ip": source "2001:db8::7/32" is not an IPv4 /32`,
		},
		{
			"a hostname that is none", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Hostname = "api..example.com" },
			Options{},
			`backend "a-kube-apiserver": hostname "api..example.com" is not a DNS name`,
		},
		{
			"a partial wildcard", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Hostname = "a*.example.com" },
			Options{},
			`backend "a-kube-apiserver": hostname "a*.example.com" is not a DNS name`,
		},
		{
			"a wildcard by source", func(s *v1alpha1.ProxyServerSpec) { s.Backends[alias].Hostname = "*.example.com" },
			Options{},
			`backend "a-kubernetes-hostname": hostname "*.example.com": a wildcard cannot be bound to sources`,
		},
		{
			"other names without a first", func(s *v1alpha1.ProxyServerSpec) { s.Backends[alias].Hostname = "" },
			Options{},
			`backend "a-kubernetes-hostname": alternateHostnames need a hostname`,
		},
		{
			"one name for two backends", func(s *v1alpha1.ProxyServerSpec) { s.Backends[1].Name = s.Backends[0].Name },
			Options{},
			`backend "a-kube-apiserver": there are two of this name`,
		},
		{
			"no attachment", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Attachment = "" },
			Options{},
			`backend "a-kube-apiserver": attachment, targetNamespace and targetService must be set`,
		},
		{
			"no owner", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].TargetNamespace = "" },
			Options{},
			`backend "a-kube-apiserver": attachment, targetNamespace and targetService must be set`,
		},
		{
			"a slash in an attachment", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Attachment, s.Backends[2].TargetService = "a/oooi-ingress", "address"
			},
			Options{},
			`backend "a-oauth-openshift": attachment "a/oooi-ingress", targetService "address": neither may have a slash`,
		},
		{
			"a slash in a Service's name", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends = append(s.Backends, apps("a", "10.0.0.1", 443, 80)[1])
				s.Backends[2].TargetService = "oooi-ingress/address" // the name of the cluster of those apps' address
			},
			Options{},
			`backend "a-oauth-openshift": attachment "a", targetService "oooi-ingress/address": neither may have a slash`,
		},
		{
			"two owners of an attachment", func(s *v1alpha1.ProxyServerSpec) { s.Backends[3].TargetNamespace = "clusters-b" },
			Options{},
			`backend "a-ignition-server": targetNamespace "clusters-b" differs from "clusters-a" of the same attachment`,
		},
		{
			"no ports", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Ports = nil },
			Options{},
			`backend "a-kube-apiserver": ports must name at least one port`,
		},
		{
			"a port of nobody", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Ports = []int32{8443} },
			Options{},
			`backend "a-kube-apiserver": port 8443 has no shared listener`,
		},
		{
			"a listener with two ports", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Listener = "external-a" },
			Options{},
			`backend "a-kube-apiserver": listener "external-a" takes one port, not 2`,
		},
		{
			"two listeners on a port", func(s *v1alpha1.ProxyServerSpec) { s.Backends[2].Listener = "external-a" },
			Options{},
			`backend "a-oauth-openshift": port 443 is that of listener "https" already`,
		},
		{
			"two tenants in a public listener", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Listener, s.Backends[2].Ports = "external-a", []int32{20000}
				s.Backends[9].Listener, s.Backends[9].Ports = "external-a", []int32{20000}
			},
			Options{},
			`backend "b-oauth-openshift": listener "external-a" is that of attachment "a" already`,
		},
		{
			"two public listeners on a port", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Listener, s.Backends[2].Ports = "external-a", []int32{20000}
				s.Backends[9].Listener, s.Backends[9].Ports = "external-b", []int32{20000}
			},
			Options{},
			`backend "b-oauth-openshift": port 20000 is that of listener "external-a" already`,
		},
		{
			"a shared listener as one's own", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Listener, s.Backends[2].Ports = "apps-http", []int32{20000}
			},
			Options{},
			`backend "a-oauth-openshift": listener "apps-http" is shared by all attachments: leave the field empty`,
		},
		{
			"the name of an internal listener", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Listener, s.Backends[2].Ports = "clusters/b/oooi-ingress/http", []int32{20000}
			},
			Options{},
			`backend "a-oauth-openshift": listener "clusters/b/oooi-ingress/http": a name with a slash is that of an internal listener`,
		},
		{
			"an alias in a public listener", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[alias].Listener, s.Backends[alias].Ports = "external-a", []int32{20000}
			},
			Options{},
			`backend "a-kubernetes-hostname": listener "external-a" is the attachment's own: it takes host names, without wildcards and sources`,
		},
		{
			"no server name in a public listener", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[nameless].Listener, s.Backends[nameless].Ports = "external-a", []int32{20000}
			},
			Options{},
			`backend "a-kubernetes-ip": listener "external-a" is the attachment's own: it takes host names, without wildcards and sources`,
		},
		{
			"a wildcard in a public listener", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends[2].Hostname, s.Backends[2].Listener, s.Backends[2].Ports = "*.apps.a.example.com", "external-a", []int32{20000}
			},
			Options{},
			`backend "a-oauth-openshift": listener "external-a" is the attachment's own: it takes host names, without wildcards and sources`,
		},
		{
			"a wildcard on the API's port", func(s *v1alpha1.ProxyServerSpec) { s.Backends[api].Hostname = "*.apps.a.example.com" },
			Options{},
			`backend "a-kube-apiserver": port 6443 takes no wildcard`,
		},
		{
			"a source on port 80", func(s *v1alpha1.ProxyServerSpec) { s.Backends[alias].Ports = []int32{80} },
			Options{},
			`backend "a-kubernetes-hostname": port 80 takes host names, without sources`,
		},
		{
			"no name on port 80", func(s *v1alpha1.ProxyServerSpec) { s.Backends[nameless].Ports = []int32{80} },
			Options{},
			`backend "a-kubernetes-ip": port 80 takes host names, without sources`,
		},
		{
			"two addresses on port 80", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends = append(s.Backends, apps("a", "10.0.0.1", 443, 80)[1])
				s.Backends[len(s.Backends)-1].Addresses = []string{"10.0.0.1", "10.0.0.2"}
			},
			Options{},
			`backend "a-apps-http": port 80 takes one address, and no endpoints of a headless Service`,
		},
		{
			"an endpoint that moves on port 80", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends = append(s.Backends, apps("a", "10.0.0.1", 443, 80)[1])
				s.Backends[len(s.Backends)-1].Headless = true
			},
			Options{},
			`backend "a-apps-http": port 80 takes one address, and no endpoints of a headless Service`,
		},
		{
			"one port for HTTP and TLS", func(s *v1alpha1.ProxyServerSpec) { s.Backends[3].Ports = []int32{80, 443} },
			Options{},
			`backend "a-ignition-server": port 80 speaks HTTP: its target can have no other port`,
		},
		{
			"a Host in two attachments", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends = append(append(s.Backends, apps("a", "10.0.0.1", 443, 80)...), apps("b", "10.0.0.2", 443, 80)[1])
				s.Backends[len(s.Backends)-1].Hostname = "*.Apps.a.clusters.example.com."
			},
			Options{},
			`backend "b-apps-http": hostname "*.apps.a.clusters.example.com" leads to clusters/a/oooi-ingress/http already`,
		},
		{
			"two truths about apps", func(s *v1alpha1.ProxyServerSpec) {
				s.Backends = append(s.Backends, apps("a", "10.0.0.1", 443, 80)[1], apps("a", "10.0.0.2", 443, 80)[1])
				s.Backends[len(s.Backends)-1].Name = "again"
			},
			Options{},
			`backend "again": target clusters/a/oooi-ingress/http differs from that of backend "a-apps-http"`,
		},
		{"one listener on two ports", func(s *v1alpha1.ProxyServerSpec) {
			s.Backends[2].Listener, s.Backends[2].Ports = "x", []int32{10000}
			s.Backends[3].Listener, s.Backends[3].Ports = "x", []int32{10001}
		}, Options{}, `backend "a-ignition-server": listener "x" is on port 10000 already, not 10001`},
		{
			"a port too high", func(*v1alpha1.ProxyServerSpec) {},
			Options{PortOffset: 60000},
			`backend "a-kube-apiserver": port 6443 with offset 60000 is out of range`,
		},
		{
			"a target port of zero", func(s *v1alpha1.ProxyServerSpec) { s.Backends[3].TargetPort = 0 },
			Options{},
			`backend "a-ignition-server": targetPort 0 is out of range`,
		},
		{
			"an address that is none", func(s *v1alpha1.ProxyServerSpec) { s.Backends[3].Addresses = []string{"not a name"} },
			Options{},
			`backend "a-ignition-server": address "not a name" is neither an IP address nor a single DNS name`,
		},
		{
			"two DNS names", func(s *v1alpha1.ProxyServerSpec) { s.Backends[3].Addresses = []string{"10.0.0.1", "x.example.com"} },
			Options{},
			`backend "a-ignition-server": address "x.example.com" is neither an IP address nor a single DNS name`,
		},
		{
			"two truths about a target", func(s *v1alpha1.ProxyServerSpec) { s.Backends[1].Addresses = []string{"10.0.0.9"} },
			Options{},
			`backend "a-kube-apiserver-internal": target clusters/a/kube-apiserver differs from that of backend "a-kube-apiserver"`,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			proxy := page("a", "b")
			c.change(&proxy.Spec)
			_, err := Build(proxy, c.opts)
			if want := "ProxyServer clusters/tenant-vlan100-proxy: " + c.want; err == nil || err.Error() != want {
				t.Errorf("got  %v\nwant %s", err, want)
			}
		})
	}
}

// Whatever a child says, Build refuses it or gives resources that Envoy's own validation rules accept.
func FuzzBuild(f *testing.F) {
	f.Add("192.0.2.4", "api.a.example.com", "*.apps.a.example.com", "10.0.0.1", "192.0.2.7/32", "a", int32(443), int32(6443), int32(30))
	f.Add("192.0.2.4", "kubernetes", "kubernetes.default.", "svc.example.com", "192.0.2.7/32", "a/b", int32(6443), int32(1), int32(0))
	f.Add("0.0.0.0", "", "", "::1", "0.0.0.0/32", "ä", int32(443), int32(65535), int32(-1))
	f.Add("192.0.2.4", "*.apps.b.clusters.example.com", "api.x.apps.b.clusters.example.com", "10.0.0.1", "192.0.2.7/32", "a", int32(80), int32(80), int32(30))
	f.Add("192.0.2.4", "x.example.com", "*.apps.example.com", "10.0.0.1", "192.0.2.7/32", "b", int32(80), int32(80), int32(30))
	f.Add("", "*", "*.", "", "/32", "", int32(0), int32(0), int32(1<<30))
	f.Fuzz(func(t *testing.T, serverIP, hostname, other, address, source, name string, port, targetPort, timeout int32) {
		proxy := withApps(page("b"), "b")
		proxy.Spec.NetworkConfig.ServerIP = serverIP
		backend := v1alpha1.Backend{
			Name: name, Attachment: name, Hostname: hostname, Ports: []int32{port}, TargetService: "kube-apiserver",
			TargetNamespace: "clusters-" + name, TargetPort: targetPort, Addresses: []string{address}, TimeoutSeconds: timeout,
		}
		if other != "" {
			backend.AlternateHostnames = []string{other}
		}
		bySource := backend
		bySource.Name, bySource.SourcePrefixRanges = name+"-by-source", []string{source}
		bySource.Hostname, bySource.AlternateHostnames = "", nil
		proxy.Spec.Backends = append(proxy.Spec.Backends, backend, bySource)
		snap, err := Build(proxy, Options{})
		if err != nil {
			return
		}
		for _, set := range snap.sets {
			for _, r := range set.sorted {
				m, err := r.GetResource().UnmarshalNew()
				if err != nil {
					t.Fatal(err)
				}
				if err := m.(interface{ ValidateAll() error }).ValidateAll(); err != nil {
					t.Errorf("%s: %v", r.GetName(), err)
				}
			}
		}
		if _, err := json.Marshal(snap); err != nil {
			t.Error(err)
		}
	})
}
