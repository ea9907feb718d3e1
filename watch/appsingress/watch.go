package appsingress

import (
	"context"
	"encoding/json"
	"io"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// watch calls event at each change of objects of a kind, until the watch ends. What changed is not read: the next look does.
// Flooded tells that it ended because the server sent more than it may.
func (h *hosted) watch(ctx context.Context, k kind, selector, version string, event func()) (flooded bool) {
	ctx, cancel := context.WithTimeout(ctx, watchTime+requestTime)
	defer cancel()
	seconds := int64(watchTime / time.Second)
	stream, err := h.rest.Get().AbsPath(k.path("", "")...).SpecificallyVersionedParams(&metav1.ListOptions{
		LabelSelector: selector, ResourceVersion: version, TimeoutSeconds: &seconds, AllowWatchBookmarks: true, Watch: true,
	}, metav1.ParameterCodec, metav1.SchemeGroupVersion).Stream(ctx)
	if err != nil {
		return false // the next look tells why
	}
	defer func() { _ = stream.Close() }() // nobody waits for what it would have said
	bounded := &boundedEvents{reader: stream, left: watchBytes}
	decoder := json.NewDecoder(bounded)
	for {
		bounded.event = eventBytes
		var e struct {
			Type watch.EventType `json:"type"`
		}
		if err := decoder.Decode(&e); err != nil {
			return bounded.flooded
		}
		switch e.Type {
		case watch.Error:
			return false
		case watch.Bookmark:
		default:
			event()
		}
	}
}

// boundedEvents ends a watch whose event, or all of them, have too many bytes: a decoder keeps an event until it has all of it.
type boundedEvents struct {
	reader      io.Reader
	event, left int
	flooded     bool
}

func (b *boundedEvents) Read(p []byte) (int, error) {
	if b.event <= 0 || b.left <= 0 {
		b.flooded = true
		return 0, io.ErrUnexpectedEOF
	}
	n, err := b.reader.Read(p[:min(len(p), b.event, b.left)])
	b.event -= n
	b.left -= n
	return n, err
}
