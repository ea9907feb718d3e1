package dhcpserver

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"math"
)

// Layout of a bbolt file, version 2: pages, of which the first two are the meta pages. A page begins with its
// number (8 bytes), flags (2), the number of its elements (2), and how many more pages it spans (4); elements
// follow (16 bytes each), and then their keys and values. A bucket is a value that begins with the number of its
// root page (8), 0 when the page follows in the value itself, and its sequence number (8).
const (
	boltMagic      = 0xED0CDAED
	boltVersion    = 2
	boltNoFreelist = math.MaxUint64

	boltHeader       = 16
	boltElement      = 16
	boltBucket       = 16
	boltMeta         = 64
	boltMetaChecksum = 56

	boltBranch   = 0x01
	boltLeaf     = 0x02
	boltFreelist = 0x10
	boltIsBucket = 0x01

	boltMinPage, boltMaxPage = 1 << 10, 1 << 16
)

// checkLeaseFile finds out whether bbolt can work with a lease file, and whether every lease that was ever put
// into it is there. It returns a *CorruptError if not, and other errors if it cannot read.
//
// bbolt trusts its pages: it follows numbers and offsets in them through mapped memory and from goroutines of its
// own, where nobody could recover from a panic. Nothing but the meta pages has a checksum there; an older copy of
// a page is as good to it as the newest.
func checkLeaseFile(file io.ReaderAt, size int64) error {
	c := &fileCheck{file: file, seen: map[uint64]bool{}}
	meta, err := c.meta(uint64(size))
	if err != nil {
		return err
	}
	root, freelist, tx := order.Uint64(meta[16:]), order.Uint64(meta[32:]), order.Uint64(meta[48:])
	if freelist != boltNoFreelist {
		// That of a new file.
		page, err := c.page(freelist)
		if err != nil {
			return err
		}
		if flags, count := order.Uint16(page[8:]), order.Uint16(page[10:]); flags != boltFreelist || count != 0 {
			return corrupt("page %d is not an empty list of free pages", freelist)
		}
	}
	var digest, want uint64
	var found bool
	err = c.tree(root, nil, nil, true, func(e *boltEntry) error {
		if !e.isBucket || !bytes.Equal(e.key, leasesBucket) {
			return corrupt("it has something else than leases")
		}
		found, want = true, order.Uint64(e.value[8:])
		return c.bucket(e.value, func(infra *boltEntry) error {
			if !infra.isBucket {
				return corrupt("the leases of an Infra are unreadable")
			}
			return c.bucket(infra.value, func(lease *boltEntry) error {
				if lease.isBucket || len(lease.key) != 4 || len(lease.value) < sumSize {
					return corrupt("a lease is unreadable")
				}
				digest ^= fingerprint(string(infra.key), lease.key, lease.value)
				return nil
			})
		})
	})
	switch {
	case err != nil:
		return err
	case !found && tx > 1: // 0 and 1 are those that make the file
		return corrupt("its leases are missing")
	case digest != want:
		return corrupt("leases are missing, or older than they should be")
	}
	return nil
}

func corrupt(format string, args ...any) error {
	return &CorruptError{Reason: fmt.Sprintf(format, args...)}
}

// fileCheck walks through a lease file.
type fileCheck struct {
	file            io.ReaderAt
	pageSize, pages uint64
	// seen are the pages that something points to. Nothing else may.
	seen map[uint64]bool
}

// order is how bbolt writes numbers.
var order = binary.NativeEndian

// meta returns the newer one of the meta pages. Both must be good: with the newer one gone bbolt would go back to
// the state before the last commit, whose leases clients have.
func (c *fileCheck) meta(size uint64) ([]byte, error) {
	var metas [2][]byte
	for n := range metas {
		page := make([]byte, boltHeader+boltMeta)
		at := uint64(n) * c.pageSize
		if at+uint64(len(page)) > size {
			return nil, corrupt("it ends after %d bytes", size)
		}
		if _, err := c.file.ReadAt(page, int64(at)); err != nil {
			return nil, fmt.Errorf("read meta page %d: %w", n, err)
		}
		meta := page[boltHeader:]
		switch {
		case order.Uint32(meta) != boltMagic:
			return nil, corrupt("meta page %d is not that of a lease file", n)
		case order.Uint32(meta[4:]) != boltVersion:
			return nil, corrupt("meta page %d is of version %d of the format", n, order.Uint32(meta[4:]))
		case order.Uint64(meta[boltMetaChecksum:]) != sum64(meta[:boltMetaChecksum]):
			return nil, corrupt("meta page %d has a wrong checksum", n)
		}
		pageSize := uint64(order.Uint32(meta[8:]))
		if pageSize < boltMinPage || pageSize > boltMaxPage || pageSize&(pageSize-1) != 0 || n > 0 && pageSize != c.pageSize {
			return nil, corrupt("meta page %d has a page size of %d bytes", n, pageSize)
		}
		c.pageSize = pageSize
		metas[n] = meta
	}
	newer := metas[0]
	if order.Uint64(metas[1][48:]) > order.Uint64(newer[48:]) {
		newer = metas[1]
	}
	c.pages = order.Uint64(newer[40:])
	if c.pages < 4 || c.pages > size/c.pageSize {
		return nil, corrupt("it has %d bytes, which are not %d pages", size, c.pages)
	}
	return newer, nil
}

// page reads a page with those that it spans, and notes that it is in use.
func (c *fileCheck) page(id uint64) ([]byte, error) {
	if id < 2 || id >= c.pages {
		return nil, corrupt("there is no page %d", id)
	}
	header := make([]byte, boltHeader)
	if _, err := c.file.ReadAt(header, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	if n := order.Uint64(header); n != id {
		return nil, corrupt("page %d says that it is page %d", id, n)
	}
	end := id + uint64(order.Uint32(header[12:]))
	if end >= c.pages {
		return nil, corrupt("page %d spans pages that are not there", id)
	}
	for n := id; n <= end; n++ {
		if c.seen[n] {
			return nil, corrupt("page %d is used twice", n)
		}
		c.seen[n] = true
	}
	page := make([]byte, (end-id+1)*c.pageSize)
	if _, err := c.file.ReadAt(page, int64(id*c.pageSize)); err != nil {
		return nil, fmt.Errorf("read page %d: %w", id, err)
	}
	return page, nil
}

// boltEntry is an element of a page.
type boltEntry struct {
	key, value []byte
	child      uint64 // of a branch page
	isBucket   bool   // of a leaf page
}

// tree visits the elements of the leaf pages below a page. Their keys ascend, from low on and below high.
func (c *fileCheck) tree(id uint64, low, high []byte, root bool, visit func(*boltEntry) error) error {
	page, err := c.page(id)
	if err != nil {
		return err
	}
	flags := order.Uint16(page[8:])
	if flags != boltLeaf && flags != boltBranch {
		return corrupt("page %d has flags %#x", id, flags)
	}
	entries, err := boltEntries(page, id, low, high)
	if err != nil {
		return err
	}
	// Only a bucket without anything in it has a page without anything on it.
	if len(entries) == 0 && (!root || flags == boltBranch) {
		return corrupt("page %d is empty", id)
	}
	for i := range entries {
		if flags == boltLeaf {
			if err := visit(&entries[i]); err != nil {
				return err
			}
			continue
		}
		next := high
		if i+1 < len(entries) {
			next = entries[i+1].key
		}
		if err := c.tree(entries[i].child, entries[i].key, next, false, visit); err != nil {
			return err
		}
	}
	return nil
}

// bucket visits the elements of a bucket.
func (c *fileCheck) bucket(value []byte, visit func(*boltEntry) error) error {
	root := order.Uint64(value)
	if root != 0 {
		if len(value) != boltBucket {
			return corrupt("a bucket is unreadable")
		}
		return c.tree(root, nil, nil, true, visit)
	}
	page := value[boltBucket:]
	if len(page) < boltHeader || order.Uint64(page) != 0 || order.Uint16(page[8:]) != boltLeaf || order.Uint32(page[12:]) != 0 {
		return corrupt("a small bucket is unreadable")
	}
	entries, err := boltEntries(page, 0, nil, nil)
	if err != nil {
		return err
	}
	for i := range entries {
		if entries[i].isBucket {
			return corrupt("a small bucket has buckets")
		}
		if err := visit(&entries[i]); err != nil {
			return err
		}
	}
	return nil
}

// boltEntries reads the elements of a page.
func boltEntries(page []byte, id uint64, low, high []byte) ([]boltEntry, error) {
	leaf, count := order.Uint16(page[8:]) == boltLeaf, int(order.Uint16(page[10:]))
	if boltHeader+count*boltElement > len(page) {
		return nil, corrupt("page %d has no room for its %d elements", id, count)
	}
	entries := make([]boltEntry, count)
	for i := range entries {
		at := boltHeader + i*boltElement
		element, entry := page[at:at+boltElement], &entries[i]
		var offset, keySize, valueSize uint64
		if leaf {
			flags := order.Uint32(element)
			if flags&^boltIsBucket != 0 {
				return nil, corrupt("element %d of page %d has flags %#x", i, id, flags)
			}
			entry.isBucket = flags != 0
			offset, keySize, valueSize = uint64(order.Uint32(element[4:])), uint64(order.Uint32(element[8:])), uint64(order.Uint32(element[12:]))
		} else {
			offset, keySize, entry.child = uint64(order.Uint32(element)), uint64(order.Uint32(element[4:])), order.Uint64(element[8:])
		}
		start := uint64(at) + offset
		if keySize == 0 || start+keySize+valueSize > uint64(len(page)) {
			return nil, corrupt("element %d of page %d is not on it", i, id)
		}
		entry.key, entry.value = page[start:start+keySize], page[start+keySize:start+keySize+valueSize]
		if entry.isBucket && valueSize < boltBucket {
			return nil, corrupt("element %d of page %d is too short for a bucket", i, id)
		}
		if i > 0 && bytes.Compare(entries[i-1].key, entry.key) >= 0 || i == 0 && bytes.Compare(low, entry.key) > 0 ||
			high != nil && bytes.Compare(entry.key, high) >= 0 {
			return nil, corrupt("element %d of page %d is not in order", i, id)
		}
	}
	return entries, nil
}

// sum64 detects what disks do to bytes; it is no protection from people.
func sum64(parts ...[]byte) uint64 {
	h := fnv.New64a()
	for _, part := range parts {
		_, _ = h.Write(part) // never fails
	}
	return h.Sum64()
}
