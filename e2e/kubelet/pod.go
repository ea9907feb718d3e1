package kubelet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// pod is one Pod that runs here.
type pod struct {
	kubelet *Kubelet
	folder  string
	// latest is the Pod as the API server has it.
	latest atomic.Pointer[corev1.Pod]
	// wake is sent to when there may be something to do.
	wake chan struct{}
	// vanished is closed when the API server has it no more: deleted by force.
	vanished chan struct{}
	// lost is closed when a test lets it disappear without the API server's knowledge.
	lost     chan struct{}
	loseOnce sync.Once
	// done is closed when nothing of it is left.
	done chan struct{}

	// set by prepare, before there are containers
	volumes    map[string]volume
	containers []*container

	mu      sync.Mutex
	sandbox *sandbox
	trouble error // why there is no sandbox yet
	begun   metav1.Time
	sent    []byte // the last status that was written
}

func (p *pod) spec() *corev1.PodSpec { return &p.latest.Load().Spec }

// name for people.
func (p *pod) name() string {
	object := p.latest.Load()
	return object.Namespace + "/" + object.Name
}

// change changes what the status is made from, and has it written.
func (p *pod) change(f func()) {
	p.mu.Lock()
	f()
	p.mu.Unlock()
	p.changed()
}

func (p *pod) changed() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// observe takes a newer version of the object.
func (p *pod) observe(object *corev1.Pod) {
	p.latest.Store(object)
	p.changed()
}

// run is the Pod's life.
func (p *pod) run(ctx context.Context) {
	defer close(p.done)
	defer p.kubelet.forget(p)

	// Containers are told to end by signals; this keeps those that have ended from being started again.
	starting, stopStarting := context.WithCancel(ctx)
	var group sync.WaitGroup
	// The grace period of a Pod that is deleted while it is going on is not taken any longer.
	var stopped chan struct{}
	defer func() {
		stopStarting()
		p.killAll()
		group.Wait()
		if err := p.remove(); err != nil {
			p.kubelet.config.Log.Error("removing a Pod's sandbox", "pod", p.name(), "error", err)
		}
	}()

	p.begun = metav1.Now()
	for {
		if stopped == nil && p.latest.Load().DeletionTimestamp != nil {
			stopStarting()
			stopped = make(chan struct{})
			grace := 30 * time.Second
			if seconds := p.latest.Load().DeletionGracePeriodSeconds; seconds != nil {
				grace = time.Duration(*seconds) * time.Second
			}
			go func() {
				defer close(stopped)
				p.stopAll(grace)
				group.Wait()
			}()
		}
		if len(p.containers) == 0 && stopped == nil {
			if err := p.prepare(ctx); err == nil {
				for _, c := range p.containers {
					group.Go(func() { c.run(starting) })
				}
			} else {
				p.kubelet.config.Log.Warn("preparing a Pod", "pod", p.name(), "error", err)
				p.mu.Lock()
				p.trouble = err
				p.mu.Unlock()
			}
		}
		again := time.NewTimer(time.Hour)
		if err := p.report(ctx); err != nil || len(p.containers) == 0 {
			again.Reset(500 * time.Millisecond)
		}
		select {
		case <-ctx.Done():
		case <-p.lost:
		case <-p.vanished:
			p.kubelet.config.Log.Info("a Pod is gone from the API: killing it", "pod", p.name())
		case <-stopped:
			p.finish(ctx)
		case <-again.C:
			continue
		case <-p.wake:
			again.Stop()
			continue
		}
		again.Stop()
		if stopped != nil {
			p.killAll()
			<-stopped
		}
		return
	}
}

// prepare makes what the containers need.
func (p *pod) prepare(ctx context.Context) error {
	object := p.latest.Load()
	if err := supported(object); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	attachments, err := p.kubelet.attachments(ctx, object)
	if err != nil {
		return err
	}
	s, err := p.kubelet.network.newSandbox(object, attachments, p.kubelet.late())
	if err != nil {
		return err
	}
	err = p.files(object, s)
	if err == nil {
		p.volumes, err = p.kubelet.volumes(ctx, filepath.Join(p.folder, "volumes"), object, s)
	}
	if err != nil {
		return errors.Join(err, s.remove(), p.unmount(), os.RemoveAll(p.folder))
	}
	p.mu.Lock()
	p.sandbox = s
	for _, c := range object.Spec.Containers {
		p.containers = append(p.containers, &container{
			pod: p, spec: &c, log: p.kubelet.logFile(object.Namespace, object.Name, c.Name),
			state: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}},
		})
	}
	p.mu.Unlock()
	return nil
}

// files are those below /etc that belong to the Pod and not to the image.
func (p *pod) files(object *corev1.Pod, s *sandbox) error {
	if err := os.MkdirAll(p.folder, 0o755); err != nil {
		return err
	}
	resolver := fmt.Sprintf("search %s.svc.cluster.local svc.cluster.local cluster.local\nnameserver %s\noptions ndots:5\n", object.Namespace, ClusterDNS)
	if object.Spec.DNSPolicy == corev1.DNSDefault {
		resolver = fmt.Sprintf("nameserver %s\n", p.kubelet.config.Resolver)
	}
	for name, text := range map[string]string{
		"hosts":       fmt.Sprintf("127.0.0.1\tlocalhost\n%s\t%s\n", s.address, object.Name),
		"hostname":    object.Name + "\n",
		"resolv.conf": resolver,
	} {
		if err := os.WriteFile(filepath.Join(p.folder, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// supported tells what of a Pod cannot be done here.
func supported(p *corev1.Pod) error {
	s := p.Spec
	switch {
	case s.HostNetwork, s.HostPID, s.HostIPC:
		return errors.New("the test kubelet runs no Pods in the node's namespaces")
	case s.ShareProcessNamespace != nil && *s.ShareProcessNamespace:
		return errors.New("the test kubelet knows no shareProcessNamespace")
	case len(s.InitContainers) > 0:
		return errors.New("the test kubelet knows no init containers")
	}
	for _, c := range s.Containers {
		if l := c.Lifecycle; l != nil && (l.PostStart != nil || l.PreStop != nil && l.PreStop.Sleep == nil) {
			return fmt.Errorf("container %s: the test kubelet knows preStop.sleep only", c.Name)
		}
		for _, probe := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			if probe != nil && probe.HTTPGet == nil && probe.TCPSocket == nil {
				return fmt.Errorf("container %s: the test kubelet knows httpGet and tcpSocket only", c.Name)
			}
		}
	}
	return nil
}

// stopAll stops the containers as the end of a Pod's life does.
func (p *pod) stopAll(grace time.Duration) {
	var group sync.WaitGroup
	for _, c := range p.containers {
		group.Go(func() {
			if process := c.current(); process != nil {
				c.stop(process, grace)
			}
		})
	}
	group.Wait()
}

// killAll ends all containers at once.
func (p *pod) killAll() {
	var group sync.WaitGroup
	for _, c := range p.containers {
		group.Go(func() {
			if process := c.current(); process != nil {
				process.kill()
			}
		})
	}
	group.Wait()
}

// current is the container's process as it is now, which may have ended; nil before the first start.
func (c *container) current() *process {
	c.pod.mu.Lock()
	defer c.pod.mu.Unlock()
	return c.process
}

// finish tells the API server that the Pod has come to its end, so that the object goes.
func (p *pod) finish(ctx context.Context) {
	object := p.latest.Load()
	for ctx.Err() == nil {
		err := p.report(ctx)
		if err == nil {
			now := int64(0)
			err = p.kubelet.client.CoreV1().Pods(object.Namespace).Delete(ctx, object.Name, metav1.DeleteOptions{
				GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &object.UID},
			})
		}
		if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return
		}
		p.kubelet.config.Log.Warn("ending a Pod", "pod", p.name(), "error", err)
		select {
		case <-ctx.Done():
		case <-p.vanished:
			return
		case <-p.lost:
			return
		case <-time.After(500 * time.Millisecond):
		}
	}
}

// remove takes away the sandbox and the volumes. Logs stay.
func (p *pod) remove() error {
	var errs []error
	if p.sandbox != nil {
		errs = append(errs, p.sandbox.remove())
	}
	return errors.Join(append(errs, p.unmount(), os.RemoveAll(p.folder))...)
}

func (p *pod) unmount() error {
	var errs []error
	for _, v := range p.volumes {
		if v.memory {
			errs = append(errs, unix.Unmount(v.folder, unix.MNT_DETACH))
		}
	}
	p.volumes = nil
	return errors.Join(errs...)
}

// report writes the Pod's status unless it is what was written last.
func (p *pod) report(ctx context.Context) error {
	object := p.latest.Load()
	status := p.status(object) // shares nothing that changes
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": object.UID}, "status": status})
	if err != nil {
		return err
	}
	if bytes.Equal(patch, p.sent) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = p.kubelet.client.CoreV1().Pods(object.Namespace).Patch(ctx, object.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	switch {
	case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
		return nil // gone, or another one of that name
	case err != nil:
		p.kubelet.config.Log.Warn("writing a Pod's status", "pod", p.name(), "error", err)
		return err
	}
	p.sent = patch
	return nil
}

// status is the Pod's status now.
func (p *pod) status(object *corev1.Pod) *corev1.PodStatus {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := &corev1.PodStatus{
		Phase: corev1.PodPending, QOSClass: object.Status.QOSClass, StartTime: &p.begun,
		HostIP: NodeAddress.String(), HostIPs: []corev1.HostIP{{IP: NodeAddress.String()}},
	}
	if p.sandbox != nil {
		s.PodIP = p.sandbox.address.String()
		s.PodIPs = []corev1.PodIP{{IP: s.PodIP}}
	}
	begun, ready, ended, failed := true, true, true, false
	for _, c := range p.containers {
		c := c.status()
		s.ContainerStatuses = append(s.ContainerStatuses, c)
		begun = begun && (c.State.Running != nil || c.LastTerminationState.Terminated != nil || c.State.Terminated != nil)
		ready = ready && c.Ready
		ended = ended && c.State.Terminated != nil
		failed = failed || c.State.Terminated != nil && c.State.Terminated.ExitCode != 0
	}
	if len(p.containers) == 0 {
		begun, ready, ended = false, false, false
		message := ""
		if p.trouble != nil {
			message = p.trouble.Error()
		}
		for _, c := range object.Spec.Containers {
			s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
				Name: c.Name, Image: c.Image,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating", Message: message}},
			})
		}
	}
	// Containers that are started again have not ended for good.
	ended = ended && (object.DeletionTimestamp != nil || object.Spec.RestartPolicy == corev1.RestartPolicyNever ||
		object.Spec.RestartPolicy == corev1.RestartPolicyOnFailure && !failed)
	switch {
	case ended && failed:
		s.Phase = corev1.PodFailed
	case ended:
		s.Phase = corev1.PodSucceeded
	case begun:
		s.Phase = corev1.PodRunning
	}
	s.Conditions = []corev1.PodCondition{
		condition(object, corev1.PodReadyToStartContainers, p.sandbox != nil, ""),
		condition(object, corev1.PodInitialized, true, ""),
		condition(object, corev1.ContainersReady, ready, "ContainersNotReady"),
		condition(object, corev1.PodReady, ready, "ContainersNotReady"),
	}
	return s
}

// condition is a condition of the Pod, with the time of its last change.
func condition(object *corev1.Pod, kind corev1.PodConditionType, holds bool, reason string) corev1.PodCondition {
	c := corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}
	if !holds {
		c.Status, c.Reason = corev1.ConditionFalse, reason
	}
	for _, old := range object.Status.Conditions {
		if old.Type == kind && old.Status == c.Status {
			c.LastTransitionTime = old.LastTransitionTime
		}
	}
	return c
}

// status is the container's status. The Pod's mutex is held.
func (c *container) status() corev1.ContainerStatus {
	started := c.started
	s := corev1.ContainerStatus{
		Name: c.spec.Name, Image: c.spec.Image, ImageID: c.spec.Image, State: c.state, Ready: c.ready, Started: &started,
		RestartCount: c.restarts, LastTerminationState: c.last,
	}
	if c.state.Running != nil || c.state.Terminated != nil {
		s.ContainerID = c.containerID
	}
	if c.state.Terminated != nil {
		s.LastTerminationState = corev1.ContainerState{}
	}
	return s
}
