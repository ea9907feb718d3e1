package workload

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// networksAnnotation asks Multus, or whatever reads Network Attachment Definitions, for more interfaces (Kubernetes
	// Network Custom Resource Definition De-facto Standard, 4.1.2).
	networksAnnotation = "k8s.v1.cni.cncf.io/networks"
	// bootstrapHash is on the pods: Envoy reads its bootstrap when it starts and never again.
	bootstrapHash = "hostedcluster.densityops.com/bootstrap-hash"

	bootstrapFile   = "envoy.yaml"
	bootstrapFolder = "/etc/envoy"
	stateFolder     = "/var/lib/oooi"
	tokenFolder     = "/var/run/secrets/kubernetes.io/serviceaccount"

	stateVolume     = "state"
	bootstrapVolume = "bootstrap"
	tokenVolume     = "token"

	// envoyUser is the user of Envoy's distroless images; any other than 0 will do.
	envoyUser = 65532
	// drainSeconds is how long established connections of an attachment that was removed live on.
	drainSeconds = 30
	// handOverSeconds is how long Envoy outlives the order to stop. The addresses are with the other pod within 200 ms; the nodes
	// lead the proxy's Service there when they hear of it, one or two seconds later, and until then somebody has to answer here.
	handOverSeconds = 3
	// graceSeconds is enough to hand over, to keep the state and to take the Leases away.
	graceSeconds = 10
	// tokenSeconds is how long a token is good for; it is renewed long before.
	tokenSeconds = 3607
)

// asks is what an Infra itself wants of its pods. A field that a later release adds must leave out its zero value, so that
// the hash of those who do not use it stays.
type asks struct {
	Networks   string             `json:"networks"`
	NoProxy    bool               `json:"noProxy,omitempty"`
	Image      string             `json:"image,omitempty"`
	EnvoyImage string             `json:"envoyImage,omitempty"`
	LogLevel   string             `json:"logLevel,omitempty"`
	Pods       *v1alpha1.VLANPods `json:"pods,omitempty"`
}

// pinned is the image of oooi that the Infra names. oooi is one image: the others only count when there is no managerImage.
func (b *builder) pinned() string {
	c := &b.infra.Spec.InfraComponents
	return cmp.Or(c.Proxy.ManagerImage, c.DHCP.Image, c.DNS.Image)
}

func (b *builder) image() string { return cmp.Or(b.pinned(), b.settings.Image) }

func (b *builder) envoyImage() string {
	return cmp.Or(b.infra.Spec.InfraComponents.Proxy.ProxyImage, b.settings.EnvoyImage)
}

func (b *builder) logLevel() string {
	return cmp.Or(b.infra.Spec.InfraComponents.Proxy.LogLevel, "info")
}

// pods is what the Infra says about its pods, never nil.
func (b *builder) pods() *v1alpha1.VLANPods {
	if b.infra.Spec.VLANPods != nil {
		return b.infra.Spec.VLANPods
	}
	return &v1alpha1.VLANPods{}
}

func (b *builder) bootstrap(text []byte) Object {
	return &corev1.ConfigMap{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ConfigMap"},
		ObjectMeta: b.meta(v1alpha1.BootstrapName(b.infra.Name)),
		Data:       map[string]string{bootstrapFile: string(text)},
	}
}

// disruption lets one pod go at a time, and one that does not serve at any time.
func (b *builder) disruption() Object {
	one, always := intstr.FromInt32(1), policyv1.AlwaysAllow
	return &policyv1.PodDisruptionBudget{
		TypeMeta:   metav1.TypeMeta{APIVersion: policyv1.SchemeGroupVersion.String(), Kind: "PodDisruptionBudget"},
		ObjectMeta: b.meta(v1alpha1.VLANName(b.infra.Name)),
		Spec: policyv1.PodDisruptionBudgetSpec{
			MaxUnavailable:             &one,
			UnhealthyPodEvictionPolicy: &always,
			Selector:                   &metav1.LabelSelector{MatchLabels: b.selector()},
		},
	}
}

// deployment is the two VLAN pods. bootstrap is nil when there is no proxy.
func (b *builder) deployment(bootstrap []byte) (Object, error) {
	networks, err := json.Marshal([]struct {
		Name      string `json:"name"`
		Namespace string `json:"namespace"`
		Interface string `json:"interface"`
	}{{b.infra.Spec.NetworkConfig.NetworkAttachmentDefinition, b.infra.NADNamespace(), v1alpha1.VLANInterface}})
	if err != nil {
		return nil, err
	}
	two, one, none, revisions := int32(2), intstr.FromInt32(1), intstr.FromInt32(0), int32(3)
	annotations := map[string]string{networksAnnotation: string(networks)}
	if bootstrap != nil {
		annotations[bootstrapHash] = digest(bootstrap)
	}
	d := &appsv1.Deployment{
		TypeMeta:   metav1.TypeMeta{APIVersion: appsv1.SchemeGroupVersion.String(), Kind: "Deployment"},
		ObjectMeta: b.meta(v1alpha1.VLANName(b.infra.Name)),
		Spec: appsv1.DeploymentSpec{
			Replicas: &two,
			Selector: &metav1.LabelSelector{MatchLabels: b.selector()},
			// One after the other and never a third: the pod that costs less to delete goes first, which is the standby,
			// and the holder only when there is a new standby to hand over to. A stream is reset once.
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxUnavailable: &one, MaxSurge: &none},
			},
			RevisionHistoryLimit: &revisions,
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: b.labels(), Annotations: annotations},
				Spec:       b.podSpec(bootstrap != nil),
			},
		},
	}
	c := &b.infra.Spec.InfraComponents
	mine, err := json.Marshal(asks{
		Networks: string(networks), NoProxy: bootstrap == nil,
		Image: b.pinned(), EnvoyImage: c.Proxy.ProxyImage, LogLevel: b.logLevel(),
		Pods: b.infra.Spec.VLANPods,
	})
	if err != nil {
		return nil, err
	}
	all, err := json.Marshal(d.Spec)
	if err != nil {
		return nil, err
	}
	d.Annotations = map[string]string{AnnotationInfraHash: digest(mine), AnnotationReleaseHash: digest(all)}
	return d, nil
}

func digest(text []byte) string {
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:8])
}

func (b *builder) podSpec(hasProxy bool) corev1.PodSpec {
	pods := b.pods()
	grace, no := int64(graceSeconds), false
	spec := corev1.PodSpec{
		ServiceAccountName:            v1alpha1.VLANAccount,
		AutomountServiceAccountToken:  &no,
		EnableServiceLinks:            &no,
		TerminationGracePeriodSeconds: &grace,
		// Nothing in the pod asks for names of the cluster, and no tenant shall: "resolv.conf" as an upstream means the
		// node's resolvers.
		DNSPolicy:         corev1.DNSDefault,
		PriorityClassName: pods.PriorityClassName,
		NodeSelector:      pods.NodeSelector,
		Tolerations:       pods.Tolerations,
		ImagePullSecrets:  b.pullSecrets(),
		SecurityContext: &corev1.PodSecurityContext{
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			// Ports below 1024 without a capability.
			Sysctls: []corev1.Sysctl{{Name: "net.ipv4.ip_unprivileged_port_start", Value: "0"}},
		},
		// Two nodes wherever there are two; on a cluster of one node both pods run on it, which a required anti-affinity
		// would forbid.
		TopologySpreadConstraints: []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
			LabelSelector: &metav1.LabelSelector{MatchLabels: b.selector()},
		}},
		Containers: []corev1.Container{b.oooi(hasProxy)},
		Volumes: []corev1.Volume{
			{Name: stateVolume, VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: tokenVolume, VolumeSource: corev1.VolumeSource{Projected: token()}},
		},
	}
	if hasProxy {
		spec.Containers = append(spec.Containers, b.envoy())
		spec.Volumes = append(spec.Volumes, corev1.Volume{Name: bootstrapVolume, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: v1alpha1.BootstrapName(b.infra.Name)}},
		}})
	}
	return spec
}

func (b *builder) pullSecrets() []corev1.LocalObjectReference {
	if secrets := b.pods().ImagePullSecrets; len(secrets) > 0 {
		return secrets
	}
	var secrets []corev1.LocalObjectReference
	for _, name := range b.settings.PullSecrets {
		secrets = append(secrets, corev1.LocalObjectReference{Name: name})
	}
	return secrets
}

// token is what a pod gets when its account's token is mounted automatically, but for one container.
func token() *corev1.ProjectedVolumeSource {
	seconds := int64(tokenSeconds)
	return &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: &seconds}},
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"},
			Items:                []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
		}},
		{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"}},
		}}},
	}}
}

// oooi is DHCP, DNS, xDS and the claim to the addresses. It starts first: Envoy asks it for everything.
func (b *builder) oooi(hasProxy bool) corev1.Container {
	args := []string{
		"serve",
		"--infra", b.infra.Namespace + "/" + b.infra.Name,
		// All roles always: who has nothing to serve costs nothing, and switching DHCP or DNS must not cut the streams
		// through Envoy.
		"--roles", "xds,dns,dhcp",
		"--interface", v1alpha1.VLANInterface,
		"--claim-addresses",
		"--state-dir", stateFolder,
		// For people in the pod, and for probes and Prometheus; tenants are on the VLAN interface. Brackets, because a pod's
		// address may be of either family.
		"--http-listen", fmt.Sprintf("127.0.0.1:%d,[$(POD_IP)]:%d", httpPort, httpPort),
	}
	if hasProxy {
		// Envoy's admin interface is for this pod only, where no kubelet can ask it. So oooi does, and is ready
		// when both are.
		args = append(args, "--envoy-admin", adminHost)
	}
	root, notRoot, readOnly, no := int64(0), false, true, false
	return corev1.Container{
		Name:            "oooi",
		Image:           b.image(),
		ImagePullPolicy: b.pullPolicy(),
		Command:         []string{"oooi"},
		Args:            args,
		Env:             []corev1.EnvVar{fieldEnv("POD_NAME", "metadata.name"), fieldEnv("POD_NAMESPACE", "metadata.namespace"), fieldEnv("POD_UID", "metadata.uid"), fieldEnv("POD_IP", "status.podIP")},
		Ports: []corev1.ContainerPort{
			{Name: "metrics", ContainerPort: httpPort, Protocol: corev1.ProtocolTCP},
			{Name: "dns", ContainerPort: dnsPort, Protocol: corev1.ProtocolUDP},
			{Name: "dns-tcp", ContainerPort: dnsPort, Protocol: corev1.ProtocolTCP},
		},
		ReadinessProbe: &corev1.Probe{ProbeHandler: httpProbe("/readyz"), PeriodSeconds: 2, TimeoutSeconds: 2, FailureThreshold: 3},
		LivenessProbe:  &corev1.Probe{ProbeHandler: httpProbe("/healthz"), PeriodSeconds: 5, TimeoutSeconds: 5, FailureThreshold: 3},
		// 100 attachments with 5,000 Machines took up to 85 MiB.
		Resources: resources(b.pods().Resources,
			corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("512Mi")}),
		VolumeMounts: []corev1.VolumeMount{
			{Name: stateVolume, MountPath: stateFolder},
			{Name: tokenVolume, MountPath: tokenFolder, ReadOnly: true},
		},
		SecurityContext: &corev1.SecurityContext{
			// Kubernetes gives capabilities to root only. This one may do nothing else that root may.
			RunAsUser: &root, RunAsGroup: &root, RunAsNonRoot: &notRoot,
			AllowPrivilegeEscalation: &no,
			ReadOnlyRootFilesystem:   &readOnly,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}, Add: []corev1.Capability{"NET_ADMIN", "NET_RAW"}},
		},
	}
}

// envoy passes the streams. It has no token, no capability, and writes nothing.
func (b *builder) envoy() corev1.Container {
	user, notRoot, readOnly, no := int64(envoyUser), true, true, false
	var ports []corev1.ContainerPort
	for _, p := range proxyPorts {
		ports = append(ports, corev1.ContainerPort{Name: p.name, ContainerPort: p.port, Protocol: corev1.ProtocolTCP})
	}
	return corev1.Container{
		Name:            "envoy",
		Image:           b.envoyImage(),
		ImagePullPolicy: b.pullPolicy(),
		Command:         []string{"envoy"},
		Args: []string{
			"--config-path", bootstrapFolder + "/" + bootstrapFile,
			"--service-node", "$(POD_NAME)",
			"--drain-time-s", fmt.Sprint(drainSeconds),
			"--log-level", b.logLevel(),
			// Of no use in a pod, and it wants shared memory to write to.
			"--disable-hot-restart",
		},
		Env:       []corev1.EnvVar{fieldEnv("POD_NAME", "metadata.name")},
		Ports:     ports,
		Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Sleep: &corev1.SleepAction{Seconds: handOverSeconds}}},
		// No limit: reaching one would end every connection of the VLAN. What bounds Envoy is the limit of its
		// connections in the bootstrap.
		Resources: resources(b.pods().EnvoyResources,
			corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")}, nil),
		VolumeMounts: []corev1.VolumeMount{{Name: bootstrapVolume, MountPath: bootstrapFolder, ReadOnly: true}},
		SecurityContext: &corev1.SecurityContext{
			RunAsUser: &user, RunAsGroup: &user, RunAsNonRoot: &notRoot,
			AllowPrivilegeEscalation: &no,
			ReadOnlyRootFilesystem:   &readOnly,
			Capabilities:             &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
		},
	}
}

func (b *builder) pullPolicy() corev1.PullPolicy {
	return cmp.Or(b.pods().ImagePullPolicy, b.settings.PullPolicy)
}

// resources are those of the Infra, or else the built-in ones: never a mixture, which nobody would expect.
func resources(own *v1alpha1.PodResources, requests, limits corev1.ResourceList) corev1.ResourceRequirements {
	if own != nil {
		return corev1.ResourceRequirements{Requests: own.Requests, Limits: own.Limits}
	}
	return corev1.ResourceRequirements{Requests: requests, Limits: limits}
}

func fieldEnv(name, path string) corev1.EnvVar {
	return corev1.EnvVar{Name: name, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: path}}}
}

func httpProbe(path string) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromInt32(httpPort)}}
}
