package hub

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/densityops/oooi/watch/process"
)

// openEvents starts the recorder of Events.
func (h *Hub) openEvents(scheme *runtime.Scheme) error {
	clientset, err := kubernetes.NewForConfig(h.cfg.REST)
	if err != nil {
		return fmt.Errorf("events: %w", err)
	}
	broadcaster := record.NewBroadcaster(record.WithCorrelatorOptions(eventLimits))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: clientset.CoreV1().Events("")})
	h.events = broadcaster.NewRecorder(scheme, corev1.EventSource{Component: process.FieldOwner})
	h.stop = broadcaster.Shutdown
	return nil
}

// eventLimits limit the Events of each reason on its own (25 about one object, then one in five minutes): by default all
// Events about an object share the limit, so that a condition that comes and goes would silence what is said once.
var eventLimits = record.CorrelatorOptions{
	SpamKeyFunc: func(e *corev1.Event) string {
		return fmt.Sprint(e.InvolvedObject.Kind, "/", e.InvolvedObject.UID, "/", e.Type, "/", e.Reason)
	},
}
