package kube

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// leaseName is the Lease whose holder writes.
const leaseName = "oooi"

// A leader that is gone is followed by another after leaseDuration at the latest; one that stops, at once.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// elect makes this process leader when no other one is, for as long as ctx lasts. Losing the lead ends no
// more than the writing: what is served stays, and the lead can be won again.
func (h *Hub) elect(ctx context.Context) error {
	clientset, err := kubernetes.NewForConfig(h.cfg.REST)
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: h.cfg.Namespace, Name: leaseName},
		Client:     clientset.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: h.cfg.Identity},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		ReleaseOnCancel: true,
		Name:            leaseName,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) {
				h.cfg.Log.Info("this process leads", "identity", h.cfg.Identity)
				h.forgetFailures()
				h.leading.Store(true)
				h.world.notify() // plan from the statuses as they are, then write
			},
			OnStoppedLeading: func() {
				if h.leading.Swap(false) {
					h.cfg.Log.Info("this process leads no longer", "identity", h.cfg.Identity)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	for ctx.Err() == nil {
		elector.Run(ctx)
	}
	return nil
}
