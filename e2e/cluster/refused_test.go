package cluster

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/stack"
)

// testRefused has Envoy refuse what it cannot do: to listen where somebody else does.
func testRefused(t *testing.T, p *page) {
	v := p.site.vlan(51)
	taken, err := net.Listen("tcp4", fmt.Sprintf("%s:%d", v.address(5), portHTTPS))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	moveTo := func(host int) {
		t.Helper()
		p.patch(t, ours("Infra", second), fmt.Sprintf(`{"spec":{"infraComponents":{"proxy":{"serverIP":%q}}}}`, v.address(host)))
	}
	programmed := func(want string, texts ...string) check {
		return p.says("ProxyServer", second+"-proxy", v1alpha1.ConditionProgrammed, want, texts...)
	}

	moveTo(5)
	within(t, "Envoy's refusal", programmed("False Refused", "envoy-of-second", "Address already in use"),
		p.says("ProxyServer", second+"-proxy", v1alpha1.ConditionReady, "False Refused"),
		p.says("Infra", second, v1alpha1.ConditionReady, "False NotServing", "Address already in use"),
		p.answers(v.call(240, "api.hcp.second.example.com", portHTTPS), "example-hcp-c/kube-apiserver"), // the last good version
		p.envoyStatus(second, "envoy-of-second", func(e v1alpha1.EnvoyStatus) error {
			if e.Error == "" || e.Sent == e.Acknowledged {
				return fmt.Errorf("entry of the Envoy that refused: %+v", e)
			}
			return nil
		}),
		p.untouched("a"), p.wholly(),
	)
	if text, err := p.oooi.Get(t.Context(), "/metrics"); err != nil || !strings.Contains(text, "\noooi_xds_nacks_total{") {
		t.Errorf("no metric counts the refusal (%v)", err)
	}
	moveTo(4)
	within(t, "the refusal to be over", programmed("True Acknowledged"), p.says("Infra", second, v1alpha1.ConditionReady, "True Ready"))
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	moveTo(5)
	elsewhere := v.call(240, "api.hcp.second.example.com", portHTTPS)
	elsewhere.To = mustAddrPort(v.address(5), portHTTPS)
	within(t, "Envoy at its new address", programmed("True Acknowledged"), p.answers(elsewhere, "example-hcp-c/kube-apiserver"),
		v.resolves("api.hcp.second.example.com", v.address(5)))
	moveTo(4)
	within(t, "Envoy at its old address", programmed("True Acknowledged"),
		p.answers(v.call(240, "api.hcp.second.example.com", portHTTPS), "example-hcp-c/kube-apiserver"))
}

// envoyStatus checks an Envoy's entry in the status of an Infra's ProxyServer.
func (s *site) envoyStatus(infra, name string, is func(v1alpha1.EnvoyStatus) error) check {
	return func(ctx context.Context) error {
		proxy, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", infra+"-proxy")
		if err != nil {
			return err
		}
		for _, e := range proxy.Status.Envoys {
			if e.Name == name {
				return is(e)
			}
		}
		return fmt.Errorf("no entry of Envoy %s: %v", name, proxy.Status.Envoys)
	}
}

// noEnvoy is a condition: an Envoy has no entry.
func (s *site) noEnvoy(infra, name string) check {
	present := s.envoyStatus(infra, name, func(v1alpha1.EnvoyStatus) error { return nil })
	return func(ctx context.Context) error {
		proxy, err := read[v1alpha1.ProxyServer](ctx, s, "ProxyServer", infra+"-proxy")
		if err == nil && present(ctx) == nil {
			err = fmt.Errorf("Envoy %s is still among %v", name, proxy.Status.Envoys)
		}
		return err
	}
}

// testSecondProcess serves the Infra by a second process with an Envoy of its own, which goes properly once, and once as
// by a crash.
func testSecondProcess(t *testing.T, p *page) {
	// In pods both Envoys have the same ports, each in a network of its own.
	other := p.newProcess(t, "--roles", "xds", "--infra", infra, "--port-offset", "25000").start(t)
	envoy := p.startEnvoy(t, other, infra, "envoy-2")
	serves := p.envoyStatus(infra, "envoy-2", func(e v1alpha1.EnvoyStatus) error {
		first, err := read[v1alpha1.ProxyServer](t.Context(), p.site, "ProxyServer", infra+"-proxy")
		if err == nil && (e.Generation != first.Generation || e.Process == "" || e.Acknowledged == "" || e.Acknowledged != e.Sent) {
			err = fmt.Errorf("entry of the second Envoy: %+v", e)
		}
		return err
	})
	within(t, "both Envoys", serves, p.says("ProxyServer", infra+"-proxy", v1alpha1.ConditionProgrammed, "True Acknowledged", "2"), p.wholly())
	if err := other.run.Stop(); err != nil {
		t.Fatal(err)
	}
	within(t, "the entry of the stopped process to go", p.noEnvoy(infra, "envoy-2"),
		p.envoyStatus(infra, "envoy-1", func(v1alpha1.EnvoyStatus) error { return nil }), p.wholly())

	other.start(t)
	within(t, "both Envoys again", serves, p.wholly())
	other.kill(t)
	if err := envoy.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience) // its Lease has to run out
	defer cancel()
	if err := stack.Until(ctx, "the entry of the killed process to go", all(p.noEnvoy(infra, "envoy-2"), p.wholly())); err != nil {
		t.Fatal(err)
	}
}

// quiet waits until oooi has written nothing but Leases for a while.
func (s *site) quiet(t *testing.T, d time.Duration) {
	t.Helper()
	mark, since := s.mark(t), time.Now()
	within(t, "oooi to come to rest", func(context.Context) error {
		if writes := s.writes(t, mark); len(writes) > 0 {
			mark, since = s.mark(t), time.Now()
			return fmt.Errorf("it writes: %v", writes)
		}
		if time.Since(since) < d {
			return fmt.Errorf("it has been at rest since %s", since)
		}
		return nil
	})
}
