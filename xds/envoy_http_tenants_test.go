package xds

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/densityops/oooi/api/v1alpha1"
)

// appsAs are the apps of a tenant under the name of any attachment.
func appsAs(name, tenant, vip string, port int32) []v1alpha1.Backend {
	backends := apps(tenant, vip, 443, port)
	for i := range backends {
		b := &backends[i]
		b.Name, b.Attachment = name+strings.TrimPrefix(b.Name, tenant), name
	}
	return backends
}

// However clusters, internal listeners and routes of two states meet in an Envoy, none answers for another tenant.
func TestEnvoyAnswersNothingWhereClustersAndRoutesDisagree(t *testing.T) {
	ip := loopbacks(4)
	serverIP, client := ip[0], ip[3]
	ports := map[string]int32{"a": startApp(t, "a", ip[1], 0), "b": startApp(t, "b", ip[2], 0)}
	vip := map[string]string{"a": ip[1], "b": ip[2]}
	state := func(one, two string) *Snapshot {
		return mustBuild(t, proxyServer(serverIP, appsAs("one", one, vip[one], ports[one]), appsAs("two", two, vip[two], ports[two])), Options{PortOffset: portOffset})
	}
	mixed := func(clusters, listeners, routes *Snapshot) *Snapshot {
		return &Snapshot{version: "mixed", sets: map[string]*resourceSet{
			clusterType: clusters.sets[clusterType], endpointType: clusters.sets[endpointType],
			listenerType: listeners.sets[listenerType], routeType: routes.sets[routeType],
		}}
	}
	before, after := state("a", "b"), state("b", "a")
	s := startServer(t, "127.0.0.1:0")
	s.Apply(testInfra, before)
	startEnvoy(t, "pod-1", s.address)
	waitAcknowledged(t, s.Server)
	kept := dialHTTP(t, client, serverIP) // with connections to both apps behind it
	for _, step := range []struct {
		what  string
		snap  *Snapshot
		agree bool
	}{
		{"before", before, true},
		{"clusters ahead", mixed(after, before, before), false},
		{"back", before, true},
		{"routes ahead", mixed(before, after, after), false},
		{"back again", before, true},
		{"internal listeners ahead", mixed(before, after, before), false},
		{"internal listeners behind", mixed(after, before, after), false},
		{"after", after, true},
	} {
		s.Apply(testInfra, step.snap)
		waitAcknowledged(t, s.Server)
		for name := range vip {
			host, want := "x.apps."+name+".clusters.example.com", name
			if !step.agree {
				want = "503"
			}
			if got := answersTo(t, client, serverIP, host); got != want {
				t.Errorf("%s: for %s %s answers, want %s", step.what, name, got, want)
			}
			response, answer := kept.ask(t, "GET / HTTP/1.1\r\nHost: "+host+"\r\n\r\n")
			// A connection to the right app that is there already may serve until its chain has drained.
			if got := answer.App; got != name && (step.agree || got != "" || !strings.HasPrefix(response.Status, want)) {
				t.Errorf("%s: on a connection of before, for %s %q answers, %s; want %s", step.what, name, got, response.Status, want)
			}
		}
	}
}

// Attachments swap their tenants and VIPs, lose their apps and get them back, all while everybody asks.
func TestEnvoyNeverAnswersHTTPForAnotherTenant(t *testing.T) {
	for _, protocol := range []string{"DELTA_GRPC", "GRPC"} {
		t.Run(protocol, func(t *testing.T) {
			ip := loopbacks(5)
			serverIP, client := ip[0], ip[4]
			tenants := []string{"a", "b", "c"}
			vip, port := map[string]string{}, map[string]int32{}
			for i, name := range tenants {
				vip[name], port[name] = ip[1+i], startApp(t, name, ip[1+i], 0)
			}
			rnd := rand.New(rand.NewPCG(17, 17))
			state := func(all bool) *Snapshot {
				names := []string{"one", "two", "three"}
				rnd.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
				var attached [][]v1alpha1.Backend
				for i, name := range tenants {
					if all || rnd.IntN(4) > 0 {
						attached = append(attached, appsAs(names[i], name, vip[name], port[name]))
					}
				}
				return mustBuild(t, proxyServer(serverIP, attached...), Options{PortOffset: portOffset})
			}
			s := startServer(t, "127.0.0.1:0")
			s.Apply(testInfra, state(true))
			e := startEnvoy(t, "pod-1", s.address, func(config string) string { return strings.Replace(config, "DELTA_GRPC", protocol, 1) })
			waitAcknowledged(t, s.Server)

			stop := make(chan struct{})
			var mu sync.Mutex
			answers := map[string]int{}
			var wg sync.WaitGroup
			halt := sync.OnceFunc(func() {
				close(stop)
				wg.Wait()
			})
			defer halt()
			for worker := range 4 {
				wg.Go(func() {
					// Keep-alive, so that requests of all tenants share connections.
					transport := &http.Transport{DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(client)}}).DialContext}
					defer transport.CloseIdleConnections()
					c := &http.Client{Transport: transport, Timeout: patience}
					for i := worker; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						want := tenants[i%len(tenants)]
						got := ask(c, serverIP, "x.apps."+want+".clusters.example.com")
						mu.Lock()
						answers[got]++
						mu.Unlock()
						if got != want && got != "404" && got != "503" && got != "none" {
							t.Errorf("for %s %s answers", want, got)
						}
					}
				})
			}
			for i := range 40 {
				s.Apply(testInfra, state(false))
				if i%4 != 3 { // else the next change comes while this one is under way
					waitAcknowledged(t, s.Server)
				}
			}
			s.Apply(testInfra, state(true))
			waitAcknowledged(t, s.Server)
			halt()
			t.Logf("answers: %v", answers)
			for _, name := range tenants {
				if answers[name] == 0 {
					t.Errorf("tenant %s was never reached, so that nothing is shown: %v", name, answers)
				}
				if got := answersTo(t, client, serverIP, "x.apps."+name+".clusters.example.com"); got != name {
					t.Errorf("in the end %s answers for %s", got, name)
				}
			}
			if n := e.stat("cluster_manager.cds.update_rejected") + e.stat("listener_manager.lds.update_rejected") + e.stat("http.apps-http.rds.apps-http.update_rejected"); n != 0 {
				t.Errorf("Envoy rejected %d updates", n)
			}
		})
	}
}

// ask is who answers: an app, a status, or none.
func ask(c *http.Client, server, host string) string {
	request, err := http.NewRequest(http.MethodGet, "http://"+listenerAddress(server, 80)+"/", http.NoBody)
	if err != nil {
		return err.Error()
	}
	request.Host = host
	response, err := c.Do(request)
	if err != nil {
		return "none" // nobody listens while nobody has apps
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	switch {
	case err != nil:
		return "none"
	case response.StatusCode != http.StatusOK:
		return fmt.Sprint(response.StatusCode)
	}
	for _, name := range []string{"a", "b", "c"} {
		if strings.Contains(string(body), `"App":"`+name+`"`) {
			return name
		}
	}
	return string(body)
}
