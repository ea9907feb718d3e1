package workloads

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/densityops/oooi/deploy/workload"
)

const (
	// hubContainer is the name of oooi's container in the hub's pod.
	hubContainer = "oooi"
	// podTimeout bounds reading the hub's own pod.
	podTimeout = 5 * time.Second
)

// findSettings reads the hub's own pod, once. Until it is read, nothing is written, and every Infra says why.
func (w *Writer) findSettings(ctx context.Context) {
	for wait := firstRetry; ; wait = min(2*wait, lastRetry) {
		settings, err := w.readSettings(ctx)
		if ctx.Err() != nil {
			return
		}
		w.mu.Lock()
		w.settings, w.settingsErr = settings, err
		w.mu.Unlock()
		w.cfg.Changed()
		if err == nil {
			w.cfg.Log.Info("VLAN pods are written", "image", settings.Image, "envoyImage", settings.EnvoyImage, "pullPolicy", string(settings.PullPolicy), "pullSecrets", settings.PullSecrets)
			return
		}
		w.cfg.Log.Warn("no VLAN pods are written yet, trying again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(wait):
		}
	}
}

func (w *Writer) readSettings(ctx context.Context) (*workload.Settings, error) {
	settings := w.cfg.Settings
	if w.cfg.Pod.Name == "" {
		if settings.Image == "" {
			return nil, errors.New("no image of the VLAN pods is known: give --vlan-image")
		}
		return &settings, nil
	}
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	defer cancel()
	pod := &corev1.Pod{}
	if err := w.client.Get(ctx, w.cfg.Pod, pod); err != nil {
		return nil, fmt.Errorf("read the image of the hub's own pod %s: %w", w.cfg.Pod, err)
	}
	return fromPod(settings, pod)
}

// fromPod fills in what settings leave open: the VLAN pods run what the hub runs. The pull policy belongs to the image.
func fromPod(settings workload.Settings, pod *corev1.Pod) (*workload.Settings, error) {
	if settings.PullSecrets == nil {
		for _, secret := range pod.Spec.ImagePullSecrets {
			settings.PullSecrets = append(settings.PullSecrets, secret.Name)
		}
	}
	if settings.Image != "" {
		return &settings, nil
	}
	for i := range pod.Spec.Containers {
		if c := &pod.Spec.Containers[i]; c.Name == hubContainer || len(pod.Spec.Containers) == 1 {
			settings.Image = c.Image
			if settings.PullPolicy == "" {
				settings.PullPolicy = c.ImagePullPolicy
			}
			return &settings, nil
		}
	}
	return nil, fmt.Errorf("the hub's own pod %s/%s has no container %s: give --vlan-image", pod.Namespace, pod.Name, hubContainer)
}
