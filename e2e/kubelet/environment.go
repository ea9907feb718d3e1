package kubelet

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// environment is what a container finds: the image's variables, those of the API server's Service, and its own. Where a name
// comes twice, the last one counts. Those that its command may refer to come as a map, too.
func (k *Kubelet) environment(ctx context.Context, p *corev1.Pod, s *sandbox, c *corev1.Container, image Image) (all []string, own map[string]string, err error) {
	if len(c.EnvFrom) > 0 {
		return nil, nil, errors.New("the test kubelet knows no envFrom")
	}
	api, err := k.client.CoreV1().Services(metav1.NamespaceDefault).Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, nil, err
	}
	var names []string
	values := map[string]string{}
	set := func(name, value string) {
		if _, there := values[name]; !there {
			names = append(names, name)
		}
		values[name] = value
	}
	for _, variable := range append([]string{path, "HOSTNAME=" + p.Name, "HOME=/"}, image.Env...) {
		name, value, _ := strings.Cut(variable, "=")
		set(name, value)
	}
	// Even with enableServiceLinks off: in-cluster clients go by these.
	set("KUBERNETES_SERVICE_HOST", api.Spec.ClusterIP)
	set("KUBERNETES_SERVICE_PORT", "443")
	// References are to the container's own variables that come before.
	own = map[string]string{"KUBERNETES_SERVICE_HOST": api.Spec.ClusterIP, "KUBERNETES_SERVICE_PORT": "443"}
	for _, variable := range c.Env {
		value := expand(variable.Value, own)
		if from := variable.ValueFrom; from != nil {
			var there bool
			if value, there, err = k.reference(ctx, p, s, c, from); err != nil {
				return nil, nil, fmt.Errorf("variable %s: %w", variable.Name, err)
			}
			if !there {
				continue
			}
		}
		own[variable.Name] = value
		set(variable.Name, value)
	}
	for _, name := range names {
		all = append(all, name+"="+values[name])
	}
	return all, own, nil
}

// reference is a variable whose value is somewhere else.
func (k *Kubelet) reference(ctx context.Context, p *corev1.Pod, s *sandbox, c *corev1.Container, from *corev1.EnvVarSource) (value string, set bool, err error) {
	switch {
	case from.FieldRef != nil:
		value, err = field(p, s, from.FieldRef.FieldPath)
		return value, true, err
	case from.ResourceFieldRef != nil:
		value, err = resourceField(c, from.ResourceFieldRef)
		return value, true, err
	case from.ConfigMapKeyRef != nil:
		object, err := k.client.CoreV1().ConfigMaps(p.Namespace).Get(ctx, from.ConfigMapKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, missing(err, from.ConfigMapKeyRef.Optional)
		}
		value, set = object.Data[from.ConfigMapKeyRef.Key]
		return value, set, nil
	case from.SecretKeyRef != nil:
		object, err := k.client.CoreV1().Secrets(p.Namespace).Get(ctx, from.SecretKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			return "", false, missing(err, from.SecretKeyRef.Optional)
		}
		bytes, set := object.Data[from.SecretKeyRef.Key]
		return string(bytes), set, nil
	}
	return "", false, errors.New("the test kubelet knows no such source")
}

// subscript is metadata.labels['key'] or metadata.annotations['key'].
var subscript = regexp.MustCompile(`^metadata\.(labels|annotations)\['(.+)'\]$`)

// field is a field of the Pod, by the downward API.
func field(p *corev1.Pod, s *sandbox, fieldPath string) (string, error) {
	switch fieldPath {
	case "metadata.name":
		return p.Name, nil
	case "metadata.namespace":
		return p.Namespace, nil
	case "metadata.uid":
		return string(p.UID), nil
	case "spec.nodeName":
		return p.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return p.Spec.ServiceAccountName, nil
	case "status.hostIP", "status.hostIPs":
		return NodeAddress.String(), nil
	case "status.podIP", "status.podIPs":
		return s.address.String(), nil
	case "metadata.labels", "metadata.annotations":
		texts := p.Labels
		if fieldPath == "metadata.annotations" {
			texts = p.Annotations
		}
		var lines []string
		for key, value := range texts {
			lines = append(lines, fmt.Sprintf("%s=%q", key, value))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n"), nil
	}
	if m := subscript.FindStringSubmatch(fieldPath); m != nil {
		if m[1] == "labels" {
			return p.Labels[m[2]], nil
		}
		return p.Annotations[m[2]], nil
	}
	return "", fmt.Errorf("the test kubelet knows no field %s", fieldPath)
}

// resourceField is a limit or request of the container, in whole units of the divisor, rounded up.
func resourceField(c *corev1.Container, ref *corev1.ResourceFieldSelector) (string, error) {
	kind, name, _ := strings.Cut(ref.Resource, ".")
	list := map[string]corev1.ResourceList{"limits": c.Resources.Limits, "requests": c.Resources.Requests}[kind]
	quantity, there := list[corev1.ResourceName(name)]
	if ref.ContainerName != "" && ref.ContainerName != c.Name || !there {
		return "", fmt.Errorf("container %s has no %s", c.Name, ref.Resource)
	}
	divisor := ref.Divisor.DeepCopy()
	if name == "cpu" {
		per := max(divisor.MilliValue(), 1)
		if divisor.IsZero() {
			per = 1000
		}
		return fmt.Sprint((quantity.MilliValue() + per - 1) / per), nil
	}
	per := max(divisor.Value(), 1)
	return fmt.Sprint((quantity.Value() + per - 1) / per), nil
}

// reference to a variable in a command or a value, or an escaped one.
var variable = regexp.MustCompile(`\$\$|\$\(([^)]*)\)`)

// expand replaces $(NAME) by the variable of that name; $(NAME) stays if there is none, and $$ is a $.
func expand(text string, variables map[string]string) string {
	return variable.ReplaceAllStringFunc(text, func(found string) string {
		if found == "$$" {
			return "$"
		}
		if value, there := variables[found[2:len(found)-1]]; there {
			return value
		}
		return found
	})
}
