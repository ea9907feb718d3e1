package kubelet

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/densityops/oooi/e2e/stack"
)

// ClusterDNS is the ClusterIP that Pods find in their resolv.conf. Nobody serves it unless the test makes a Service of it.
var ClusterDNS = netip.MustParseAddr("172.30.0.10")

// Config says which nodes there are.
type Config struct {
	// Log gets what goes wrong.
	Log *slog.Logger
	// API is how to reach the API server, with all rights.
	API *rest.Config
	// Network to run Pods in.
	Network *Network
	// Nodes are their names.
	Nodes []string
	// Labels of every node, beside the usual ones.
	Labels map[string]string
	// Resolver is the DNS server of the nodes, for Pods with dnsPolicy Default.
	Resolver netip.Addr
	// Images by the name that Pods use. Nothing is ever pulled.
	Images map[string]Image
	// Folder for logs and volumes. It must be there.
	Folder string
}

// Kubelet runs the Pods of a few nodes.
type Kubelet struct {
	config  Config
	network *Network
	client  *kubernetes.Clientset
	dynamic dynamic.Interface
	http    *http.Client

	cancel context.CancelFunc
	group  sync.WaitGroup

	mu        sync.Mutex
	pods      map[types.UID]*pod
	lostNodes map[string]bool
	hold      bool // interfaces of new Pods come later
}

// Start registers the nodes and runs their Pods until Stop.
func Start(ctx context.Context, c Config) (*Kubelet, error) {
	k := &Kubelet{config: c, network: c.Network, pods: map[types.UID]*pod{}, lostNodes: map[string]bool{}}
	api, err := url.Parse(c.API.Host)
	if err != nil {
		return nil, err
	}
	if err := k.network.cuttable(api.Port()); err != nil {
		return nil, err
	}
	config := rest.CopyConfig(c.API)
	config.UserAgent = "kubelet"
	if k.http, err = rest.HTTPClientFor(config); err != nil {
		return nil, err
	}
	if k.client, err = kubernetes.NewForConfigAndClient(config, k.http); err != nil {
		return nil, err
	}
	if k.dynamic, err = dynamic.NewForConfigAndClient(config, k.http); err != nil {
		return nil, err
	}
	if err := os.MkdirAll(k.logs(), 0o755); err != nil {
		return nil, err
	}
	for _, node := range c.Nodes {
		if err := k.register(ctx, node); err != nil {
			return nil, err
		}
	}

	// It lives on until Stop.
	ctx, k.cancel = context.WithCancel(context.WithoutCancel(ctx))
	k.group.Go(func() { k.keepAlive(ctx) })
	factory := informers.NewSharedInformerFactory(k.client, 0)
	if _, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { k.observe(ctx, object) },
		UpdateFunc: func(_, object any) { k.observe(ctx, object) },
		DeleteFunc: k.vanish,
	}); err != nil {
		return nil, errors.Join(err, k.Stop())
	}
	factory.StartWithContext(ctx)
	k.group.Go(func() {
		<-ctx.Done()
		factory.Shutdown()
	})
	return k, nil
}

// Stop kills what runs and takes its network away. The API server is told nothing.
func (k *Kubelet) Stop() error {
	k.cancel()
	k.group.Wait()
	utilnet.CloseIdleConnectionsFor(k.http.Transport)
	return nil
}

// observe takes a Pod as the API server has it.
func (k *Kubelet) observe(ctx context.Context, object any) {
	p, isPod := object.(*corev1.Pod)
	if !isPod || !slices.Contains(k.config.Nodes, p.Spec.NodeName) {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.lostNodes[p.Spec.NodeName] || ctx.Err() != nil {
		return
	}
	if known, there := k.pods[p.UID]; there {
		known.observe(p)
		return
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed {
		return
	}
	made := &pod{
		kubelet: k, folder: filepath.Join(k.config.Folder, "pods", string(p.UID)), wake: make(chan struct{}, 1),
		vanished: make(chan struct{}), lost: make(chan struct{}), done: make(chan struct{}),
	}
	made.latest.Store(p)
	k.pods[p.UID] = made
	k.group.Go(func() { made.run(ctx) })
}

// vanish takes note that the API server has a Pod no more.
func (k *Kubelet) vanish(object any) {
	if last, missed := object.(cache.DeletedFinalStateUnknown); missed {
		object = last.Obj
	}
	p, isPod := object.(*corev1.Pod)
	if !isPod {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if known, there := k.pods[p.UID]; there {
		close(known.vanished)
		delete(k.pods, p.UID)
	}
}

// forget drops a Pod that has come to its end, so that nothing of it is found any more.
func (k *Kubelet) forget(p *pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	select {
	case <-p.lost:
		// The API server still has it, and it must not come back.
	default:
		delete(k.pods, p.latest.Load().UID)
	}
}

// Running lists the Pods of a namespace that have a sandbox, by name.
func (k *Kubelet) Running(namespace string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for _, p := range k.pods {
		object := p.latest.Load()
		if object.Namespace == namespace && p.box() != nil && !p.isLost() {
			names = append(names, object.Name)
		}
	}
	slices.Sort(names)
	return names
}

// Host is the network namespace of a Pod.
func (k *Kubelet) Host(namespace, name string) (stack.Host, error) {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return "", err
	}
	return s.host, nil
}

// Address is the address of a Pod on the pod network.
func (k *Kubelet) Address(namespace, name string) (netip.Addr, error) {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return netip.Addr{}, err
	}
	return s.address, nil
}

// PID is the process ID of a container's first process.
func (k *Kubelet) PID(namespace, name, container string) (int, error) {
	p, err := k.process(namespace, name, container)
	if err != nil {
		return 0, err
	}
	return p.cmd.Process.Pid, nil
}

// Signal sends a signal to a container's first process: SIGKILL ends all of the container, SIGSTOP freezes the process.
func (k *Kubelet) Signal(namespace, name, container string, s syscall.Signal) error {
	p, err := k.process(namespace, name, container)
	if err != nil {
		return err
	}
	return p.cmd.Process.Signal(s)
}

// Log is all that a container has printed, over all of its starts. It is there after the Pod's end as well.
func (k *Kubelet) Log(namespace, name, container string) string {
	text, err := os.ReadFile(k.logFile(namespace, name, container))
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// Tails are the last lines of every container's log.
func (k *Kubelet) Tails(lines int) string {
	files, err := filepath.Glob(filepath.Join(k.logs(), "*.log"))
	if err != nil {
		return err.Error()
	}
	var tails strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err.Error()
		}
		all := strings.Split(strings.TrimRight(string(text), "\n"), "\n")
		fmt.Fprintf(&tails, "the end of %s:\n%s\n", filepath.Base(file), strings.Join(all[max(0, len(all)-lines):], "\n"))
	}
	return tails.String()
}

// Lose lets a Pod disappear as when its node loses power: not one packet more, and nobody tells the API server.
func (k *Kubelet) Lose(namespace, name string) error {
	p, s, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	// First the interfaces: the kernel closes the connections of a process that is killed.
	err = s.isolate()
	p.loseOnce.Do(func() { close(p.lost) })
	<-p.done
	return err
}

// LoseNode loses all Pods of a node, and the node is never heard of again.
func (k *Kubelet) LoseNode(node string) error {
	k.mu.Lock()
	k.lostNodes[node] = true
	var lost []*pod
	for _, p := range k.pods {
		if p.latest.Load().Spec.NodeName == node {
			lost = append(lost, p)
		}
	}
	k.mu.Unlock()
	var errs []error
	for _, p := range lost {
		if s := p.box(); s != nil {
			errs = append(errs, s.isolate())
		}
	}
	for _, p := range lost {
		p.loseOnce.Do(func() { close(p.lost) })
		<-p.done
	}
	return errors.Join(errs...)
}

// CutAPI drops what a Pod and the API server send to one another, without a word to either, or lets it through again.
func (k *Kubelet) CutAPI(namespace, name string, cut bool) error {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	return s.cutAPI(cut)
}

// HoldInterfaces makes the VLAN interfaces of Pods that are started from now on come late: when they are plugged in by Plug.
func (k *Kubelet) HoldInterfaces(hold bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.hold = hold
}

// Plug makes a VLAN interface of a Pod that is missing.
func (k *Kubelet) Plug(namespace, name, networkInterface string) error {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	return s.plug(networkInterface)
}

// Unplug takes a VLAN interface of a Pod away.
func (k *Kubelet) Unplug(namespace, name, networkInterface string) error {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	return s.unplug(networkInterface)
}

// Carrier pulls the cable of a VLAN interface of a Pod, or puts it back: the interface stays and has no carrier.
func (k *Kubelet) Carrier(namespace, name, networkInterface string, on bool) error {
	_, s, err := k.find(namespace, name)
	if err != nil {
		return err
	}
	return s.carrier(networkInterface, on)
}

// SetImage changes what an image's name stands for, for containers that are started from now on.
func (k *Kubelet) SetImage(name string, image Image) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.config.Images = maps.Clone(k.config.Images)
	k.config.Images[name] = image
}

// image is what an image's name stands for.
func (k *Kubelet) image(name string) (Image, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	image, there := k.config.Images[name]
	return image, there
}

// find finds a Pod that has a sandbox.
func (k *Kubelet) find(namespace, name string) (*pod, *sandbox, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.pods {
		if object := p.latest.Load(); object.Namespace != namespace || object.Name != name {
			continue
		}
		if s := p.box(); s != nil && !p.isLost() {
			return p, s, nil
		}
	}
	return nil, nil, fmt.Errorf("Pod %s/%s does not run here", namespace, name)
}

// process is the first process of a container that runs.
func (k *Kubelet) process(namespace, name, container string) (*process, error) {
	p, _, err := k.find(namespace, name)
	if err != nil {
		return nil, err
	}
	for _, c := range p.containers {
		if c.spec.Name != container {
			continue
		}
		if process := c.current(); process != nil {
			select {
			case <-process.done:
			default:
				return process, nil
			}
		}
	}
	return nil, fmt.Errorf("container %s of Pod %s/%s does not run", container, namespace, name)
}

// box is the Pod's sandbox; nil before there is one.
func (p *pod) box() *sandbox {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.sandbox
}

func (p *pod) isLost() bool {
	select {
	case <-p.lost:
		return true
	default:
		return false
	}
}

func (k *Kubelet) isLost(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.lostNodes[node]
}

func (k *Kubelet) late() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.hold
}

func (k *Kubelet) logs() string { return filepath.Join(k.config.Folder, "logs") }

func (k *Kubelet) logFile(namespace, name, container string) string {
	return filepath.Join(k.logs(), fmt.Sprintf("%s_%s_%s.log", namespace, name, container))
}

// Pods lists the Pods of a namespace that a selector finds, as the API server has them.
func (k *Kubelet) Pods(ctx context.Context, namespace, selector string) ([]corev1.Pod, error) {
	list, err := k.client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}
