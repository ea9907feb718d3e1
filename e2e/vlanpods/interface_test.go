package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
)

// TestInterface has the VLAN interface of the pods come late, go away, lose its cable, and carry addresses of an IPAM. Each is a
// condition of its own, and heals.
func TestInterface(t *testing.T) {
	held := func(t *testing.T) {
		t.Helper()
		w.condition(t, v1alpha1.ConditionAddressesHeld, "True", "", addressDHCP, addressDNS, addressProxy)
		w.boot(t, w.workerA, netlab.Udhcpc, workerA)
		eventually(t, "a connection", w.reached)
	}
	t.Run("late", func(t *testing.T) {
		w.settle(t)
		w.nodes.HoldInterfaces(true)
		defer w.nodes.HoldInterfaces(false)
		fresh := w.replacePods(t)
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "InterfaceMissing", v1alpha1.VLANInterface)
		for _, pod := range fresh {
			if err := w.nodes.Plug(namespace, pod, v1alpha1.VLANInterface); err != nil {
				t.Fatal(err)
			}
		}
		held(t)
	})
	t.Run("missing", func(t *testing.T) {
		w.settle(t)
		holder, standby := w.pair(t)
		if err := w.nodes.Unplug(namespace, holder, v1alpha1.VLANInterface); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another holder", func(ctx context.Context) error {
			if now, err := w.holder(ctx); err != nil || now != standby {
				return errors.Join(fmt.Errorf("the holder is %s", now), err)
			}
			return nil
		})
		held(t)
		if err := w.nodes.Plug(namespace, holder, v1alpha1.VLANInterface); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
	})
	t.Run("down", func(t *testing.T) {
		w.settle(t)
		holder, standby := w.pair(t)
		for _, pod := range []string{standby, holder} {
			if err := w.nodes.Carrier(namespace, pod, v1alpha1.VLANInterface, false); err != nil {
				t.Fatal(err)
			}
		}
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "InterfaceDown", v1alpha1.VLANInterface)
		for _, pod := range []string{standby, holder} {
			if err := w.nodes.Carrier(namespace, pod, v1alpha1.VLANInterface, true); err != nil {
				t.Fatal(err)
			}
		}
		held(t)
	})
	t.Run("with addresses", func(t *testing.T) {
		w.settle(t)
		manifests, err := kustomize(t.Context(), "deploy/examples/vlan100")
		if err != nil {
			t.Fatal(err)
		}
		const last = `"disableContainerInterface": false`
		if !strings.Contains(string(manifests), last) {
			t.Fatalf("the example's NetworkAttachmentDefinition has no %s", last)
		}
		withIPAM := strings.ReplaceAll(string(manifests), last, last+`, "ipam": {"type": "static", "addresses": [{"address": "192.0.2.20/24"}]}`)
		if _, err := w.Apply(t.Context(), "kubectl", []byte(withIPAM)); err != nil {
			t.Fatal(err)
		}
		w.replacePods(t)
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "InterfaceHasAddresses", "192.0.2.20")
		// It is served all the same.
		w.boot(t, w.workerA, netlab.Udhcpc, workerA)
		eventually(t, "a connection", w.reached)
		w.apply(t)
		w.replacePods(t)
		held(t)
	})
}

// replacePods deletes both VLAN pods and waits until there are two others that run.
func (w *world) replacePods(t *testing.T) []string {
	t.Helper()
	holder, standby := w.pair(t)
	for _, pod := range []string{holder, standby} {
		if err := w.Dynamic.Resource(podResource).Namespace(namespace).Delete(t.Context(), pod, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var names []string
	eventually(t, "two other pods", func(ctx context.Context) error {
		names = nil
		for _, name := range w.nodes.Running(namespace) {
			if name != holder && name != standby {
				names = append(names, name)
			}
		}
		if len(names) != 2 {
			return fmt.Errorf("there are %v", names)
		}
		return nil
	})
	return names
}
