package serving

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/process"
)

const (
	// reportPeriod is how often a process looks at what its own servers do. It costs no API call.
	reportPeriod = 200 * time.Millisecond
	// countPeriod is how often counts of leases are written at most.
	countPeriod = 10 * time.Second
	// renewPeriod is how often the Lease of this process is renewed, which lasts three times as long.
	renewPeriod = 10 * time.Second
)

// Report is what this process's servers of one Infra do.
type Report struct {
	// Children that are served.
	Children
	// DHCPReady and DNSReady say whether the servers serve; a message says what they wait for.
	DHCPReady, DNSReady     bool
	DHCPMessage, DNSMessage string
	// ActiveLeases have not expired, TotalLeases are all that are known.
	ActiveLeases, TotalLeases int32
	// Envoys that are connected, with the generation of the ProxyServer that each serves.
	Envoys []v1alpha1.EnvoyStatus
	// VLAN is this process's part in holding the server addresses; nil: it does not put them on the VLAN, or is alone.
	VLAN *process.VLAN
}

// speaks tells whether this process says whether the servers of the VLAN serve: a standby is silent while there is a holder.
func (r *Report) speaks() bool { return r.VLAN == nil || r.VLAN.Holding || r.VLAN.Holder == "" }

// ReporterConfig is what a Reporter needs.
type ReporterConfig struct {
	REST *rest.Config
	Log  *slog.Logger
	// Identity of this process; a pod's name.
	Identity string
	// Pod is the pod of this process, with which its Leases go; nil: it does not run in one, and they go with their Infras.
	Pod *metav1.OwnerReference
	// Key verifies what this process says on the VLAN; nil: it says nothing there.
	Key   ed25519.PublicKey
	Clock func() time.Time
}

// Reporter writes what a serving process does into the statuses of the children, under an owner of its own, and keeps a
// Lease for each Infra that says that the process is alive.
type Reporter struct {
	cfg    ReporterConfig
	client client.Client
	last   map[types.NamespacedName]*reported
}

// reported is what was written last of one Infra.
type reported struct {
	dhcp, dns, proxy written
	vlan             *process.VLAN // as in the Lease
	since            time.Time     // this process serves the Infra
	counted, renewed time.Time
	pendingSince     time.Time // an Envoy has not answered since then; zero: all have
	failing          bool
}

// wordPeriod is how often what is wrong on a VLAN is written at most: tenants have a say in it.
const wordPeriod = 2 * time.Second

// renewAfter is how long after the last renewal of the Lease the next one is due.
func (r *reported) renewAfter(vlan *process.VLAN) time.Duration {
	switch {
	case equality.Semantic.DeepEqual(vlan, r.vlan):
		return renewPeriod
	case vlan != nil && r.vlan != nil && vlan.Holding == r.vlan.Holding && vlan.Holder == r.vlan.Holder:
		return wordPeriod
	}
	return 0
}

// hold tells whether to wait for Envoys that have not answered yet.
func (r *reported) hold(envoys []v1alpha1.EnvoyStatus, generation int64, now time.Time) bool {
	pending := slices.ContainsFunc(envoys, func(e v1alpha1.EnvoyStatus) bool { return e.Error == "" && e.Generation != generation })
	switch {
	case !pending:
		r.pendingSince = time.Time{}
	case r.pendingSince.IsZero():
		r.pendingSince = now
	}
	return pending && now.Sub(r.pendingSince) < process.PendingPatience
}

// written is the status that was written last of one child. A child that was deleted and made anew has none yet.
type written struct {
	child  client.Object
	uid    types.UID
	status any
	at     time.Time
}

// settle is how long a status that was written may take to be seen. After that, one that is there in another form was changed
// by somebody, and is put back.
const settle = 2 * time.Second

// NewReporter makes a Reporter. It talks to nobody before Run.
func NewReporter(cfg ReporterConfig) (*Reporter, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg.REST, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	return &Reporter{cfg: cfg, client: c, last: map[types.NamespacedName]*reported{}}, nil
}

// Run writes what report gives, whenever it has changed, until ctx ends; then it gives the Leases back. What cannot be
// written is tried again.
func (r *Reporter) Run(ctx context.Context, report func() []Report) error {
	ticker := time.NewTicker(reportPeriod)
	defer ticker.Stop()
	retry := map[types.NamespacedName]time.Time{}
	for {
		select {
		case <-ctx.Done():
			r.giveBack()
			return nil
		case <-ticker.C:
		}
		now := r.cfg.Clock()
		for _, rep := range report() {
			if now.Before(retry[rep.Infra]) {
				continue
			}
			if r.last[rep.Infra] == nil {
				r.last[rep.Infra] = &reported{since: now}
			}
			last := r.last[rep.Infra]
			err := r.write(ctx, rep, last, now)
			if err != nil && ctx.Err() == nil {
				retry[rep.Infra] = now.Add(2 * time.Second)
				if !last.failing {
					r.cfg.Log.Warn("what is served cannot be reported, trying again", "infra", rep.Infra.String(), "error", err)
				}
			}
			last.failing = err != nil
		}
	}
}

func (r *Reporter) owner() string { return process.FieldOwner + "-" + r.cfg.Identity }

// serverStatus is the status of a DHCPServer or DNSServer as a serving process writes it.
type serverStatus struct {
	Conditions   []metav1.Condition `json:"conditions"`
	ActiveLeases *int32             `json:"activeLeases,omitempty"`
	TotalLeases  *int32             `json:"totalLeases,omitempty"`
}

// envoysStatus is a serving process's share of a ProxyServer's status.
type envoysStatus struct {
	Envoys []v1alpha1.EnvoyStatus `json:"envoys"`
}

func (r *Reporter) write(ctx context.Context, rep Report, last *reported, now time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var errs []error
	if now.Sub(last.renewed) >= last.renewAfter(rep.VLAN) {
		if err := r.renew(ctx, rep, now); err != nil {
			return err
		}
		last.renewed, last.vlan = now, rep.VLAN
	}
	if d := rep.DNS; d != nil && rep.speaks() {
		status := &serverStatus{Conditions: ready(last.dns.conditions(d, d.Status.Conditions), d.Generation, rep.DNSReady, rep.DNSMessage, now)}
		if !last.defers(&last.dns, d, d.Status.Conditions, rep.DNSReady, now) {
			errs = append(errs, r.put(ctx, d, status, &last.dns, stands(d.Status.Conditions, rep.DNSReady), now))
		}
	}
	if d := rep.DHCP; d != nil && rep.speaks() {
		status := &serverStatus{
			Conditions:   ready(last.dhcp.conditions(d, d.Status.Conditions), d.Generation, rep.DHCPReady, rep.DHCPMessage, now),
			ActiveLeases: &rep.ActiveLeases, TotalLeases: &rep.TotalLeases,
		}
		if before, ok := last.dhcp.of(d).(*serverStatus); ok && now.Sub(last.counted) < countPeriod {
			status.ActiveLeases, status.TotalLeases = before.ActiveLeases, before.TotalLeases
		} else {
			last.counted = now
		}
		if !last.defers(&last.dhcp, d, d.Status.Conditions, rep.DHCPReady, now) {
			errs = append(errs, r.put(ctx, d, status, &last.dhcp, stands(d.Status.Conditions, rep.DHCPReady), now))
		}
	}
	if p := rep.Proxy; p != nil {
		envoys := append([]v1alpha1.EnvoyStatus{}, rep.Envoys...) // none is an empty list, not null
		for i := range envoys {
			envoys[i].Process = r.cfg.Identity
		}
		if !last.hold(envoys, p.Generation, now) {
			own := slices.DeleteFunc(slices.Clone(p.Status.Envoys), func(e v1alpha1.EnvoyStatus) bool { return e.Process != r.cfg.Identity })
			isThere := equality.Semantic.DeepEqual(byName(own), byName(envoys))
			errs = append(errs, r.put(ctx, p, &envoysStatus{Envoys: envoys}, &last.proxy, isThere, now))
		}
	}
	return errors.Join(errs...)
}

func byName(envoys []v1alpha1.EnvoyStatus) map[string]v1alpha1.EnvoyStatus {
	named := make(map[string]v1alpha1.EnvoyStatus, len(envoys))
	for _, e := range envoys {
		named[e.Name] = e
	}
	return named
}

// stands tells whether the Ready condition that is there can stand. Another process may serve as well: then the one that is
// ready has the word, and the other one does not take it back.
func stands(there []metav1.Condition, isReady bool) bool {
	found := meta.FindStatusCondition(there, v1alpha1.ConditionReady)
	return found != nil && (!isReady || found.Status == metav1.ConditionTrue)
}

// startPatience is how long a process that has just started and is not ready leaves a Ready condition alone.
const startPatience = 5 * time.Second

// defers tells whether a process that is not ready leaves the word to the one that said Ready.
func (r *reported) defers(last *written, child client.Object, there []metav1.Condition, isReady bool, now time.Time) bool {
	return !isReady && last.of(child) == nil && now.Sub(r.since) < startPatience &&
		meta.IsStatusConditionTrue(there, v1alpha1.ConditionReady)
}

// put writes a status unless it was written last and nobody has changed it since.
func (r *Reporter) put(ctx context.Context, child client.Object, status any, last *written, isThere bool, now time.Time) error {
	if equality.Semantic.DeepEqual(status, last.of(child)) && (isThere || now.Sub(last.at) < settle) {
		return nil
	}
	if err := process.ApplyStatus(ctx, r.client, child, status, r.owner()); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return nil
		}
		return fmt.Errorf("status of %T %s: %w", child, client.ObjectKeyFromObject(child), err)
	}
	*last = written{child, child.GetUID(), status, now}
	return nil
}

// of is the status that was written last of this very child; nil: none.
func (w *written) of(child client.Object) any {
	if w.uid != child.GetUID() {
		return nil
	}
	return w.status
}

// conditions are those that this process wrote last, or that it found.
func (w *written) conditions(child client.Object, found []metav1.Condition) []metav1.Condition {
	if status, ok := w.of(child).(*serverStatus); ok {
		return status.Conditions
	}
	return found
}

// ready is the Ready condition of a server; its time stays until its status changes.
func ready(before []metav1.Condition, generation int64, isReady bool, message string, now time.Time) []metav1.Condition {
	c := metav1.Condition{
		Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady, Message: "serving",
		ObservedGeneration: generation, LastTransitionTime: metav1.NewTime(now.Truncate(time.Second)),
	}
	if !isReady {
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonNotServing, message
	}
	if old := meta.FindStatusCondition(before, c.Type); old != nil && old.Status == c.Status {
		c.LastTransitionTime = old.LastTransitionTime
	}
	return []metav1.Condition{c}
}

// renew says that this process serves the Infra.
func (r *Reporter) renew(ctx context.Context, rep Report, now time.Time) error {
	lease := r.lease(rep.Infra)
	err := r.client.Get(ctx, client.ObjectKeyFromObject(lease), lease)
	missing := client.IgnoreNotFound(err) == nil && err != nil
	if err != nil && !missing {
		return fmt.Errorf("Lease %s: %w", lease.Name, err)
	}
	word := process.Word{Process: r.cfg.Identity, Key: r.cfg.Key, VLAN: rep.VLAN}
	if err := word.Write(lease, rep.Infra.Name, now); err != nil {
		return fmt.Errorf("Lease %s: %w", lease.Name, err)
	}
	lease.OwnerReferences = nil
	if owner := cmp.Or(r.cfg.Pod, rep.Owner()); owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if missing {
		err = r.client.Create(ctx, lease)
	} else {
		err = r.client.Update(ctx, lease)
	}
	if err != nil {
		return fmt.Errorf("Lease %s: %w", lease.Name, err)
	}
	return nil
}

func (r *Reporter) lease(infra types.NamespacedName) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
		Namespace: infra.Namespace, Name: process.LeaseName(infra.Name, r.cfg.Identity),
	}}
}

// giveBack takes back what this process said of its servers and deletes its Leases, so that nobody has to wait for them to run
// out. Another process that serves says so again by itself.
func (r *Reporter) giveBack() {
	ctx, cancel := context.WithTimeout(context.Background(), stopGrace)
	defer cancel()
	for infra, last := range r.last {
		var errs []error
		for _, w := range []*written{&last.dns, &last.dhcp} {
			// Of several VLAN pods, the next holder speaks; without one, it is the Leases that tell the hub.
			if before, ok := w.status.(*serverStatus); ok && last.vlan == nil {
				status := *before
				status.Conditions = ready(before.Conditions, before.Conditions[0].ObservedGeneration, false, "the process that served has stopped", r.cfg.Clock())
				errs = append(errs, client.IgnoreNotFound(process.ApplyStatus(ctx, r.client, w.child, &status, r.owner())))
			}
		}
		errs = append(errs, client.IgnoreNotFound(r.client.Delete(ctx, r.lease(infra))))
		if err := errors.Join(errs...); err != nil {
			r.cfg.Log.Debug("a Lease is left to run out", "infra", infra.String(), "error", err)
		}
	}
}
