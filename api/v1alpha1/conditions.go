package v1alpha1

// Condition types. Ready sums up the others of the same object.
const (
	// ConditionReady is True when the object works as asked.
	ConditionReady = "Ready"
	// ConditionAccepted is False when the object, or its part in a conflict, keeps it out of service.
	ConditionAccepted = "Accepted"
	// ConditionControlPlaneFound (attachment) is False when the control-plane namespace or one of
	// the target Services is missing.
	ConditionControlPlaneFound = "ControlPlaneFound"
	// ConditionSourcesDiscovered (attachment) is True when at least one worker address is known.
	ConditionSourcesDiscovered = "SourcesDiscovered"
	// ConditionPublishedHere (attachment) is False when workers are told to dial something that is not served here.
	ConditionPublishedHere = "PublishedHere"
	// ConditionAppsRangeAccepted (attachment) is False when its apps range conflicts; names and routes stay.
	ConditionAppsRangeAccepted = "AppsRangeAccepted"
	// ConditionAppsIngressReady (attachment) repeats appsIngressStatus: True when the VIP is there and published, or False with the
	// reason of the phase. Ready depends on it when the phase is Degraded, not while it is Pending: workers join before
	// there can be a VIP.
	ConditionAppsIngressReady = "AppsIngressReady"
	// ConditionExternalServiceReady (attachment) is True when the public Service has an address.
	ConditionExternalServiceReady = "ExternalServiceReady"
	// ConditionAttachmentsAccepted (Infra) is False when attachments are left out because they conflict.
	ConditionAttachmentsAccepted = "AttachmentsAccepted"
	// ConditionSourcesUnique (Infra) is False when Machines of two attachments show one address.
	ConditionSourcesUnique = "SourcesUnique"
	// ConditionUpstreamsConfigured (Infra) is False when there is nobody to forward other names to.
	ConditionUpstreamsConfigured = "UpstreamsConfigured"
	// ConditionInternalProxyResolved (Infra) is False when internalProxyService has no ClusterIP.
	ConditionInternalProxyResolved = "InternalProxyResolved"
	// ConditionNoDeprecatedFields (Infra) is False when fields of the single-cluster model are set.
	ConditionNoDeprecatedFields = "NoDeprecatedFields"
	// ConditionImagesAgree (Infra) is False when the component images name different oooi images.
	ConditionImagesAgree = "ImagesAgree"
	// ConditionNeighboursServed (Infra) is False when the cluster does not serve kinds that are read.
	ConditionNeighboursServed = "NeighboursServed"
	// ConditionAddressesHeld (Infra) is True when a VLAN pod has the server addresses and nobody disputes them.
	ConditionAddressesHeld = "AddressesHeld"
	// ConditionVLANPodsReady (Infra) is False when VLAN pods are missing, or what belongs to them cannot be written. Ready does
	// not depend on it: one pod of two serves.
	ConditionVLANPodsReady = "VLANPodsReady"
	// ConditionProgrammed (ProxyServer) is True when every Envoy acknowledged the current routes.
	ConditionProgrammed = "Programmed"
)

// Reasons of conditions that are as they should be.
const (
	ReasonReady      = "Ready"
	ReasonAccepted   = "Accepted"
	ReasonFound      = "Found"
	ReasonDiscovered = "Discovered"
	ReasonAsServed   = "AsServed"
	ReasonConfigured = "Configured"
	ReasonResolved   = "Resolved"
	ReasonNone       = "None"
	ReasonHeld       = "Held"
)

// Reasons of conflicts and refusals, on every party (product rules 11, 12 and 14).
const (
	// ReasonDuplicateHostname: two attachments of one Infra declare the same domain, or one's domain covers a name of the other.
	ReasonDuplicateHostname = "DuplicateHostname"
	// ReasonDuplicateHostedCluster: two attachments of one Infra reference the same HostedCluster.
	ReasonDuplicateHostedCluster = "DuplicateHostedCluster"
	// ReasonDuplicateSourceIP: Machines of two attachments show the same address.
	ReasonDuplicateSourceIP = "DuplicateSourceIP"
	// ReasonInfraNotFound: the attachment names an Infra that does not exist in its namespace.
	ReasonInfraNotFound = "InfraNotFound"
	// ReasonInvalid: a field does not parse.
	ReasonInvalid = "Invalid"
	// ReasonIPv6NotSupported: the CIDR is IPv6.
	ReasonIPv6NotSupported = "IPv6NotSupported"
	// ReasonAddressOutsideCIDR: a server address or the gateway is not a host address of the CIDR.
	ReasonAddressOutsideCIDR = "AddressOutsideCIDR"
	// ReasonAddressConflict: two server addresses, or one and the gateway, are the same.
	ReasonAddressConflict = "AddressConflict"
	// ReasonAddressMissing: an enabled component has no server address, or DHCP no pool.
	ReasonAddressMissing = "AddressMissing"
	// ReasonPoolOutsideCIDR: the pool reaches out of the CIDR.
	ReasonPoolOutsideCIDR = "PoolOutsideCIDR"
	// ReasonPoolReversed: rangeEnd is below rangeStart.
	ReasonPoolReversed = "PoolReversed"
	// ReasonPoolHoldsAddress: the pool holds a server address, the gateway, the network or the broadcast address.
	ReasonPoolHoldsAddress = "PoolHoldsAddress"
	// ReasonPoolHoldsAppsRange: the pool and an attachment's apps range overlap.
	ReasonPoolHoldsAppsRange = "PoolHoldsAppsRange"
	// ReasonAppsRangeOverlap: the apps ranges of two attachments overlap.
	ReasonAppsRangeOverlap = "AppsRangeOverlap"
	// ReasonAppsRangeHoldsAddress: an apps range holds a server address, the gateway, the network or the broadcast address.
	ReasonAppsRangeHoldsAddress = "AppsRangeHoldsAddress"
	// ReasonAppsRangeOutsideCIDR: an apps range reaches out of the CIDR.
	ReasonAppsRangeOutsideCIDR = "AppsRangeOutsideCIDR"
	// ReasonSharedAddress: two Infras on one NAD claim the same address.
	ReasonSharedAddress = "SharedAddress"
	// ReasonSharedDHCP: two Infras on one NAD both run DHCP.
	ReasonSharedDHCP = "SharedDHCP"
)

// Reasons of attachments that wait for their surroundings (product rules 10, 17 and 21).
const (
	ReasonControlPlaneNamespaceNotFound = "ControlPlaneNamespaceNotFound"
	ReasonServiceNotFound               = "ServiceNotFound"
	ReasonNoNodePools                   = "NoNodePools"
	ReasonNoMachines                    = "NoMachines"
	ReasonNoAddresses                   = "NoAddresses"
	ReasonNoneInCIDR                    = "NoneInCIDR"
	ReasonHostedClusterNotFound         = "HostedClusterNotFound"
	ReasonPublishedElsewhere            = "PublishedElsewhere"
	ReasonUnsupportedPublishing         = "UnsupportedPublishing"
)

// Phases of appsIngressStatus.
const (
	PhasePending  = "Pending"
	PhaseReady    = "Ready"
	PhaseDegraded = "Degraded"
)

// Reasons of appsIngressStatus and of ConditionAppsIngressReady.
const (
	// ReasonWaitingForHostedClusterNodes (Pending): the HostedCluster has no kubeconfig yet, or no node of it is Ready.
	ReasonWaitingForHostedClusterNodes = "WaitingForHostedClusterNodes"
	// ReasonWaitingForMetalLBCRDs (Pending): the hosted cluster does not serve MetalLB's kinds yet.
	ReasonWaitingForMetalLBCRDs = "WaitingForMetalLBCRDs"
	// ReasonWaitingForExternalIP (Pending): MetalLB has not given an address yet.
	ReasonWaitingForExternalIP = "WaitingForExternalIP"
	// ReasonReconciliationSucceeded (Ready): the VIP is there.
	ReasonReconciliationSucceeded = "ReconciliationSucceeded"
	// ReasonHostedClusterAccessFailed (Degraded): the hosted cluster's API cannot be reached or refuses the kubeconfig. The VIP
	// that was known last is served on.
	ReasonHostedClusterAccessFailed = "HostedClusterAccessFailed"
	// ReasonMetalLBInstallFailed (Degraded): MetalLB, its pool or its advertisement cannot be written.
	ReasonMetalLBInstallFailed = "MetalLBInstallFailed"
	// ReasonIngressServiceFailed (Degraded): the Service in the hosted cluster cannot be written.
	ReasonIngressServiceFailed = "IngressServiceFailed"
	// ReasonExternalIPDiscoveryFailed (Degraded): the address that the Service has cannot be published.
	ReasonExternalIPDiscoveryFailed = "ExternalIPDiscoveryFailed"
	// ReasonRemoving: what was made in the hosted cluster is being taken away.
	ReasonRemoving = "Removing"
)

// Reasons of ConditionExternalServiceReady. ReasonWaitingForExternalIP, ReasonNotOurs, ReasonWorkloadNotWritten and those of the conflicts
// for which an attachment is left out are others.
const (
	// ReasonPublished: the public Service has an address.
	ReasonPublished = "Published"
	// ReasonNoPortLeft: every port that a listener of its own could have is taken.
	ReasonNoPortLeft = "NoPortLeft"
	// ReasonProxyDisabled: there is no proxy that a public Service could lead to.
	ReasonProxyDisabled = "ProxyDisabled"
	// ReasonDeleting: the attachment is being deleted, and has no names and no routes any more.
	ReasonDeleting = "Deleting"
)

// Reasons of ConditionVLANPodsReady.
const (
	// ReasonWorkloadNotWritten: the API server refuses an object, or the objects are not known yet.
	ReasonWorkloadNotWritten = "WorkloadNotWritten"
	// ReasonNotOurs: an object of a name that is needed belongs to somebody else.
	ReasonNotOurs = "NotOurs"
	// ReasonPodsNotReady: fewer pods are ready than there should be.
	ReasonPodsNotReady = "PodsNotReady"
	// ReasonProgressDeadlineExceeded: the pods have not become ready for so long that they are given up.
	ReasonProgressDeadlineExceeded = "ProgressDeadlineExceeded"
	// ReasonUpgradeWaiting: the pods are as they were, until the upgrade of another Infra is done.
	ReasonUpgradeWaiting = "UpgradeWaiting"
)

// Further reasons on Infras and children.
const (
	// ReasonTooLarge: the children would not fit into objects of a cluster.
	ReasonTooLarge = "TooLarge"
	// ReasonKindsMissing: HyperShift, Cluster API or KubeVirt is not installed yet.
	ReasonKindsMissing = "KindsMissing"

	ReasonNoUpstreams          = "NoUpstreams"
	ReasonInternalProxyPending = "InternalProxyPending"
	ReasonDeprecatedField      = "DeprecatedField"
	ReasonImagesDisagree       = "ImagesDisagree"
	ReasonNotServing           = "NotServing"
	ReasonNoEnvoy              = "NoEnvoy"
	ReasonRefused              = "Refused"
	ReasonPending              = "Pending"
	ReasonAcknowledged         = "Acknowledged"
	// ReasonClaiming: a VLAN pod finds out whether anybody has an address that its Infra never had.
	ReasonClaiming = "Claiming"
	// ReasonNoHolder: VLAN pods run, and none has the server addresses yet.
	ReasonNoHolder = "NoHolder"
)
