package stack

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// final is an error after which trying again is of no use.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// Final marks an error after which Until gives up.
func Final(err error) error { return final{err} }

// Until tries a condition until it holds, 20 times a second, and returns its last error when the context ends first.
func Until(ctx context.Context, what string, condition func(context.Context) error) error {
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	var last error
	for {
		err := condition(ctx)
		if err == nil {
			return nil
		}
		var stop final
		if errors.As(err, &stop) {
			return fmt.Errorf("waiting for %s: %w", what, err)
		}
		// An attempt that the deadline cut short says less than the one before it.
		if last == nil || !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w", what, last)
		case <-ticker.C:
		}
	}
}
