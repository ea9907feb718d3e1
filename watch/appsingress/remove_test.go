package appsingress

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
)

// tenant is an attachment whose API server answers what the test says.
func (h *hub) tenant(name string, answer http.HandlerFunc) Attachment {
	h.t.Helper()
	key := types.NamespacedName{Namespace: "clusters", Name: name}
	a := Attachment{Key: key, Kubeconfig: key, Addresses: []string{"127.0.0.1"}}
	a.Spec.MetalLB.AddressPoolName, a.Spec.MetalLB.IPAddressPoolRange = "a", "192.0.2.0/28"
	port, kubeconfig := hostile(h.t, answer)
	a.Port = port
	h.give(a, map[string][]byte{"kubeconfig": kubeconfig})
	return a
}

// ourLabels are those of an attachment in clusters, in JSON.
func ourLabels(t *testing.T, name string) string {
	t.Helper()
	raw, err := json.Marshal(withDefaults(types.NamespacedName{Namespace: "clusters", Name: name}, v1alpha1.AppsIngress{}).labels())
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// TestAKindThatCannotBeListed: what comes before it goes all the same, the Service first; what is left is said with the cause.
func TestAKindThatCannotBeListed(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	labels := ourLabels(t, "a")
	var deleted atomic.Bool
	a := h.tenant("a", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			deleted.Store(true)
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		case strings.HasSuffix(r.URL.Path, "/services") && !deleted.Load() && r.URL.Query().Get("watch") == "":
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[{"metadata":{"namespace":"openshift-ingress","name":"oooi-ingress","uid":"1","labels":`+labels+`}}]}`)
		case strings.Contains(r.URL.Path, "metallb.io"):
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			instead("", nil)(w, r)
		}
	})
	a.Remove = true
	h.put(a)
	o := h.waitFor(a, degradedPhase, v1alpha1.ReasonHostedClusterAccessFailed, "", "currently unable to handle the request; may be left there: L2Advertisement advertise-a, IPAddressPool a")
	if !deleted.Load() || o.Removed || slices.Contains(o.Left, "Service openshift-ingress/oooi-ingress") {
		t.Errorf("the Service: deleted %v, %+v", deleted.Load(), o)
	}
}

// TestTextsAreBounded: a tenant may have many objects with our labels, and any text in them.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	h := newHub(t)
	labels := ourLabels(t, "a")
	var items []string
	for n := range 300 {
		items = append(items, fmt.Sprintf(`{"metadata":{"namespace":"%s","name":"%03d","uid":"1","labels":%s}}`, strings.Repeat("n", 200), n, labels))
	}
	hostname := fmt.Sprintf(`{"metadata":{"namespace":"openshift-ingress","name":"oooi-ingress","uid":"2","labels":%s},"status":{"loadBalancer":{"ingress":[{"hostname":"%s"}]}}}`,
		labels, strings.Repeat("h", 100<<10))
	a := h.tenant("a", func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodDelete:
			_, _ = io.WriteString(w, `{"kind":"Status","apiVersion":"v1","status":"Success"}`)
		case strings.HasSuffix(r.URL.Path, "/services") && r.URL.Query().Get("watch") == "":
			_, _ = io.WriteString(w, `{"metadata":{"resourceVersion":"1"},"items":[`+strings.Join(append(items, hostname), ",")+`]}`)
		default:
			instead("", nil)(w, r)
		}
	})
	a.Remove = true
	h.put(a)
	o := h.waitFor(a, pendingPhase, v1alpha1.ReasonRemoving, "", "and 296 more is gone from the hosted cluster; may be left there: Service ")
	if len(o.Status.Message) > 8<<10 || len(o.Status.ExternalHostname) > 300 {
		t.Errorf("a message of %d bytes, a hostname of %d", len(o.Status.Message), len(o.Status.ExternalHostname))
	}
}

// TestWhoDoesNotLeadWritesNothing, whatever was wanted last: a process that was frozen goes on where it was.
func TestWhoDoesNotLeadWritesNothing(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	h := hostileClient(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			asked.Add(1)
		}
		empty(w, r)
	})
	h.lead = func() bool { return false }
	w := withDefaults(types.NamespacedName{Namespace: "clusters", Name: "a"}, v1alpha1.AppsIngress{})
	if _, err := h.apply(t.Context(), services, w.service(), ""); !errors.Is(err, errAgain) {
		t.Errorf("apply: %v", err)
	}
	if err := h.remove(t.Context(), services, w.service()); !errors.Is(err, errAgain) {
		t.Errorf("delete: %v", err)
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("asked %d times", n)
	}
	h.lead = nil
	if _, err := h.apply(t.Context(), services, w.service(), ""); err != nil || asked.Load() != 1 {
		t.Errorf("apply: %v, asked %d times", err, asked.Load())
	}
}
