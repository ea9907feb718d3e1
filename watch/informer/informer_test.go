package informer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/densityops/oooi/watch/informer"
)

// starting is a cache that does no more than start.
type starting struct {
	cache.Cache
	start func(context.Context) error
}

func (s starting) Start(ctx context.Context) error { return s.start(ctx) }

// TestRunDoesNotWaitForSleepingInformers: a process that stops while the API is away must not take half a minute for it.
func TestRunDoesNotWaitForSleepingInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		awake := make(chan struct{})
		defer close(awake)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := informer.Run(ctx, starting{start: func(context.Context) error {
			<-awake
			return errors.New("the API is away")
		}}); err != nil {
			t.Error(err)
		}
	})
}

func TestRunWaitsForACacheThatStops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		stopped := false
		cancel()
		if err := informer.Run(ctx, starting{start: func(ctx context.Context) error {
			<-ctx.Done()
			synctest.Wait()
			stopped = true
			return nil
		}}); err != nil || !stopped {
			t.Errorf("stopped: %t, error %v", stopped, err)
		}
	})
}

func TestRunReportsACacheThatCannotStart(t *testing.T) {
	broken := errors.New("broken")
	if err := informer.Run(t.Context(), starting{start: func(context.Context) error { return broken }}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// TestHandlerUnwrapsWhatItMissed: a watch that was cut off gives what was deleted meanwhile in another form.
func TestHandlerUnwrapsWhatItMissed(t *testing.T) {
	var seen []string
	h := informer.Handler(
		func(o string) { seen = append(seen, "set "+o) },
		func(o string) { seen = append(seen, "gone "+o) },
	)
	h.OnAdd("a", true)
	h.OnUpdate("a", "b")
	h.OnDelete("b")
	h.OnDelete(toolscache.DeletedFinalStateUnknown{Key: "c", Obj: "c"})
	if got := strings.Join(seen, ", "); got != "set a, set b, gone b, gone c" {
		t.Errorf("got %s", got)
	}
}
