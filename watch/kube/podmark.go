package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
)

// holderDeletionCost makes a ReplicaSet that shrinks take the standby, which costs 0, before the holder.
const holderDeletionCost = "100"

// PodMark keeps the label of the holder on the process's own pod while it is the holder: the Services in front of the VLAN's
// servers select it.
type PodMark struct {
	log    *slog.Logger
	client client.Client
	pod    types.NamespacedName
}

// NewPodMark makes a PodMark for one pod. It talks to nobody before Run.
func NewPodMark(config *rest.Config, log *slog.Logger, pod types.NamespacedName) (*PodMark, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", config.Host, err)
	}
	return &PodMark{log: log, client: c, pod: pod}, nil
}

// Run marks the pod as holding says whenever changed has a token, until ctx ends; then it takes the mark off. What cannot be
// written is tried again.
func (m *PodMark) Run(ctx context.Context, holding func() bool, changed <-chan struct{}) error {
	defer m.takeOff(ctx)
	marked, known, failing := false, false, false
	for {
		wanted := holding()
		if known && wanted == marked {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			}
			continue
		}
		if err := m.mark(ctx, wanted); err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // whatever it is, it is over
			}
			if !failing {
				m.log.Warn("the pod cannot be marked, trying again: the Services of the VLAN lead to whom they led before", "pod", m.pod.String(), "holder", wanted, "error", err)
			}
			failing = true
			if !sleep(ctx, time.Second) {
				return nil
			}
			continue
		}
		marked, known, failing = wanted, true, false
	}
}

// takeOff lets the Services forget a pod that stops.
func (m *PodMark) takeOff(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopGrace)
	defer cancel()
	if err := client.IgnoreNotFound(m.mark(ctx, false)); err != nil {
		m.log.Debug("the pod keeps its mark", "pod", m.pod.String(), "error", err)
	}
}

func (m *PodMark) mark(ctx context.Context, holder bool) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var label, cost *string // null takes a key away
	if holder {
		yes, high := "true", holderDeletionCost
		label, cost = &yes, &high
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"labels":      map[string]*string{v1alpha1.LabelHolder: label},
		"annotations": map[string]*string{corev1.PodDeletionCost: cost},
	}})
	if err != nil {
		return err
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.pod.Namespace, Name: m.pod.Name}}
	return m.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(fieldOwner))
}
