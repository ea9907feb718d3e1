package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// patience is how long a test waits for something that should be there within a second: machines are busy.
const patience = 15 * time.Second

const (
	domainA = "example-hcp-a.clusters.example.com"
	domainB = "example-hcp-b.clusters.example.com"
	domainC = "example-hcp-c.clusters.example.com"
	domainD = "example-hcp-d.clusters.example.com"
)

var (
	names   = []string{"api", "api-int", "oauth", "ignition", "konnectivity"}
	aliases = []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"}
)

// lab is a running lab, and what tests ask it.
type lab struct {
	*netlab.Lab
	// stranger is the address that the machine of nobody got.
	stranger netip.Addr
	// added are the clusters besides those of the example whose control planes run.
	added map[string]bool
}

// newLab starts a lab that is stopped when the test ends. On failure the logs are printed.
func newLab(t *testing.T) *lab {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the lab needs root for its network namespaces: run the tests as root")
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	l, err := netlab.Start(ctx, netlab.Config{Prefix: namespace("lab"), Binary: oooiBinary, DrainSeconds: 3})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkLog(t, l.Oooi.Process())
		if t.Failed() {
			t.Logf("oooi's log:\n%s", l.Oooi.Process().Tail(60))
			t.Logf("Envoy's log:\n%s", l.Envoy.Process().Tail(30))
		}
		if err := l.Stop(); err != nil {
			t.Errorf("stopping the lab: %v", err)
		}
	})
	return &lab{Lab: l, added: map[string]bool{}}
}

// namespace names a network namespace of this test run: those of a run that was killed are in nobody's way.
func namespace(role string) string { return fmt.Sprintf("e2e-%d-%s", os.Getpid(), role) }

// newHost makes a network namespace with nothing but a loopback interface; it goes when the test ends.
func newHost(t *testing.T, role string) stack.Host {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root for a network namespace: run the tests as root")
	}
	h := stack.Host(namespace(role))
	ip(t.Context(), t, "netns add "+string(h))
	t.Cleanup(func() { ip(context.Background(), t, "netns delete "+string(h)) })
	ip(t.Context(), t, "-n "+string(h)+" link set lo up")
	return h
}

// newSite makes a site that is stopped when the test ends.
func newSite(t *testing.T) *stack.Site {
	t.Helper()
	site, err := stack.NewSite()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := site.Stop(); err != nil {
			t.Error(err)
		}
	})
	return site
}

// startOooi serves the manifests of a site from a host of its own. On failure the log is printed.
func startOooi(ctx context.Context, t *testing.T, site *stack.Site, host stack.Host) *stack.Oooi {
	t.Helper()
	oooi := &stack.Oooi{Binary: oooiBinary, Host: host, HTTP: "127.0.0.1:8080", XDS: "127.0.0.1:18000"}
	if err := site.StartOooi(ctx, oooi); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		checkLog(t, oooi.Process())
		if t.Failed() {
			t.Logf("oooi's log:\n%s", oooi.Process().Tail(60))
		}
	})
	return oooi
}

// ip runs one command of iproute2.
func ip(ctx context.Context, t *testing.T, args string) {
	t.Helper()
	if _, err := stack.Host("").Run(ctx, append([]string{"ip"}, strings.Fields(args)...)...); err != nil {
		t.Fatal(err)
	}
}

// checkLog fails the test when oooi panicked, or its race detector found something.
func checkLog(t *testing.T, p *stack.Process) {
	t.Helper()
	log := p.Log()
	for _, sign := range []string{"WARNING: DATA RACE", "panic:", "fatal error:"} {
		if i := strings.Index(log, sign); i >= 0 {
			t.Errorf("oooi's log: %s", log[i:min(len(log), i+4000)])
		}
	}
}

// within runs a condition until it holds or patience ends.
func within(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := stack.Until(ctx, what, condition); err != nil {
		t.Fatal(err)
	}
}

// dig asks a DNS server from a host and returns the lines of the short answer, or the status when there is none.
func dig(ctx context.Context, h stack.Host, server string, question ...string) (string, error) {
	out, err := h.Run(ctx, append([]string{"dig", "+tries=1", "+time=3", "+noall", "+answer", "+comments", "@" + server}, question...)...)
	if err != nil {
		return "", err
	}
	var answers []string
	status := ""
	for line := range strings.Lines(out) {
		fields := strings.Fields(line)
		if i := slices.Index(fields, "status:"); strings.HasPrefix(line, ";;") && i >= 0 {
			status = strings.TrimSuffix(fields[i+1], ",")
		}
		if !strings.HasPrefix(line, ";") && len(fields) >= 5 {
			answers = append(answers, strings.Join(fields[4:], " "))
		}
	}
	if len(answers) == 0 {
		return status, nil
	}
	return strings.Join(answers, " "), nil
}

// asks checks what dig, with these arguments, gets from the lab's DNS server.
func (l *lab) asks(h stack.Host, want string, question ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := dig(ctx, h, netlab.DNSServer, question...)
		if err == nil && got != want {
			err = fmt.Errorf("%s asks %s: got %s, want %s", h, strings.Join(question, " "), got, want)
		}
		return err
	}
}

// resolves checks the address that the lab's DNS server gives for a name.
func (l *lab) resolves(h stack.Host, name, want string) func(context.Context) error {
	return l.asks(h, want, name, "A")
}

// answers checks who answers a call.
func (l *lab) answers(c stack.Call, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		got, err := c.Try(ctx, l.CA)
		if err == nil && got.String() != want {
			err = fmt.Errorf("%s from %v to %s with server name %q: got %s, want %s", c.Host, c.Source, c.To, c.SNI, got, want)
		}
		return err
	}
}

// call is a connection from a host of the VLAN to the proxy.
func call(h stack.Host, source, sni string, port uint16) stack.Call {
	return stack.Call{
		Host: h, Source: netip.MustParseAddr(source), SNI: sni,
		To: netip.AddrPortFrom(netip.MustParseAddr(netlab.Proxy), port),
	}
}

// all is a condition that holds when all of them do.
func all(conditions ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, c := range conditions {
			errs = append(errs, c(ctx))
		}
		return errors.Join(errs...)
	}
}

// status is what tests read of oooi's /status.
type status struct {
	Infras []struct {
		Infra       string               `json:"infra"`
		Status      v1alpha1.InfraStatus `json:"status"`
		Attachments []struct {
			Attachment string                                `json:"attachment"`
			Status     v1alpha1.InfraClusterAttachmentStatus `json:"status"`
		} `json:"attachments"`
	} `json:"infras"`
	Problems []map[string]any `json:"problems"`
}

func readStatus(ctx context.Context, o *stack.Oooi) (status, error) {
	var s status
	text, err := o.Get(ctx, "/status")
	if err != nil {
		return s, err
	}
	return s, json.Unmarshal([]byte(text), &s)
}

// infraCondition checks a condition of the Infra: "True Ready", say. The message must hold each text.
func (l *lab) infraCondition(kind, want string, texts ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := readStatus(ctx, l.Oooi)
		if err != nil {
			return err
		}
		for _, infra := range s.Infras {
			if infra.Infra == netlab.Infra {
				return checkCondition(infra.Infra, infra.Status.Conditions, kind, want, texts...)
			}
		}
		return errors.New("there is no Infra")
	}
}

// attachmentCondition checks a condition of an attachment.
func (l *lab) attachmentCondition(name, kind, want string, texts ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		s, err := readStatus(ctx, l.Oooi)
		if err != nil {
			return err
		}
		for _, infra := range s.Infras {
			for _, a := range infra.Attachments {
				if a.Attachment == name {
					return checkCondition(name, a.Status.Conditions, kind, want, texts...)
				}
			}
		}
		return fmt.Errorf("there is no attachment %s", name)
	}
}

func checkCondition(object string, conditions []metav1.Condition, kind, want string, texts ...string) error {
	c := meta.FindStatusCondition(conditions, kind)
	if c == nil {
		return fmt.Errorf("%s has no condition %s", object, kind)
	}
	if got := string(c.Status) + " " + c.Reason; got != want {
		return fmt.Errorf("condition %s of %s: got %s (%s), want %s", kind, object, got, c.Message, want)
	}
	for _, text := range texts {
		if !strings.Contains(c.Message, text) {
			return fmt.Errorf("condition %s of %s: message %q lacks %q", kind, object, c.Message, text)
		}
	}
	return nil
}
