package workloads

import (
	"context"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// A failed write of an Infra is tried again after firstRetry, then twice that, up to lastRetry.
	firstRetry, lastRetry = 500 * time.Millisecond, time.Minute
	// writers is how many Infras are written at once.
	writers = 4
	// calm is the least time between two writes of one Infra's objects that somebody else changes again and again.
	calm = time.Second
)

// enqueue hands Infras to the writers. The lock is held.
func (w *Writer) enqueue(infras ...types.NamespacedName) {
	for _, infra := range infras {
		if since := w.cfg.Clock().Sub(w.wrote[infra]); since < calm {
			w.queue.AddAfter(infra, calm-since)
			continue
		}
		w.queue.Add(infra)
	}
}

// writeNext writes the next Infra of the queue; false: the queue has been shut down.
func (w *Writer) writeNext(ctx context.Context) bool {
	key, quit := w.queue.Get()
	if quit {
		return false
	}
	defer w.queue.Done(key)
	until, leads := w.cfg.Lead()
	if !leads || !w.mayWrite() {
		w.miss(key)
		return true
	}
	writing, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	started := w.cfg.Clock()
	err, public := w.write(writing, key)
	own := err
	err = errors.Join(own, public)
	_, leads = w.cfg.Lead()
	switch {
	case ctx.Err() != nil:
	case err != nil && !leads:
		w.miss(key)
	case errors.Is(err, context.DeadlineExceeded) && w.wroteSince(key, started):
		w.queue.Add(key) // there was more to write than fits into one term of the lead
	case isBehind(err):
		w.queue.Forget(key)
		w.queue.AddAfter(key, firstRetry)
	case err != nil:
		w.cfg.Log.Warn("what belongs to an Infra's VLAN pods cannot be written, trying again", "infra", key.String(), "tries", w.queue.NumRequeues(key)+1, "error", err)
		w.cfg.WriteFailures.Inc()
		w.noteFailure(key, own)
		w.queue.AddRateLimited(key)
	default:
		w.noteFailure(key, nil)
		w.queue.Forget(key)
	}
	return true
}

func (w *Writer) mayWrite() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.complete()
}

func (w *Writer) wroteSince(key types.NamespacedName, start time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.wrote[key].Before(start)
}

// miss has everything written once this process leads and knows everything: Planned sees to it.
func (w *Writer) miss(key types.NamespacedName) {
	w.queue.Forget(key)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.missed = true
}

func (w *Writer) noteFailure(key types.NamespacedName, err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := w.failures[key]
	if err == nil {
		delete(w.failures, key)
	} else {
		w.failures[key] = err
	}
	if (before == nil) != (err == nil) || err != nil && before.Error() != err.Error() {
		w.cfg.Changed()
	}
}
