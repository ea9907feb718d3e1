package serving

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/informer"
)

// patience is how long a starting process waits for the API before it serves what it served last (product rule 18).
const patience = 10 * time.Second

// savePeriod is how often what is served is written to the state folder at most.
const savePeriod = time.Second

// Children are the children of one Infra as they are in the cluster; nil: there is none.
type Children struct {
	Infra types.NamespacedName  `json:"infra"`
	DHCP  *v1alpha1.DHCPServer  `json:"dhcp,omitempty"`
	DNS   *v1alpha1.DNSServer   `json:"dns,omitempty"`
	Proxy *v1alpha1.ProxyServer `json:"proxy,omitempty"`
}

// Owner lets objects go with the Infra; nil: there is no child that names it.
func (c *Children) Owner() *metav1.OwnerReference {
	switch {
	case c.Proxy != nil:
		return v1alpha1.OwnerOf(c.Proxy)
	case c.DNS != nil:
		return v1alpha1.OwnerOf(c.DNS)
	case c.DHCP != nil:
		return v1alpha1.OwnerOf(c.DHCP)
	}
	return nil
}

// WatcherConfig is what a Watcher needs.
type WatcherConfig struct {
	REST *rest.Config
	Log  *slog.Logger
	// Infra to serve; zero: all of the cluster.
	Infra types.NamespacedName
	// StateDir is where the children that were served last are kept.
	StateDir string
}

// Watcher brings the children in the cluster to the servers.
type Watcher struct {
	cfg     WatcherConfig
	cache   cache.Cache
	path    string
	changed chan struct{}
	unsaved chan struct{} // has a token when served is to be kept

	mu      sync.Mutex
	dhcp    map[types.NamespacedName]*v1alpha1.DHCPServer
	dns     map[types.NamespacedName]*v1alpha1.DNSServer
	proxies map[types.NamespacedName]*v1alpha1.ProxyServer
	// deleted are children that are served on for a while, by kind and name.
	deleted map[string]deleted
	// stale is set while what is served was read from the state folder.
	stale bool
	// served waits to be kept in the state folder; nil: it is.
	served *[]Children
	saved  []byte // as in the state folder; owned by keepSaved
}

// NewWatcher makes a Watcher. It talks to nobody before Run.
func NewWatcher(cfg WatcherConfig) (*Watcher, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	// The kinds are known: a server must not need the API to start.
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{v1alpha1.GroupVersion})
	for _, kind := range []string{"DHCPServer", "DNSServer", "ProxyServer"} {
		mapper.Add(v1alpha1.GroupVersion.WithKind(kind), meta.RESTScopeNamespace)
	}
	options := cache.Options{Scheme: scheme, Mapper: mapper, DefaultTransform: informer.Strip}
	if infra := cfg.Infra; infra.Name != "" {
		only := func(name string) cache.ByObject {
			return cache.ByObject{
				Namespaces: map[string]cache.Config{infra.Namespace: {}},
				Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, name),
			}
		}
		options.ByObject = map[client.Object]cache.ByObject{
			&v1alpha1.DHCPServer{}:  only(v1alpha1.DHCPServerName(infra.Name)),
			&v1alpha1.DNSServer{}:   only(v1alpha1.DNSServerName(infra.Name)),
			&v1alpha1.ProxyServer{}: only(v1alpha1.ProxyServerName(infra.Name)),
		}
	}
	c, err := cache.New(cfg.REST, options)
	if err != nil {
		return nil, fmt.Errorf("cluster at %s: %w", cfg.REST.Host, err)
	}
	return &Watcher{
		cfg: cfg, cache: c, path: filepath.Join(cfg.StateDir, "children.json"), changed: make(chan struct{}, 1), unsaved: make(chan struct{}, 1),
		dhcp:    map[types.NamespacedName]*v1alpha1.DHCPServer{},
		dns:     map[types.NamespacedName]*v1alpha1.DNSServer{},
		proxies: map[types.NamespacedName]*v1alpha1.ProxyServer{},
		deleted: map[string]deleted{},
	}, nil
}

// Stale tells whether what is served was read from the state folder, since the API could not be reached yet.
func (w *Watcher) Stale() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stale
}

// Run delivers the complete set of children, first when all are read and then on every change, until ctx ends. It is kept in
// the state folder soon after it is delivered, and before Run returns. While the API cannot be reached at start, the
// kept set is delivered after a while.
func (w *Watcher) Run(ctx context.Context, deliver func([]Children)) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return informer.Run(ctx, w.cache) })
	group.Go(func() error {
		synced := make(chan struct{})
		var readers sync.WaitGroup
		readers.Go(func() {
			if w.read(ctx) {
				close(synced)
			}
		})
		defer readers.Wait()
		return w.deliver(ctx, synced, deliver)
	})
	group.Go(func() error {
		w.keepSaved(ctx)
		return nil
	})
	return group.Wait()
}

func (w *Watcher) deliver(ctx context.Context, synced <-chan struct{}, deliver func([]Children)) error {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-late.C:
			if children, err := w.load(); err != nil {
				w.cfg.Log.Error("the API cannot be reached and nothing is kept, nothing is served yet", "error", err)
			} else {
				w.setStale(true)
				w.cfg.Log.Warn("the API cannot be reached, serving what was served last", "infras", len(children), "file", w.path)
				deliver(children)
			}
			continue
		case <-synced:
		}
		break
	}
	w.notify()
	ticker := time.NewTicker(deletionGrace / 4)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			w.forgetDeleted()
			continue
		case <-w.changed:
		}
		children := w.Children()
		if w.Stale() {
			w.setStale(false)
			w.cfg.Log.Info("the API is back, serving what it has")
		}
		deliver(children)
		w.keep(children, true)
	}
}

// keepSaved keeps what is served in the state folder: at once, then every savePeriod at most, since nobody should wait for
// a disk, and when ctx has ended.
func (w *Watcher) keepSaved(ctx context.Context) {
	failing := false
	for last := false; !last; {
		select {
		case <-ctx.Done():
			last = true
		case <-w.unsaved:
		}
		w.mu.Lock()
		served := w.served
		w.served = nil
		w.mu.Unlock()
		if served == nil {
			continue
		}
		err := w.save(*served)
		if err != nil {
			if !failing {
				w.cfg.Log.Error("what is served is not kept for a start without the API, trying again", "error", err)
			}
			w.keep(*served, false)
		}
		failing = err != nil
		last = last || !sleep(ctx, savePeriod) && !w.hasUnsaved()
	}
}

// keep hands a set to keepSaved; newest says that it replaces one that waits already.
func (w *Watcher) keep(children []Children, newest bool) {
	w.mu.Lock()
	if newest || w.served == nil {
		w.served = &children
	}
	w.mu.Unlock()
	select {
	case w.unsaved <- struct{}{}:
	default:
	}
}

func (w *Watcher) hasUnsaved() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.served != nil
}

func (w *Watcher) setStale(stale bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stale = stale
}

// read starts the informers and waits until all children are read; false: ctx has ended.
func (w *Watcher) read(ctx context.Context) bool {
	var registrations []toolscache.ResourceEventHandlerRegistration
	for _, k := range []struct {
		object  client.Object
		handler toolscache.ResourceEventHandler
	}{
		{&v1alpha1.DHCPServer{}, follow(w, w.dhcp)},
		{&v1alpha1.DNSServer{}, follow(w, w.dns)},
		{&v1alpha1.ProxyServer{}, follow(w, w.proxies)},
	} {
		for {
			watched, err := w.cache.GetInformer(ctx, k.object, cache.BlockUntilSynced(false))
			if err == nil {
				registration, err := watched.AddEventHandler(k.handler)
				if err == nil {
					registrations = append(registrations, registration)
					break
				}
			}
			w.cfg.Log.Debug("children cannot be watched yet, trying again", "kind", fmt.Sprintf("%T", k.object), "error", err)
			if !sleep(ctx, time.Second) {
				return false
			}
		}
	}
	unread := func(r toolscache.ResourceEventHandlerRegistration) bool { return !r.HasSynced() }
	for slices.ContainsFunc(registrations, unread) {
		if !sleep(ctx, 20*time.Millisecond) {
			return false
		}
	}
	return true
}

// deletionGrace is how long a child that was deleted is served on: the hub puts back at once what somebody deletes by a slip of
// the hand, and nobody's streams shall be cut by it.
const deletionGrace = 2 * time.Second

// deleted is a child that is not there any more and still served.
type deleted struct {
	at     time.Time
	forget func()
}

// follow keeps the children of one kind; only a new generation or one that comes or goes is a change.
func follow[T client.Object](w *Watcher, into map[types.NamespacedName]T) toolscache.ResourceEventHandler {
	name := func(key types.NamespacedName) string { return fmt.Sprintf("%T %s", into, key) }
	return informer.Handler(func(object client.Object) {
		key := client.ObjectKeyFromObject(object)
		w.mu.Lock()
		old, known := into[key]
		into[key] = object.(T)
		delete(w.deleted, name(key))
		w.mu.Unlock()
		if !known || !informer.SameIdentity(old, object) {
			w.notify()
		}
	}, func(object client.Object) {
		key := client.ObjectKeyFromObject(object)
		w.mu.Lock()
		w.deleted[name(key)] = deleted{time.Now(), func() { delete(into, key) }}
		w.mu.Unlock()
	})
}

// forgetDeleted withdraws the children whose grace is over.
func (w *Watcher) forgetDeleted() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for name, d := range w.deleted {
		if time.Since(d.at) >= deletionGrace {
			d.forget()
			delete(w.deleted, name)
			w.notify()
		}
	}
}

func (w *Watcher) notify() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// Children gives the children of each Infra as they are in the cluster now, statuses included, in the order of namespaces and
// names.
func (w *Watcher) Children() []Children {
	w.mu.Lock()
	defer w.mu.Unlock()
	byInfra := map[types.NamespacedName]*Children{}
	of := func(child client.Object, name func(infra string) string) *Children {
		owner := metav1.GetControllerOf(child)
		// A copy of a child has its owner, too, and another name.
		if owner == nil || owner.Kind != "Infra" || owner.APIVersion != v1alpha1.GroupVersion.String() || child.GetName() != name(owner.Name) {
			return &Children{} // nobody's: not served
		}
		key := types.NamespacedName{Namespace: child.GetNamespace(), Name: owner.Name}
		if w.cfg.Infra.Name != "" && key != w.cfg.Infra {
			return &Children{}
		}
		if byInfra[key] == nil {
			byInfra[key] = &Children{Infra: key}
		}
		return byInfra[key]
	}
	for _, d := range w.dhcp {
		of(d, v1alpha1.DHCPServerName).DHCP = d
	}
	for _, d := range w.dns {
		of(d, v1alpha1.DNSServerName).DNS = d
	}
	for _, p := range w.proxies {
		of(p, v1alpha1.ProxyServerName).Proxy = p
	}
	var all []Children
	for _, c := range byInfra {
		all = append(all, *c)
	}
	slices.SortFunc(all, func(a, b Children) int {
		return cmp.Or(cmp.Compare(a.Infra.Namespace, b.Infra.Namespace), cmp.Compare(a.Infra.Name, b.Infra.Name))
	})
	return all
}

// savedChildren is the form of the file. The checksum is over the bytes of Children.
type savedChildren struct {
	SHA256   string          `json:"sha256"`
	Children json.RawMessage `json:"children"`
}

// load reads what was served last.
func (w *Watcher) load() ([]Children, error) {
	data, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no %s", w.path)
	}
	if err != nil {
		return nil, err
	}
	var kept savedChildren
	if err := json.Unmarshal(data, &kept); err != nil {
		return nil, fmt.Errorf("%s: %w", w.path, err)
	}
	if sum := sha256.Sum256(kept.Children); kept.SHA256 != hex.EncodeToString(sum[:]) {
		return nil, fmt.Errorf("%s: its checksum is wrong", w.path)
	}
	var children []Children
	if err := json.Unmarshal(kept.Children, &children); err != nil {
		return nil, fmt.Errorf("%s: %w", w.path, err)
	}
	if w.cfg.Infra.Name != "" {
		children = slices.DeleteFunc(children, func(c Children) bool { return c.Infra != w.cfg.Infra })
	}
	return children, nil
}

// save keeps what is about to be served, without statuses.
func (w *Watcher) save(children []Children) error {
	kept := make([]Children, len(children))
	for i, c := range children {
		kept[i] = Children{Infra: c.Infra}
		if c.DHCP != nil {
			kept[i].DHCP = &v1alpha1.DHCPServer{ObjectMeta: identity(c.DHCP), Spec: c.DHCP.Spec}
		}
		if c.DNS != nil {
			kept[i].DNS = &v1alpha1.DNSServer{ObjectMeta: identity(c.DNS), Spec: c.DNS.Spec}
		}
		if c.Proxy != nil {
			kept[i].Proxy = &v1alpha1.ProxyServer{ObjectMeta: identity(c.Proxy), Spec: c.Proxy.Spec}
		}
	}
	raw, err := json.Marshal(kept)
	if err != nil || slices.Equal(raw, w.saved) {
		return err
	}
	sum := sha256.Sum256(raw)
	data, err := json.Marshal(savedChildren{SHA256: hex.EncodeToString(sum[:]), Children: raw})
	if err != nil {
		return err
	}
	if err := renameio.WriteFile(w.path, data, 0o600); err != nil {
		return err
	}
	w.saved = raw
	return nil
}

func identity(object metav1.Object) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), Generation: object.GetGeneration(),
	}
}
