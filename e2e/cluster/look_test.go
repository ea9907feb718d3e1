package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// writer is the field manager of what tests write.
const writer = "e2e"

// apply applies manifests, and the statuses of those that are not ours, as their controllers would.
func (s *site) apply(t *testing.T, manifests ...string) []*unstructured.Unstructured {
	t.Helper()
	var applied []*unstructured.Unstructured
	for _, text := range manifests {
		objects, err := controlplane.Decode([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			answer, err := s.applyObject(t.Context(), object)
			if err != nil {
				t.Fatalf("apply %s %s/%s: %v", object.GetKind(), object.GetNamespace(), object.GetName(), err)
			}
			applied = append(applied, answer)
		}
	}
	return applied
}

func (s *site) applyObject(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	object.SetUID("") // the API server gives them
	answer, err := s.ApplyObject(ctx, writer, object)
	if err != nil {
		return nil, err
	}
	if status, has := object.Object["status"]; has && object.GroupVersionKind().Group != v1alpha1.GroupVersion.Group {
		told := &unstructured.Unstructured{Object: map[string]any{"status": status}}
		told.SetGroupVersionKind(object.GroupVersionKind())
		told.SetNamespace(object.GetNamespace())
		told.SetName(object.GetName())
		return s.ApplyObject(ctx, writer, told, "status")
	}
	return answer, nil
}

// refers makes an object that names one in the cluster: "Kind.group/version", namespace/name.
func refers(apiVersion, kind, key string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(apiVersion)
	u.SetKind(kind)
	namespace, name, namespaced := strings.Cut(key, "/")
	if !namespaced {
		namespace, name = "", key
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// ours names an object of this API.
func ours(kind, key string) *unstructured.Unstructured {
	return refers(v1alpha1.GroupVersion.String(), kind, key)
}

// remove deletes objects; those that are not there are no error.
func (s *site) remove(t *testing.T, objects ...*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		client, err := s.Resource(object)
		if err == nil {
			err = client.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatalf("delete %s %s/%s: %v", object.GetKind(), object.GetNamespace(), object.GetName(), err)
		}
	}
}

// patch merges a JSON text into an object, or into its status.
func (s *site) patch(t *testing.T, object *unstructured.Unstructured, text string, subresources ...string) {
	t.Helper()
	client, err := s.Resource(object)
	if err == nil {
		_, err = client.Patch(t.Context(), object.GetName(), types.MergePatchType, []byte(text), metav1.PatchOptions{FieldManager: "somebody"}, subresources...)
	}
	if err != nil {
		t.Fatalf("patch %s %s/%s: %v", object.GetKind(), object.GetNamespace(), object.GetName(), err)
	}
}

// fetch reads an object as it is now.
func (s *site) fetch(ctx context.Context, object *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	client, err := s.Resource(object)
	if err != nil {
		return nil, err
	}
	return client.Get(ctx, object.GetName(), metav1.GetOptions{})
}

// read reads an object of this API, by kind and namespace/name.
func read[T any](ctx context.Context, s *site, kind, key string) (*T, error) {
	object, err := s.fetch(ctx, ours(kind, key))
	if err != nil {
		return nil, err
	}
	into := new(T)
	return into, runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, into)
}

// gone is a condition: an object is not there.
func (s *site) gone(object *unstructured.Unstructured) func(context.Context) error {
	return func(ctx context.Context) error {
		there, err := s.fetch(ctx, object)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		}
		return fmt.Errorf("%s %s/%s is still there (finalizers %v)", there.GetKind(), there.GetNamespace(), there.GetName(), there.GetFinalizers())
	}
}

// there is a condition: an object is there.
func (s *site) there(object *unstructured.Unstructured) func(context.Context) error {
	return func(ctx context.Context) error {
		_, err := s.fetch(ctx, object)
		return err
	}
}

// says is a condition: an object of this API has a condition, "True Ready" say, for its current generation. The message
// must hold each text.
func (s *site) says(kind, key, condition, want string, texts ...string) func(context.Context) error {
	return func(ctx context.Context) error {
		object, err := s.fetch(ctx, ours(kind, key))
		if err != nil {
			return err
		}
		name := kind + " " + key
		c, observed, err := conditionOf(object, condition)
		switch {
		case err != nil:
			return err
		case c == nil:
			return fmt.Errorf("%s has no condition %s", name, condition)
		case observed != object.GetGeneration():
			return fmt.Errorf("%s is about generation %d of %s, the object has %d", condition, observed, name, object.GetGeneration())
		}
		if got := string(c.Status) + " " + c.Reason; got != want {
			return fmt.Errorf("condition %s of %s: got %s (%s), want %s", condition, name, got, c.Message, want)
		}
		for _, text := range texts {
			if !strings.Contains(c.Message, text) {
				return fmt.Errorf("condition %s of %s: message %q lacks %q", condition, name, c.Message, text)
			}
		}
		return nil
	}
}

// saysNot is a condition: an object of this API has no condition of a kind.
func (s *site) saysNot(kind, key, condition string) func(context.Context) error {
	return func(ctx context.Context) error {
		object, err := s.fetch(ctx, ours(kind, key))
		if err != nil {
			return err
		}
		if c, _, err := conditionOf(object, condition); err != nil || c != nil {
			return fmt.Errorf("%s %s has the condition %s: %v (%w)", kind, key, condition, c, err)
		}
		return nil
	}
}

// conditionOf finds a condition, and the generation that it is about.
func conditionOf(object *unstructured.Unstructured, kind string) (*metav1.Condition, int64, error) {
	var o struct {
		Status struct {
			ObservedGeneration int64              `json:"observedGeneration"`
			Conditions         []metav1.Condition `json:"conditions"`
		} `json:"status"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &o); err != nil {
		return nil, 0, err
	}
	c := meta.FindStatusCondition(o.Status.Conditions, kind)
	if c == nil {
		return nil, 0, nil
	}
	if o.Status.ObservedGeneration == 0 { // the children's conditions have their own
		return c, c.ObservedGeneration, nil
	}
	return c, o.Status.ObservedGeneration, nil
}

// ask sends a query for an A record and gives the address that is answered, or the name of the status.
func ask(ctx context.Context, from, server, name string) (string, error) {
	client := &dns.Client{Timeout: 2 * time.Second, Dialer: &net.Dialer{LocalAddr: &net.UDPAddr{IP: net.ParseIP(from)}, Timeout: 2 * time.Second}}
	reply, _, err := client.ExchangeContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), dns.TypeA), server)
	if err != nil {
		return "", err
	}
	for _, rr := range reply.Answer {
		if a, ok := rr.(*dns.A); ok {
			return a.A.String(), nil
		}
	}
	return dns.RcodeToString[reply.Rcode], nil
}

// resolves is a condition: a name has an address, or a status, for a client of the VLAN.
func (v vlan) resolves(name, want string) func(context.Context) error {
	return v.resolvesFrom(v.address(250), name, want)
}

// resolvesFrom is the same for a client of any address.
func (v vlan) resolvesFrom(from, name, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, err := ask(ctx, from, v.dns(), name)
		if err == nil && got != want {
			err = fmt.Errorf("%s asks for %s: got %s, want %s", from, name, got, want)
		}
		return err
	}
}

// pod is the address of a client in view pods.
func (s *site) pod() string { return s.vlans + "0.77" }

// call is a connection from a host of the VLAN to its proxy.
func (v vlan) call(source int, sni string, port uint16) stack.Call {
	return stack.Call{
		Source: netip.MustParseAddr(v.address(source)), SNI: sni,
		To: netip.AddrPortFrom(netip.MustParseAddr(v.address(4)), port),
	}
}

// answers is a condition: who answers a call, as cluster/service, or "closed".
func (s *site) answers(c stack.Call, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		got, err := c.Try(ctx, s.CA)
		if err == nil && got.String() != want {
			err = fmt.Errorf("%v to %s with server name %q: got %s, want %s", c.Source, c.To, c.SNI, got, want)
		}
		return err
	}
}

// all is a condition that holds when all of them do.
func all(conditions ...func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		var errs []error
		for _, c := range conditions {
			errs = append(errs, c(ctx))
		}
		return errors.Join(errs...)
	}
}
