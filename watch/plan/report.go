package plan

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
)

// reportAttachment writes the conditions that the steps before left open.
func reportAttachment(infra *Infra, a *Attachment, w *index) {
	s := &a.Status
	s.ObservedGeneration = a.Object.Generation
	s.Domain = a.Domain
	if a.LeftOut != nil {
		setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse, a.LeftOut.Reason, a.LeftOut.Message)
	} else {
		setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "on the VLAN of Infra "+infra.Object.Name)
	}
	if a.appsProblem != nil {
		setCondition(&s.Conditions, v1alpha1.ConditionAppsRangeAccepted, metav1.ConditionFalse, a.appsProblem.Reason, a.appsProblem.Message)
	}
	reportSources(a)
	reportPublishing(infra, a, w)
	pending := reportApps(a)
	good := "names and routes are in place"
	if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAppsIngressReady); c != nil && infra.byHostUnknown && a.vip.IsValid() && infra.Proxy != nil {
		const waits = "; apps on port 80 of the proxy wait until no VLAN pod of a release without them is left"
		c.Message += waits
		good += waits
	}
	reportExternal(infra, a, w)
	slices.SortStableFunc(s.Conditions, func(x, y metav1.Condition) int { return strings.Compare(x.Type, y.Type) })
	if a.LeftOut != nil { // nothing else matters
		setReady(&s.Conditions, "", v1alpha1.ConditionAccepted)
		return
	}
	kinds := []string{v1alpha1.ConditionControlPlaneFound, v1alpha1.ConditionAppsRangeAccepted, v1alpha1.ConditionPublishedHere}
	if a.appsDegraded() {
		kinds = append(kinds, v1alpha1.ConditionAppsIngressReady)
	}
	if _, unwritten := w.unwritten[externalKey(a)]; a.external() != nil && infra.Proxy != nil && (a.externalPort == 0 || unwritten) {
		kinds = append(kinds, v1alpha1.ConditionExternalServiceReady)
	}
	if pending != "" {
		good += "; apps ingress is pending: " + pending
	}
	setReady(&s.Conditions, good, kinds...)
}

func reportSources(a *Attachment) {
	if len(a.Sources) == 0 {
		return // findMembers or dropDisputed said why
	}
	remembered := 0
	for _, s := range a.Sources {
		if s.Remembered {
			remembered++
		}
	}
	message := fmt.Sprintf("worker addresses: %d", len(a.Sources))
	if remembered > 0 {
		message += fmt.Sprintf(", of them remembered from Machines that show none at the moment: %d", remembered)
	}
	setCondition(&a.Status.Conditions, v1alpha1.ConditionSourcesDiscovered, metav1.ConditionTrue, v1alpha1.ReasonDiscovered, message)
}

// reportOrphan reports an attachment without an Infra. Nothing is changed in its hosted cluster, and the port
// of its public Service stays its own.
func reportOrphan(a *Attachment, w *index) {
	s := &a.Status
	s.ObservedGeneration = a.Object.Generation
	s.Domain = a.Domain
	if a.LeftOut == nil {
		a.LeftOut = &Refusal{v1alpha1.ReasonInfraNotFound, fmt.Sprintf(
			"no Infra %s in namespace %s: create it or correct infraRef.name", a.Object.Spec.InfraRef.Name, a.Object.Namespace)}
	}
	decideApps(a, w)
	setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse, a.LeftOut.Reason, a.LeftOut.Message)
	reportApps(a)
	if a.external() != nil {
		a.externalPort = externalPortOf(a)
		reportExternal(nil, a, w)
	}
	setReady(&s.Conditions, "", v1alpha1.ConditionAccepted)
}

// reportDeleting reports an attachment that is being deleted.
func reportDeleting(a *Attachment) {
	s := &a.Status
	s.ObservedGeneration = a.Object.Generation
	s.Domain = a.Domain
	a.LeftOut = &Refusal{v1alpha1.ReasonDeleting, "the attachment is being deleted: it has no names and no routes any more"}
	setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse, a.LeftOut.Reason, a.LeftOut.Message)
	reportApps(a)
	setReady(&s.Conditions, "", v1alpha1.ConditionAccepted)
}

// reportInfra writes the conditions of an Infra; its attachments' are complete.
func reportInfra(infra *Infra, missingKinds []string) {
	s := &infra.Status
	s.ObservedGeneration = infra.Object.Generation
	s.Attachments.Total = int32(len(infra.Attachments))
	for _, a := range infra.Attachments {
		if a.Status.Conditions[0].Status == metav1.ConditionTrue {
			s.Attachments.Ready++
		}
	}
	if len(infra.problems) > 0 {
		setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionFalse, infra.problems[0].Reason, joinProblems(infra.problems))
	} else {
		setCondition(&s.Conditions, v1alpha1.ConditionAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "the configuration is consistent")
	}
	reportLeftOut(infra)
	reportDisputed(infra)
	reportUpstreams(infra)
	reportDeprecated(infra)
	reportImages(infra)
	reportMissingKinds(infra, missingKinds)
	slices.SortStableFunc(s.Conditions, func(x, y metav1.Condition) int { return strings.Compare(x.Type, y.Type) })
	setReady(&s.Conditions, "the configuration can be served",
		v1alpha1.ConditionAccepted, v1alpha1.ConditionAttachmentsAccepted, v1alpha1.ConditionSourcesUnique)
}

// reportLeftOut says which attachments are left out and why, hostnames before HostedClusters.
func reportLeftOut(infra *Infra) {
	var reason string
	var messages []string
	for _, want := range []string{v1alpha1.ReasonDuplicateHostname, v1alpha1.ReasonDuplicateHostedCluster, v1alpha1.ReasonInvalid} {
		for _, a := range infra.Attachments {
			if a.LeftOut == nil || a.LeftOut.Reason != want {
				continue
			}
			reason = cmp.Or(reason, want)
			message := a.LeftOut.Message
			if want == v1alpha1.ReasonInvalid {
				message = "attachment " + a.Object.Name + ": " + message
			}
			if !slices.Contains(messages, message) {
				messages = append(messages, message)
			}
		}
	}
	if reason == "" {
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionAttachmentsAccepted, metav1.ConditionTrue, v1alpha1.ReasonAccepted, "no attachment is left out")
		return
	}
	setCondition(&infra.Status.Conditions, v1alpha1.ConditionAttachmentsAccepted, metav1.ConditionFalse, reason, strings.Join(messages, "; "))
}

func reportDisputed(infra *Infra) {
	if len(infra.Disputed) == 0 {
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionSourcesUnique, metav1.ConditionTrue, v1alpha1.ReasonNone, "no worker address is shown by two attachments")
		return
	}
	var texts []string
	for _, address := range slices.SortedFunc(maps.Keys(infra.Disputed), netip.Addr.Compare) {
		var who []string
		for _, c := range infra.Disputed[address] {
			who = append(who, fmt.Sprintf("Machine %s of attachment %s", c.Machine, c.Attachment))
		}
		texts = append(texts, fmt.Sprintf("%s is shown by %s", address, strings.Join(who, " and ")))
	}
	setCondition(&infra.Status.Conditions, v1alpha1.ConditionSourcesUnique, metav1.ConditionFalse, v1alpha1.ReasonDuplicateSourceIP,
		abridge(texts)+": those addresses reach no cluster by alias or without a server name until one Machine lets go")
}

func reportUpstreams(infra *Infra) {
	if !v1alpha1.On(infra.Object.Spec.InfraComponents.DNS.Enabled) {
		return
	}
	if len(infra.Object.Spec.NetworkConfig.DNSServers) == 0 {
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionUpstreamsConfigured, metav1.ConditionFalse, v1alpha1.ReasonNoUpstreams,
			"networkConfig.dnsServers is empty: every name that is not ours is refused")
		return
	}
	setCondition(&infra.Status.Conditions, v1alpha1.ConditionUpstreamsConfigured, metav1.ConditionTrue, v1alpha1.ReasonConfigured,
		"other names are asked of "+strings.Join(infra.Object.Spec.NetworkConfig.DNSServers, ", "))
}

// reportDeprecated lists the fields of the single-cluster model that are set and ignored.
func reportDeprecated(infra *Infra) {
	spec := &infra.Object.Spec
	var set []string
	for _, f := range []struct {
		name string
		set  bool
	}{
		{"spec.appsIngress", spec.AppsIngress != nil},
		{"spec.infraComponents.dns.clusterName", spec.InfraComponents.DNS.ClusterName != ""},
		{"spec.infraComponents.dns.baseDomain", spec.InfraComponents.DNS.BaseDomain != ""},
		{"spec.infraComponents.proxy.controlPlaneNamespace", spec.InfraComponents.Proxy.ControlPlaneNamespace != ""},
		{"spec.infraComponents.proxy.apiServerService", spec.InfraComponents.Proxy.APIServerService != ""},
		{"spec.infraComponents.proxy.externalService", spec.InfraComponents.Proxy.ExternalService != nil},
	} {
		if f.set {
			set = append(set, f.name)
		}
	}
	if len(set) > 0 {
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionNoDeprecatedFields, metav1.ConditionFalse, v1alpha1.ReasonDeprecatedField,
			strings.Join(set, ", ")+": ignored; set it on an InfraClusterAttachment instead")
	}
}

func reportImages(infra *Infra) {
	c := &infra.Object.Spec.InfraComponents
	manager := c.Proxy.ManagerImage
	for _, image := range []string{c.DHCP.Image, c.DNS.Image} {
		if image == "" {
			continue
		}
		if manager == "" {
			manager = image
		}
		if image != manager {
			setCondition(&infra.Status.Conditions, v1alpha1.ConditionImagesAgree, metav1.ConditionFalse, v1alpha1.ReasonImagesDisagree,
				fmt.Sprintf("oooi is one image, but the components name %s and %s: only proxy.managerImage counts", manager, image))
		}
	}
}

// reportMissingKinds says which neighbours are not installed; what does not need them works.
func reportMissingKinds(infra *Infra, missing []string) {
	if len(missing) > 0 {
		setCondition(&infra.Status.Conditions, v1alpha1.ConditionNeighboursServed, metav1.ConditionFalse, v1alpha1.ReasonKindsMissing,
			"the cluster does not serve "+strings.Join(missing, ", ")+": what is read of them is missing until their definitions are installed")
	}
}
