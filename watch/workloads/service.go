package workloads

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/deploy/workload"
)

// clearing is the merge patch that takes from a Service what applying would leave, because somebody else has set it: ports and
// addresses that are not wanted. Each would open what all attachments share. The admission policy refuses every write that leaves
// one of them, so the patch puts right all else that the policy looks at, too. Node ports stay. Nil: there is nothing to take.
func (o *wantedObject) clearing(there *corev1.Service) map[string]any {
	wanted, is := o.object.(*corev1.Service)
	if !is {
		return nil
	}
	ports := make([]corev1.ServicePort, len(wanted.Spec.Ports))
	strange := len(there.Spec.ExternalIPs) > 0
	for i, port := range wanted.Spec.Ports {
		ports[i] = port
		for _, p := range there.Spec.Ports {
			if samePort(p, port) && wanted.Spec.Type == corev1.ServiceTypeLoadBalancer {
				ports[i].NodePort = p.NodePort
			}
		}
	}
	for _, p := range there.Spec.Ports {
		known := false
		for _, port := range wanted.Spec.Ports {
			known = known || samePort(p, port)
		}
		strange = strange || !known
	}
	if !strange {
		return nil
	}
	return map[string]any{
		"metadata": map[string]any{
			"uid": there.UID, "resourceVersion": there.ResourceVersion,
			"labels": map[string]any{workload.LabelManagedBy: workload.ManagedBy},
		},
		"spec": map[string]any{"type": wanted.Spec.Type, "selector": wanted.Spec.Selector, "ports": ports, "externalIPs": nil},
	}
}

// samePort tells whether two ports of a Service are one to the API server, which knows them by number and protocol.
func samePort(a, b corev1.ServicePort) bool {
	protocol := func(p corev1.ServicePort) corev1.Protocol {
		if p.Protocol == "" {
			return corev1.ProtocolTCP
		}
		return p.Protocol
	}
	return a.Port == b.Port && protocol(a) == protocol(b)
}

// clear takes from a Service what applying would leave, and returns its resourceVersion after that.
func (w *Writer) clear(ctx context.Context, object *wantedObject, there *corev1.Service) (version string, err error) {
	patch := object.clearing(there)
	if patch == nil {
		return there.ResourceVersion, nil
	}
	text, err := json.Marshal(patch)
	if err != nil {
		return "", fmt.Errorf("%s: %w", object.key, err)
	}
	w.cfg.Log.Warn("somebody has given a Service ports or addresses, which are taken away", "service", object.key.NamespacedName.String())
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: there.Namespace, Name: there.Name}}
	err = w.client.Patch(ctx, service, client.RawPatch(types.MergePatchType, text), client.FieldOwner(workload.ManagedBy))
	w.cfg.Writes.Inc()
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return "", fmt.Errorf("%s: %w: %w", object.key, errBehind, err)
	case err != nil:
		return "", fmt.Errorf("clear %s: %w", object.key, err)
	}
	return service.ResourceVersion, nil
}
