package hub

import (
	"context"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/watch/informer"
)

// stockRetry is after what time the stock is tried again.
const stockRetry = 2 * time.Second

// stock are the versions of all attachments at one moment of a lead.
//
// The watch of a process that gets the lead may be behind: it may still show the finalizer of an attachment that was disabled, and that
// the leader before has let go of. What would be made in its hosted cluster, nobody would take away. So nothing is done there by a
// version that is older than the stock.
type stock struct {
	version  string // of the moment
	versions map[types.UID]string
}

// isAheadOf tells whether an attachment, as the watch has it, is older than the stock.
func (s *stock) isAheadOf(a *v1alpha1.InfraClusterAttachment) bool {
	if version, ok := s.versions[a.UID]; ok {
		return informer.Older(a.ResourceVersion, version)
	}
	return informer.Older(a.ResourceVersion, s.version) // it was gone
}

// isBehind tells whether there is something to be done in hosted clusters as soon as the watch shows the attachment as it is. A
// change that makes no plan (a label, say) shows it, too.
func (h *Hub) isBehind() bool {
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	return h.behind
}

// dropStock forgets the stock: the lead is another one, or another process may have had it.
func (h *Hub) dropStock() {
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	h.stock = nil
	h.term.Add(1)
}

func (h *Hub) hasStock() bool {
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	return h.stock != nil
}

// wantStock has the stock taken.
func (h *Hub) wantStock() {
	select {
	case h.stockWanted <- struct{}{}:
	default:
	}
}

// takeStocks takes the stock of each lead, until ctx ends.
func (h *Hub) takeStocks(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-h.stockWanted:
		}
		for h.isElected() && !h.hasStock() {
			if err := h.takeStock(ctx); err != nil {
				h.cfg.Log.Warn("attachments cannot be listed, trying again before anything is done in hosted clusters", "error", err)
				if !sleep(ctx, stockRetry) {
					return
				}
			}
		}
	}
}

// takeStock asks for the versions of all attachments. They do not count when the lead is another one by then.
func (h *Hub) takeStock(ctx context.Context) error {
	term := h.term.Load()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("InfraClusterAttachmentList"))
	if err := h.client.List(ctx, list); err != nil {
		return err
	}
	taken := &stock{version: list.ResourceVersion, versions: make(map[types.UID]string, len(list.Items))}
	for i := range list.Items {
		taken.versions[list.Items[i].UID] = list.Items[i].ResourceVersion
	}
	h.deletingMu.Lock()
	defer h.deletingMu.Unlock()
	if h.term.Load() == term {
		h.stock = taken
		h.world.notify()
	}
	return nil
}
