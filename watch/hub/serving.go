package hub

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/watch/process"
)

// processes are the living serving processes of an Infra, as servingChanged judged them last, each with what it says of
// the server addresses; nil: it leaves them to others.
func (h *Hub) processes(infra types.NamespacedName) map[string]*process.VLAN {
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	alive := map[string]*process.VLAN{}
	for name, lease := range h.alive(infra) {
		alive[name] = process.ReadVLAN(lease)
	}
	return alive
}

// byHostUnknown tells of each Infra that has a serving process of an older release, which knows no routes by Host.
func (h *Hub) byHostUnknown(infras []*v1alpha1.Infra) map[types.NamespacedName]bool {
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	unknown := map[types.NamespacedName]bool{}
	for _, infra := range infras {
		for _, lease := range h.alive(client.ObjectKeyFromObject(infra)) {
			if _, judged := h.wasAlive[client.ObjectKeyFromObject(lease)]; !judged && h.servesByHost(infra) {
				continue // it may have ended long ago, and what is served stays until that is known
			}
			if !process.KnowsByHost(lease) {
				unknown[client.ObjectKeyFromObject(infra)] = true
			}
		}
	}
	return unknown
}

// servesByHost tells whether an Infra's ProxyServer has routes by Host. The lock of the world is held.
func (h *Hub) servesByHost(infra *v1alpha1.Infra) bool {
	proxy := h.world.proxies[types.NamespacedName{Namespace: infra.Namespace, Name: v1alpha1.ProxyServerName(infra.Name)}]
	return proxy != nil && slices.ContainsFunc(proxy.Spec.Backends, func(b v1alpha1.Backend) bool { return slices.Contains(b.Ports, 80) })
}

// alive are the Leases of the processes that serve an Infra, by process. The lock of the world is held.
func (h *Hub) alive(infra types.NamespacedName) map[string]*coordinationv1.Lease {
	alive := map[string]*coordinationv1.Lease{}
	for key, lease := range h.world.serving {
		if key.Namespace != infra.Namespace || lease.Labels[process.Label] != v1alpha1.LabelValue(infra.Name) {
			continue
		}
		name := process.SpokenFor(lease, infra.Name)
		if name == "" {
			continue
		}
		lives, judged := h.wasAlive[key]
		if lives || !judged && h.holds(key, lease) {
			alive[name] = lease
		}
	}
	return alive
}

// serverAddresses are those that an Infra's servers want on the VLAN.
func serverAddresses(infra *plan.Infra) []string {
	var wanted []string
	if infra.DHCP != nil {
		wanted = append(wanted, infra.DHCP.Spec.NetworkConfig.ServerIP)
	}
	if infra.DNS != nil {
		wanted = append(wanted, infra.DNS.Spec.NetworkConfig.ServerIP)
	}
	if infra.Proxy != nil {
		wanted = append(wanted, infra.Proxy.Spec.NetworkConfig.ServerIP)
	}
	return wanted
}

// addressesHeld is the condition of an Infra that says whether a VLAN pod has the wanted addresses, all and undisputed; nil: no
// process claims any. With a condition, the others are those that the holder has, and nil when there is no holder.
func addressesHeld(alive map[string]*process.VLAN, wanted []string) (*metav1.Condition, []string) {
	var holder string
	var claims bool
	for _, name := range slices.Sorted(maps.Keys(alive)) {
		report := alive[name]
		claims = claims || report != nil
		// Who is dead or cut off may still stand in its Lease as the holder.
		if report != nil && report.Holding && (holder == "" || report.Epoch > alive[holder].Epoch) {
			holder = name
		}
	}
	if !claims {
		return nil, nil
	}
	var has []string
	c := &metav1.Condition{Type: v1alpha1.ConditionAddressesHeld, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonHeld}
	var problems []string
	tell := func(name string) {
		for _, p := range alive[name].Problems {
			if c.Status == metav1.ConditionTrue || name == holder && len(problems) == 0 {
				c.Reason = p.Reason
			}
			c.Status = metav1.ConditionFalse
			problems = append(problems, fmt.Sprintf("pod %s: %s", name, p.Message))
		}
	}
	if holder != "" {
		tell(holder)
		has = append([]string{}, alive[holder].Addresses...)
		c.Message = fmt.Sprintf("pod %s has %s", holder, cmp.Or(strings.Join(has, ", "), "none of them"))
		if lacks := slices.DeleteFunc(slices.Clone(wanted), func(a string) bool { return slices.Contains(has, a) }); len(lacks) > 0 && c.Status == metav1.ConditionTrue {
			c.Status, c.Reason = metav1.ConditionFalse, v1alpha1.ReasonClaiming
			c.Message += ", and is about to have " + strings.Join(lacks, ", ")
		}
	} else {
		for _, name := range slices.Sorted(maps.Keys(alive)) {
			if alive[name] != nil {
				tell(name)
			}
		}
		if len(problems) == 0 {
			c.Reason = v1alpha1.ReasonNoHolder
		}
		c.Status, c.Message = metav1.ConditionFalse, "no VLAN pod has the addresses"
	}
	if len(problems) > 0 {
		c.Message += "; " + strings.Join(problems, "; ")
	}
	return c, has
}

// renewal is a renewal of a Lease, and when it was seen by this process's own clock: others' clocks may be wrong.
type renewal struct {
	renewed metav1.MicroTime
	seen    time.Time
}

// holds tells whether a Lease has a holder that lives, as far as that can be known. The lock of the world is held.
func (h *Hub) holds(key types.NamespacedName, lease *coordinationv1.Lease) bool {
	s := &lease.Spec
	return s.HolderIdentity != nil && *s.HolderIdentity != "" && (h.blind || h.renewed(key, lease))
}

// renewed tells whether a Lease was renewed in time; one that is seen for the first time has been.
func (h *Hub) renewed(key types.NamespacedName, lease *coordinationv1.Lease) bool {
	s := &lease.Spec
	if s.RenewTime == nil || s.LeaseDurationSeconds == nil {
		return false
	}
	last, known := h.renewals[key]
	if !known || !last.renewed.Equal(s.RenewTime) {
		last = renewal{*s.RenewTime, h.cfg.Clock()}
		h.renewals[key] = last
	}
	return h.cfg.Clock().Sub(last.seen) < time.Duration(*s.LeaseDurationSeconds)*time.Second
}

// servingChanged tells whether a serving process has stopped or begun to renew since it was last looked. A watch may be
// behind, for half a minute after the API was away: before a process counts as gone, the API is asked.
func (h *Hub) servingChanged(ctx context.Context) bool {
	if h.anyRanOut() {
		h.askForLeases(ctx)
	}
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	changed := false
	for key, lease := range h.world.serving {
		alive := h.holds(key, lease)
		changed = changed || h.wasAlive[key] != alive
		h.wasAlive[key] = alive
	}
	return changed
}

func (h *Hub) anyRanOut() bool {
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	for key, lease := range h.world.serving {
		if h.wasAlive[key] && !h.renewed(key, lease) {
			return true
		}
	}
	return false
}

// askForLeases reads the Leases of serving processes from the API. While it cannot be asked, nobody counts as gone.
func (h *Hub) askForLeases(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var leases coordinationv1.LeaseList
	err := h.client.List(ctx, &leases, client.HasLabels{process.Label})
	h.world.mu.Lock()
	defer h.world.mu.Unlock()
	h.blind = err != nil
	for i := range leases.Items {
		h.world.serving[client.ObjectKeyFromObject(&leases.Items[i])] = &leases.Items[i]
	}
}

// servingOf sums up what the serving processes say of an Infra's servers.
func (h *Hub) servingOf(infra *plan.Infra) watch.Serving {
	alive := h.processes(infra.Key())
	var s watch.Serving
	held, has := addressesHeld(alive, serverAddresses(infra))
	if held != nil {
		s.Observed = append(s.Observed, *held)
	}
	if pods := h.workloads.Condition(infra); pods != nil {
		s.Observed = append(s.Observed, *pods)
	}
	judge := func(component v1alpha1.Component, wanted bool, address string, conditions []metav1.Condition, ready *bool) {
		c := meta.FindStatusCondition(conditions, v1alpha1.ConditionReady)
		switch {
		case !wanted:
		case len(alive) == 0:
			s.Waiting = append(s.Waiting, string(component)+": no process serves this Infra")
		case held != nil && !slices.Contains(has, address):
			s.Waiting = append(s.Waiting, string(component)+": "+held.Message)
		case c == nil:
			s.Waiting = append(s.Waiting, string(component)+": not reported yet")
		case c.Status != metav1.ConditionTrue:
			s.Waiting = append(s.Waiting, string(component)+": "+c.Message)
		default:
			*ready = true
		}
	}
	there := h.attempt(infra)
	if infra.DHCP != nil && controlled(infra, there.dhcp) == nil || infra.DNS != nil && controlled(infra, there.dns) == nil ||
		infra.Proxy != nil && controlled(infra, there.proxy) == nil {
		s.Waiting = append(s.Waiting, "children are not written yet")
	}
	if d := controlled(infra, there.dhcp); d != nil {
		judge(v1alpha1.ComponentDHCP, infra.DHCP != nil, d.Spec.NetworkConfig.ServerIP, d.Status.Conditions, &s.DHCPReady)
	}
	if d := controlled(infra, there.dns); d != nil {
		judge(v1alpha1.ComponentDNS, infra.DNS != nil, d.Spec.NetworkConfig.ServerIP, d.Status.Conditions, &s.DNSReady)
	}
	if p := controlled(infra, there.proxy); p != nil {
		judge(v1alpha1.ComponentProxy, infra.Proxy != nil, p.Spec.NetworkConfig.ServerIP, h.proxyConditions(p, alive), &s.ProxyReady)
	}
	if err := h.writeProblem(infra.Key()); err != nil {
		s.Waiting = append(s.Waiting, "children cannot be written: "+strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	return s
}

// proxyConditions fold what each Envoy was sent, acknowledged and refused.
func (h *Hub) proxyConditions(p *v1alpha1.ProxyServer, alive map[string]*process.VLAN) []metav1.Condition {
	programmed := metav1.Condition{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonAcknowledged}
	var refused, pending []string
	envoys := 0
	for _, e := range p.Status.Envoys {
		_, lives := alive[e.Process]
		switch {
		case !lives:
			continue
		case e.Error != "":
			refused = append(refused, fmt.Sprintf("Envoy %s: %s", e.Name, e.Error))
		case e.Generation != p.Generation:
			pending = append(pending, e.Name)
		}
		envoys++
	}
	waiting := envoys > 0 && len(refused) == 0 && len(pending) > 0
	if !waiting {
		h.notPending(p)
	}
	switch {
	case len(refused) > 0:
		programmed.Status, programmed.Reason, programmed.Message = metav1.ConditionFalse, v1alpha1.ReasonRefused, strings.Join(refused, "; ")
	case envoys == 0:
		programmed.Status, programmed.Reason, programmed.Message = metav1.ConditionFalse, v1alpha1.ReasonNoEnvoy, "no Envoy is connected"
	case waiting && !h.pendingTooLong(p) && len(p.Status.Conditions) > 0:
		// Envoy answers within milliseconds: what is said of the generation before stands until then.
		return p.Status.Conditions
	case waiting:
		programmed.Status, programmed.Reason = metav1.ConditionFalse, v1alpha1.ReasonPending
		programmed.Message = "not acknowledged yet by Envoy " + strings.Join(pending, ", ")
	default:
		programmed.Message = fmt.Sprintf("acknowledged by every Envoy: %d", envoys)
	}
	programmed.ObservedGeneration = p.Generation
	ready := programmed
	ready.Type = v1alpha1.ConditionReady
	return []metav1.Condition{programmed, ready}
}

// pendingTooLong tells whether Envoys have been silent about a generation for longer than is worth waiting with the word.
func (h *Hub) pendingTooLong(p *v1alpha1.ProxyServer) bool {
	h.pendingMu.Lock()
	defer h.pendingMu.Unlock()
	key := client.ObjectKeyFromObject(p)
	since := h.pending[key]
	if since.IsZero() {
		h.pending[key] = h.cfg.Clock()
		return false
	}
	return h.cfg.Clock().Sub(since) >= process.PendingPatience
}

func (h *Hub) notPending(p *v1alpha1.ProxyServer) {
	h.pendingMu.Lock()
	defer h.pendingMu.Unlock()
	delete(h.pending, client.ObjectKeyFromObject(p))
}

// pendingChanged tells whether some Envoy has just been silent for too long.
func (h *Hub) pendingChanged() bool {
	h.pendingMu.Lock()
	defer h.pendingMu.Unlock()
	for _, since := range h.pending {
		// For a while, not for ever: nothing may change any more.
		if late := h.cfg.Clock().Sub(since) - process.PendingPatience; late >= 0 && late < 2*look {
			return true
		}
	}
	return false
}

// proxyStatus is the hub's share of a ProxyServer's status; each serving process has its own.
type proxyStatus struct {
	Conditions   []metav1.Condition `json:"conditions"`
	BackendCount int32              `json:"backendCount"`
	ServiceIP    string             `json:"serviceIP,omitempty"`
}

// writeProxyStatus folds what the serving processes wrote, and takes away what processes that are gone left.
func (h *Hub) writeProxyStatus(ctx context.Context, infra *plan.Infra) error {
	there := controlled(infra, h.attempt(infra).proxy)
	if there == nil || infra.Proxy == nil {
		return nil
	}
	alive := h.processes(infra.Key())
	if kept := aliveEntries(there.Status.Envoys, alive); len(kept) < len(there.Status.Envoys) {
		pruned := there.DeepCopy()
		pruned.Status.Envoys = kept
		h.metrics.writes.Inc()
		err := h.client.Status().Update(ctx, pruned, client.FieldOwner(process.FieldOwner))
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil // the cache is behind; what comes is looked at again
		}
		if err != nil {
			return fmt.Errorf("take away what gone processes left in ProxyServer %s: %w", client.ObjectKeyFromObject(there), err)
		}
	}
	wanted := proxyStatus{
		Conditions:   h.dated(h.proxyConditions(there, alive), there.Status.Conditions, there.Generation),
		BackendCount: int32(len(there.Spec.Backends)),
	}
	if infra.DNS != nil {
		wanted.ServiceIP = infra.DNS.Spec.NetworkConfig.InternalProxyIP
	}
	if equality.Semantic.DeepEqual(wanted, proxyStatus{there.Status.Conditions, there.Status.BackendCount, there.Status.ServiceIP}) {
		return nil
	}
	return h.writeStatus(ctx, there, &wanted, there.Status.Conditions, wanted.Conditions)
}

func aliveEntries(entries []v1alpha1.EnvoyStatus, alive map[string]*process.VLAN) []v1alpha1.EnvoyStatus {
	var kept []v1alpha1.EnvoyStatus
	for _, e := range entries {
		if _, lives := alive[e.Process]; lives {
			kept = append(kept, e)
		}
	}
	return kept
}

// Serving sums up for each Infra of a plan, by "namespace/name", what the serving processes say.
func (h *Hub) Serving(result *plan.Result) map[string]watch.Serving {
	all := map[string]watch.Serving{}
	for _, infra := range result.Infras {
		all[infra.Key().String()] = h.servingOf(infra)
	}
	return all
}
