package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// TestLab goes from booting workers to a killed oooi in one lab: the example as it stands in the documentation.
// Later steps need the addresses that earlier ones got.
func TestLab(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"workers get addresses by DHCP", testDHCP},
		{"names resolve on the VLAN and outside", testNames},
		{"connections reach their own cluster only", testRoutes},
		{"plain text and broken TLS are cut off", testPlainText},
		{"broken bytes get no answer", testBrokenBytes},
		{"grpcurl sees what Envoy is served", testReflection},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.run(t, l) }) {
			return
		}
	}

	// From here on things change, and only those whom a change concerns may notice.
	streams := holdStreams(t, l)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *lab)
	}{
		{"a worker appears and goes", testWorkerAppears},
		{"an attachment is added and removed", testAttachmentComesAndGoes},
		{"two attachments with one domain", testDuplicateDomain},
		{"two attachments with one HostedCluster", testDuplicateHostedCluster},
		{"Machines of two attachments with one address", testDuplicateSource},
		{"manifests break", testBrokenManifests},
		{"oooi is killed", testKilled},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			step.run(t, l)
			streams.check(t)
		}) {
			return
		}
	}
	t.Run("Envoy is killed", func(t *testing.T) { testEnvoyKilled(t, l) })
}

// streams are connections of the two clusters of the example, held open through every filter chain.
type streams map[string]*stack.Stream

func holdStreams(t *testing.T, l *lab) streams {
	t.Helper()
	held := streams{}
	t.Cleanup(func() {
		for _, s := range held {
			_ = s.Close() // the lab is going
		}
	})
	for _, c := range []struct {
		host    stack.Host
		source  string
		cluster string
		domain  string
	}{
		{l.WorkerA, netlab.WorkerA, "example-hcp-a", domainA},
		{l.WorkerB, netlab.WorkerB, "example-hcp-b", domainB},
	} {
		var calls []stack.Call
		for _, name := range names {
			calls = append(calls, call(c.host, c.source, name+"."+c.domain, 443))
		}
		calls = append(calls,
			call(c.host, c.source, "api."+c.domain, 6443),
			call(c.host, c.source, "kubernetes.default.svc", 443),
			call(c.host, c.source, "", 443),
			call(c.host, c.source, "", 6443),
		)
		for _, sc := range calls {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			stream, answer, err := sc.Hold(ctx, l.CA)
			cancel()
			if err != nil {
				t.Fatal(err)
			}
			if answer.Cluster != c.cluster {
				t.Fatalf("stream from %s with server name %q reached %s", c.source, sc.SNI, answer)
			}
			held[fmt.Sprintf("%s, server name %q, port %d", c.cluster, sc.SNI, sc.To.Port())] = stream
		}
	}
	held.check(t)
	return held
}

func (s streams) check(t *testing.T) {
	t.Helper()
	for name, stream := range s {
		if err := stream.Alive(); err != nil {
			t.Errorf("a stream that was none of this change's business was cut (%s): %v", name, err)
		}
	}
}

// asked checks how long a lease lasts, and gives what it lasts when it is new: a client that asks again at once is told how much of the
// hour is left.
func asked(t *testing.T, seconds string) string {
	t.Helper()
	if n, err := strconv.Atoi(seconds); err != nil || n <= 3600*9/10 || n > 3600 {
		t.Errorf("the lease lasts %s seconds", seconds)
		return seconds
	}
	return "3600"
}

// testDHCP lets the three clients boot. Worker A boots by all three, as the initrd and the real root of one
// machine may have different clients: its address stays.
func testDHCP(t *testing.T, l *lab) {
	seen := map[string]string{}
	for _, boot := range []struct {
		host    stack.Host
		client  netlab.Client
		request string
	}{
		{l.WorkerA, netlab.Udhcpc, netlab.WorkerA},
		{l.WorkerB, netlab.Dhclient, netlab.WorkerB},
		{l.Stranger, netlab.Dhcpcd, ""},
		{l.WorkerA, netlab.Dhclient, ""},
		{l.WorkerB, netlab.Udhcpc, ""},
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		lease, err := l.DHCP(ctx, boot.host, boot.client, boot.request)
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		address, err := netip.ParseAddr(lease.Address)
		if err != nil {
			t.Fatalf("%s got the address %q: %v", boot.client, lease.Address, err)
		}
		first, last := netip.MustParseAddr("192.0.2.100"), netip.MustParseAddr("192.0.2.199")
		if address.Less(first) || last.Less(address) {
			t.Errorf("%s got %s, which is not in the pool", boot.client, address)
		}
		if boot.request != "" && lease.Address != boot.request {
			t.Errorf("%s asked for %s, which is free, and got %s", boot.client, boot.request, lease.Address)
		}
		host := string(boot.host)
		if before, known := seen[host]; known && before != lease.Address {
			t.Errorf("%s had %s and got %s by %s", host, before, lease.Address, boot.client)
		}
		for other, taken := range seen {
			if other != host && taken == lease.Address {
				t.Errorf("%s and %s both got %s", other, host, taken)
			}
		}
		seen[host] = lease.Address
		lease.Seconds = asked(t, lease.Seconds)
		want := netlab.Lease{
			Address: lease.Address, Mask: "255.255.255.0", Router: "192.0.2.1", DNS: netlab.DNSServer,
			Server: "192.0.2.2", Seconds: "3600",
		}
		if lease != want {
			t.Errorf("%s was told %+v, want %+v", boot.client, lease, want)
		}
		if boot.host == l.Stranger {
			l.stranger = address
		}
	}

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	bound, renewed, err := l.Renew(ctx, l.WorkerA)
	if err != nil {
		t.Fatal(err)
	}
	bound.Seconds, renewed.Seconds = asked(t, bound.Seconds), asked(t, renewed.Seconds)
	if bound != renewed || bound.Address != seen[string(l.WorkerA)] {
		t.Errorf("worker A was told %+v, and when it renewed that, %+v", bound, renewed)
	}
	table, err := l.Oooi.Ask(ctx, "leases")
	if err != nil {
		t.Fatal(err)
	}
	for host, address := range seen {
		if !strings.Contains(table, address) {
			t.Errorf("oooi leases does not list %s of %s:\n%s", address, host, table)
		}
	}
}

// testNames asks dig and, about the same, oooi explain.
func testNames(t *testing.T, l *lab) {
	type question struct {
		host         stack.Host
		source, name string
		// want is the address, or the status when there is none.
		want string
	}
	stranger := l.stranger.String()
	const pod = "10.128.1.2"
	var questions []question
	for _, domain := range []string{domainA, domainB} {
		for _, name := range names {
			fqdn := name + "." + domain
			questions = append(questions,
				question{l.WorkerA, netlab.WorkerA, fqdn, netlab.Proxy},
				question{l.WorkerB, netlab.WorkerB, fqdn, netlab.Proxy},
				question{l.Stranger, stranger, fqdn, netlab.Proxy},
				question{l.Client, pod, fqdn, netlab.ClusterIP},
			)
		}
	}
	for _, alias := range aliases {
		questions = append(questions,
			question{l.WorkerB, netlab.WorkerB, alias, netlab.Proxy},
			question{l.Client, pod, alias, stack.UpstreamAnswer}, // a name like any other
		)
	}
	questions = append(questions,
		question{l.WorkerA, netlab.WorkerA, "API.example-HCP-a.clusters.example.com", netlab.Proxy},
		question{l.WorkerA, netlab.WorkerA, "www.example.org", stack.UpstreamAnswer},
		question{l.Client, pod, "www.example.org", stack.UpstreamAnswer},
		// A name below a cluster's domain that is none of its own: names are owned, not domains.
		question{l.WorkerA, netlab.WorkerA, "www." + domainA, stack.UpstreamAnswer},
		question{l.WorkerA, netlab.WorkerA, domainA, stack.UpstreamAnswer},
		// Neither on the VLAN nor a pod.
		question{l.Client, netlab.Foreign, "api." + domainA, "REFUSED"},
		question{l.Client, netlab.Foreign, "www.example.org", "REFUSED"},
	)
	for _, q := range questions {
		within(t, q.name, l.asks(q.host, q.want, "-b", q.source, q.name, "A"))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		out, err := l.Oooi.Ask(ctx, "explain", "--source", q.source, "--dns", q.name, "-o", "json")
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		var explained struct {
			Names []struct {
				RCode     string   `json:"rcode"`
				Answers   []string `json:"answers"`
				Upstreams []string `json:"upstreams"`
				Why       string   `json:"why"`
			} `json:"names"`
		}
		if err := json.Unmarshal([]byte(out), &explained); err != nil || len(explained.Names) != 1 {
			t.Fatalf("oooi explain --dns -o json: %v\n%s", err, out)
		}
		e := explained.Names[0]
		got := e.RCode
		switch {
		case len(e.Upstreams) > 0:
			got = stack.UpstreamAnswer
		case len(e.Answers) > 0:
			got = strings.TrimPrefix(strings.Join(e.Answers, " "), "A ")
		}
		if got != q.want || e.Why == "" {
			t.Errorf("oooi explain of %s asked by %s: says %s (%s), and dig got %s", q.name, q.source, got, e.Why, q.want)
		}
	}

	// Other types of an owned name: it is there, and has none of them; nobody else is asked. And TCP.
	within(t, "other questions", all(
		l.asks(l.WorkerA, "NOERROR", "api."+domainA, "AAAA"),
		l.asks(l.WorkerA, "NOERROR", "api."+domainA, "TYPE65"),
		l.asks(l.WorkerA, stack.UpstreamAnswer, "+tcp", "www.example.org"),
		l.asks(l.WorkerA, netlab.Proxy, "+tcp", "oauth."+domainB),
	))
	for _, name := range names {
		if n := l.Upstream.Asked(name + "." + domainA); n > 0 {
			t.Errorf("the upstream was asked %d times for %s.%s, which is ours", n, name, domainA)
		}
	}
}

// route is a connection and who must answer it: "cluster/service" or "closed".
type route struct {
	host   stack.Host
	source string
	sni    string
	port   uint16
	want   string
}

// routes of the example, for two workers and a machine of nobody.
func (l *lab) routes() []route {
	var rows []route
	stranger := l.stranger.String()
	services := map[string]string{
		"api": "kube-apiserver", "api-int": "kube-apiserver", "oauth": "oauth-openshift",
		"ignition": "ignition-server-proxy", "konnectivity": "konnectivity-server",
	}
	for cluster, domain := range map[string]string{"example-hcp-a": domainA, "example-hcp-b": domainB} {
		for _, name := range names {
			want := cluster + "/" + services[name]
			for host, source := range map[stack.Host]string{l.WorkerA: netlab.WorkerA, l.WorkerB: netlab.WorkerB, l.Stranger: stranger} {
				rows = append(rows, route{host, source, name + "." + domain, 443, want})
			}
			if services[name] == "kube-apiserver" {
				rows = append(rows, route{l.Stranger, stranger, name + "." + domain, 6443, want})
			} else {
				rows = append(rows, route{l.Stranger, stranger, name + "." + domain, 6443, "closed"})
			}
		}
	}
	for _, port := range []uint16{443, 6443} {
		for _, sni := range append([]string{""}, aliases...) {
			rows = append(rows,
				route{l.WorkerA, netlab.WorkerA, sni, port, "example-hcp-a/kube-apiserver"},
				route{l.WorkerB, netlab.WorkerB, sni, port, "example-hcp-b/kube-apiserver"},
				route{l.Stranger, stranger, sni, port, "closed"},
			)
		}
		for _, sni := range []string{
			"www.example.org", domainA, "kubernetes.default.svc.cluster", "openshift.default.svc",
			"api.example-hcp-z.clusters.example.com", "x.api." + domainA, "api." + domainA + ".example.org",
		} {
			rows = append(rows, route{l.WorkerA, netlab.WorkerA, sni, port, "closed"})
		}
	}
	return append(rows,
		route{l.WorkerB, netlab.WorkerB, "API." + strings.ToUpper(domainA), 443, "example-hcp-a/kube-apiserver"},
		route{l.WorkerB, netlab.WorkerB, "Kubernetes.Default.SVC", 443, "example-hcp-b/kube-apiserver"},
	)
}

// testRoutes tries every row, and lets oooi explain it: both must agree with the table.
func testRoutes(t *testing.T, l *lab) {
	for _, r := range l.routes() {
		within(t, "the route", l.answers(call(r.host, r.source, r.sni, r.port), r.want))
		l.explains(t, r)
	}
	// From the pod network, through the ClusterIP: names lead on, what goes by source does not.
	pod := func(sni string, port uint16) stack.Call {
		return stack.Call{Host: l.Client, SNI: sni, To: netip.AddrPortFrom(netip.MustParseAddr(netlab.ClusterIP), port)}
	}
	within(t, "the routes of pods", all(
		l.answers(pod("api."+domainA, 443), "example-hcp-a/kube-apiserver"),
		l.answers(pod("oauth."+domainB, 443), "example-hcp-b/oauth-openshift"),
		l.answers(pod("api-int."+domainB, 6443), "example-hcp-b/kube-apiserver"),
		l.answers(pod("kubernetes.default.svc", 443), "closed"),
		l.answers(pod("", 6443), "closed"),
	))
}

// explains checks what `oooi explain` says about a row of the table.
func (l *lab) explains(t *testing.T, r route) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	args := []string{"explain", "--source", r.source, "--port", fmt.Sprint(r.port), "-o", "json"}
	if r.sni != "" {
		args = append(args, "--sni", r.sni)
	}
	out, err := l.Oooi.Ask(ctx, args...)
	if err != nil {
		t.Fatal(err)
	}
	var answer struct {
		Connections []struct {
			Routed     bool   `json:"routed"`
			Attachment string `json:"attachment"`
			Target     string `json:"target"`
			Why        string `json:"why"`
		} `json:"connections"`
	}
	if err := json.Unmarshal([]byte(out), &answer); err != nil {
		t.Fatalf("oooi explain -o json: %v\n%s", err, out)
	}
	if len(answer.Connections) != 1 {
		t.Fatalf("oooi explain gave %d answers for one Infra:\n%s", len(answer.Connections), out)
	}
	c := answer.Connections[0]
	got := "closed"
	if c.Routed {
		_, service, _ := strings.Cut(c.Target, "/")
		service, _, _ = strings.Cut(service, ":")
		got = c.Attachment + "/" + service
	}
	if got != r.want || c.Why == "" {
		t.Errorf("oooi explain of %s, server name %q, port %d: says %s (%s), and Envoy did %s", r.source, r.sni, r.port, got, c.Why, r.want)
	}
}

func testPlainText(t *testing.T, l *lab) {
	for _, port := range []uint16{443, 6443} {
		for host, source := range map[stack.Host]string{l.WorkerA: netlab.WorkerA, l.Stranger: l.stranger.String()} {
			c := call(host, source, "", port)
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			got, err := c.TryPlain(ctx, "GET /version HTTP/1.1\r\nHost: kubernetes\r\n\r\n")
			if err != nil {
				t.Error(err)
			}
			if got != "" {
				t.Errorf("plain text from %s to port %d was answered: %q", source, port, got)
			}
			// A record header of a handshake with no handshake in it.
			got, err = c.TryPlain(ctx, "\x16\x03\x01\x00\x30\x01\xff\xff\xff"+strings.Repeat("\xff", 44))
			cancel()
			if err != nil {
				t.Error(err)
			}
			if len(got) > 0 && got[0] != 0x15 { // a TLS alert would be fine
				t.Errorf("a broken ClientHello from %s to port %d was answered: %q", source, port, got)
			}
		}
	}
	// A ClientHello of many packets is none the worse for it.
	slow := call(l.WorkerA, netlab.WorkerA, "api."+domainB, 443)
	slow.Chunk = 100
	within(t, "a ClientHello in pieces", l.answers(slow, "example-hcp-b/kube-apiserver"))
	within(t, "the routes afterwards", l.answers(call(l.WorkerA, netlab.WorkerA, "", 6443), "example-hcp-a/kube-apiserver"))
}

// testReflection reads the xDS server with grpcurl, which has no proto files of Envoy.
func testReflection(t *testing.T, l *lab) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	grpcurl, err := stack.Grpcurl()
	if err != nil {
		t.Fatal(err)
	}
	list, err := l.Pod.Run(ctx, grpcurl, "-plaintext", l.Oooi.XDS, "list")
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"envoy.service.discovery.v3.AggregatedDiscoveryService", "envoy.service.status.v3.ClientStatusDiscoveryService"} {
		if !strings.Contains(list, service) {
			t.Errorf("grpcurl list lacks %s:\n%s", service, list)
		}
	}
	status, err := l.Pod.Run(ctx, grpcurl, "-plaintext", "-d", "{}", l.Oooi.XDS,
		"envoy.service.status.v3.ClientStatusDiscoveryService/FetchClientStatus")
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{netlab.Infra, "example-hcp-a", "api." + domainB, netlab.WorkerA} {
		if !strings.Contains(status, text) {
			t.Errorf("the client status does not show %s:\n%.4000s", text, status)
		}
	}
}
