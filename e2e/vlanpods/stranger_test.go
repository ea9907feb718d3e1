package vlanpods

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/e2e/netlab"
	"github.com/densityops/oooi/e2e/stack"
)

// strangerMAC is the hardware address of the machine that wants the servers' addresses.
var strangerMAC = net.HardwareAddr{0x52, 0x54, 0, 0, 2, 0x0c}

// TestStranger has a stranger on the VLAN want the proxy's address.
func TestStranger(t *testing.T) {
	t.Run("has it", func(t *testing.T) {
		w.deleteInfra(t)
		if _, err := w.stranger.Run(t.Context(), "ip", "addr", "add", addressProxy+"/24", "dev", "vlan0"); err != nil {
			t.Fatal(err)
		}
		w.apply(t)
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "AddressInUse", addressProxy, strangerMAC.String())
		seen := w.watchCondition(t, v1alpha1.ConditionAddressesHeld)
		// The others are served.
		w.boot(t, w.workerA, netlab.Udhcpc, workerA)
		eventually(t, "DNS", func(ctx context.Context) error {
			_, err := lookup(ctx, w.workerA, addressDNS, "example.org")
			return err
		})
		// The address is probed again and again, and meanwhile nothing else is said of it.
		arp := captureARP(t)
		eventually(t, "probes for an address that is refused", func(context.Context) error {
			if n := arp.probes(addressProxy); n < 2 {
				return fmt.Errorf("%d probes", n)
			}
			return nil
		})
		if said := seen(); strings.Join(said, ", ") != "False AddressInUse" {
			t.Errorf("while the address is refused, AddressesHeld was %s", strings.Join(said, ", "))
		}
		if _, err := w.stranger.Run(t.Context(), "ip", "addr", "del", addressProxy+"/24", "dev", "vlan0"); err != nil {
			t.Fatal(err)
		}
		w.condition(t, v1alpha1.ConditionAddressesHeld, "True", "", addressDHCP, addressDNS, addressProxy)
		w.settle(t)
	})

	t.Run("claims it later", func(t *testing.T) {
		w.settle(t)
		w.boot(t, w.workerA, netlab.Udhcpc, workerA)
		eventually(t, "a connection", w.reached)
		arp := newARP(t, w.stranger)
		stop := inBackground(t, func(ctx context.Context) { arp.announce(ctx, netip.MustParseAddr(addressProxy), time.Second) })
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "AddressContested", addressProxy, strangerMAC.String())
		// The holder defends it: connections go through most of the time.
		eventually(t, "a connection to a defended address", w.reached)
		stop()
		w.condition(t, v1alpha1.ConditionAddressesHeld, "True", "", addressDHCP, addressDNS, addressProxy)
		eventually(t, "a connection", w.reached)
	})

	t.Run("answers every request", func(t *testing.T) {
		w.settle(t)
		w.boot(t, w.workerA, netlab.Udhcpc, workerA)
		eventually(t, "a connection", w.reached)
		arp := newARP(t, w.stranger)
		stop := inBackground(t, func(ctx context.Context) { arp.answer(ctx) })
		// A takeover happens all the same: the one who answers is not the pod that had the addresses.
		holder, _ := w.pair(t)
		if err := w.Dynamic.Resource(podResource).Namespace(namespace).Delete(t.Context(), holder, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, "another holder", func(ctx context.Context) error {
			now, err := w.holder(ctx)
			if err == nil && now == holder {
				err = errors.New("it is still the one that was deleted")
			}
			return err
		})
		w.condition(t, v1alpha1.ConditionAddressesHeld, "False", "AddressContested", strangerMAC.String())
		eventually(t, "a connection to a defended address", w.reached)
		stop()
		w.condition(t, v1alpha1.ConditionAddressesHeld, "True", "", addressDHCP, addressDNS, addressProxy)
		eventually(t, "a connection", w.reached)
		w.settle(t)
	})
}

// inBackground does something until stop is called, at the end of the test at the latest. What does not end with its context is interrupted.
func inBackground(t *testing.T, do func(context.Context), interrupt ...func()) (stop func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		do(ctx)
	}()
	stop = func() {
		cancel()
		for _, f := range interrupt {
			f()
		}
		<-done
	}
	t.Cleanup(stop)
	return stop
}

// reached is an error unless worker A reaches its own API server.
func (w *world) reached(ctx context.Context) error {
	err := w.reachedAt(ctx, w.workerA, netip.MustParseAddrPort(addressProxy+":443"))
	if err != nil {
		neighbours, _ := w.workerA.Run(ctx, "ip", "neigh", "show", "dev", "vlan0") // for the error only
		err = fmt.Errorf("%w\n%s", err, neighbours)
	}
	return err
}

// reachedAt is an error unless a host reaches the API server of cluster A at an address.
func (w *world) reachedAt(ctx context.Context, h stack.Host, address netip.AddrPort) error {
	got, err := w.callAt(ctx, h, address.Addr().String(), address.Port(), "api."+domain(clusterA))
	if want := clusterA + "/kube-apiserver"; err == nil && got != want {
		err = fmt.Errorf("got %s, want %s", got, want)
	}
	return err
}

// condition waits until a condition of the Infra has a status, a reason unless that is empty, and a message with all of the texts.
func (w *world) condition(t *testing.T, kind, status, reason string, texts ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("%s=%s %s", kind, status, reason), func(ctx context.Context) error {
		object, err := w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("infras")).Namespace(namespace).Get(ctx, infra, metav1.GetOptions{})
		if err != nil {
			return err
		}
		list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, c := range list {
			c, ok := c.(map[string]any)
			if !ok || c["type"] != kind || c["status"] != status || reason != "" && c["reason"] != reason {
				continue
			}
			message := fmt.Sprint(c["message"])
			all := true
			for _, text := range texts {
				all = all && strings.Contains(message, text)
			}
			if all {
				return nil
			}
		}
		return errors.New(conditions(object))
	})
}

// watchCondition notes every status and reason that a condition of the Infra has, from now on until the function that it returns is called.
func (w *world) watchCondition(t *testing.T, kind string) (seen func() []string) {
	t.Helper()
	infras := w.Dynamic.Resource(v1alpha1.GroupVersion.WithResource("infras")).Namespace(namespace)
	now, err := infras.Get(t.Context(), infra, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	note := func(object *unstructured.Unstructured) {
		list, _, _ := unstructured.NestedSlice(object.Object, "status", "conditions")
		for _, c := range list {
			if c, ok := c.(map[string]any); ok && c["type"] == kind {
				if word := fmt.Sprintf("%v %v", c["status"], c["reason"]); len(all) == 0 || all[len(all)-1] != word {
					all = append(all, word)
				}
			}
		}
	}
	note(now)
	changes, err := infras.Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + infra, ResourceVersion: now.GetResourceVersion(), TimeoutSeconds: new(int64(300)),
	})
	if err != nil {
		t.Fatal(err)
	}
	stop := inBackground(t, func(context.Context) {
		for change := range changes.ResultChan() {
			if object, ok := change.Object.(*unstructured.Unstructured); ok {
				note(object)
			}
		}
	}, changes.Stop)
	return func() []string {
		stop()
		return all
	}
}

// arpSocket sends and receives ARP on vlan0 of a machine.
type arpSocket struct {
	t      *testing.T
	socket *os.File
	mac    net.HardwareAddr
}

func newARP(t *testing.T, h stack.Host) *arpSocket {
	t.Helper()
	a := &arpSocket{t: t}
	if err := h.Do(func() error {
		link, err := net.InterfaceByName("vlan0")
		if err != nil {
			return err
		}
		a.mac = link.HardwareAddr
		protocol := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.ETH_P_ARP))
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(protocol))
		if err != nil {
			return err
		}
		a.socket = os.NewFile(uintptr(fd), "arp")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: protocol, Ifindex: link.Index})
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.socket.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// send sends one ARP packet in which this machine says that it has an address (RFC 826).
func (a *arpSocket) send(to net.HardwareAddr, operation uint16, sender netip.Addr, target net.HardwareAddr, targetIP netip.Addr) {
	frame := append(append([]byte{}, to...), a.mac...)
	frame = append(frame, 0x08, 0x06, 0, 1, 0x08, 0x00, 6, 4)
	frame = binary.BigEndian.AppendUint16(frame, operation)
	frame = append(append(frame, a.mac...), sender.AsSlice()...)
	frame = append(append(frame, target...), targetIP.AsSlice()...)
	if _, err := a.socket.Write(frame); err != nil {
		a.t.Error(err)
	}
}

// ask asks for an address until somebody answers, for so long at most, as a host that has no address itself (RFC 5227 section 2.1.1). It
// returns the hardware address of whoever does.
func (a *arpSocket) ask(address netip.Addr, within time.Duration) (mac string, answered bool) {
	a.t.Helper()
	frame := make([]byte, 2048)
	for end := time.Now().Add(within); time.Now().Before(end); {
		a.send(broadcast, 1, netip.IPv4Unspecified(), make(net.HardwareAddr, 6), address)
		if err := a.socket.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
			a.t.Fatal(err)
		}
		for {
			n, err := a.socket.Read(frame)
			if err != nil {
				break // nobody yet
			}
			if sender, ok := netip.AddrFromSlice(frame[28:32]); n >= 14+28 && ok && sender == address {
				return net.HardwareAddr(frame[22:28]).String(), true
			}
		}
	}
	return "", false
}

// announce claims an address over and over until ctx ends.
func (a *arpSocket) announce(ctx context.Context, address netip.Addr, every time.Duration) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		a.send(broadcast, 1, address, make(net.HardwareAddr, 6), address)
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// answer answers every request for one of the servers' addresses until ctx ends.
func (a *arpSocket) answer(ctx context.Context) {
	defer context.AfterFunc(ctx, func() { _ = a.socket.SetReadDeadline(time.Now()) })() // it may be closed
	frame := make([]byte, 2048)
	for ctx.Err() == nil {
		n, err := a.socket.Read(frame)
		if err != nil || n < 14+28 || binary.BigEndian.Uint16(frame[20:]) != 1 {
			continue
		}
		asker := net.HardwareAddr(append([]byte{}, frame[22:28]...))
		askerIP, _ := netip.AddrFromSlice(frame[28:32])
		asked, _ := netip.AddrFromSlice(frame[38:42])
		if asker.String() == a.mac.String() || asked == askerIP {
			continue // announcements are nobody's question
		}
		switch asked.String() {
		case addressDHCP, addressDNS, addressProxy:
			a.send(asker, 2, asked, asker, askerIP)
		}
	}
}
