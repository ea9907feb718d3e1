package informer

import (
	"context"
	"time"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
)

// stopGrace is how long a cache may take to stop.
const stopGrace = 2 * time.Second

// Run runs a cache until ctx ends. It does not wait for informers that sleep before they try an API that is away once
// more, which they do for up to half a minute whatever happens; they end with the process.
func Run(ctx context.Context, c cache.Cache) error {
	stopped := make(chan error, 1)
	go func() { stopped <- c.Start(ctx) }()
	select {
	case err := <-stopped:
		return err
	case <-ctx.Done():
	}
	grace := time.NewTimer(stopGrace)
	defer grace.Stop()
	select {
	case err := <-stopped:
		return err
	case <-grace.C:
		return nil
	}
}

// Handler calls set for an object that is there, and gone for one that is not any more, as it was last.
func Handler[T any](set, gone func(T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { set(object.(T)) },
		UpdateFunc: func(_, object any) { set(object.(T)) },
		DeleteFunc: func(object any) {
			if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
				object = last.Obj
			}
			gone(object.(T))
		},
	}
}
