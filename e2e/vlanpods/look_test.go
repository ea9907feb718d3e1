package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// eventually waits until a condition holds. The garbage collector alone may take half a minute to notice new kinds.
func eventually(t testing.TB, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if err := stack.Until(ctx, what, condition); err != nil {
		t.Fatal(err)
	}
}

// settle applies the example as a user does and waits until its VLAN is served: two VLAN pods that are ready, one of them the
// holder.
func (w *world) settle(t testing.TB) {
	t.Helper()
	w.apply(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	err := w.available(ctx, namespace, v1alpha1.VLANName(infra))
	if err == nil {
		err = stack.Until(ctx, "a holder", func(ctx context.Context) error {
			_, err := w.holder(ctx)
			return err
		})
	}
	if err == nil {
		err = stack.Until(ctx, "Infra "+infra, func(ctx context.Context) error { return w.ready(ctx, "infras", infra) })
	}
	if err != nil {
		t.Fatal(err)
	}
}

// nothingRefused fails the test when the API server refuses the hub or a VLAN pod anything until its end: the shipped roles are
// too small then, or something is asked for that is none of their business. Not for a test that deletes the Infra: the pods'
// rights may go before the pods.
func (w *world) nothingRefused(t testing.TB) {
	t.Helper()
	mark, err := w.Mark()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		requests, err := w.Requests(mark)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range requests {
			ours := strings.HasPrefix(r.User, "system:serviceaccount:oooi-system:") || strings.HasSuffix(r.User, ":oooi-vlan")
			if ours && (r.Code == http.StatusForbidden || r.Code == http.StatusUnprocessableEntity) {
				t.Errorf("refused: %s", r)
			}
		}
	})
}

// ready is an error unless an object of this API in the example's namespace is Ready.
func (w *world) ready(ctx context.Context, plural, name string) error {
	object, err := w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource(plural)).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if text := conditions(object); !strings.Contains("\n"+text, "\nReady=True ") {
		return fmt.Errorf("not Ready:\n%s", text)
	}
	return nil
}

// holder is the one VLAN pod that says that it is the holder.
func (w *world) holder(ctx context.Context) (string, error) {
	found, err := w.nodes.Pods(ctx, namespace, holding)
	if err != nil {
		return "", err
	}
	var names []string
	for _, p := range found {
		if p.DeletionTimestamp == nil {
			names = append(names, p.Name)
		}
	}
	if len(names) != 1 {
		return "", fmt.Errorf("holders: %v, want one", names)
	}
	return names[0], nil
}

// pair are the holder and the standby.
func (w *world) pair(t testing.TB) (holder, standby string) {
	t.Helper()
	eventually(t, "a holder and a standby", func(ctx context.Context) error {
		var err error
		if holder, err = w.holder(ctx); err != nil {
			return err
		}
		all, err := w.nodes.Pods(ctx, namespace, pods)
		if err != nil {
			return err
		}
		standby = ""
		for _, p := range all {
			if p.Name != holder && p.DeletionTimestamp == nil && isReady(&p) {
				standby = p.Name
			}
		}
		if standby == "" {
			return errors.New("no standby that is ready")
		}
		return nil
	})
	return holder, standby
}

// hardwareAddress of a VLAN pod on the VLAN.
func (w *world) hardwareAddress(t testing.TB, pod string) string {
	t.Helper()
	h, err := w.nodes.Host(namespace, pod)
	if err != nil {
		t.Fatal(err)
	}
	var mac string
	if err := h.Do(func() error {
		link, err := net.InterfaceByName(v1alpha1.VLANInterface)
		if err == nil {
			mac = link.HardwareAddr.String()
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return mac
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// boot lets a machine on the VLAN get an address by DHCP, that one if it is not empty.
func (w *world) boot(t testing.TB, h stack.Host, client netlab.Client, address string) netlab.Lease {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lease, err := w.lab.DHCP(ctx, h, client, address)
	if err != nil {
		t.Fatal(err)
	}
	return lease
}

// lookup asks a DNS server for the address of a name, once, and returns it, or the name of the answer's code.
func lookup(ctx context.Context, h stack.Host, server, name string) (string, error) {
	var answer *dns.Msg
	err := h.Do(func() (err error) {
		client := dns.Client{Timeout: 2 * time.Second}
		answer, _, err = client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), server+":53")
		return err
	})
	if err != nil {
		return "", err
	}
	for _, record := range answer.Answer {
		if a, ok := record.(*dns.A); ok {
			return a.A.String(), nil
		}
	}
	return dns.RcodeToString[answer.Rcode], nil
}

// call opens a TLS connection from a machine on the VLAN to the proxy, and returns who answers.
func (w *world) call(ctx context.Context, h stack.Host, port uint16, sni string) (string, error) {
	return w.callAt(ctx, h, addressProxy, port, sni)
}

// callAt opens a TLS connection to an address of the proxy, and returns who answers.
func (w *world) callAt(ctx context.Context, h stack.Host, address string, port uint16, sni string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, err := stack.Call{Host: h, To: netip.AddrPortFrom(netip.MustParseAddr(address), port), SNI: sni}.Try(ctx, w.site.CA)
	return answer.String(), err
}

// domain is that of a hosted cluster of the example.
func domain(cluster string) string { return cluster + ".clusters.example.com" }
