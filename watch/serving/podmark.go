package serving

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/process"
)

// holderDeletionCost makes a ReplicaSet that shrinks take the standby, which costs 0, before the holder.
const holderDeletionCost = "100"

// A pod that became the holder marks itself once more after confirmAfter, since the holder of before, which may have taken longer, takes
// marks off as well; and then every confirmEvery, since somebody may have taken the mark off by hand. What is there already is not written.
const confirmAfter, confirmEvery = 5 * time.Second, time.Minute

// PodMark keeps the label of the holder on the process's own pod while it is the holder, and takes it off the others, one of
// which may have died with it: the Services in front of the VLAN's servers select it.
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

// Run marks the pod as holding says whenever changed has a token, until ctx ends; then it takes the mark off. Others gives the
// names of the other pods. What cannot be written is tried again.
func (m *PodMark) Run(ctx context.Context, holding func() bool, others func() []string, changed <-chan struct{}) error {
	defer m.takeOff(ctx)
	marked, known, failing := false, false, false
	confirm := time.NewTimer(0)
	defer confirm.Stop()
	for {
		wanted := holding()
		if known && wanted == marked {
			select {
			case <-ctx.Done():
				return nil
			case <-changed:
			case <-confirm.C:
				known = !marked
			}
			continue
		}
		err := m.mark(ctx, m.pod.Name, wanted)
		if err == nil && wanted && !marked {
			err = m.unmark(ctx, others())
			confirm.Reset(confirmAfter)
		} else if wanted {
			confirm.Reset(confirmEvery)
		}
		if err != nil {
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
	if err := client.IgnoreNotFound(m.mark(ctx, m.pod.Name, false)); err != nil {
		m.log.Debug("the pod keeps its mark", "pod", m.pod.String(), "error", err)
	}
}

// unmark takes the mark off other pods.
func (m *PodMark) unmark(ctx context.Context, others []string) error {
	var errs []error
	for _, name := range others {
		err := m.mark(ctx, name, false)
		if apierrors.IsForbidden(err) {
			m.log.Warn("another pod may keep the mark of the holder: the Services of the VLAN may lead there as well", "pod", name, "error", err)
			continue
		}
		errs = append(errs, client.IgnoreNotFound(err))
	}
	return errors.Join(errs...)
}

func (m *PodMark) mark(ctx context.Context, name string, holder bool) error {
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
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: m.pod.Namespace, Name: name}}
	return m.client.Patch(ctx, pod, client.RawPatch(types.MergePatchType, patch), client.FieldOwner(process.FieldOwner))
}
