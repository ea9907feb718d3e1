package serving

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/densityops/oooi/api/v1alpha1"
)

const (
	// callTimeout bounds one call of the API.
	callTimeout = 5 * time.Second
	// stopGrace is how long the last calls may take when the process ends.
	stopGrace = 2 * time.Second
)

// newScheme holds every kind that is read or written.
func newScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(v1alpha1.AddToScheme(s), corev1.AddToScheme(s), coordinationv1.AddToScheme(s))
}

// sleep waits; false: ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
