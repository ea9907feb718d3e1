package workload

import (
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/xds"
)

const (
	// AnnotationInfraHash is on the Deployment. It changes when the Infra itself asks for other pods: the change goes out
	// at once.
	AnnotationInfraHash = "hostedcluster.densityops.com/infra-hash"
	// AnnotationReleaseHash is on the Deployment. It changes with everything in its spec. When it alone differs, and
	// AnnotationInfraHash does not, the change comes with the installation and is rolled out one Infra at a time.
	AnnotationReleaseHash = "hostedcluster.densityops.com/release-hash"

	// LabelManagedBy is on every object; its value is ManagedBy.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	// ManagedBy is the value of LabelManagedBy, and the field owner of what is applied.
	ManagedBy = "oooi"

	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	// component is what labelComponent says of VLAN pods and of all that is there for them.
	component = "vlan"
)

// Where the processes of a pod find one another.
const (
	xdsHost   = "127.0.0.1"
	xdsPort   = 18000
	adminHost = "127.0.0.1:9901"
	httpPort  = 8080
	dnsPort   = 53
)

// proxyPorts are those of Envoy's listeners that all attachments share.
var proxyPorts = []struct {
	name string
	port int32
}{{"http", 80}, {"https", 443}, {"kube-api", 6443}}

// Object is what Build returns: any typed object of Kubernetes, its kind filled in. It has the methods of
// controller-runtime's client.Object.
type Object interface {
	metav1.Object
	runtime.Object
}

// Settings are those of an installation. Each can be overridden by an Infra.
type Settings struct {
	// Image of oooi. Required, unless the Infra names its own.
	Image string
	// EnvoyImage is the image of Envoy. Required, unless the Infra names its own.
	EnvoyImage string
	// PullPolicy of both. Empty: the API server's default.
	PullPolicy corev1.PullPolicy
	// PullSecrets are names of Secrets in the Infra's namespace.
	PullSecrets []string
}

// Attachments is what the objects of an Infra take from its attachments. None of it is in the pods: attachments that come and
// go must not start them anew.
type Attachments struct {
	// ControlPlanes are the namespaces of the control planes, in any order.
	ControlPlanes []string
	// External are the attachments that have public names, in any order.
	External []External
}

// FieldOwner is the field owner under which an object of an Infra is applied. The ServiceAccount and the RoleBinding are
// shared by all Infras of a namespace, each of which adds its owner reference: applied under one name for all, each would
// take away the others' reference.
func FieldOwner(infra *v1alpha1.Infra, object Object) string {
	if object.GetLabels()[v1alpha1.LabelInfra] == "" {
		return ManagedBy + "-" + string(infra.UID)
	}
	return ManagedBy
}

// Build gives all objects of one Infra, in the order in which they are to be written, their kinds filled in; none when the
// Infra is being deleted or all its components are disabled. The Infra is read as the API server has it: with a UID, its
// defaults filled in or not. An error says what is wrong with the Infra or missing in the settings.
func Build(infra *v1alpha1.Infra, attachments Attachments, s Settings) ([]Object, error) {
	c := &infra.Spec.InfraComponents
	hasDHCP, hasDNS, hasProxy := v1alpha1.On(c.DHCP.Enabled), v1alpha1.On(c.DNS.Enabled), v1alpha1.On(c.Proxy.Enabled)
	if infra.DeletionTimestamp != nil || !hasDHCP && !hasDNS && !hasProxy {
		return nil, nil
	}
	b := builder{infra: infra, settings: s}
	if err := b.check(hasProxy); err != nil {
		return nil, fmt.Errorf("Infra %s/%s: %w", infra.Namespace, infra.Name, err)
	}

	objects := []Object{b.account(), b.binding()}
	var bootstrap []byte
	if hasProxy {
		var err error
		bootstrap, err = xds.Bootstrap(xds.BootstrapConfig{
			Infra:   infra.Namespace + "/" + infra.Name,
			XDSHost: xdsHost, XDSPort: xdsPort, AdminAddress: adminHost,
		})
		if err != nil {
			return nil, fmt.Errorf("Infra %s/%s: %w", infra.Namespace, infra.Name, err)
		}
		objects = append(objects, b.bootstrap(bootstrap))
		for _, namespace := range slices.Compact(slices.Sorted(slices.Values(attachments.ControlPlanes))) {
			objects = append(objects, b.ways(namespace)...)
		}
	}
	objects = append(objects, b.walls(hasDNS, hasProxy), b.disruption())
	if hasDNS {
		objects = append(objects, b.dnsService())
	}
	if hasProxy {
		objects = append(objects, b.proxyService())
		objects = append(objects, b.external(attachments.External)...)
	}
	deployment, err := b.deployment(bootstrap)
	if err != nil {
		return nil, fmt.Errorf("Infra %s/%s: %w", infra.Namespace, infra.Name, err)
	}
	return append(objects, deployment), nil
}

// builder has what all objects of one Infra are made from.
type builder struct {
	infra    *v1alpha1.Infra
	settings Settings
}

// check tells what the API server would refuse for reasons that are hard to read there.
func (b *builder) check(hasProxy bool) error {
	for _, name := range []string{v1alpha1.ProxyServiceName(b.infra.Name), v1alpha1.DNSServiceName(b.infra.Name)} {
		if len(validation.IsDNS1123Label(name)) > 0 {
			return fmt.Errorf("no Service can be named %s: give the Infra a name of up to %d lower-case letters, digits and dashes, a letter first",
				name, validation.DNS1123LabelMaxLength-len("-proxy"))
		}
	}
	switch {
	case b.infra.UID == "":
		return errors.New("has no UID, so nothing can be owned by it: read it from the API server")
	case b.image() == "":
		return errors.New("no image of oooi is named: start the hub with --vlan-image, or set infraComponents.proxy.managerImage")
	case hasProxy && b.envoyImage() == "":
		return errors.New("no image of Envoy is named: start the hub with --envoy-image, or set infraComponents.proxy.proxyImage")
	}
	return nil
}

// labels of everything that belongs to this Infra alone; those of the pods among them.
func (b *builder) labels() map[string]string {
	return map[string]string{
		labelName:           ManagedBy,
		labelComponent:      component,
		LabelManagedBy:      ManagedBy,
		v1alpha1.LabelInfra: v1alpha1.LabelValue(b.infra.Name),
	}
}

// selector picks the VLAN pods of this Infra, in its namespace. A Deployment's never changes.
func (b *builder) selector() map[string]string {
	return map[string]string{
		labelName:           ManagedBy,
		labelComponent:      component,
		v1alpha1.LabelInfra: v1alpha1.LabelValue(b.infra.Name),
	}
}

// meta names an object in the Infra's namespace that is this Infra's alone.
func (b *builder) meta(name string) metav1.ObjectMeta {
	owner := b.owner()
	controller := true
	owner.Controller = &controller
	return metav1.ObjectMeta{Namespace: b.infra.Namespace, Name: name, Labels: b.labels(), OwnerReferences: []metav1.OwnerReference{owner}}
}

// owner refers to the Infra as one owner of several. It does not block the Infra's deletion, for which the hub would need a
// right on its finalizers.
func (b *builder) owner() metav1.OwnerReference {
	return metav1.OwnerReference{
		APIVersion: v1alpha1.GroupVersion.String(), Kind: "Infra", Name: b.infra.Name, UID: b.infra.UID,
	}
}
