package leases_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
	"github.com/densityops/oooi/dhcpserver/storetest"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/watch/leases"
	"github.com/densityops/oooi/watch/serving"
)

// leaseProcess tells the test binary to put leases with that kubeconfig until it is killed.
const leaseProcess = "OOOI_TEST_LEASE_KUBECONFIG"

// infraUID is that of every Infra here.
const infraUID = "8f2c6f5e-0000-4000-8000-000000000001"

// child is the DHCPServer of an Infra, which nobody has to have written.
func child(infra string) *v1alpha1.DHCPServer {
	yes := true
	d := &v1alpha1.DHCPServer{ObjectMeta: metav1.ObjectMeta{
		Namespace: "clusters", Name: v1alpha1.DHCPServerName(infra),
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "Infra", Name: infra, UID: infraUID, Controller: &yes,
		}},
	}}
	d.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{CIDR: "127.0.67.0/24", Gateway: "127.0.67.1", ServerIP: "127.0.67.2"}
	d.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "127.0.67.100", RangeEnd: "127.0.67.109", LeaseTime: "1h"}
	return d
}

// lab is an Infra of an API server, and the time of the processes that serve it.
type lab struct {
	*controlplane.ControlPlane
	infra string
	mu    sync.Mutex
	ahead time.Duration // what the processes' clocks are ahead of the real one
	set   time.Duration // what of that is not time that has passed
}

// began is when the processes' hosts started.
var began = time.Now()

// TestLeases runs all that needs an API server with one: it takes long to start.
func TestLeases(t *testing.T) {
	l := &lab{ControlPlane: controlplane.ForTest(t)}
	if err := l.InstallOwn(t.Context()); err != nil {
		t.Fatal(err)
	}
	l.apply(t, "{apiVersion: v1, kind: Namespace, metadata: {name: clusters}}")
	// The first object of a new kind takes the API server seconds.
	l.apply(t, `{apiVersion: hostedcluster.densityops.com/v1alpha1, kind: DHCPLease, metadata: {name: first-192-0-2-1, namespace: clusters},
spec: {address: 192.0.2.1, mac: "02:00:00:00:00:01", start: "2026-03-01T12:00:00Z", expires: "2026-03-01T13:00:00Z", state: active}}`)
	for name, test := range map[string]func(*testing.T, *lab){
		"conformance":             testStore,
		"the object":              testTheObjectOfALease,
		"deleted by hand":         testADeletedLeaseIsPutBack,
		"the API away":            testTheAPIAway,
		"the API frozen":          testTheAPIFrozen,
		"renewed by both":         testRenewedByBoth,
		"a standby knows all":     testAStandbyKnowsAll,
		"nothing known":           testNothingKnown,
		"a third pod":             testAThirdPod,
		"a damaged state folder":  testADamagedStateFolder,
		"through the DHCP server": testThroughTheServer,
		"the clock is set":        testTheClockIsSet,
		"renewed all the time":    testRenewedAllTheTime,
		"the API refuses":         testTheAPIRefuses,
	} {
		t.Run(name, func(t *testing.T) {
			test(t, &lab{ControlPlane: l.ControlPlane, infra: strings.ReplaceAll(strings.ToLower(name), " ", "-")})
		})
	}
}

func (l *lab) apply(t *testing.T, manifest string) {
	t.Helper()
	if _, err := l.Apply(t.Context(), "test", []byte(manifest)); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) now() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.ahead)
}

func (l *lab) boottime() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Since(began) + l.ahead - l.set
}

// advance lets time pass.
func (l *lab) advance(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead += d
}

// setClock sets the clock: no time passes.
func (l *lab) setClock(by time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ahead += by
	l.set += by
}

// pod is a process of one pod: Leases and, where it is the holder, a server.
type pod struct {
	*leases.Store
	lab      *lab
	log      *lines
	registry *prometheus.Registry
	stop     func()
}

// lines is a log that can be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// start starts a process with a state folder. Its end is that of the test, or stop.
func (l *lab) start(t *testing.T, dir string, config *rest.Config) *pod {
	t.Helper()
	p := &pod{lab: l, log: &lines{}, registry: prometheus.NewRegistry()}
	var err error
	p.Store, err = leases.New(leases.Config{
		REST: config, Log: slog.New(slog.NewTextHandler(p.log, nil)), Registerer: p.registry,
		Infra: types.NamespacedName{Namespace: "clusters", Name: l.infra}, Child: func() *v1alpha1.DHCPServer { return child(l.infra) }, StateDir: dir, Clock: l.now, Boottime: l.boottime,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := errors.Join(<-done, p.Close()); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Log(p.log)
		}
	})
	t.Cleanup(p.stop)
	return p
}

// testStore holds Leases to the contract of every store.
func testStore(t *testing.T, l *lab) {
	kubeconfig, err := l.AdminKubeconfig()
	if err != nil {
		t.Fatal(err)
	}
	storetest.Run(t, storetest.Medium{
		Open: func(t *testing.T) dhcpserver.Store { return l.start(t, t.TempDir(), l.AdminConfig()).Store },
		Process: func(t *testing.T) *exec.Cmd {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), leaseProcess+"="+kubeconfig, "TMPDIR="+t.TempDir(), "OOOI_TEST_INFRA="+l.infra)
			return cmd
		},
		Shared: true,
	})
}

func putUntilKilled(kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "leases-")
	if err != nil {
		return err
	}
	infra := os.Getenv("OOOI_TEST_INFRA")
	leases, err := leases.New(leases.Config{
		REST: config, Log: slog.Default(), Registerer: prometheus.NewRegistry(), StateDir: dir, Clock: time.Now,
		Infra: types.NamespacedName{Namespace: "clusters", Name: infra}, Child: func() *v1alpha1.DHCPServer { return child(infra) },
	})
	if err != nil {
		return err
	}
	return storetest.PutUntilKilled(context.Background(), leases, os.Stdout)
}

var leaseResource = v1alpha1.GroupVersion.WithResource("dhcpleases")

// object is a DHCPLease as it is in the API.
func (l *lab) object(t *testing.T, addr string) *unstructured.Unstructured {
	t.Helper()
	o, err := l.leases().Get(t.Context(), v1alpha1.DHCPLeaseName(l.infra, addr), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func field(o *unstructured.Unstructured, path ...string) string {
	value, _, _ := unstructured.NestedString(o.Object, path...)
	return value
}

// until waits for a condition.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	for !is() {
		if time.Now().After(deadline) {
			t.Fatalf("waited a minute in vain: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func mac(client byte) dhcpserver.MAC { return dhcpserver.MAC{2, 0, 0, 0, 0, client} }

// active is a lease from now on, for an hour.
func (l *lab) active(addr string, client byte) dhcpserver.Lease {
	now := l.now().Round(0)
	return dhcpserver.Lease{
		Address: netip.MustParseAddr(addr), MAC: mac(client), Start: now, Expires: now.Add(time.Hour), State: dhcpserver.StateActive,
	}
}

func (p *pod) load(t *testing.T) map[string]dhcpserver.Lease {
	t.Helper()
	all, err := p.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	byAddr := map[string]dhcpserver.Lease{}
	for _, lease := range all {
		byAddr[lease.Address.String()] = lease
	}
	return byAddr
}

// put puts leases, again while the API cannot be reached in time: it is slow when there is much to do.
func (p *pod) put(t *testing.T, leases ...dhcpserver.Lease) {
	t.Helper()
	until(t, "leases are put", func() bool {
		errs := p.Put(t.Context(), leases)
		for _, err := range errs {
			if err != nil && !errors.Is(err, dhcpserver.ErrUnreachable) {
				t.Fatal(errs)
			}
		}
		return errs == nil
	})
}

// refuses is the error of a lease that is not given.
func (p *pod) refuses(t *testing.T, lease dhcpserver.Lease) error {
	t.Helper()
	errs := p.Put(t.Context(), []dhcpserver.Lease{lease})
	if len(errs) != 1 || errs[0] == nil {
		t.Fatalf("%s was given to %s", lease.Address, lease.MAC)
	}
	return errs[0]
}

func (p *pod) backAgain() bool {
	_, away := p.Away()
	return !away
}

func testTheObjectOfALease(t *testing.T, l *lab) {
	p := l.start(t, t.TempDir(), l.AdminConfig())
	p.load(t)
	lease := l.active("127.0.67.100", 1)
	lease.Hostname, lease.ClientID = "worker-0", "\x01\x02"
	p.put(t, lease)
	l.change(t, "127.0.67.100", types.MergePatchType, `{"metadata": {"labels": {"somebody": "elses"}}}`)
	lease.Expires = lease.Expires.Add(time.Hour)
	p.put(t, lease)
	o := l.object(t, "127.0.67.100")
	for want, path := range map[string][]string{
		"127.0.67.100": {"spec", "address"}, "02:00:00:00:00:01": {"spec", "mac"}, "worker-0": {"spec", "hostname"}, "0102": {"spec", "clientID"},
		"active": {"spec", "state"}, lease.Expires.UTC().Format(time.RFC3339Nano): {"spec", "expires"},
		l.infra: {"metadata", "labels", v1alpha1.LabelInfra}, "elses": {"metadata", "labels", "somebody"},
	} {
		if got := field(o, path...); got != want {
			t.Errorf("%s is %q, want %q", strings.Join(path, "."), got, want)
		}
	}
	if owners := o.GetOwnerReferences(); len(owners) != 1 || owners[0].Kind != "Infra" || owners[0].Name != l.infra || owners[0].UID != infraUID {
		t.Errorf("owners %v", owners)
	}
	// What the definition refuses.
	for what, patch := range map[string]string{
		"another address":   `{"spec": {"address": "127.0.67.101"}}`,
		"an upper-case MAC": `{"spec": {"mac": "02:00:00:00:00:AB"}}`,
		"no MAC":            `{"spec": {"mac": ""}}`,
		"a time":            `{"spec": {"expires": "tomorrow"}}`,
		"a state":           `{"spec": {"state": "expired"}}`,
		"a client id":       `{"spec": {"clientID": "123"}}`,
	} {
		if err := l.tryChange(t, "127.0.67.100", types.MergePatchType, patch); !apierrors.IsInvalid(err) {
			t.Errorf("%s: error %v", what, err)
		}
	}
}

func (l *lab) tryChange(t *testing.T, addr string, kind types.PatchType, patch string) error {
	_, err := l.leases().Patch(t.Context(), v1alpha1.DHCPLeaseName(l.infra, addr), kind, []byte(patch), metav1.PatchOptions{})
	return err
}

func (l *lab) change(t *testing.T, addr string, kind types.PatchType, patch string) {
	t.Helper()
	if err := l.tryChange(t, addr, kind, patch); err != nil {
		t.Fatal(err)
	}
}

func (l *lab) leases() dynamic.ResourceInterface {
	return l.Dynamic.Resource(leaseResource).Namespace("clusters")
}

func (l *lab) delete(t *testing.T, addr string) {
	t.Helper()
	if err := l.leases().Delete(t.Context(), v1alpha1.DHCPLeaseName(l.infra, addr), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func testADeletedLeaseIsPutBack(t *testing.T, l *lab) {
	p := l.start(t, t.TempDir(), l.AdminConfig())
	p.load(t)
	lease := l.active("127.0.67.100", 1)
	p.put(t, lease)
	l.delete(t, "127.0.67.100")
	lease.Expires = lease.Expires.Add(time.Minute)
	p.put(t, lease)
	if got := field(l.object(t, "127.0.67.100"), "spec", "mac"); got != lease.MAC.String() {
		t.Errorf("the lease is of %s", got)
	}
	// Also when it was deleted while the process that knew it was the only one to know.
	l.delete(t, "127.0.67.100")
	if got := p.load(t)["127.0.67.100"]; got.MAC != lease.MAC {
		t.Errorf("loaded %v", got)
	}
}

// testTheAPIAway is a holder whose API goes and comes back.
func testTheAPIAway(t *testing.T, l *lab) {
	dir := t.TempDir()
	p := l.start(t, dir, l.AdminConfig())
	p.load(t)
	known, over, silent := l.active("127.0.67.100", 1), l.active("127.0.67.101", 2), l.active("127.0.67.102", 3)
	over.Expires = l.now().Add(-time.Minute)
	silent.Expires = l.now().Add(time.Minute)
	p.put(t, known, over, silent)
	if err := l.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}

	renewed := known
	renewed.Expires = renewed.Expires.Add(10 * time.Minute)
	p.put(t, renewed)
	for what, lease := range map[string]dhcpserver.Lease{
		"a new one":             l.active("127.0.67.103", 4),
		"another client's":      l.active("127.0.67.100", 4),
		"one that is over":      l.active("127.0.67.101", 2),
		"one that was over":     l.active("127.0.67.101", 4),
		"the end of a lease":    {Address: known.Address, MAC: known.MAC, State: dhcpserver.StateReleased, Expires: l.now()},
		"what must not be used": {Address: known.Address, MAC: known.MAC, State: dhcpserver.StateDeclined, Expires: l.now()},
	} {
		if err := p.refuses(t, lease); !errors.Is(err, dhcpserver.ErrUnreachable) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// Restarted while the API is away: what was renewed is known, and goes on.
	p.stop()
	p = l.start(t, dir, l.AdminConfig())
	if got := p.load(t); len(got) != 3 || !got["127.0.67.100"].Expires.Equal(renewed.Expires) {
		t.Fatalf("loaded %v", got)
	}
	renewed.Expires = renewed.Expires.Add(10 * time.Minute)
	p.put(t, renewed)

	var holds sync.Map
	p.OnHold(func(since, until time.Time) { holds.Store(since, until) })
	l.advance(2 * time.Minute) // the silent one's lease is over
	if err := l.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the API is back", p.backAgain)
	until(t, "what was renewed is sent", func() bool {
		return field(l.object(t, "127.0.67.100"), "spec", "expires") == renewed.Expires.UTC().Format(time.RFC3339Nano)
	})
	told := 0
	holds.Range(func(since, until any) bool {
		told++
		if s, u := since.(time.Time), until.(time.Time); !s.Before(silent.Expires) || u.Before(l.now().Add(time.Hour-time.Minute)) {
			t.Errorf("held is what was active at %s, until %s", s, u)
		}
		return true
	})
	if told != 1 {
		t.Errorf("%d holds", told)
	}
	// No address changes hands for one lease time, not after a restart either; its own client gets it back.
	held := func() {
		t.Helper()
		conflict := (*dhcpserver.ConflictError)(nil)
		if err := p.refuses(t, l.active("127.0.67.102", 4)); !errors.As(err, &conflict) || conflict.Current.MAC != silent.MAC {
			t.Errorf("the held address: %v", err)
		}
	}
	held()
	p.stop()
	p = l.start(t, dir, l.AdminConfig())
	p.load(t)
	held()
	p.put(t, l.active("127.0.67.103", 4), l.active("127.0.67.101", 4)) // never had one, and was over before
	l.advance(62 * time.Minute)
	p.put(t, l.active("127.0.67.102", 4))
}

// testTheAPIFrozen is an API that takes requests and does not answer. One renewal may wait for it, the others are made without.
func testTheAPIFrozen(t *testing.T, l *lab) {
	p := l.start(t, t.TempDir(), l.AdminConfig())
	p.load(t)
	lease := l.active("127.0.67.100", 1)
	p.put(t, lease)
	if err := l.APIServer.Freeze(); err != nil {
		t.Fatal(err)
	}
	thaw := sync.OnceFunc(func() {
		if err := l.APIServer.Thaw(); err != nil {
			t.Error(err)
		}
	})
	defer thaw()
	for range 20 {
		lease.Expires = lease.Expires.Add(time.Minute)
		if errs := p.Put(t.Context(), []dhcpserver.Lease{lease}); errs != nil {
			t.Fatal(errs)
		}
	}
	if err := p.refuses(t, l.active("127.0.67.101", 2)); !errors.Is(err, dhcpserver.ErrUnreachable) {
		t.Errorf("error %v", err)
	}
	if got := p.load(t); !got["127.0.67.100"].Expires.Equal(lease.Expires) {
		t.Errorf("loaded without the API: %v", got)
	}
	thaw()
	until(t, "the API is back", p.backAgain)
	until(t, "the newest renewal is sent", func() bool {
		return field(l.object(t, "127.0.67.100"), "spec", "expires") == lease.Expires.UTC().Format(time.RFC3339Nano)
	})
	p.put(t, l.active("127.0.67.101", 2))
}

// testRenewedByBoth is a holder that is cut off and renews, while another pod takes over and gives an address to somebody else.
func testRenewedByBoth(t *testing.T, l *lab) {
	away := newValve(t, l.URL())
	cut := l.start(t, t.TempDir(), away.config(l.AdminConfig()))
	cut.load(t)
	moved, stays, newer := l.active("127.0.67.100", 1), l.active("127.0.67.101", 2), l.active("127.0.67.102", 3)
	cut.put(t, moved, stays, newer)
	away.close()
	for _, lease := range []*dhcpserver.Lease{&moved, &stays, &newer} {
		lease.Expires = lease.Expires.Add(10 * time.Minute)
		cut.put(t, *lease)
	}
	other := l.start(t, t.TempDir(), l.AdminConfig())
	other.load(t)
	given := moved
	given.MAC = mac(9)
	other.put(t, given) // it was released there meanwhile, say
	newest := newer
	newest.Expires = newest.Expires.Add(time.Hour)
	other.put(t, newest)
	away.open()
	until(t, "the API is back", cut.backAgain)
	until(t, "everything is sent", func() bool {
		return field(l.object(t, "127.0.67.101"), "spec", "expires") == stays.Expires.UTC().Format(time.RFC3339Nano) && gauge(t, cut.registry, "oooi_dhcp_leases_unsent") == 0
	})
	if got := field(l.object(t, "127.0.67.100"), "spec", "mac"); got != given.MAC.String() {
		t.Errorf("the address that somebody else got is now of %s", got)
	}
	if got := field(l.object(t, "127.0.67.102"), "spec", "expires"); got != newest.Expires.UTC().Format(time.RFC3339Nano) {
		t.Errorf("the newer renewal was replaced by one until %s", got)
	}
	// The server that knows nothing of it is told when it writes.
	if err := cut.refuses(t, moved); !errors.As(err, new(*dhcpserver.ConflictError)) {
		t.Errorf("error %v", err)
	}
}

// testAStandbyKnowsAll takes over with the API away.
func testAStandbyKnowsAll(t *testing.T, l *lab) {
	holder := l.start(t, t.TempDir(), l.AdminConfig())
	holder.load(t)
	dir := t.TempDir()
	away := newValve(t, l.URL())
	standby := l.start(t, dir, away.config(l.AdminConfig()))
	var all []dhcpserver.Lease
	for i := range byte(10) {
		all = append(all, l.active(fmt.Sprintf("127.0.67.%d", 100+i), i))
	}
	holder.put(t, all...)
	until(t, "the state folder of the standby has everything", func() bool {
		return gauge(t, standby.registry, "oooi_dhcp_leases_kept") == float64(len(all))
	})
	renewed := l.now()
	away.close()
	l.advance(55 * time.Minute)
	// The holder renews what the standby cannot see, and dies.
	for i := range all {
		all[i].Expires = l.now().Add(time.Hour)
	}
	holder.put(t, all...)
	holder.stop()
	l.advance(30 * time.Minute) // by what the standby knows, they are over
	standby.TakeOver(renewed)
	if got := standby.load(t); len(got) != len(all) {
		t.Fatalf("loaded %v", got)
	}
	for i := range all {
		all[i].Expires = l.now().Add(time.Hour)
	}
	standby.put(t, all...)
	away.open()
	until(t, "everything is sent", func() bool { return gauge(t, standby.registry, "oooi_dhcp_leases_unsent") == 0 })
	for _, lease := range all {
		if got := field(l.object(t, lease.Address.String()), "spec", "expires"); got != lease.Expires.UTC().Format(time.RFC3339Nano) {
			t.Errorf("%s is until %s, want %s", lease.Address, got, lease.Expires)
		}
	}
}

// testAThirdPod takes over from one that has just taken over from one that may have renewed anything.
func testAThirdPod(t *testing.T, l *lab) {
	first := l.start(t, t.TempDir(), l.AdminConfig())
	first.load(t)
	lease := l.active("127.0.67.100", 1)
	first.put(t, lease)
	first.stop()
	renewed := l.now()
	l.advance(61 * time.Minute) // the first one may have renewed until now
	second := l.start(t, t.TempDir(), l.AdminConfig())
	second.TakeOver(renewed)
	second.load(t)
	vlan := func(p *pod) *serving.VLANLease {
		v, err := serving.NewVLANLease(serving.VLANLeaseConfig{
			REST: l.AdminConfig(), Log: slog.New(slog.DiscardHandler), Infra: types.NamespacedName{Namespace: "clusters", Name: l.infra},
			Owner: func() *metav1.OwnerReference { return nil }, Annotate: p.Annotate, Learn: p.Learn,
		})
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if _, err := vlan(second).Put(t.Context(), holder.Record{Holder: "second", Epoch: 1, Renewed: l.now()}); err != nil {
		t.Fatal(err)
	}
	second.stop()
	third := l.start(t, t.TempDir(), l.AdminConfig())
	record, err := vlan(third).Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	third.TakeOver(record.Renewed)
	third.load(t)
	if err := third.refuses(t, l.active("127.0.67.100", 2)); !errors.As(err, new(*dhcpserver.ConflictError)) {
		t.Errorf("error %v", err)
	}
	annotations := map[string]string{}
	third.Annotate(annotations)
	if len(annotations) != 1 {
		t.Errorf("the third one tells the next one %v", annotations)
	}
	third.Learn(map[string]string{"hostedcluster.densityops.com/dhcp-holds": `[{"since": "2020-01-01T00:00:00Z", "until": "2120-01-01T00:00:00Z"}]`})
	l.advance(62 * time.Minute)
	third.put(t, l.active("127.0.67.100", 2))
}

// testNothingKnown is a new pod that never saw the API.
func testNothingKnown(t *testing.T, l *lab) {
	away := newValve(t, l.URL())
	away.close()
	p := l.start(t, t.TempDir(), away.config(l.AdminConfig()))
	if _, err := p.Load(t.Context()); err == nil || !strings.Contains(err.Error(), "the state folder has none") {
		t.Errorf("error %v", err)
	}
	away.open()
	until(t, "the API is back", p.backAgain)
	if got := p.load(t); len(got) != 0 {
		t.Errorf("loaded %v", got)
	}
}

// testADamagedStateFolder holds everything: what was renewed without the API is not known any more.
func testADamagedStateFolder(t *testing.T, l *lab) {
	dir := t.TempDir()
	p := l.start(t, dir, l.AdminConfig())
	p.load(t)
	lease := l.active("127.0.67.100", 1)
	p.put(t, lease)
	p.stop()
	if err := os.WriteFile(dir+"/dhcpleases_clusters_"+l.infra+".db", []byte("what a disk made of it"), 0o600); err != nil {
		t.Fatal(err)
	}
	l.advance(2 * time.Hour)
	p = l.start(t, dir, l.AdminConfig())
	p.load(t)
	if err := p.refuses(t, l.active("127.0.67.100", 2)); !errors.As(err, new(*dhcpserver.ConflictError)) {
		t.Errorf("error %v", err)
	}
	if !strings.Contains(p.log.String(), "put aside") {
		t.Error("the log says nothing of it")
	}
}

func gauge(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(families, func(f *familyOf) bool { return f.GetName() == name })
	if i < 0 {
		t.Fatalf("no metric %s", name)
	}
	return families[i].GetMetric()[0].GetGauge().GetValue()
}

// relay is a relay agent, and the clients behind it, of a server on a free port of 127.0.67.2.
type relay struct {
	socket *net.UDPConn
	server *net.UDPAddr
}

// serve starts the DHCP server of a pod, and a relay to it.
func (p *pod) serve(t *testing.T) (*dhcpserver.Server, *relay) {
	t.Helper()
	server, err := dhcpserver.NewServer(dhcpserver.Config{
		Log: slog.New(slog.NewTextHandler(p.log, nil)), Registerer: prometheus.NewRegistry(), Store: p.Store, Clock: p.lab.now, Boottime: p.lab.boottime, Forget: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	model, err := dhcpserver.Build(child(p.lab.infra))
	if err != nil {
		t.Fatal(err)
	}
	server.Apply(model)
	conn, err := dhcpserver.ListenUDP(netip.MustParseAddrPort("127.0.67.2:0"))
	if err != nil {
		t.Fatal(err)
	}
	addr, err := net.ResolveUDPAddr("udp4", strings.TrimPrefix(fmt.Sprint(conn), "udp "))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- server.Run(ctx, conn) }()
	stop := p.stop
	p.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		stop()
	})
	t.Cleanup(p.stop)
	socket, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 67, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := socket.Close(); err != nil {
			t.Error(err)
		}
	})
	return server, &relay{socket, addr}
}

// ask sends a message until there is an answer to it, and gives that; as clients do, but more often.
func (r *relay) ask(t *testing.T, m *dhcpv4.DHCPv4) *dhcpv4.DHCPv4 {
	t.Helper()
	m.GatewayIPAddr = net.IPv4(127, 0, 67, 1)
	buf := make([]byte, 1500)
	for range 30 {
		if _, err := r.socket.WriteToUDP(m.ToBytes(), r.server); err != nil {
			t.Fatal(err)
		}
		if err := r.socket.SetReadDeadline(time.Now().Add(2 * time.Second)); err != nil {
			t.Fatal(err)
		}
		for {
			n, _, err := r.socket.ReadFromUDP(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if answer, err := dhcpv4.FromBytes(buf[:n]); err == nil && answer.TransactionID == m.TransactionID {
				return answer
			}
		}
	}
	t.Fatalf("no answer to %s", m.Summary())
	return nil
}

func hardware(client byte) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, client} }

// join makes a client get an address: it asks until it has one, whatever is in the way.
func (r *relay) join(t *testing.T, client byte) string {
	t.Helper()
	for range 10 {
		discover, err := dhcpv4.NewDiscovery(hardware(client))
		if err != nil {
			t.Fatal(err)
		}
		request, err := dhcpv4.NewRequestFromOffer(r.ask(t, discover))
		if err != nil {
			t.Fatal(err)
		}
		if answer := r.ask(t, request); answer.MessageType() == dhcpv4.MessageTypeAck {
			return answer.YourIPAddr.String()
		}
	}
	t.Fatalf("client %d got no address", client)
	return ""
}

// renew makes a client renew, and gives what kind of answer it gets.
func (r *relay) renew(t *testing.T, client byte, addr string) dhcpv4.MessageType {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(hardware(client)), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(net.ParseIP(addr)))
	if err != nil {
		t.Fatal(err)
	}
	return r.ask(t, m).MessageType()
}

// testThroughTheServer is what clients see.
func testThroughTheServer(t *testing.T, l *lab) {
	holder := l.start(t, t.TempDir(), l.AdminConfig())
	server, clients := holder.serve(t)
	first := clients.join(t, 1)
	if got := field(l.object(t, first), "spec", "mac"); got != mac(1).String() {
		t.Errorf("the lease of %s is of %q", first, got)
	}
	// Somebody else writes a lease of the address that comes next: the client that was offered it gets another one.
	stranger := l.start(t, t.TempDir(), l.AdminConfig())
	stranger.put(t, l.active("127.0.67.101", 99))
	if got := clients.join(t, 2); got != "127.0.67.102" {
		t.Errorf("the second client got %s", got)
	}
	if got := field(l.object(t, "127.0.67.101"), "spec", "mac"); got != mac(99).String() {
		t.Errorf("the stranger's lease is now of %s", got)
	}
	if err := server.Problem(); err != nil {
		t.Errorf("a problem: %v", err)
	}
	// The other pod takes over, and knows everybody.
	holder.stop()
	_, clients = stranger.serve(t)
	if got := clients.renew(t, 1, first); got != dhcpv4.MessageTypeAck {
		t.Errorf("renewal: %s", got)
	}
	if got := clients.join(t, 2); got != "127.0.67.102" {
		t.Errorf("the second client now has %s", got)
	}
	// Without the API those that are known renew.
	if err := l.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	if got := clients.renew(t, 1, first); got != dhcpv4.MessageTypeAck {
		t.Errorf("renewal without the API: %s", got)
	}
	if err := l.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := clients.join(t, 3); got != "127.0.67.103" {
		t.Errorf("the third client got %s", got)
	}
}

// take makes a client ask for an address that it was not offered, and gives what kind of answer it gets.
func (r *relay) take(t *testing.T, client byte, addr string) dhcpv4.MessageType {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(hardware(client)), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest),
		dhcpv4.WithOption(dhcpv4.OptRequestedIPAddress(net.ParseIP(addr))), dhcpv4.WithOption(dhcpv4.OptServerIdentifier(net.IPv4(127, 0, 67, 2))))
	if err != nil {
		t.Fatal(err)
	}
	return r.ask(t, m).MessageType()
}

// testTheClockIsSet sets the clock of a node forward and back: no time has passed for the clients.
func testTheClockIsSet(t *testing.T, l *lab) {
	dir := t.TempDir()
	p := l.start(t, dir, l.AdminConfig())
	_, clients := p.serve(t)
	first := clients.join(t, 1)
	second := clients.join(t, 2)
	l.setClock(2 * time.Hour)
	if got := clients.take(t, 3, first); got != dhcpv4.MessageTypeNak {
		t.Errorf("client 3 asks for the address of client 1: %s", got)
	}
	if got := clients.renew(t, 1, first); got != dhcpv4.MessageTypeAck {
		t.Errorf("renewal: %s", got)
	}
	if n := strings.Count(p.log.String(), "the clock was set"); n != 1 {
		t.Errorf("it is logged %d times", n)
	}
	annotations := map[string]string{}
	if p.Annotate(annotations); len(annotations) != 1 {
		t.Errorf("the next holder hears %v", annotations)
	}
	// A restart forgets nothing of it, and sees what happened to the clock meanwhile.
	for _, by := range []time.Duration{0, 3 * time.Hour} {
		p.stop()
		l.setClock(by)
		p = l.start(t, dir, l.AdminConfig())
		_, clients = p.serve(t)
		for _, addr := range []string{first, second} {
			if got := clients.take(t, 3, addr); got != dhcpv4.MessageTypeNak {
				t.Errorf("after a restart, and the clock set by %s: client 3 asks for %s: %s", by, addr, got)
			}
		}
	}
	// Without the API as well.
	if err := l.APIServer.Kill(); err != nil {
		t.Fatal(err)
	}
	l.setClock(2 * time.Hour)
	if got := clients.renew(t, 1, first); got != dhcpv4.MessageTypeAck {
		t.Errorf("renewal without the API: %s", got)
	}
	l.setClock(-365 * 24 * time.Hour)
	if got := clients.renew(t, 1, first); got != dhcpv4.MessageTypeAck {
		t.Errorf("renewal without the API, the clock set back: %s", got)
	}
	if since, away := p.Away(); !away || since.After(l.now()) {
		t.Errorf("away: %t, since %s", away, since)
	}
	if err := l.APIServer.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	until(t, "the API is back", p.backAgain)
	until(t, "the API has the renewal", func() bool {
		return gauge(t, p.registry, "oooi_dhcp_leases_unsent") == 0
	})
	if got := clients.take(t, 3, first); got != dhcpv4.MessageTypeNak {
		t.Errorf("client 3 asks for the address of client 1 again: %s", got)
	}
	// Nothing is held for ever.
	l.advance(25 * time.Hour)
	for client, addr := range map[byte]string{3: first, 4: second} {
		if got := clients.take(t, client, addr); got != dhcpv4.MessageTypeAck {
			t.Errorf("client %d asks for an address that nobody has: %s", client, got)
		}
	}
	clear(annotations)
	if p.Annotate(annotations); len(annotations) != 0 {
		t.Errorf("still held: %v", annotations)
	}
}
