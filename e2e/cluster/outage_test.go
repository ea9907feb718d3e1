package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// afterReturn runs a condition until it holds, for longer than within: clients that found nobody at the API's address
// back off for up to half a minute.
func afterReturn(t *testing.T, what string, conditions ...func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	must(t, stack.Until(ctx, what, all(conditions...)))
}

// isStale is a condition: the process says that it serves what it served last, or that it does not.
func (p *process) isStale(want bool) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := p.status(ctx)
		if err == nil && s.Stale != want {
			err = fmt.Errorf("%s is stale: %t, want %t", p.name, s.Stale, want)
		}
		return err
	}
}

// lease gets an address for a client over a relay in the VLAN.
func (v vlan) lease(ctx context.Context, client byte) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	relay := stack.Relay{
		Address: netip.AddrPortFrom(netip.MustParseAddr(v.address(240)), portDHCP),
		Server:  netip.AddrPortFrom(netip.MustParseAddr(v.address(2)), portDHCP),
	}
	ack, err := relay.Lease(ctx, net.HardwareAddr{2, 0, 0, 0, 0, client})
	if err != nil {
		return "", err
	}
	return ack.YourIPAddr.String(), nil
}

// leases is a condition: a client gets an address by DHCP; the one that is wanted, unless that is empty.
func (v vlan) leases(client byte, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := v.lease(ctx, client)
		if err == nil && want != "" && got != want {
			err = fmt.Errorf("client %d got %s, want %s", client, got, want)
		}
		return err
	}
}

// TestAPIAway takes the API away, by a crash and by a freeze, and restarts the serving process meanwhile.
func TestAPIAway(t *testing.T) {
	t.Parallel()
	for _, way := range []struct {
		name       string
		take, give func(*testing.T, *site)
		// away is how long at least: a minute lets watches, Leases and back-offs run out.
		away time.Duration
	}{
		{"killed", func(t *testing.T, s *site) { must(t, s.APIServer.Kill()) }, func(t *testing.T, s *site) { must(t, s.APIServer.Start(t.Context())) }, time.Minute},
		{"frozen", func(t *testing.T, s *site) { must(t, s.APIServer.Freeze()) }, func(t *testing.T, s *site) { must(t, s.APIServer.Thaw()) }, 5 * time.Second},
	} {
		t.Run(way.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t).withNeighbours(t)
			s.deploy(t, byHand)
			hub, serving := s.newHub(t).start(t), s.newServing(t)
			w := s.serveTwoClusters(t, serving)
			v := w.vlan
			known, err := v.lease(t.Context(), 1)
			must(t, err)
			within(t, "what is served to be kept", serving.keepsGenerations(w.generations))
			stop := w.asking(t, false)

			way.take(t, s)
			began := time.Now()
			within(t, "names, routes and leases without the API", w.everyRoute(), v.leases(1, known), v.leases(2, ""))
			w.alive(t)
			stop()

			stop = w.asking(t, true) // nobody answers while the process is away
			serving.kill(t)
			serving.launch(t)
			within(t, "what was served last", serving.isStale(true), serving.ready)
			stop()
			stop = w.asking(t, false)
			within(t, "names, routes and leases after a restart", w.everyRoute(), v.leases(1, known), v.leases(3, ""))
			if !strings.Contains(serving.run.Log(), "serving what was served last") {
				t.Errorf("the log does not say that it serves what it served last:\n%s", serving.run.Tail(20))
			}
			afterReturn(t, "the API to be away for long enough", func(context.Context) error {
				if rest := way.away - time.Since(began); rest > 0 {
					return fmt.Errorf("%s more", rest)
				}
				return nil
			})
			w.alive(t)
			if after := w.count(t); after["listener_manager.lds.update_success"] != w.counters["listener_manager.lds.update_success"] {
				t.Errorf("Envoy was sent listeners anew over the restart: %d, then %d", w.counters["listener_manager.lds.update_success"], after["listener_manager.lds.update_success"])
			}

			way.give(t, s)
			afterReturn(t, "the API's return", serving.isStale(false), hub.leads(true))
			w.untouched(t, "the API is back")
			stop()

			// Changes made right after the return arrive complete, and cut nobody off.
			way.take(t, s)
			within(t, "names and routes without the API", w.everyRoute())
			way.give(t, s)
			s.startBackends(t, "example-hcp-c", 3)
			s.apply(t, s.anotherCluster(t, v, "example-hcp-c", 3, 140))
			afterReturn(t, "the new cluster",
				v.resolves("api.example-hcp-c.clusters.example.com", v.address(4)),
				s.answers(v.call(140, "kubernetes", portHTTPS), "example-hcp-c/kube-apiserver"),
				s.answers(v.call(119, "ignition.example-hcp-c.clusters.example.com", portHTTPS), "example-hcp-c/ignition-server-proxy"),
				w.everyRoute(),
				s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"))
			w.alive(t)
			after := w.count(t)
			for _, name := range []string{"listener_manager.listener_removed", "cluster_manager.cluster_removed", "listener_manager.lds.update_rejected", "cluster_manager.cds.update_rejected"} {
				if after[name] != w.counters[name] {
					t.Errorf("Envoy's %s went from %d to %d: a part of the world was taken away on the way", name, w.counters[name], after[name])
				}
			}
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// listens tells where a process of a VLAN listens, apart from its status.
func (p *process) listens(v vlan) []string {
	var open []string
	if c, err := net.DialTimeout("tcp4", p.XDS, time.Second); err == nil {
		_ = c.Close() // only opened
		open = append(open, "xDS "+p.XDS)
	}
	for name, address := range map[string]string{"DNS": v.dns(), "DHCP": fmt.Sprintf("%s:%d", v.address(2), portDHCP)} {
		// Nobody has the port when it can be had.
		if c, err := net.ListenPacket("udp4", address); err != nil {
			open = append(open, name+" "+address)
		} else {
			_ = c.Close() // only opened
		}
	}
	return open
}

// TestStartWithoutAPI starts the serving process while the API is away and there is nothing to serve instead, or something
// that cannot be trusted.
func TestStartWithoutAPI(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t, byHand)
	hub := s.newHub(t).start(t)
	v := s.vlan(1)
	s.apply(t, s.page(t, v), s.neighbours(t, v))
	within(t, "the children", s.there(ours("ProxyServer", infra+"-proxy")), s.there(ours("DNSServer", infra+"-dns")), s.there(ours("DHCPServer", infra+"-dhcp")))
	good := s.newServing(t).start(t)
	within(t, "the page", v.resolves("api.example-hcp-a.clusters.example.com", v.address(4)), good.keeps("kubernetes", v.address(118)))
	must(t, good.run.Stop())
	whole, err := os.ReadFile(good.kept())
	must(t, err)
	cases := []struct {
		name, saved string
		serving     *process
	}{
		{name: "nothing"},
		{name: "torn", saved: string(whole[:len(whole)/2])},
		{name: "empty", saved: " "},
		{name: "other", saved: "<html>\n"},
		{name: "flipped", saved: strings.Replace(string(whole), v.address(4), v.address(5), 1)},
		{name: "null", saved: "null"},
	}
	for i := range cases {
		cases[i].serving = s.newServing(t)
	}
	late := s.newServing(t)
	must(t, s.APIServer.Kill())
	t.Run("away", func(t *testing.T) {
		for _, c := range cases {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel()
				c.serving.servesNothing(t, v, c.saved)
			})
		}
	})

	// Whatever was kept, the API's return heals it.
	late.keep(t, string(whole[:len(whole)/2]))
	late.launch(t)
	must(t, s.APIServer.Start(t.Context()))
	afterReturn(t, "the API's return", late.ready, late.isStale(false), v.resolves("api.example-hcp-a.clusters.example.com", v.address(4)))
	if now, err := os.ReadFile(late.kept()); err != nil || len(now) < len(whole) {
		t.Errorf("what is kept is still torn: %d bytes (%v)", len(now), err)
	}
	within(t, "the hub", hub.ready)
}

// kept is the file of what was served last.
func (p *process) kept() string { return filepath.Join(p.state, "children.json") }

// keeps is a condition: the file holds each text.
func (p *process) keeps(texts ...string) func(context.Context) error {
	return func(context.Context) error {
		kept, err := os.ReadFile(p.kept())
		if err != nil {
			return err
		}
		for _, text := range texts {
			if !strings.Contains(string(kept), text) {
				return fmt.Errorf("%s does not hold %s", p.kept(), text)
			}
		}
		return nil
	}
}

// keepsGenerations is a condition: what is kept for a start without the API are the children of these generations, by kind.
func (p *process) keepsGenerations(want map[string]int64) func(context.Context) error {
	return func(context.Context) error {
		raw, err := os.ReadFile(p.kept())
		if err != nil {
			return err
		}
		type child struct{ Metadata metav1.ObjectMeta }
		var kept struct {
			Children []struct{ DHCP, DNS, Proxy child }
		}
		if err := json.Unmarshal(raw, &kept); err != nil {
			return err
		}
		if len(kept.Children) != 1 {
			return fmt.Errorf("%d Infras are kept", len(kept.Children))
		}
		c := kept.Children[0]
		for kind, child := range map[string]child{"DHCPServer": c.DHCP, "DNSServer": c.DNS, "ProxyServer": c.Proxy} {
			if child.Metadata.Generation != want[kind] {
				return fmt.Errorf("the %s of generation %d is kept, not %d", kind, child.Metadata.Generation, want[kind])
			}
		}
		return nil
	}
}

// keep writes that file.
func (p *process) keep(t *testing.T, text string) {
	t.Helper()
	must(t, os.MkdirAll(p.state, 0o700))
	must(t, os.WriteFile(p.kept(), []byte(text), 0o600))
}

// servesNothing starts the process without the API, and with something in its state folder that is not to be trusted.
func (p *process) servesNothing(t *testing.T, v vlan, saved string) {
	t.Helper()
	if saved != "" {
		p.keep(t, saved)
	}
	p.launch(t)
	within(t, "a clear word", func(ctx context.Context) error {
		select {
		case <-p.run.Done():
			return stack.Final(fmt.Errorf("it ended:\n%s", p.run.Tail(5)))
		default:
		}
		log := p.run.Log()
		if strings.Contains(log, "serving what was served last") {
			return stack.Final(errors.New("it serves what it cannot trust"))
		}
		for line := range strings.Lines(log) {
			if strings.Contains(line, "level=ERROR") && strings.Contains(line, "nothing is served yet") && strings.Contains(line, p.kept()) {
				return nil
			}
		}
		return errors.New("its log does not say that nothing is served, and why")
	})
	if open := p.listens(v); len(open) > 0 {
		t.Errorf("it listens: %v", open)
	}
	if err := p.ready(t.Context()); err == nil {
		t.Error("it says that it is ready")
	}
	if status, err := p.status(t.Context()); err != nil || status.Stale {
		t.Errorf("its status: %+v (%v), want one that is not stale: it serves nothing", status, err)
	}
	must(t, p.run.Stop())
}

// TestWatchesExpire freezes hub and servers while the world goes on and the API server starts anew: it no longer knows the
// versions that their watches ask for (410 Gone).
func TestWatchesExpire(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t, byHand)
	hub, serving := s.newHub(t).start(t), s.newServing(t)
	w := s.serveTwoClusters(t, serving)
	v := w.vlan
	w.aWorkerComes(t, "goes", 150)

	machines := s.Dynamic.Resource(schema.GroupVersionResource{Group: "cluster.x-k8s.io", Version: "v1beta2", Resource: "machines"})
	seen, err := machines.List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, p := range []*process{hub, serving} {
		p.signal(t, syscall.SIGSTOP)
	}
	s.startBackends(t, "example-hcp-c", 3)
	s.apply(t, s.anotherCluster(t, v, "example-hcp-c", 3, 140))
	s.remove(t, refers("cluster.x-k8s.io/v1beta2", "Machine", "clusters-example-hcp-b/goes"))
	must(t, s.APIServer.Kill())
	must(t, s.APIServer.Start(t.Context()))
	must(t, expired(t.Context(), machines, seen.GetResourceVersion()))
	for _, p := range []*process{serving, hub} {
		p.signal(t, syscall.SIGCONT)
	}
	afterReturn(t, "what happened meanwhile",
		s.answers(v.call(140, "kubernetes", portHTTPS), "example-hcp-c/kube-apiserver"),
		s.answers(v.call(150, "kubernetes", portHTTPS), "closed"),
		w.everyRoute(),
		s.says("Infra", infra, v1alpha1.ConditionReady, "True Ready"))
	w.alive(t)
	w.aWorkerComes(t, "later", 151)
	w.alive(t)
}

// expired is nil when a watch from a version is told 410 Gone: in an event of the stream, as an API server does it.
func expired(ctx context.Context, resource dynamic.ResourceInterface, version string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	watch, err := resource.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	defer watch.Stop()
	event := <-watch.ResultChan()
	if err := apierrors.FromObject(event.Object); event.Type != apiwatch.Error || !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		return fmt.Errorf("a watch from the old version %s gets %q and not 410 Gone: the test would prove nothing", version, event.Type)
	}
	return nil
}

// slowLink is a TCP relay to the API server that passes so many bytes a second to its clients.
type slowLink struct {
	address  string
	listener net.Listener
	running  sync.WaitGroup
}

func newSlowLink(t *testing.T, to string, bytesPerSecond int) *slowLink {
	t.Helper()
	listener, err := net.Listen("tcp4", "127.0.0.1:0")
	must(t, err)
	l := &slowLink{address: listener.Addr().String(), listener: listener}
	ctx, cancel := context.WithCancel(context.Background())
	l.running.Go(func() {
		for {
			client, err := listener.Accept()
			if err != nil {
				return
			}
			server, err := net.Dial("tcp4", to)
			if err != nil {
				_ = client.Close() // the client sees it
				continue
			}
			hangUp := sync.OnceFunc(func() { _, _ = client.Close(), server.Close() })
			stop := context.AfterFunc(ctx, hangUp)
			l.running.Go(func() {
				defer stop()
				defer hangUp()
				buffer := make([]byte, 64<<10)
				for {
					n, err := client.Read(buffer)
					if err != nil {
						return
					}
					if _, err := server.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
			l.running.Go(func() {
				defer hangUp()
				buffer := make([]byte, max(1, bytesPerSecond/20))
				ticker := time.NewTicker(time.Second / 20)
				defer ticker.Stop()
				for range ticker.C {
					n, err := server.Read(buffer)
					if err != nil {
						return
					}
					if _, err := client.Write(buffer[:n]); err != nil {
						return
					}
				}
			})
		}
	})
	t.Cleanup(func() {
		_ = listener.Close() // ends Accept
		cancel()
		l.running.Wait()
	})
	return l
}

// TestSlowLists starts a hub and a serving process behind a link so slow that some kinds are read seconds before
// others: what they do not know yet must not look like something that is gone.
func TestSlowLists(t *testing.T) {
	t.Parallel()
	s := newSite(t).withNeighbours(t)
	s.deploy(t, byHand)
	hub, serving := s.newHub(t).start(t), s.newServing(t)
	w := s.serveTwoClusters(t, serving)
	stop := w.asking(t, true)
	mark, err := s.Mark()
	must(t, err)

	link := newSlowLink(t, strings.TrimPrefix(s.URL(), "https://"), 24<<10)
	behind := func(p *process) *process {
		t.Helper()
		i := 0
		for j, a := range p.Args {
			if a == "--kubeconfig" {
				i = j + 1
			}
		}
		config, err := clientcmd.LoadFromFile(p.Args[i])
		must(t, err)
		for _, c := range config.Clusters {
			c.Server = "https://" + link.address
		}
		file := filepath.Join(s.Folder, p.name+".slow.kubeconfig")
		must(t, clientcmd.WriteToFile(*config, file))
		p.Args[i] = file
		return p
	}
	must(t, hub.run.Stop())
	must(t, serving.run.Stop())
	behind(hub).launch(t)
	behind(serving).launch(t)
	within(t, "the hub behind the slow link", hub.ready, hub.leads(true))
	within(t, "the servers behind the slow link", serving.ready, serving.isStale(false), w.everyRoute(),
		s.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged"))
	w.untouched(t, "hub and servers read the world slowly")
	stop()
	requests, err := s.Requests(mark)
	must(t, err)
	for _, r := range requests {
		if r.Write() && r.User == hubAccount && r.Subresource == "" && r.Group == v1alpha1.GroupVersion.Group {
			t.Errorf("the hub wrote a child though nothing had changed: %s", r)
		}
	}
	w.aWorkerComes(t, "slowly", 160)
	w.alive(t)
}
