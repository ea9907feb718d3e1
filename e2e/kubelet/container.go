package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/densityops/oooi/e2e/stack"
)

// Times between the end of a container and its next start. The first restart comes at once, as a kubelet's does; a kubelet then
// waits 10 s and doubles that up to 5 min.
const (
	firstBackOff = time.Second
	lastBackOff  = 10 * time.Second
	// calm is how long a container must run for the back-off to begin anew.
	calm = 30 * time.Second
)

// container is one container of a Pod, over all of its starts.
type container struct {
	pod  *pod
	spec *corev1.Container
	log  string
	id   int // of the next start

	// The rest is guarded by the Pod's mutex.
	process        *process
	containerID    string
	state, last    corev1.ContainerState
	restarts       int32
	started, ready bool
}

// configError is one that the Pod's author must mend.
type configError struct{ error }

// run starts the container, and starts it again when it ends, until ctx ends and the container has ended.
func (c *container) run(ctx context.Context) {
	var backOff time.Duration
	for {
		begun := time.Now()
		process, err := c.start(ctx)
		if err != nil {
			c.failed(err)
		} else {
			c.running(process)
			if ctx.Err() != nil {
				process.kill() // whoever stopped the containers has not seen it
			}
			probing, cancel := context.WithCancel(context.WithoutCancel(ctx))
			var probes sync.WaitGroup
			c.probe(probing, &probes)
			<-process.done
			cancel()
			probes.Wait()
			c.ended(process, begun)
		}
		if ctx.Err() != nil || err == nil && !c.again(process) {
			return
		}
		if time.Since(begun) > calm {
			backOff = 0
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(backOff):
		}
		backOff = min(max(firstBackOff, 2*backOff), lastBackOff)
	}
}

// again tells whether the Pod wants a container that has ended to be started again.
func (c *container) again(p *process) bool {
	switch c.pod.spec().RestartPolicy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return p.cmd.ProcessState.ExitCode() != 0
	}
	return true
}

// start starts the container's first process.
func (c *container) start(ctx context.Context) (*process, error) {
	p := c.pod
	o, err := p.kubelet.order(ctx, p, c)
	if err != nil {
		return nil, configError{err}
	}
	c.id++
	o.Folder = filepath.Join(p.folder, "containers", fmt.Sprintf("%s-%d", c.spec.Name, c.id))
	if err := os.MkdirAll(o.Folder, 0o755); err != nil {
		return nil, err
	}
	return startProcess(o, p.sandbox.host, c.log)
}

// order is what a container of a Pod is started by.
func (k *Kubelet) order(ctx context.Context, p *pod, c *container) (*order, error) {
	image, there := k.image(c.spec.Image)
	if !there {
		return nil, fmt.Errorf("there is no image %q here", c.spec.Image)
	}
	object := p.latest.Load()
	env, variables, err := k.environment(ctx, object, p.sandbox, c.spec, image)
	if err != nil {
		return nil, err
	}
	o := &order{
		Hostname: object.Name, Image: image.Root, Env: env, Dir: image.WorkingDir, UID: image.UID, GID: image.GID,
		Argv: slices.Concat(image.Entrypoint, image.Cmd),
	}
	switch command, args := c.spec.Command, c.spec.Args; {
	case len(command) > 0:
		o.Argv = slices.Concat(command, args)
	case len(args) > 0:
		o.Argv = slices.Concat(image.Entrypoint, args)
	}
	for i, argument := range o.Argv {
		o.Argv[i] = expand(argument, variables)
	}
	if len(o.Argv) == 0 {
		return nil, errors.New("no command specified")
	}
	if c.spec.WorkingDir != "" {
		o.Dir = c.spec.WorkingDir
	}
	if o.Dir == "" {
		o.Dir = "/"
	}
	for _, m := range c.spec.VolumeMounts {
		v, there := p.volumes[m.Name]
		if !there || m.SubPath != "" || m.SubPathExpr != "" {
			return nil, fmt.Errorf("the test kubelet mounts whole volumes of the Pod only: %s", m.Name)
		}
		o.Mounts = append(o.Mounts, mount{Source: v.folder, Target: m.MountPath, ReadOnly: v.readOnly || m.ReadOnly})
	}
	for _, file := range []string{"hosts", "hostname", "resolv.conf"} {
		o.Mounts = append(o.Mounts, mount{Source: filepath.Join(p.folder, file), Target: "/etc/" + file})
	}
	return o, o.secure(object.Spec.SecurityContext, c.spec.SecurityContext)
}

// secure sets users and privileges as the security contexts of the Pod and of the container say.
func (o *order) secure(p *corev1.PodSecurityContext, c *corev1.SecurityContext) error {
	if p == nil {
		p = &corev1.PodSecurityContext{}
	}
	if c == nil {
		c = &corev1.SecurityContext{}
	}
	if c.Privileged != nil && *c.Privileged {
		return errors.New("the test kubelet runs no privileged containers")
	}
	if uid := first(c.RunAsUser, p.RunAsUser); uid != nil {
		o.UID = int(*uid)
		o.GID = primaryGroup(o.Image, o.UID)
	}
	if gid := first(c.RunAsGroup, p.RunAsGroup); gid != nil {
		o.GID = int(*gid)
	}
	if nonRoot := first(c.RunAsNonRoot, p.RunAsNonRoot); nonRoot != nil && *nonRoot && o.UID == 0 {
		return errors.New("container has runAsNonRoot and image will run as root")
	}
	o.Groups = append(o.Groups, o.GID)
	if p.FSGroup != nil {
		o.Groups = append(o.Groups, int(*p.FSGroup))
	}
	for _, group := range p.SupplementalGroups {
		o.Groups = append(o.Groups, int(group))
	}
	o.ReadOnlyRoot = c.ReadOnlyRootFilesystem != nil && *c.ReadOnlyRootFilesystem
	o.NoNewPrivileges = c.AllowPrivilegeEscalation != nil && !*c.AllowPrivilegeEscalation
	var err error
	o.Capabilities, err = granted(c.Capabilities)
	return err
}

// primaryGroup is the group that a user has in the image's own /etc/passwd, or 0.
func primaryGroup(image string, uid int) int {
	text, err := os.ReadFile(filepath.Join(image, "etc/passwd"))
	if err != nil {
		return 0 // not every image has one
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Split(line, ":")
		if len(fields) > 3 && fields[2] == strconv.Itoa(uid) {
			if gid, err := strconv.Atoi(fields[3]); err == nil {
				return gid
			}
		}
	}
	return 0
}

// first is the first of the values that is given.
func first[T any](values ...*T) *T {
	for _, v := range values {
		if v != nil {
			return v
		}
	}
	return nil
}

// failed notes that the container could not be started.
func (c *container) failed(err error) {
	reason := "RunContainerError"
	var config configError
	if errors.As(err, &config) {
		reason = "CreateContainerConfigError"
	}
	c.pod.change(func() {
		c.state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: err.Error()}}
		c.started, c.ready = false, false
	})
}

// running notes that it runs.
func (c *container) running(p *process) {
	id := fmt.Sprintf("test://%s-%s-%d", c.pod.latest.Load().UID, c.spec.Name, c.id)
	c.pod.change(func() {
		if c.process != nil {
			c.restarts++
		}
		c.process = p
		c.containerID = id
		c.state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
		c.started = c.spec.StartupProbe == nil
		c.ready = c.started && c.spec.ReadinessProbe == nil
	})
}

// ended notes that it has ended.
func (c *container) ended(p *process, begun time.Time) {
	status, _ := p.cmd.ProcessState.Sys().(syscall.WaitStatus)
	terminated := &corev1.ContainerStateTerminated{
		ExitCode: int32(status.ExitStatus()), Reason: "Completed", StartedAt: metav1.NewTime(begun), FinishedAt: metav1.Now(),
	}
	if status.Signaled() {
		terminated.Signal = int32(status.Signal())
		terminated.ExitCode = 128 + terminated.Signal
	}
	if terminated.ExitCode != 0 {
		terminated.Reason = "Error"
	}
	c.pod.change(func() {
		terminated.ContainerID = c.containerID
		c.state = corev1.ContainerState{Terminated: terminated}
		c.last = c.state
		c.started, c.ready = false, false
	})
}

// stop ends the container's process: preStop, SIGTERM, and SIGKILL after the grace period.
func (c *container) stop(p *process, grace time.Duration) {
	deadline := time.NewTimer(grace)
	defer deadline.Stop()
	if hook := c.spec.Lifecycle; hook != nil && hook.PreStop != nil && hook.PreStop.Sleep != nil {
		select {
		case <-time.After(time.Duration(hook.PreStop.Sleep.Seconds) * time.Second):
		case <-deadline.C:
			deadline.Reset(0)
		case <-p.done:
			return
		}
	}
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-deadline.C:
		p.kill()
	}
}

// process is the first process of a running container.
type process struct {
	cmd  *exec.Cmd
	done chan struct{}
}

// startProcess starts a container in a Pod's network namespace, and returns when its program runs.
func startProcess(o *order, host stack.Host, logFile string) (*process, error) {
	log, err := os.OpenFile(logFile, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }() // the child has its own descriptor
	orderOut, orderIn, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	failedOut, failedIn, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, orderOut.Close(), orderIn.Close())
	}
	defer func() { _ = failedOut.Close() }() // only read

	p := &process{cmd: exec.Command("/proc/self/exe"), done: make(chan struct{})}
	p.cmd.Args = []string{containerName}
	p.cmd.Env = []string{}
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.ExtraFiles = []*os.File{orderOut, failedIn}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
		Setsid:     true,
		Pdeathsig:  syscall.SIGKILL,
	}
	started := make(chan error)
	// The thread is in the Pod's namespace and ends with its function, which waits for the child: the kernel kills the
	// child when the thread that started it ends.
	go func() {
		err := host.Do(func() error {
			err := p.cmd.Start()
			started <- err
			if err == nil {
				_ = p.cmd.Wait() // the state of the process says how it ended
			}
			return nil
		})
		if err != nil {
			started <- err
		}
		close(p.done)
	}()
	err = <-started
	_ = orderOut.Close() // the child has its own descriptors
	_ = failedIn.Close()
	if err != nil {
		return nil, errors.Join(err, orderIn.Close())
	}
	if err := errors.Join(json.NewEncoder(orderIn).Encode(o), orderIn.Close()); err != nil {
		p.kill()
		return nil, err
	}
	why, err := io.ReadAll(failedOut)
	if err == nil && len(why) > 0 {
		err = errors.New(string(why))
	}
	if err != nil {
		p.kill()
		return nil, err
	}
	return p, nil
}

// signal sends a signal to the container's first process. One that has ended does not get it.
func (p *process) signal(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s) // it has ended
}

// kill ends the container at once, with all of its processes, and waits for the end.
func (p *process) kill() {
	p.signal(syscall.SIGKILL)
	<-p.done
}
