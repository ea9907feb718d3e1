package plan

import (
	"cmp"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/hypershift"
	"github.com/densityops/oooi/api/v1alpha1"
)

// AppsWork is what is to be done inside the hosted cluster of one attachment (product rule 15).
type AppsWork struct {
	// Kubeconfig is the Secret that the HostedCluster's status names; zero: it is not known yet.
	Kubeconfig types.NamespacedName
	// Addresses and Port are where this cluster reaches the API server of the hosted one: addresses, or one DNS name.
	// None: there is no way.
	Addresses []string
	Port      int32
	// Waiting is why the hosted cluster cannot be looked into yet; empty: it can.
	Waiting string
	// Hold is the conflict because of which nothing is written and nothing taken away there; empty: there is none.
	Hold string
	// Remove: what was made is to be taken away, because apps ingress is disabled, or the attachment or its HostedCluster
	// is being deleted or gone.
	Remove bool
	// Gone (with Remove): the HostedCluster does not exist, so nothing is left to be taken away.
	Gone bool
}

// hostedClusterKind is the kind whose absence from MissingKinds lets the plan trust that a HostedCluster is gone.
var hostedClusterKind = "HostedCluster." + hypershift.GroupVersion.Group

// appsSubject is what the hub's finalizer and HyperShift say about one attachment.
type appsSubject struct {
	enabled, deleting bool // the attachment
	made              bool // something of ours may be in the hosted cluster
	looked            bool // somebody looks into hosted clusters
	known             bool // its VIP is known
	cluster           *hypershift.HostedCluster
}

// decideApps decides what is to be done inside the hosted cluster of an attachment whose conflicts are known.
func decideApps(a *Attachment, w *index) {
	s := appsSubject{
		enabled:  a.Object.AppsEnabled(),
		deleting: a.Object.DeletionTimestamp != nil,
		made:     slices.Contains(a.Object.Finalizers, v1alpha1.FinalizerAppsIngress),
		looked:   !w.nobodyLooks,
		known:    a.Object.Status.AppsIngressStatus != nil && a.Object.Status.AppsIngressStatus.ExternalIP != "",
		cluster:  w.clusters[a.hostedCluster],
	}
	if !s.made && (!s.enabled || s.deleting) {
		return
	}
	if a.targets == nil {
		a.targets = findTargets(a, w)
	}
	api := a.targets[targetAPI]
	work := &AppsWork{Addresses: api.addresses, Port: api.targetPort, Waiting: s.waiting(a)}
	a.Apps = work
	if s.cluster != nil && s.cluster.Status.KubeConfig != nil && s.cluster.Status.KubeConfig.Name != "" {
		work.Kubeconfig = types.NamespacedName{Namespace: a.hostedCluster.Namespace, Name: s.cluster.Status.KubeConfig.Name}
	}
	// While the kind is not served nothing is known of HostedClusters.
	gone := s.cluster == nil && !slices.Contains(w.missingKinds, hostedClusterKind)
	work.Remove = s.made && (!s.enabled || s.deleting || gone || s.clusterDeleting())
	work.Gone = work.Remove && gone
	switch {
	case work.Remove:
	case a.LeftOut != nil:
		work.Hold = a.LeftOut.Message
	case a.appsProblem != nil:
		work.Hold = a.appsProblem.Message
	}
	a.appsForgotten = gone || s.clusterDeleting()
	a.appsServed = !work.Remove && work.Hold == "" && s.cluster != nil && !s.clusterDeleting()
}

func (s *appsSubject) clusterDeleting() bool {
	return s.cluster != nil && s.cluster.DeletionTimestamp != nil
}

// waiting says why the hosted cluster cannot be looked into; empty: it can.
func (s *appsSubject) waiting(a *Attachment) string {
	api := a.targets[targetAPI]
	removable := s.made && s.clusterDeleting()
	switch {
	case s.cluster == nil:
		return fmt.Sprintf("HostedCluster %s does not exist: create it or correct hostedClusterRef", a.hostedCluster)
	case s.clusterDeleting() && !removable:
		return fmt.Sprintf("HostedCluster %s is being deleted", a.hostedCluster)
	case !s.looked && s.known:
		return ""
	case !s.looked:
		return "no VIP is known, and nobody looks into the hosted cluster: write it into status.appsIngressStatus.externalIP"
	case s.cluster.Status.KubeConfig == nil || s.cluster.Status.KubeConfig.Name == "":
		return fmt.Sprintf("HostedCluster %s has no kubeconfig in its status yet: HyperShift writes it once the control plane runs", a.hostedCluster)
	case len(api.addresses) == 0:
		return fmt.Sprintf("no way to the API server of HostedCluster %s: namespace %s, %s",
			a.hostedCluster, a.Object.ControlPlaneNamespace(), api.missing)
	}
	return ""
}

// reportApps writes appsIngressStatus and the condition AppsIngressReady, and gives what an attachment that is Ready
// otherwise says of it.
func reportApps(a *Attachment) (pending string) {
	if a.Apps == nil {
		return ""
	}
	s := &a.Status
	observed := a.Object.Status.AppsIngressStatus.DeepCopy()
	set := func(status metav1.ConditionStatus, reason, message string) {
		setCondition(&s.Conditions, v1alpha1.ConditionAppsIngressReady, status, reason, message)
	}
	switch {
	case a.Apps.Remove:
		s.AppsIngressStatus = observed
		message := "what was made in the hosted cluster is being taken away"
		if observed != nil && observed.Phase != v1alpha1.PhaseReady {
			message = cmp.Or(observed.Message, message)
		}
		set(metav1.ConditionFalse, v1alpha1.ReasonRemoving, message)
		return ""
	case a.LeftOut != nil:
		s.AppsIngressStatus = observed
		set(metav1.ConditionFalse, a.LeftOut.Reason, "nothing is published and nothing is changed in the hosted cluster while the attachment is left out")
		return ""
	}
	s.AppsIngressStatus = a.appsStatus(observed)
	now := s.AppsIngressStatus
	if now.Phase == v1alpha1.PhaseReady {
		set(metav1.ConditionTrue, now.Reason, now.Message)
		return ""
	}
	set(metav1.ConditionFalse, now.Reason, now.Message)
	if now.Phase == v1alpha1.PhasePending {
		return now.Message
	}
	return ""
}

// appsStatus is what was observed with the word of the plan: it knows what may be published, and what cannot be looked
// at. Taken as the next observation it gives the same again.
func (a *Attachment) appsStatus(observed *v1alpha1.AppsIngressStatus) *v1alpha1.AppsIngressStatus {
	pending := func(message string) *v1alpha1.AppsIngressStatus {
		return &v1alpha1.AppsIngressStatus{Phase: v1alpha1.PhasePending, Reason: v1alpha1.ReasonWaitingForHostedClusterNodes, Message: message}
	}
	if observed == nil {
		observed = &v1alpha1.AppsIngressStatus{}
	}
	degraded := func(reason, message string) *v1alpha1.AppsIngressStatus {
		return &v1alpha1.AppsIngressStatus{
			Phase: v1alpha1.PhaseDegraded, Reason: reason, Message: message,
			ExternalIP: observed.ExternalIP, ExternalHostname: observed.ExternalHostname,
		}
	}
	known := observed.ExternalIP != ""
	switch {
	case a.appsProblem != nil:
		return degraded(v1alpha1.ReasonMetalLBInstallFailed, a.appsProblem.Message)
	case a.appsForgotten:
		return pending(a.Apps.Waiting)
	case !a.appsServed: // HostedClusters are not known at the moment
		now := pending(a.Apps.Waiting)
		now.ExternalIP, now.ExternalHostname = observed.ExternalIP, observed.ExternalHostname
		return now
	case known && a.vipProblem != "":
		return degraded(v1alpha1.ReasonExternalIPDiscoveryFailed, a.vipProblem)
	case !known && observed.ExternalHostname != "":
		return degraded(v1alpha1.ReasonExternalIPDiscoveryFailed, fmt.Sprintf(
			"the Service in the hosted cluster has the name %s instead of an address, which names under *.apps.%s cannot lead to: let MetalLB give it an IPv4 address",
			observed.ExternalHostname, a.Domain))
	case !known && a.Apps.Waiting != "":
		return pending(a.Apps.Waiting)
	case a.Apps.Waiting != "": // what is known is what was seen last
		return degraded(v1alpha1.ReasonHostedClusterAccessFailed, a.Apps.Waiting)
	case !known && (observed.Phase == "" || observed.Phase == v1alpha1.PhaseReady):
		return pending("nobody has looked into the hosted cluster yet")
	}
	now := *observed
	switch now.Phase {
	case v1alpha1.PhasePending, v1alpha1.PhaseDegraded:
	default: // an address that was given by hand
		now.Phase, now.Reason = v1alpha1.PhaseReady, v1alpha1.ReasonReconciliationSucceeded
		now.Message = cmp.Or(now.Message, fmt.Sprintf("*.apps.%s is at %s", a.Domain, now.ExternalIP))
	}
	return &now
}

// appsDegraded tells whether apps ingress keeps the attachment from being Ready, in words that no other condition has.
func (a *Attachment) appsDegraded() bool {
	s := a.Status.AppsIngressStatus
	return a.Apps != nil && !a.Apps.Remove && a.LeftOut == nil && a.appsProblem == nil && s != nil && s.Phase == v1alpha1.PhaseDegraded
}
