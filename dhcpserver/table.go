package dhcpserver

import (
	"cmp"
	"container/heap"
	"container/list"
	"net/netip"
	"slices"
	"time"
)

const (
	// offerTime is how long an offered address is kept for the client (RFC 2131 section 4.3.1 leaves it open).
	offerTime = 60 * time.Second
	// quarantine is how long a declined address is kept from everybody.
	quarantine = 10 * time.Minute
	// maxOffers bounds the offers that wait for their client to take them.
	maxOffers = 16384
)

// table is what is known about addresses and clients: leases, offers, and which address is next.
// It has no clock, no lock and no disk. Every operation takes at most the logarithm of the number
// of leases, but for Apply.
type table struct {
	model *Model
	// byAddr has every address that has or had a lease or has an offer.
	byAddr map[netip.Addr]*binding
	// byMAC is the address that a client has or last had. Its binding's lease is that client's.
	byMAC map[MAC]*binding
	// offers of each client, and all of them with the oldest first.
	offers   map[MAC]*offer
	offerAge *list.List
	// fresh are the addresses of the pool that are in no binding; freshWord is where the search starts.
	fresh     pool
	freshWord int
	// used are the other addresses of the pool, the one that is free first on top.
	used usedHeap
	// holds are the times in which leases may have been renewed that are not known here.
	holds []hold
	// sure tells of an address whether the store has what was last put; nil: it always has.
	sure   func(netip.Addr) bool
	limits limits
}

// hold is a time in which leases may have been renewed that are not known here: those that were active at its
// beginning. No renewal of that time lasts longer than until.
type hold struct{ since, until time.Time }

// binding is one address.
type binding struct {
	addr netip.Addr
	// lease is what the address is in, written or about to be; nil if it was only ever offered.
	lease *Lease
	// durable is the lease that the store is known to have.
	durable *Lease
	// held is until when nobody else gets the address even though the lease is over. See Server.Hold.
	held time.Time
	// bounded is when the lease is over even though it says a later time, by a clock that was ahead; zero: it is right.
	bounded time.Time
	// doubt tells that the store may have another lease of the client, or that it may have been renewed elsewhere. It ends when
	// the client's next one is durable.
	doubt bool
	offer *offer
	// leaves is where the client of the lease had another one before, until the lease is durable.
	leaves *binding
	// index in the heap, -1 outside of it; freeAt is the heap's key.
	index  int
	freeAt time.Time
}

// offer is an address kept for a client that has not asked for it yet.
type offer struct {
	mac     MAC
	binding *binding
	expires time.Time
	age     *list.Element
}

// newTable makes a table of stored leases. A damaged one may last as long as any lease can.
func newTable(leases []Lease, now time.Time) *table {
	t := &table{
		byAddr: make(map[netip.Addr]*binding, len(leases)), byMAC: make(map[MAC]*binding, len(leases)),
		offers: map[MAC]*offer{}, offerAge: list.New(),
	}
	t.limits.reset()
	for i := range leases {
		lease := leases[i]
		lease.guess(now)
		b := &binding{addr: lease.Address, lease: &lease, durable: &lease, index: -1}
		t.byAddr[lease.Address] = b
		t.remember(b)
	}
	return t
}

// guess gives a damaged lease the longest time that it can have.
func (l *Lease) guess(now time.Time) {
	if l.State == StateDamaged {
		l.Start, l.Expires = now, now.Add(maxLeaseTime)
	}
}

// remember makes b what its client has, unless the client has something newer.
func (t *table) remember(b *binding) {
	if b.lease == nil || b.lease.State == StateDeclined || b.lease.State == StateDamaged {
		return
	}
	if old := t.byMAC[b.lease.MAC]; old == nil || b.lease.newer(old.lease) {
		t.byMAC[b.lease.MAC] = b
	}
}

// newer tells which of two leases of a client is the later one. An active one is, unless it was over before the other was
// given back: where leases begin cannot tell when the clock was set back meanwhile.
func (l *Lease) newer(old *Lease) bool {
	if l.State != old.State {
		return l.Expires.After(old.Expires)
	}
	return l.Start.After(old.Start)
}

// forget undoes remember.
func (t *table) forget(b *binding) {
	if b.lease != nil && t.byMAC[b.lease.MAC] == b {
		delete(t.byMAC, b.lease.MAC)
	}
}

// apply changes the pool. Leases stay, whether the new pool has their addresses or not.
func (t *table) apply(m *Model) {
	t.model = m
	t.used = t.used[:0]
	t.freshWord = 0
	t.fresh = pool{}
	if m != nil {
		t.fresh = m.pool.clone()
		t.limits.size(m.pool.size + len(m.reserved))
	}
	for _, b := range t.byAddr {
		b.index = -1
		if t.fresh.contains(b.addr) {
			t.fresh.remove(b.addr, b.addr)
		}
		t.rank(b)
	}
	for _, o := range t.offers {
		if m == nil || !t.belongs(o.binding.addr, o.mac) {
			t.withdraw(o)
		}
	}
}

// belongs tells whether the model lets this client have this address at all.
func (t *table) belongs(addr netip.Addr, mac MAC) bool {
	if owner, reserved := t.model.reserved[addr]; reserved {
		return owner == mac
	}
	return t.model.pool.contains(addr)
}

// free tells whether this client may have this address now.
func (t *table) free(addr netip.Addr, mac MAC, now time.Time) bool {
	if !t.belongs(addr, mac) {
		return false
	}
	b := t.byAddr[addr]
	switch {
	case b == nil:
		return true
	case b.offer != nil && b.offer.mac != mac:
		return false
	case !b.taken(now):
		return true
	default:
		return b.lease.State == StateActive && b.lease.MAC == mac
	}
}

// keeps tells whether this client may go on with the address that it uses.
func (t *table) keeps(addr netip.Addr, mac MAC, now time.Time) bool {
	b := t.byAddr[addr]
	return t.free(addr, mac, now) || b != nil && b.damaged() && t.belongs(addr, mac)
}

// damaged tells that nobody knows whose the address is.
func (b *binding) damaged() bool { return b.lease != nil && b.lease.State == StateDamaged }

// taken tells whether a client holds the address, or it is in quarantine, or may be a client's.
func (b *binding) taken(now time.Time) bool {
	return b.lease != nil && b.lease.State != StateReleased && now.Before(b.ends())
}

// live tells whether the client of the lease holds the address, or may hold it.
func (b *binding) live(now time.Time) bool {
	return b.lease != nil && b.lease.State == StateActive && now.Before(b.ends())
}

// ends is when the lease is over, and the address free for others.
func (b *binding) ends() time.Time {
	return later(b.says(), b.held)
}

// says is when the lease is over by what it says itself, and by what is known about the clock that it was given by.
func (b *binding) says() time.Time {
	if !b.bounded.IsZero() {
		return b.bounded
	}
	return b.lease.Expires
}

// keep finds out until when the address of a lease is held.
func (t *table) keep(b *binding) {
	b.held = time.Time{}
	if b.lease == nil || b.lease.State != StateActive {
		return
	}
	for _, h := range t.holds {
		if b.lease.Expires.After(h.since) && h.until.After(b.held) {
			b.held = h.until
		}
	}
}

// hold keeps every lease that was active at that time, until the other.
func (t *table) hold(since, until, now time.Time) {
	t.holds = slices.DeleteFunc(t.holds, func(h hold) bool { return !now.Before(h.until) })
	t.holds = append(t.holds, hold{since, until})
	for _, b := range t.byAddr {
		t.keep(b)
		t.rank(b)
		b.doubt = b.doubt || b.lease != nil && b.held.After(b.lease.Expires)
	}
}

// choose finds the address for a client that looks for one (RFC 2131 section 4.3.1).
func (t *table) choose(mac MAC, requested netip.Addr, now time.Time) (netip.Addr, bool) {
	if addr := t.model.reservations[mac].addr; addr.IsValid() && t.free(addr, mac, now) {
		return addr, true
	}
	if b := t.byMAC[mac]; b != nil && t.free(b.addr, mac, now) {
		return b.addr, true
	}
	if o := t.offers[mac]; o != nil && t.free(o.binding.addr, mac, now) {
		return o.binding.addr, true
	}
	if requested.IsValid() && t.free(requested, mac, now) {
		return requested, true
	}
	if addr, word, ok := t.fresh.lowest(t.freshWord); ok {
		t.freshWord = word
		return addr, true
	}
	if len(t.used) > 0 && !now.Before(t.used[0].freeAt) {
		return t.used[0].addr, true
	}
	for e := t.offerAge.Front(); e != nil; e = e.Next() {
		if o := e.Value.(*offer); t.model.pool.contains(o.binding.addr) && !o.binding.taken(now) {
			addr := o.binding.addr
			t.withdraw(o)
			return addr, true
		}
	}
	return netip.Addr{}, false
}

// offer keeps a free address for a client.
func (t *table) offer(mac MAC, addr netip.Addr, now time.Time) {
	if o := t.offers[mac]; o != nil {
		if o.binding.addr == addr {
			o.expires = now.Add(offerTime)
			t.offerAge.MoveToBack(o.age)
			t.rank(o.binding)
			return
		}
		t.withdraw(o)
	}
	if t.offerAge.Len() >= maxOffers {
		t.withdraw(t.offerAge.Front().Value.(*offer))
	}
	b := t.bind(addr)
	o := &offer{mac: mac, binding: b, expires: now.Add(offerTime)}
	o.age = t.offerAge.PushBack(o)
	t.offers[mac] = o
	b.offer = o
	t.rank(b)
}

// bind returns the binding of an address, a new one if it has none.
func (t *table) bind(addr netip.Addr) *binding {
	b := t.byAddr[addr]
	if b == nil {
		b = &binding{addr: addr, index: -1}
		t.byAddr[addr] = b
		if t.fresh.contains(addr) {
			t.fresh.remove(addr, addr)
		}
	}
	return b
}

// withdraw takes an offer back.
func (t *table) withdraw(o *offer) {
	delete(t.offers, o.mac)
	t.offerAge.Remove(o.age)
	o.binding.offer = nil
	t.settle(o.binding)
}

// settle puts a binding that has changed where it belongs: into the heap, or back to those that
// nobody ever had.
func (t *table) settle(b *binding) {
	t.rank(b)
	if b.lease != nil || b.offer != nil {
		return
	}
	delete(t.byAddr, b.addr)
	if t.model != nil && t.model.pool.contains(b.addr) {
		t.freshWord = min(t.freshWord, t.fresh.add(b.addr))
	}
}

// expireOffers takes back the offers whose time is over.
func (t *table) expireOffers(now time.Time) {
	for e := t.offerAge.Front(); e != nil; e = t.offerAge.Front() {
		o := e.Value.(*offer)
		if now.Before(o.expires) {
			return
		}
		t.withdraw(o)
	}
}

// rank keeps a used address of the pool at its place in the heap.
func (t *table) rank(b *binding) {
	if b.lease == nil || t.model == nil || !t.model.pool.contains(b.addr) {
		if b.index >= 0 {
			heap.Remove(&t.used, b.index)
		}
		return
	}
	b.freeAt = b.ends()
	if b.offer != nil && b.offer.expires.After(b.freeAt) {
		b.freeAt = b.offer.expires
	}
	if b.index < 0 {
		heap.Push(&t.used, b)
	} else {
		heap.Fix(&t.used, b.index)
	}
}

// set changes the lease of an address in memory and returns what has to be written.
func (t *table) set(b *binding, lease Lease) *Lease {
	t.forget(b)
	b.lease, b.bounded = &lease, time.Time{}
	t.remember(b)
	t.keep(b)
	t.rank(b)
	return b.lease
}

// grant gives a free address to a client and returns the lease to be written.
func (t *table) grant(r *request, addr netip.Addr, now time.Time) *Lease {
	if o := t.offers[r.mac]; o != nil {
		t.withdraw(o)
	}
	lease := Lease{
		Address: addr, MAC: r.mac, ClientID: ClientID(r.clientID), Hostname: t.hostname(r),
		Start: now, Expires: wholeSecond(now.Add(t.model.leaseTime)), State: StateActive,
	}
	b := t.bind(addr)
	if b.live(now) && b.lease.MAC == r.mac {
		lease.Start = earlier(b.lease.Start, now)
	}
	if old := t.byMAC[r.mac]; old != nil && old != b {
		// The client has the old lease until it gets the ACK of the new one.
		b.leaves = old
		delete(t.byMAC, r.mac)
	}
	return t.set(b, lease)
}

// wholeSecond rounds up: people read the time, and no client knows of a fraction.
func wholeSecond(t time.Time) time.Time {
	if whole := t.Truncate(time.Second); whole.Before(t) {
		return whole.Add(time.Second)
	}
	return t
}

// release ends a lease and keeps its binding.
func (t *table) release(b *binding, now time.Time) *Lease {
	lease := *b.lease
	lease.State, lease.Expires = StateReleased, now
	return t.set(b, lease)
}

// decline keeps everybody from an address that the client found in use.
func (t *table) decline(r *request, b *binding, now time.Time) *Lease {
	if o := b.offer; o != nil {
		b.offer = nil
		delete(t.offers, o.mac)
		t.offerAge.Remove(o.age)
	}
	return t.set(b, Lease{
		Address: b.addr, MAC: r.mac, ClientID: ClientID(r.clientID), Hostname: r.hostname,
		Start: now, Expires: now.Add(quarantine), State: StateDeclined,
	})
}

// confirm notes that a change is durable. It returns a change that follows from it, if any: the
// client has moved, and its old lease is over.
func (t *table) confirm(change *Lease, now time.Time) *Lease {
	b := t.byAddr[change.Address]
	b.durable = change
	if b.lease != change {
		return nil
	}
	b.doubt = false
	if b.leaves == nil {
		return nil
	}
	old := b.leaves
	b.leaves = nil
	if !old.live(now) || old.lease.MAC != change.MAC {
		return nil
	}
	return t.release(old, now)
}

// revert undoes a grant that could not be written, unless a later change has replaced it. The address
// stays offered to the client, which will ask again. The end of a lease is not undone: the client
// has left, whatever the store knows.
func (t *table) revert(change *Lease, now time.Time) {
	b := t.byAddr[change.Address]
	if b == nil || b.lease != change || change.State != StateActive {
		return
	}
	t.restore(b, b.durable)
	b.doubt = true // it may have been written
	if t.model != nil && t.free(b.addr, change.MAC, now) {
		t.offer(change.MAC, b.addr, now)
	}
	t.settle(b)
}

// restore makes an address be in the lease that is stored: a grant of it has come to nothing.
func (t *table) restore(b *binding, stored *Lease) {
	t.forget(b)
	b.lease, b.bounded = stored, time.Time{}
	t.remember(b)
	if b.leaves != nil {
		t.remember(b.leaves)
		b.leaves = nil
	}
	t.keep(b)
	b.doubt = b.lease != nil && b.held.After(b.lease.Expires)
}

// written tells whether the store is known to have just that lease.
func (t *table) written(change *Lease) bool {
	b := t.byAddr[change.Address]
	return b != nil && b.durable == change
}

// adopt takes over a lease that somebody else has stored. What was decided here about its address is void.
func (t *table) adopt(lease Lease, now time.Time) {
	lease.guess(now)
	b := t.bind(lease.Address)
	b.durable = &lease
	t.restore(b, b.durable)
	if o := b.offer; o != nil && o.mac != lease.MAC {
		t.withdraw(o)
	}
	t.settle(b)
}

// longOver returns leases that have been over for that long, those first that are longest, at most so many. None of them
// is in any use, nor is any being changed.
func (t *table) longOver(now time.Time, age time.Duration, most int) []*Lease {
	var over []*Lease
	for _, b := range t.byAddr {
		if b.lease != nil && b.lease == b.durable && b.offer == nil && !b.damaged() && !b.taken(now) && now.Sub(b.ends()) > age {
			over = append(over, b.lease)
		}
	}
	slices.SortFunc(over, func(a, b *Lease) int { return cmp.Or(a.Expires.Compare(b.Expires), a.Address.Compare(b.Address)) })
	return over[:min(most, len(over))]
}

// deleted notes that a lease is stored no longer.
func (t *table) deleted(lease *Lease) {
	b := t.byAddr[lease.Address]
	if b == nil || b.durable != lease {
		return
	}
	b.durable = nil
	if b.lease == lease { // else somebody has got the address meanwhile, and the new lease is about to be stored
		t.forget(b)
		b.lease, b.bounded = nil, time.Time{}
		t.keep(b)
		t.settle(b)
	}
}

// counts are what the metrics show.
type counts struct{ active, total, free, offers int }

func (t *table) count(now time.Time) counts {
	c := counts{offers: t.offerAge.Len()}
	if t.model != nil {
		c.free = t.fresh.size
	}
	for _, b := range t.byAddr {
		if b.lease != nil {
			c.total++
			if b.live(now) {
				c.active++
			}
		}
		if b.index >= 0 && !now.Before(b.freeAt) {
			c.free++
		}
	}
	return c
}

// leases are all leases by address, those whose time is over as expired.
func (t *table) leases(now time.Time) []Lease {
	leases := make([]Lease, 0, len(t.byAddr))
	for _, b := range t.byAddr {
		if b.lease == nil {
			continue
		}
		lease := *b.lease
		if lease.State == StateActive && !b.live(now) {
			lease.State = StateExpired
		}
		leases = append(leases, lease)
	}
	slices.SortFunc(leases, func(a, b Lease) int { return a.Address.Compare(b.Address) })
	return leases
}

// usedHeap orders addresses by when they are free, then by address.
type usedHeap []*binding

func (h usedHeap) Len() int { return len(h) }

func (h usedHeap) Less(i, j int) bool {
	return cmp.Or(h[i].freeAt.Compare(h[j].freeAt), h[i].addr.Compare(h[j].addr)) < 0
}

func (h usedHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *usedHeap) Push(x any) {
	b := x.(*binding)
	b.index = len(*h)
	*h = append(*h, b)
}

func (h *usedHeap) Pop() any {
	last := len(*h) - 1
	b := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	b.index = -1
	return b
}

// serverIP is the server's address, not valid while there is no model.
func (t *table) serverIP() netip.Addr {
	if t.model == nil {
		return netip.Addr{}
	}
	return t.model.serverIP
}
