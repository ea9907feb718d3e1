package leases_test

import (
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dhcpserver"
)

// writes counts the requests of a process that write.
type writes struct {
	next http.RoundTripper
	n    atomic.Int64
}

func (w *writes) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Method != http.MethodGet {
		w.n.Add(1)
	}
	return w.next.RoundTrip(request)
}

func (w *writes) of(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		w.next = next
		return w
	})
	return config
}

// testRenewedAllTheTime is one client that renews as fast as it is answered: it costs the API nothing.
func testRenewedAllTheTime(t *testing.T, l *lab) {
	var made writes
	p := l.start(t, t.TempDir(), made.of(l.AdminConfig()))
	_, clients := p.serve(t)
	addr := clients.join(t, 1)
	before := made.n.Load()
	for range 500 {
		if got := clients.renew(t, 1, addr); got != dhcpv4.MessageTypeAck {
			t.Fatalf("renewal: %s", got)
		}
	}
	// One or two before the watch has told that nobody else has written.
	if n := made.n.Load() - before; n > 10 {
		t.Errorf("500 renewals made %d writes", n)
	}
	until(t, "the watch has seen the lease", func() bool {
		n := made.n.Load()
		return clients.renew(t, 1, addr) == dhcpv4.MessageTypeAck && made.n.Load() == n
	})
	l.advance(30 * time.Minute)
	before = made.n.Load()
	clients.renew(t, 1, addr)
	if n := made.n.Load() - before; n != 1 {
		t.Errorf("a renewal that was due made %d writes", n)
	}
	// Somebody else's hand is noticed.
	l.delete(t, addr)
	until(t, "the lease is put back", func() bool {
		clients.renew(t, 1, addr)
		_, err := l.leases().Get(t.Context(), v1alpha1.DHCPLeaseName(l.infra, addr), metav1.GetOptions{})
		return err == nil
	})
}

const leaseRights = `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: refused, namespace: clusters}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: refused}
subjects: [{kind: ServiceAccount, name: refused, namespace: clusters}]`

const leaseAccount = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: refused, namespace: clusters}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: refused, namespace: clusters}
rules: [{apiGroups: [hostedcluster.densityops.com], resources: [dhcpleases], verbs: [list, watch, create, update, delete]}]
---` + leaseRights

// testTheAPIRefuses takes the rights of the pods away, and then their account.
func testTheAPIRefuses(t *testing.T, l *lab) {
	l.apply(t, leaseAccount)
	config, err := l.ServiceAccountConfig(t.Context(), "clusters", "refused")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	var made writes
	p := l.start(t, dir, made.of(config))
	until(t, "the account may list leases", func() bool { _, err := p.Load(t.Context()); return err == nil })
	known := l.active("127.0.67.100", 1)
	var refused error
	until(t, "the account may write leases", func() bool {
		errs := p.Put(t.Context(), []dhcpserver.Lease{known})
		return errs == nil
	})
	bindings := l.Dynamic.Resource(schema.GroupVersionResource{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}).Namespace("clusters")
	if err := bindings.Delete(t.Context(), "refused", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "no new lease is given", func() bool {
		errs := p.Put(t.Context(), []dhcpserver.Lease{l.active("127.0.67.101", 2)})
		if errs == nil {
			l.delete(t, "127.0.67.101") // the right is taken away soon
			return false
		}
		refused = errs[0]
		return !apierrors.IsNotFound(refused) // one that was just deleted
	})
	if !apierrors.IsForbidden(refused) || errors.Is(refused, dhcpserver.ErrUnreachable) {
		t.Errorf("a new lease: %v", refused)
	}
	renew := func(p *pod) {
		t.Helper()
		known.Expires = known.Expires.Add(time.Minute)
		if errs := p.Put(t.Context(), []dhcpserver.Lease{known}); errs != nil {
			t.Fatal(errs)
		}
	}
	for range 5 {
		renew(p)
	}
	if n := gauge(t, p.registry, "oooi_dhcp_leases_unsent"); n != 1 {
		t.Errorf("%v renewals are unsent", n)
	}
	if _, away := p.Away(); away {
		t.Error("the API passes for away")
	}
	if p.Sure(known.Address) {
		t.Error("the API passes for having the renewal")
	}
	tried := made.n.Load()
	until(t, "it is tried again", func() bool { return made.n.Load() >= tried+3 })
	if n := strings.Count(p.log.String(), "level="); n != 1 || !strings.Contains(p.log.String(), "RoleBinding oooi-vlan") || !strings.Contains(p.log.String(), "is forbidden") {
		t.Errorf("the log has %d lines:\n%s", n, p.log)
	}
	// The next holder holds what was renewed, although this one was seen with the API all the time, and the API says that it is over.
	annotations := map[string]string{}
	p.Annotate(annotations)
	p.Learn(annotations)
	again := map[string]string{}
	if p.Annotate(again); len(annotations) != 1 || strings.Count(again["hostedcluster.densityops.com/dhcp-holds"], "since") != 1 {
		t.Errorf("the next holder hears %v, then %v", annotations, again)
	}
	// A restart forgets nothing of it, and does not need the right to list.
	p.stop()
	p = l.start(t, dir, made.of(config))
	if got := p.load(t)["127.0.67.100"]; !got.Expires.Equal(known.Expires) {
		t.Errorf("loaded until %s, want %s", got.Expires, known.Expires)
	}
	renew(p)
	l.advance(55 * time.Minute)
	known.Expires = l.now().Add(time.Hour).Round(0)
	renew(p)
	l.advance(10 * time.Minute)
	clear(annotations)
	p.Annotate(annotations)
	standby := l.start(t, t.TempDir(), l.AdminConfig())
	standby.Learn(annotations)
	standby.TakeOver(l.now())
	standby.load(t)
	if err := standby.refuses(t, l.active("127.0.67.100", 9)); !errors.As(err, new(*dhcpserver.ConflictError)) {
		t.Errorf("another client gets the address from the next holder: %v", err)
	}
	// The rights are back.
	l.apply(t, leaseRights)
	until(t, "what was renewed is sent", func() bool { return gauge(t, p.registry, "oooi_dhcp_leases_unsent") == 0 })
	if got := field(l.object(t, "127.0.67.100"), "spec", "expires"); got != known.Expires.UTC().Format(time.RFC3339Nano) {
		t.Errorf("the lease is until %s, want %s", got, known.Expires)
	}
	until(t, "it is logged", func() bool { return strings.Count(p.log.String(), "takes DHCP leases again") == 1 })
	clear(annotations)
	if p.Annotate(annotations); len(annotations) != 0 {
		t.Errorf("the next holder still hears %v", annotations)
	}
	// A token that is good no longer (401).
	accounts := l.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace("clusters")
	if err := accounts.Delete(t.Context(), "refused", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until(t, "the token is refused", func() bool {
		renew(p)
		return gauge(t, p.registry, "oooi_dhcp_leases_unsent") == 1
	})
	if err := p.refuses(t, l.active("127.0.67.101", 2)); !apierrors.IsUnauthorized(err) {
		t.Errorf("a new lease: %v", err)
	}
	if n := strings.Count(p.log.String(), "the API refuses DHCP leases"); n != 2 {
		t.Errorf("it was logged %d times, want once for each time:\n%s", n, p.log)
	}
}
