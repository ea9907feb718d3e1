package v1alpha1

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Validate returns everything that is wrong with the attachment as far as the attachment alone can tell, in the
// order of its fields; each of them keeps the whole attachment out. Fields that were not defaulted yet
// count as having their defaults. It reads nothing but the object.
func (a *InfraClusterAttachment) Validate() []Problem {
	c := &checker{}
	spec := &a.Spec
	c.name("", "metadata.name", a.Name, subdomainRule)
	c.optionalName("", "metadata.namespace", a.Namespace, labelRule)
	c.name("", "spec.infraRef.name", spec.InfraRef.Name, subdomainRule)
	c.name("", "spec.hostedClusterRef.name", spec.HostedClusterRef.Name, subdomainRule)
	c.optionalName("", "spec.hostedClusterRef.namespace", spec.HostedClusterRef.Namespace, labelRule)
	c.domain(a)
	c.controlPlane(a)
	if e := spec.ExternalService; e != nil {
		c.externalService(a.Name, e)
	}
	if apps := spec.AppsIngress; apps != nil {
		c.appsIngress(apps)
		c.appsTarget(apps, spec.APIServerService)
	}
	return c.problems
}

func (c *checker) domain(a *InfraClusterAttachment) {
	const clusterField, baseField = "spec.dns.clusterName", "spec.dns.baseDomain"
	before := len(c.problems)
	for _, part := range []struct{ field, value string }{
		{clusterField, a.Spec.DNS.ClusterName},
		{baseField, a.Spec.DNS.BaseDomain},
	} {
		if err := checkDomain(NormalizeDomain(part.value)); err != nil {
			c.add("", ReasonInvalid, part.field, "%q is not a DNS name: %s", part.value, err)
		}
	}
	if len(c.problems) > before {
		return
	}
	domain := a.Domain()
	if len(domain) > maxDomainLength {
		c.add("", ReasonInvalid, baseField, "the domain %s has %d characters, and konnectivity.<domain> must fit in 253: shorten it to %d", domain, len(domain), maxDomainLength)
	}
	for _, alias := range aliasNames {
		if domain == alias || strings.HasSuffix(domain, "."+alias) {
			c.add("", ReasonInvalid, clusterField, "the domain %s is, or is below, the name %s that every cluster has: choose another domain", domain, alias)
			return
		}
	}
}

// controlPlane checks where the targets are: the namespace, given or derived, and the API server's Service.
func (c *checker) controlPlane(a *InfraClusterAttachment) {
	const field = "spec.controlPlaneNamespace"
	before := len(c.problems)
	c.optionalName("", field, a.Spec.ControlPlaneNamespace, labelRule)
	if a.Spec.ControlPlaneNamespace == "" && a.Spec.HostedClusterRef.Name != "" && before == len(c.problems) {
		if ns := a.ControlPlaneNamespace(); len(ns) > validation.DNS1123LabelMaxLength {
			c.add("", ReasonInvalid, field, "the derived namespace %s has %d characters, more than %d: HyperShift cannot have made it, so give the real one", ns, len(ns), validation.DNS1123LabelMaxLength)
		}
	}
	service := a.Spec.APIServerService
	c.optionalName("", "spec.apiServerService", service, labelRule)
	if slices.Contains(otherTargets, service) {
		c.add("", ReasonInvalid, "spec.apiServerService", "%s is not an API server but another target of the control plane: give the API server's Service, or leave the field out for kube-apiserver", service)
	}
}

func (c *checker) externalService(attachment string, e *ExternalService) {
	const field = "spec.externalService."
	if e.Enabled && attachment != "" {
		if name := attachment + "-proxy-external"; len(validation.IsDNS1035Label(name)) > 0 {
			c.add("", ReasonInvalid, field+"enabled", "the Service would be named %s, which Kubernetes refuses: name the attachment with at most %d lower-case letters, digits and dashes, a letter first",
				name, validation.DNS1035LabelMaxLength-len("-proxy-external"))
		}
	}
	c.optionalName("", field+"addressPoolName", e.AddressPoolName, subdomainRule)
	c.labels(field+"labels", e.Labels)
	c.annotations(field+"annotations", e.Annotations)
	if e.Enabled && e.Services != nil && len(e.Services) == 0 {
		c.add("", ReasonInvalid, field+"services", "is empty, so nothing could be reached: list names, or leave the field out for oauth")
	}
	seen := map[PublicName]int{}
	for n, name := range e.Services {
		f := fmt.Sprintf("%sservices[%d]", field, n)
		if !slices.Contains(publicNames, name) {
			c.add("", ReasonInvalid, f, "%q is not one of the five names: use api, api-int, oauth, ignition or konnectivity", string(name))
			continue
		}
		if first, dup := seen[name]; dup {
			c.add("", ReasonInvalid, f, "%s is already entry %d: remove one", name, first)
			continue
		}
		seen[name] = n
	}
}

func (c *checker) appsIngress(apps *AppsIngress) {
	const metallb, service = "spec.appsIngress.metallb.", "spec.appsIngress.service."
	m := &apps.MetalLB
	if apps.Enabled && m.AddressPoolName == "" {
		c.add("", ReasonInvalid, metallb+"addressPoolName", "is empty, and apps ingress is enabled: name the IPAddressPool, or set enabled: false")
	}
	c.optionalName("", metallb+"addressPoolName", m.AddressPoolName, subdomainRule)
	if m.IPAddressPoolRange != "" {
		if _, _, err := ParseAddressRange(m.IPAddressPoolRange); err != nil {
			c.add("", ReasonInvalid, metallb+"ipAddressPoolRange", "%s", err)
		}
	}
	c.optionalName("", metallb+"l2AdvertisementName", m.L2AdvertisementName, subdomainRule)
	c.optionalName("", metallb+"namespace", m.Namespace, labelRule)
	c.optionalName("", metallb+"loadBalancerClass", m.LoadBalancerClass, keyRule)
	c.optionalName("", service+"name", apps.Service.Name, serviceRule)
	c.optionalName("", service+"namespace", apps.Service.Namespace, labelRule)
	c.labels(service+"labels", apps.Service.Labels)
	c.annotations(service+"annotations", apps.Service.Annotations)
	c.labels(service+"selector", apps.Service.Selector)

	ports := [2]int32{80, 443}
	for n, p := range []struct {
		field string
		port  int32
	}{{"spec.appsIngress.ports.http", apps.Ports.HTTP}, {"spec.appsIngress.ports.https", apps.Ports.HTTPS}} {
		if p.port < 0 || p.port > 65535 {
			c.add("", ReasonInvalid, p.field, "%d is not a port: use 1 to 65535", p.port)
		}
		if p.port != 0 {
			ports[n] = p.port
		}
	}
	if ports[0] == ports[1] {
		c.add("", ReasonInvalid, "spec.appsIngress.ports.https", "%d is the port of http as well: choose another", ports[1])
	}
}

// appsTarget checks that the Service in the hosted cluster has a name of its own: filter chains are named after their target.
func (c *checker) appsTarget(apps *AppsIngress, apiServer string) {
	name := cmp.Or(apps.Service.Name, AppsServiceName)
	if apps.Enabled && (name == cmp.Or(apiServer, "kube-apiserver") || slices.Contains(otherTargets, name)) {
		c.add("", ReasonInvalid, "spec.appsIngress.service.name", "%s is the name of a target of the control plane: choose another", name)
	}
}

// labels checks the keys and values of labels and of label selectors.
func (c *checker) labels(field string, labels map[string]string) {
	c.annotations(field, labels)
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if len(valueRule.check(labels[key])) > 0 {
			c.add("", ReasonInvalid, field, "%q is not a valid value of %s: %s", labels[key], key, valueRule.hint)
		}
	}
}

// annotations checks the keys; the values may be anything.
func (c *checker) annotations(field string, annotations map[string]string) {
	for _, key := range slices.Sorted(maps.Keys(annotations)) {
		if len(keyRule.check(key)) > 0 {
			c.add("", ReasonInvalid, field, "%q is not a valid key: %s", key, keyRule.hint)
		}
	}
}
