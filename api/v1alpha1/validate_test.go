package v1alpha1

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func goodInfra() *Infra {
	return &Infra{
		ObjectMeta: metav1.ObjectMeta{Name: "vlan100", Namespace: "clusters"},
		Spec: InfraSpec{
			NetworkConfig: NetworkConfig{
				CIDR: "192.0.2.0/24", Gateway: "192.0.2.1", NetworkAttachmentDefinition: "vlan100",
				DNSServers: []string{"198.51.100.53", "198.51.100.54:5353", "resolv.conf"},
			},
			InfraComponents: InfraComponents{
				DHCP: DHCPComponent{
					ServerIP: "192.0.2.2", RangeStart: "192.0.2.100", RangeEnd: "192.0.2.199", LeaseTime: "1h", MTU: 1500,
					Options:      []DHCPOption{{Code: 15, Value: "example.com"}, {Code: 121, Value: "0x080ac0000201"}, {Code: 19, Value: "0"}, {Code: 66, Value: "tftp"}},
					NTPServers:   []string{"192.0.2.1"},
					Reservations: []DHCPReservation{{MAC: "52:54:00:12:34:56", IP: "192.0.2.150", Hostname: "worker-1.example.com"}, {MAC: "52-54-00-12-34-57", Hostname: "w2"}},
				},
				DNS:   DNSComponent{ServerIP: "192.0.2.3", CacheTTL: "30s"},
				Proxy: ProxyComponent{ServerIP: "192.0.2.4", InternalProxyService: "p.clusters.svc.cluster.local", LogLevel: "info"},
			},
		},
	}
}

func goodAttachment() *InfraClusterAttachment {
	return &InfraClusterAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "clusters"},
		Spec: InfraClusterAttachmentSpec{
			InfraRef:         InfraReference{Name: "vlan100"},
			HostedClusterRef: HostedClusterReference{Name: "a"},
			DNS:              AttachmentDNS{ClusterName: "A", BaseDomain: "clusters.Example.com."},
		},
	}
}

// show prints problems as "component reason field: message", a line each.
func show(problems []Problem) string {
	var b strings.Builder
	for _, p := range problems {
		component := string(p.Component)
		if component == "" {
			component = "-"
		}
		fmt.Fprintf(&b, "%s %s %s: %s\n", component, p.Reason, p.Field, p.Message)
	}
	return b.String()
}

func TestInfraValidate(t *testing.T) {
	off := false
	const dhcp, dns, proxy = "spec.infraComponents.dhcp.", "spec.infraComponents.dns.", "spec.infraComponents.proxy."
	for _, tc := range []struct {
		name   string
		change func(*Infra)
		// want is the start of each problem: component, reason, field and the first words.
		want []string
	}{
		{"as it should be", func(*Infra) {}, nil},
		{"host bits", func(i *Infra) { i.Spec.NetworkConfig.CIDR = "192.0.2.7/24" }, []string{"- Invalid spec.networkConfig.cidr: 192.0.2.7/24 has host bits set: write 192.0.2.0/24"}},
		{"IPv6", func(i *Infra) { i.Spec.NetworkConfig.CIDR = "2001:db8::/64" }, []string{"- IPv6NotSupported spec.networkConfig.cidr: "}},
		{"mapped IPv4", func(i *Infra) { i.Spec.NetworkConfig.CIDR = "::ffff:192.0.2.0/120" }, []string{"- IPv6NotSupported spec.networkConfig.cidr: "}},
		{"too long", func(i *Infra) { i.Spec.NetworkConfig.CIDR = "192.0.2.0/31" }, []string{"- Invalid spec.networkConfig.cidr: 192.0.2.0/31 has a prefix length of 31"}},
		{"too short", func(i *Infra) { i.Spec.NetworkConfig.CIDR = "192.0.0.0/7" }, []string{"- Invalid spec.networkConfig.cidr: 192.0.0.0/7 has a prefix length of 7"}},
		{"gateway outside", func(i *Infra) { i.Spec.NetworkConfig.Gateway = "192.0.3.1" }, []string{"- AddressOutsideCIDR spec.networkConfig.gateway: 192.0.3.1 is outside the CIDR 192.0.2.0/24: choose an address of 192.0.2.1-192.0.2.254"}},
		{"gateway is the network", func(i *Infra) { i.Spec.NetworkConfig.Gateway = "192.0.2.0" }, []string{"- AddressOutsideCIDR spec.networkConfig.gateway: 192.0.2.0 is the network address"}},
		{"server is broadcast", func(i *Infra) { i.Spec.InfraComponents.DNS.ServerIP = "192.0.2.255" }, []string{"dns AddressOutsideCIDR " + dns + "serverIP: 192.0.2.255 is the broadcast address"}},
		{"two servers, one address", func(i *Infra) { i.Spec.InfraComponents.DNS.ServerIP = "192.0.2.4" }, []string{
			"dns AddressConflict " + dns + "serverIP: 192.0.2.4 is infraComponents.proxy.serverIP as well",
			"proxy AddressConflict " + proxy + "serverIP: 192.0.2.4 is infraComponents.dns.serverIP as well",
		}},
		{"server is the gateway", func(i *Infra) { i.Spec.InfraComponents.Proxy.ServerIP = "192.0.2.1" }, []string{"proxy AddressConflict " + proxy + "serverIP: 192.0.2.1 is the gateway's address as well"}},
		{"nothing given", func(i *Infra) {
			i.Spec.InfraComponents = InfraComponents{}
		}, []string{
			"dhcp AddressMissing " + dhcp + "serverIP: ", "dhcp AddressMissing " + dhcp + "rangeStart: ", "dhcp AddressMissing " + dhcp + "rangeEnd: ",
			"dns AddressMissing " + dns + "serverIP: ", "proxy AddressMissing " + proxy + "serverIP: ",
		}},
		{"nothing given, nothing wanted", func(i *Infra) {
			i.Spec.InfraComponents = InfraComponents{DHCP: DHCPComponent{Enabled: &off}, DNS: DNSComponent{Enabled: &off}, Proxy: ProxyComponent{Enabled: &off}}
		}, nil},
		{"a disabled component takes no address", func(i *Infra) {
			i.Spec.InfraComponents.DNS = DNSComponent{Enabled: &off, ServerIP: "192.0.2.4"}
		}, nil},
		{"a disabled component is still read", func(i *Infra) {
			i.Spec.InfraComponents.DNS = DNSComponent{Enabled: &off, ServerIP: "192.0.2"}
		}, []string{"dns Invalid " + dns + `serverIP: "192.0.2" is not an IPv4 address`}},
		{"pool reversed", func(i *Infra) { i.Spec.InfraComponents.DHCP.RangeEnd = "192.0.2.99" }, []string{"dhcp PoolReversed " + dhcp + "rangeEnd: 192.0.2.99 is below rangeStart 192.0.2.100"}},
		{"pool outside", func(i *Infra) { i.Spec.InfraComponents.DHCP.RangeEnd = "192.0.3.9" }, []string{"dhcp PoolOutsideCIDR " + dhcp + "rangeEnd: 192.0.3.9 is outside"}},
		{"pool of everything", func(i *Infra) {
			i.Spec.InfraComponents.DHCP.RangeStart, i.Spec.InfraComponents.DHCP.RangeEnd = "192.0.2.0", "192.0.2.255"
		}, []string{
			"dhcp PoolHoldsAddress " + dhcp + "rangeStart: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.0, the network address",
			"dhcp PoolHoldsAddress " + dhcp + "rangeStart: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.1, the gateway",
			"dhcp PoolHoldsAddress " + dhcp + "rangeStart: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.2, infraComponents.dhcp.serverIP",
			"dhcp PoolHoldsAddress " + dhcp + "rangeStart: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.3, infraComponents.dns.serverIP",
			"dhcp PoolHoldsAddress " + dhcp + "rangeStart: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.4, infraComponents.proxy.serverIP",
			"dhcp PoolHoldsAddress " + dhcp + "rangeEnd: the pool 192.0.2.0-192.0.2.255 holds 192.0.2.255, the broadcast address",
		}},
		{"lease of a second", func(i *Infra) { i.Spec.InfraComponents.DHCP.LeaseTime = "1s" }, []string{"dhcp Invalid " + dhcp + "leaseTime: 1s is not between"}},
		{"lease of a year", func(i *Infra) { i.Spec.InfraComponents.DHCP.LeaseTime = "8760h" }, nil},
		{"lease longer", func(i *Infra) { i.Spec.InfraComponents.DHCP.LeaseTime = "8760h1s" }, []string{"dhcp Invalid " + dhcp + "leaseTime: "}},
		{"upstream is ourselves", func(i *Infra) { i.Spec.NetworkConfig.DNSServers = []string{"192.0.2.3"} }, []string{"dns Invalid spec.networkConfig.dnsServers[0]: 192.0.2.3 is this Infra's own DNS server"}},
		{"upstream is ourselves on another port", func(i *Infra) { i.Spec.NetworkConfig.DNSServers = []string{"192.0.2.3:5353", "::ffff:192.0.2.3"} }, []string{
			"dns Invalid spec.networkConfig.dnsServers[0]: 192.0.2.3 is this Infra's own DNS server", "dns Invalid spec.networkConfig.dnsServers[1]: 192.0.2.3 is this Infra's own DNS server",
		}},
		{"64 resolvers", func(i *Infra) { i.Spec.NetworkConfig.DNSServers = resolvers(64) }, nil},
		{"64 resolvers for DHCP to name", func(i *Infra) {
			i.Spec.InfraComponents.DNS.Enabled = &off
			i.Spec.NetworkConfig.DNSServers = resolvers(64)
		}, []string{"dhcp Invalid spec.networkConfig.dnsServers: has 64 addresses, DNS is disabled, and the DHCP option that tells clients of them holds 63: remove some"}},
		{"64 resolvers, one of them not for DHCP to name", func(i *Infra) {
			i.Spec.InfraComponents.DNS.Enabled = &off
			i.Spec.NetworkConfig.DNSServers = append(resolvers(63), "198.51.100.200:5353")
		}, nil},
		{"upstreams twice", func(i *Infra) {
			i.Spec.NetworkConfig.DNSServers = []string{"198.51.100.1", "198.51.100.1:53", "resolv.conf", "resolv.conf"}
		}, []string{"dns Invalid spec.networkConfig.dnsServers[1]: ", "dns Invalid spec.networkConfig.dnsServers[3]: "}},
		{"upstream wrong, DNS disabled", func(i *Infra) {
			i.Spec.InfraComponents.DNS.Enabled = &off
			i.Spec.NetworkConfig.DNSServers = []string{"dns.example.com", "192.0.2.3"}
		}, []string{"dhcp Invalid spec.networkConfig.dnsServers[0]: "}},
		{"reservation of a server", func(i *Infra) { i.Spec.InfraComponents.DHCP.Reservations[0].IP = "192.0.2.4" }, []string{"dhcp AddressConflict " + dhcp + "reservations[0].ip: 192.0.2.4 is infraComponents.proxy.serverIP"}},
		{"one card twice", func(i *Infra) { i.Spec.InfraComponents.DHCP.Reservations[1].MAC = "52:54:00:12:34:56" }, []string{"dhcp Invalid " + dhcp + "reservations[1].mac: 52:54:00:12:34:56 is already in reservation 0"}},
		{"everybody's card", func(i *Infra) { i.Spec.InfraComponents.DHCP.Reservations[1].MAC = "ff:ff:ff:ff:ff:ff" }, []string{"dhcp Invalid " + dhcp + "reservations[1].mac: "}},
		{"mask as an option", func(i *Infra) { i.Spec.InfraComponents.DHCP.Options = []DHCPOption{{1, "255.255.255.0"}} }, []string{"dhcp Invalid " + dhcp + "options[0].code: option 1 cannot be set here: it comes from networkConfig.cidr"}},
		{"MTU twice", func(i *Infra) { i.Spec.InfraComponents.DHCP.Options = []DHCPOption{{26, "9000"}} }, []string{"dhcp Invalid " + dhcp + "options[0].code: option 26 is set by infraComponents.dhcp.mtu as well"}},
		{"options of the wrong form", func(i *Infra) {
			i.Spec.InfraComponents.DHCP.Options = []DHCPOption{{23, "256"}, {4, "192.0.2.9,x"}, {28, "192.0.2.1,192.0.2.2"}, {2, "west"}, {19, "yes"}, {60, ""}, {61, "x"}, {43, "0x1"}}
		}, []string{
			"dhcp Invalid " + dhcp + `options[0].value: option 23: "256" is not a number of 0 to 255`,
			"dhcp Invalid " + dhcp + `options[1].value: option 4: "x" is not an IPv4 address`,
			"dhcp Invalid " + dhcp + `options[2].value: option 28: has 2 addresses`,
			"dhcp Invalid " + dhcp + `options[3].value: option 2: "west" is not a number`,
			"dhcp Invalid " + dhcp + `options[4].value: option 19: "yes" is not a switch`,
			"dhcp Invalid " + dhcp + `options[5].value: option 60: has no value`,
			"dhcp Invalid " + dhcp + `options[6].code: option 61 cannot be set here`,
			"dhcp Invalid " + dhcp + `options[7].value: option 43: "0x1" is not bytes in hexadecimal`,
		}},
		{"routes that are none", func(i *Infra) {
			i.Spec.InfraComponents.DHCP.Options = []DHCPOption{{121, "198.51.100.0/24"}, {249, "192.0.2.9"}, {119, "a..b"}}
		}, []string{
			"dhcp Invalid " + dhcp + `options[0].value: option 121: "198.51.100.0/24" is not a route: write a CIDR and a gateway`,
			"dhcp Invalid " + dhcp + `options[1].value: option 249: "192.0.2.9" is not a route: write a CIDR and a gateway`,
			"dhcp Invalid " + dhcp + `options[2].value: option 119: "a..b" is not a domain name`,
		}},
		{"search domains that just fit", func(i *Infra) { i.Spec.InfraComponents.DHCP.SearchDomains = slices.Repeat([]string{"example.com"}, 78) }, nil},
		{"search domains that don't", func(i *Infra) { i.Spec.InfraComponents.DHCP.SearchDomains = slices.Repeat([]string{"example.com"}, 79) }, []string{
			"dhcp Invalid " + dhcp + "searchDomains: option 119: has 1027 bytes, and an option holds 1024: shorten it",
		}},
		{"a search domain like hexadecimal", func(i *Infra) { i.Spec.InfraComponents.DHCP.SearchDomains = []string{"0xab"} }, []string{
			"dhcp Invalid " + dhcp + `searchDomains[0]: "0xab" would be taken for bytes in hexadecimal: write a dot at its end`,
		}},
		{"search domains that begin like it", func(i *Infra) { i.Spec.InfraComponents.DHCP.SearchDomains = []string{"0xab.example.com", "0xab"} }, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			i := goodInfra()
			tc.change(i)
			compare(t, i.Validate(), tc.want)
		})
	}
}

// resolvers are as many addresses.
func resolvers(n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("198.51.100.%d", i+1)
	}
	return all
}

// compare wants each problem to start with its line, and none besides.
func compare(t *testing.T, got []Problem, want []string) {
	t.Helper()
	lines := strings.Split(strings.TrimSuffix(show(got), "\n"), "\n")
	if len(got) == 0 {
		lines = nil
	}
	ok := len(lines) == len(want)
	for n := 0; ok && n < len(want); n++ {
		ok = strings.HasPrefix(lines[n], want[n])
	}
	if !ok {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(lines, "\n"), strings.Join(want, "\n"))
	}
}

func TestInternalProxyServiceForms(t *testing.T) {
	for value, ok := range map[string]bool{
		"proxy": true, "proxy.clusters": true, "proxy.clusters.svc": true, "proxy.clusters.svc.cluster.local": true,
		"proxy.clusters.svc.k8s.example.com": true, "proxy.clusters.svc.cluster.local.": true, "10.96.0.10": true,
		"proxy.clusters.example.com": false, "proxy.": false, "proxy.clusters.": false, "Proxy": false, "-": false,
		"2001:db8::1": false, "10.96.0.256.svc.x": false, "a b": false, "0.0.0.0": false, "10.96.0.10:443": false, "proxy..svc": false,
	} {
		i := goodInfra()
		i.Spec.InfraComponents.Proxy.InternalProxyService = value
		if got := i.Validate(); (len(got) == 0) != ok {
			t.Errorf("%q: %s", value, show(got))
		}
	}
}

func TestAttachmentValidate(t *testing.T) {
	long := strings.Repeat("a", 63)
	for _, tc := range []struct {
		name   string
		change func(*InfraClusterAttachment)
		want   []string
	}{
		{"as it should be", func(*InfraClusterAttachment) {}, nil},
		{"dots in the cluster name", func(a *InfraClusterAttachment) { a.Spec.DNS.ClusterName = "a.b" }, nil},
		{"underscore", func(a *InfraClusterAttachment) { a.Spec.DNS.ClusterName = "a_b" }, []string{`- Invalid spec.dns.clusterName: "a_b" is not a DNS name: its label "a_b"`}},
		{"wildcard", func(a *InfraClusterAttachment) { a.Spec.DNS.BaseDomain = "*.example.com" }, []string{"- Invalid spec.dns.baseDomain: "}},
		{"two dots", func(a *InfraClusterAttachment) { a.Spec.DNS.BaseDomain = "example..com" }, []string{`- Invalid spec.dns.baseDomain: "example..com" is not a DNS name: it has an empty label`}},
		{"long label", func(a *InfraClusterAttachment) { a.Spec.DNS.ClusterName = long + "a" }, []string{"- Invalid spec.dns.clusterName: "}},
		{"no room for konnectivity", func(a *InfraClusterAttachment) {
			a.Spec.DNS.BaseDomain = strings.Join([]string{long, long, long, strings.Repeat("b", 241-2-3*64)}, ".")
		}, []string{"- Invalid spec.dns.baseDomain: the domain a." + long}},
		{"just room for konnectivity", func(a *InfraClusterAttachment) {
			a.Spec.DNS.BaseDomain = strings.Join([]string{long, long, long, strings.Repeat("b", 240-2-3*64)}, ".")
		}, nil},
		{"an alias", func(a *InfraClusterAttachment) {
			a.Spec.DNS = AttachmentDNS{"Kubernetes", "default.svc.cluster.local."}
		}, []string{"- Invalid spec.dns.clusterName: the domain kubernetes.default.svc.cluster.local is"}},
		{"below an alias", func(a *InfraClusterAttachment) { a.Spec.DNS = AttachmentDNS{"a", "kubernetes"} }, []string{"- Invalid spec.dns.clusterName: the domain a.kubernetes is"}},
		{"beside an alias", func(a *InfraClusterAttachment) { a.Spec.DNS = AttachmentDNS{"a", "default.svc.cluster.local"} }, nil},
		{"derived namespace too long", func(a *InfraClusterAttachment) { a.Spec.HostedClusterRef.Name = strings.Repeat("a", 55) }, []string{"- Invalid spec.controlPlaneNamespace: the derived namespace"}},
		{"derived namespace overridden", func(a *InfraClusterAttachment) {
			a.Spec.HostedClusterRef.Name, a.Spec.ControlPlaneNamespace = strings.Repeat("a", 55), "clusters-a"
		}, nil},
		{"dots in the HostedCluster's name", func(a *InfraClusterAttachment) { a.Spec.HostedClusterRef.Name = "a.b" }, nil},
		{"another target", func(a *InfraClusterAttachment) { a.Spec.APIServerService = "oauth-openshift" }, []string{"- Invalid spec.apiServerService: oauth-openshift is not an API server"}},
		{"external services", func(a *InfraClusterAttachment) {
			a.Spec.ExternalService = &ExternalService{Enabled: true, Services: []PublicName{"oauth", "console", "oauth"}, Labels: map[string]string{"a b": "c d"}}
		}, []string{
			`- Invalid spec.externalService.labels: "a b" is not a valid key`, `- Invalid spec.externalService.labels: "c d" is not a valid value of a b`,
			`- Invalid spec.externalService.services[1]: "console" is not one of the five names`, "- Invalid spec.externalService.services[2]: oauth is already entry 0",
		}},
		{"no room for the Service's name", func(a *InfraClusterAttachment) {
			a.Name, a.Spec.ExternalService = strings.Repeat("a", 49), &ExternalService{Enabled: true}
		}, []string{"- Invalid spec.externalService.enabled: the Service would be named"}},
		{"apps without a pool", func(a *InfraClusterAttachment) { a.Spec.AppsIngress = &AppsIngress{Enabled: true} }, []string{"- Invalid spec.appsIngress.metallb.addressPoolName: is empty"}},
		{"apps off", func(a *InfraClusterAttachment) { a.Spec.AppsIngress = &AppsIngress{} }, nil},
		{"apps range reversed", func(a *InfraClusterAttachment) {
			a.Spec.AppsIngress = &AppsIngress{MetalLB: AppsMetalLB{IPAddressPoolRange: "192.0.2.9-192.0.2.1"}}
		}, []string{`- Invalid spec.appsIngress.metallb.ipAddressPoolRange: "192.0.2.9-192.0.2.1" is reversed: write 192.0.2.1-192.0.2.9`}},
		{"apps under the name of a target", func(a *InfraClusterAttachment) {
			a.Spec.AppsIngress = &AppsIngress{Enabled: true, MetalLB: AppsMetalLB{AddressPoolName: "a"}, Service: AppsService{Name: "kube-apiserver"}}
		}, []string{"- Invalid spec.appsIngress.service.name: kube-apiserver is the name of a target of the control plane"}},
		{"apps that are off under the name of a target", func(a *InfraClusterAttachment) {
			a.Spec.AppsIngress = &AppsIngress{Service: AppsService{Name: "kube-apiserver"}}
		}, nil},
		{"an API server under the name of apps", func(a *InfraClusterAttachment) {
			a.Spec.APIServerService, a.Spec.AppsIngress = "oooi-ingress", &AppsIngress{Enabled: true, MetalLB: AppsMetalLB{AddressPoolName: "a"}}
		}, []string{"- Invalid spec.appsIngress.service.name: oooi-ingress is the name of a target of the control plane"}},
		{"one port for both", func(a *InfraClusterAttachment) {
			a.Spec.AppsIngress = &AppsIngress{Ports: AppsPorts{HTTP: 443}}
		}, []string{"- Invalid spec.appsIngress.ports.https: 443 is the port of http as well"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := goodAttachment()
			tc.change(a)
			compare(t, a.Validate(), tc.want)
		})
	}
}

func TestParseAddressRange(t *testing.T) {
	for _, line := range []string{
		"192.0.2.200-192.0.2.209 -> 192.0.2.200 192.0.2.209",
		"192.0.2.200 - 192.0.2.200 -> 192.0.2.200 192.0.2.200",
		"192.0.2.200/29 -> 192.0.2.200 192.0.2.207",
		"192.0.2.200/32 -> 192.0.2.200 192.0.2.200",
		"0.0.0.0/0 -> 0.0.0.0 255.255.255.255",
		"192.0.2.201/29 -> error: 192.0.2.201/29 has host bits set: write 192.0.2.200/29",
		`192.0.2.9-192.0.2.1 -> error: "192.0.2.9-192.0.2.1" is reversed: write 192.0.2.1-192.0.2.9`,
		`2001:db8::/64 -> error: "2001:db8::/64" is an IPv6 range: only IPv4 is supported`,
		`2001:db8::1-2001:db8::2 -> error: "2001:db8::1-2001:db8::2" is an IPv6 range: only IPv4 is supported`,
		`192.0.2.9 -> error: "192.0.2.9" is not a range: write first-last or a CIDR, for example 192.0.2.200-192.0.2.209`,
		`192.0.2.9- -> error: "192.0.2.9-" is not a range: write first-last or a CIDR, for example 192.0.2.200-192.0.2.209`,
		`192.0.2.9/33 -> error: "192.0.2.9/33" is not a CIDR: write network/length or first-last, for example 192.0.2.200-192.0.2.209`,
	} {
		in, want, _ := strings.Cut(line, " -> ")
		first, last, err := ParseAddressRange(in)
		got := fmt.Sprintf("%s %s", first, last)
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want {
			t.Errorf("%s -> %s, want %s", in, got, want)
		}
	}
}

func FuzzParseAddressRange(f *testing.F) {
	for _, s := range []string{"192.0.2.200-192.0.2.209", "192.0.2.0/24", "0.0.0.0/0", "-", "/", "::/0", "::ffff:1.2.3.4/120"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		first, last, err := ParseAddressRange(s)
		if err != nil {
			if first != (netip.Addr{}) || last != (netip.Addr{}) {
				t.Errorf("%q: addresses beside the error", s)
			}
			return
		}
		if !first.Is4() || !last.Is4() || last.Less(first) {
			t.Errorf("%q -> %s-%s", s, first, last)
		}
	})
}

func TestNamesFoldAsTheWireDoes(t *testing.T) {
	for in, want := range map[string]string{
		" API.Example.COM. ":   "api.example.com",
		"\u212Aubernetes":      "\u212Aubernetes", // the Kelvin sign is no K
		"\u0130nfra.example":   "\u0130nfra.example",
		"\u00A0api.example":    "\u00A0api.example",
		"bad\xff.Example\xfe.": "bad\xff.example\xfe",
	} {
		if got := NormalizeDomain(in); got != want {
			t.Errorf("NormalizeDomain(%q) = %q, want %q", in, got, want)
		}
	}
}
