package serving

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/holder"
	"github.com/densityops/oooi/watch/informer"
	"github.com/densityops/oooi/watch/process"
)

// Annotations of the Lease of a VLAN.
const (
	// macAnnotation is the hardware address of the holder's VLAN interface.
	macAnnotation = "hostedcluster.densityops.com/mac"
	// epochAnnotation is the epoch of the holder; leaseTransitions has room for less of it.
	epochAnnotation = "hostedcluster.densityops.com/epoch"
	// addressesAnnotation lists the addresses that the Infra has ever held, separated by commas.
	addressesAnnotation = "hostedcluster.densityops.com/addresses"
)

// vlanLeaseDuration is what the Lease of a VLAN says of itself to whoever looks at it. Who takes over, and when, is decided by
// package holder.
const vlanLeaseDuration = 15 * time.Second

// maxEpoch leaves room to count on, whatever somebody wrote into the Lease.
const maxEpoch = 1 << 62

// VLANLeaseConfig is what a VLANLease needs.
type VLANLeaseConfig struct {
	REST *rest.Config
	Log  *slog.Logger
	// Infra whose VLAN it is.
	Infra types.NamespacedName
	// Identity of this process; a pod's name.
	Identity string
	// Owner is the Infra, so that the Lease goes with it; nil: not known yet.
	Owner func() *metav1.OwnerReference
	// Annotate adds to the annotations of the Lease what its next holder must know, and Learn is given those that are
	// there (Leases.Annotate, Leases.Learn); nil: nothing.
	Annotate, Learn func(annotations map[string]string)
}

// VLANLease is the coordination Lease of one VLAN, which says which of its pods is the holder. It implements holder.Lock.
type VLANLease struct {
	cfg    VLANLeaseConfig
	client client.Client
	cache  cache.Cache

	mu      sync.Mutex
	newest  holder.Record
	peers   map[string]holder.Peer
	changed chan struct{}
}

// NewVLANLease makes a VLANLease. It talks to nobody before Run.
func NewVLANLease(cfg VLANLeaseConfig) (*VLANLease, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	// The kind is known: a holder must not need the API to start.
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(coordinationv1.SchemeGroupVersion.WithKind("Lease"), meta.RESTScopeNamespace)
	c, err := cache.New(cfg.REST, cache.Options{
		Scheme: scheme, Mapper: mapper, DefaultTransform: informer.Strip,
		ByObject: map[client.Object]cache.ByObject{&coordinationv1.Lease{}: {
			Namespaces: map[string]cache.Config{cfg.Infra.Namespace: {}},
			Label:      labels.SelectorFromSet(labels.Set{v1alpha1.LabelInfra: v1alpha1.LabelValue(cfg.Infra.Name)}),
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	direct, err := client.New(cfg.REST, client.Options{Scheme: scheme, Mapper: mapper})
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	return &VLANLease{cfg: cfg, client: direct, cache: c, peers: map[string]holder.Peer{}, changed: make(chan struct{})}, nil
}

// Run watches the Lease and those of the other pods until ctx ends.
func (l *VLANLease) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			watched, err := l.cache.GetInformer(ctx, &coordinationv1.Lease{}, cache.BlockUntilSynced(false))
			if err == nil {
				if _, err = watched.AddEventHandler(l.handler()); err == nil {
					return
				}
			}
			l.cfg.Log.Debug("Leases cannot be watched yet, trying again", "error", err)
			if !sleep(ctx, time.Second) {
				return
			}
		}
	}()
	err := informer.Run(ctx, l.cache)
	<-done
	return err
}

func (l *VLANLease) handler() toolscache.ResourceEventHandler {
	return informer.Handler(func(object client.Object) {
		lease := object.(*coordinationv1.Lease)
		if lease.Name == l.name() {
			l.learn(lease)
			l.see(l.read(lease))
			return
		}
		l.setPeer(lease)
	}, func(object client.Object) {
		if object.GetName() == l.name() {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.newest.Version == object.GetResourceVersion() || informer.Older(l.newest.Version, object.GetResourceVersion()) {
				l.newest = holder.Record{}
				l.notify()
			}
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		maps.DeleteFunc(l.peers, func(peer string, _ holder.Peer) bool {
			return object.GetName() == process.LeaseName(l.cfg.Infra.Name, peer)
		})
		l.notify()
	})
}

// setPeer notes the key of another pod, which only that pod's own Lease can tell.
func (l *VLANLease) setPeer(lease *coordinationv1.Lease) {
	name, key := process.SpokenFor(lease, l.cfg.Infra.Name), process.Key(lease)
	if name == "" || name == l.cfg.Identity || key == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	peer := holder.Peer{Name: name, Key: key}
	if known, ok := l.peers[name]; ok && known.Key.Equal(peer.Key) {
		return
	}
	l.peers[name] = peer
	l.notify()
}

// see notes a record unless a newer one is known.
func (l *VLANLease) see(r holder.Record) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.newest.Version == r.Version || informer.Older(r.Version, l.newest.Version) {
		return
	}
	l.newest = r
	l.notify()
}

// notify tells who waits; the lock is held.
func (l *VLANLease) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *VLANLease) name() string { return v1alpha1.VLANName(l.cfg.Infra.Name) }

// Seen implements holder.Lock.
func (l *VLANLease) Seen() (holder.Record, []holder.Peer, <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	peers := make([]holder.Peer, 0, len(l.peers))
	for _, p := range l.peers {
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b holder.Peer) int { return strings.Compare(a.Name, b.Name) })
	return l.newest, peers, l.changed
}

// Get implements holder.Lock: it reads from the API, not from what the watch has seen.
func (l *VLANLease) Get(ctx context.Context) (holder.Record, error) {
	var lease coordinationv1.Lease
	err := l.client.Get(ctx, types.NamespacedName{Namespace: l.cfg.Infra.Namespace, Name: l.name()}, &lease)
	if apierrors.IsNotFound(err) {
		return holder.Record{}, nil
	}
	if err != nil {
		return holder.Record{}, fmt.Errorf("Lease %s/%s: %w", l.cfg.Infra.Namespace, l.name(), err)
	}
	l.learn(&lease)
	r := l.read(&lease)
	l.see(r)
	return r, nil
}

func (l *VLANLease) learn(lease *coordinationv1.Lease) {
	if l.cfg.Learn != nil {
		l.cfg.Learn(lease.Annotations)
	}
}

// Put implements holder.Lock.
func (l *VLANLease) Put(ctx context.Context, r holder.Record) (holder.Record, error) {
	lease := l.write(r)
	var err error
	if r.Version == "" {
		err = l.client.Create(ctx, lease)
	} else {
		err = l.client.Update(ctx, lease)
	}
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && r.Version != "":
		return holder.Record{}, fmt.Errorf("Lease %s/%s: %w", l.cfg.Infra.Namespace, l.name(), holder.ErrConflict)
	case err != nil:
		return holder.Record{}, fmt.Errorf("Lease %s/%s: %w", l.cfg.Infra.Namespace, l.name(), err)
	}
	put := l.read(lease)
	l.see(put)
	return put, nil
}

func (l *VLANLease) write(r holder.Record) *coordinationv1.Lease {
	seconds, transitions := int32(vlanLeaseDuration/time.Second), int32(min(r.Epoch, math.MaxInt32))
	renewed := metav1.NewMicroTime(r.Renewed)
	addresses := make([]string, len(r.Addresses))
	for i, a := range r.Addresses {
		addresses[i] = a.String()
	}
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: l.cfg.Infra.Namespace, Name: l.name(), ResourceVersion: r.Version,
			Labels: map[string]string{v1alpha1.LabelInfra: v1alpha1.LabelValue(l.cfg.Infra.Name)},
			Annotations: map[string]string{
				macAnnotation: r.MAC.String(), addressesAnnotation: strings.Join(addresses, ","),
				epochAnnotation: strconv.FormatInt(r.Epoch, 10),
			},
		},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &r.Holder, LeaseDurationSeconds: &seconds, LeaseTransitions: &transitions, RenewTime: &renewed,
		},
	}
	if owner := l.cfg.Owner(); owner != nil {
		lease.OwnerReferences = []metav1.OwnerReference{*owner}
	}
	if l.cfg.Annotate != nil {
		l.cfg.Annotate(lease.Annotations)
	}
	return lease
}

// read takes what it can: somebody may have edited the Lease.
func (l *VLANLease) read(lease *coordinationv1.Lease) holder.Record {
	s := &lease.Spec
	r := holder.Record{
		Version: lease.ResourceVersion, Holder: ptr.Deref(s.HolderIdentity, ""), Epoch: int64(ptr.Deref(s.LeaseTransitions, 0)),
		Renewed: ptr.Deref(s.RenewTime, metav1.MicroTime{}).Time,
	}
	if epoch, err := strconv.ParseInt(lease.Annotations[epochAnnotation], 10, 64); err == nil {
		r.Epoch = min(max(epoch, 0), maxEpoch)
	}
	if mac, err := net.ParseMAC(lease.Annotations[macAnnotation]); err == nil {
		r.MAC = mac
	}
	for text := range strings.SplitSeq(lease.Annotations[addressesAnnotation], ",") {
		if a, err := netip.ParseAddr(text); err == nil {
			r.Addresses = append(r.Addresses, a)
		}
	}
	return r
}
