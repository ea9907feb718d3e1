package dhcpserver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/prometheus/client_golang/prometheus"
)

func storedLease(n int) Lease {
	return Lease{
		Address: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}), MAC: MAC{2, 0, 0, byte(n >> 16), byte(n >> 8), byte(n)},
		Hostname: fmt.Sprintf("worker-%d", n), ClientID: "\x01\x02\x00\x00\x00\x00\x00",
		Start: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC), Expires: time.Date(2026, 3, 1, 13, 0, 0, 123456789, time.UTC), State: StateActive,
	}
}

// infras have a bucket with branch pages and one that lies in its parent's page.
var infras = map[string]int{"clusters/large": 90, "clusters/small": 2}

// leaseFileBytes is a file with those Infras, and with older copies of their leases on the pages that are free.
func leaseFileBytes(t testing.TB) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "leases.db")
	file, err := OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	for round := range 3 {
		for infra, count := range infras {
			leases := make([]Lease, count)
			for i := range leases {
				leases[i] = storedLease(i)
				if round < 2 {
					leases[i].Expires = leases[i].Expires.Add(-time.Duration(2-round) * time.Hour)
				}
			}
			if errs := file.Infra(infra).Put(context.Background(), leases); errs != nil {
				t.Fatal(errs)
			}
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// openDamaged opens a file and fails the test unless it is refused or every lease is there, but for those that
// are told to be damaged. It returns how many those are.
func openDamaged(t *testing.T, path string, data []byte) (damaged int, refused error) {
	t.Helper()
	if err := checkLeaseFile(bytes.NewReader(data), int64(len(data))); err != nil {
		// OpenBolt is tried below and by the fuzz test; files are dear.
		if corrupt := (*CorruptError)(nil); !errors.As(err, &corrupt) || corrupt.Reason == "" {
			t.Fatalf("the check fails with %v", err)
		}
		return 0, err
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := OpenBolt(path)
	if err != nil {
		t.Fatalf("checked, and yet: %v", err)
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	for infra, count := range infras {
		leases, err := file.Infra(infra).Load(context.Background())
		if err != nil || len(leases) != count {
			t.Fatalf("%s has %d of %d leases, %v", infra, len(leases), count, err)
		}
		for i, got := range leases {
			want := storedLease(i)
			if got.State == StateDamaged {
				damaged++
				want = Lease{Address: want.Address, State: StateDamaged}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Fatalf("lease of %s (-want +got):\n%s", infra, diff)
			}
		}
	}
	return damaged, nil
}

// renewAll writes every lease anew, through every page, and expects that nothing is damaged any more.
func renewAll(t *testing.T, path string) {
	t.Helper()
	file, err := OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	for infra, count := range infras {
		var leases []Lease
		for i := range count {
			leases = append(leases, storedLease(i))
		}
		if errs := file.Infra(infra).Put(context.Background(), leases); errs != nil {
			t.Fatal(errs)
		}
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged, refused := openDamaged(t, path, data)
	if corrupt := new(CorruptError); errors.As(refused, &corrupt) {
		// The file finds its way by keys. Where the first key of a page was damaged, what is written next can end up out of order, which
		// the next start notices.
		return
	}
	if damaged != 0 || refused != nil {
		t.Fatalf("after all were renewed: %d damaged, %v", damaged, refused)
	}
}

func TestADamagedLeaseFileLosesNoLeaseUnnoticed(t *testing.T) {
	good := leaseFileBytes(t)
	path := filepath.Join(t.TempDir(), "leases.db")
	if damaged, refused := openDamaged(t, path, good); damaged != 0 || refused != nil {
		t.Fatalf("a good file: %d damaged, %v", damaged, refused)
	}
	random := rand.New(rand.NewPCG(1, 2))
	var whole, partly, refusals int
	try := func(what string, data []byte) {
		t.Helper()
		damaged, refused := openDamaged(t, path, data)
		if t.Failed() {
			t.Fatal(what)
		}
		switch {
		case refused != nil:
			refusals++
		case damaged > 0:
			partly++
		default:
			whole++
		}
		if refused == nil && random.IntN(25) == 0 {
			renewAll(t, path)
		}
	}
	flip := func(at int, bits byte) {
		t.Helper()
		good[at] ^= bits
		try(fmt.Sprintf("byte %d of page %d ^ %#x", at%4096, at/4096, bits), good)
		good[at] ^= bits
	}
	// What is on a page stands at its beginning, in the elements after that, and then there are leases. Free pages
	// matter to nobody: a few flips will do.
	for start := 0; start < len(good); start += 4096 {
		for at := range 80 {
			for _, bits := range []byte{1, 2, 4, 8, 0x80, 0xff} {
				data := bytes.NewReader(good)
				good[start+at] ^= bits
				err := checkLeaseFile(data, int64(len(good)))
				good[start+at] ^= bits
				if err != nil {
					refusals++
				} else if random.IntN(40) == 0 {
					flip(start+at, bits)
				}
			}
		}
	}
	for range 300 {
		flip(random.IntN(len(good)), byte(1+random.IntN(255)))
	}
	for range 100 {
		size := random.IntN(len(good))
		try(fmt.Sprintf("cut after %d bytes", size), good[:size])
	}
	for range 50 { // a page that was never written, or written elsewhere
		data := bytes.Clone(good)
		to := 4096 * random.IntN(len(good)/4096)
		if random.IntN(2) == 0 {
			clear(data[to : to+4096])
		} else {
			from := 4096 * random.IntN(len(good)/4096)
			copy(data[to:to+4096], good[from:])
		}
		try(fmt.Sprintf("page %d", to/4096), data)
	}
	t.Logf("%d files were good, %d had damaged leases, %d were refused", whole, partly, refusals)
	if whole == 0 || partly == 0 || refusals == 0 {
		t.Error("not every outcome was seen")
	}
}

// A number of a page may be changed to that of another good one: bbolt would follow it.
func TestOlderPagesAreNoticed(t *testing.T) {
	good := leaseFileBytes(t)
	path := filepath.Join(t.TempDir(), "leases.db")
	pages := len(good) / 4096
	changed := 0
	for at := 2 * 4096; at+8 <= len(good); at++ {
		id := binary.NativeEndian.Uint64(good[at:])
		if at%4096 < 16 || id < 2 || id >= uint64(pages) {
			continue
		}
		for other := range uint64(pages) {
			data := bytes.Clone(good)
			binary.NativeEndian.PutUint64(data[at:], other)
			if _, refused := openDamaged(t, path, data); refused != nil {
				changed++
			}
		}
	}
	if changed == 0 {
		t.Error("no number of a page was found")
	}
}

func FuzzDamagedLeaseFile(f *testing.F) {
	good := leaseFileBytes(f)
	f.Add(uint32(0), []byte{}, uint32(0))
	f.Add(uint32(0), []byte{}, uint32(1))
	f.Add(uint32(0), []byte("not a lease file"), uint32(0))
	f.Add(uint32(16), []byte{0}, uint32(0))
	f.Add(uint32(4096+16+56), []byte{0, 0}, uint32(0))
	f.Add(uint32(3*4096), []byte{0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0xff, 0xff, 0xff, 0xff}, uint32(4096))
	f.Fuzz(func(t *testing.T, at uint32, bits []byte, cut uint32) {
		data := bytes.Clone(good)
		data = data[:len(data)-min(int(cut), len(data))]
		for i := range bits {
			if place := int(at) + i; place < len(data) {
				data[place] ^= bits[i]
			}
		}
		path := filepath.Join(t.TempDir(), "leases.db")
		if _, refused := openDamaged(t, path, data); refused == nil {
			renewAll(t, path)
			return
		}
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenBolt(path)
		if corrupt := (*CorruptError)(nil); !errors.As(err, &corrupt) || corrupt.Path != path {
			t.Errorf("OpenBolt: %v", err)
		}
		if after, err := os.ReadFile(path); err != nil || !bytes.Equal(after, data) {
			t.Errorf("OpenBolt has changed the file that it refuses, %v", err)
		}
	})
}

func TestADamagedLeaseIsReportedAndItsAddressKept(t *testing.T) {
	data := leaseFileBytes(t)
	var places []int // of the lease in the file, and of older ones on pages that are free
	name := []byte(`"hostname":"worker-50"`)
	for at := 0; ; at++ {
		next := bytes.Index(data[at:], name)
		if next < 0 {
			break
		}
		at += next
		places = append(places, at)
	}
	for _, at := range places {
		data[at+1] = 'H'
	}
	path := filepath.Join(t.TempDir(), "leases.db")
	if damaged, refused := openDamaged(t, path, data); damaged != 1 || refused != nil {
		t.Fatalf("%d leases are damaged, %v", damaged, refused)
	}
	file, err := OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
	}()
	var log lines
	server, err := NewServer(Config{Log: slog.New(slog.NewTextHandler(&log, nil)), Registerer: prometheus.NewRegistry(), Store: file.Infra("clusters/large")})
	if err != nil {
		t.Fatal(err)
	}
	if log.count("address=10.0.0.50") != 1 || log.count("level=ERROR") != 1 {
		t.Errorf("the log is %s", log.text.String())
	}
	for _, l := range server.Leases() {
		if damaged := l.Address == netip.MustParseAddr("10.0.0.50"); damaged != (l.State == StateDamaged) {
			t.Errorf("the lease of %s is %s", l.Address, l.State)
		}
	}
}

func TestCorruptErrorSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "leases.db")
	for content, reason := range map[string]string{
		"":                                       "it ends after 0 bytes",
		"half a lease":                           "it ends after 12 bytes",
		strings.Repeat("not a lease file", 1024): "meta page 0 is not that of a lease file",
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := OpenBolt(path)
		if err == nil || !strings.HasPrefix(err.Error(), "lease file "+path+" is damaged: "+reason+": move it away to start without leases") {
			t.Errorf("error %v", err)
		}
	}
	// And that helps.
	if err := os.Rename(path, path+".damaged"); err != nil {
		t.Fatal(err)
	}
	file, err := OpenBolt(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := file.Close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkOpenBolt(b *testing.B) {
	path := filepath.Join(b.TempDir(), "leases.db")
	file, err := OpenBolt(path)
	if err != nil {
		b.Fatal(err)
	}
	leases := make([]Lease, 65000)
	for i := range leases {
		leases[i] = storedLease(i)
	}
	if errs := file.Infra("clusters/large").Put(context.Background(), leases); errs != nil {
		b.Fatal(errs)
	}
	if err := file.Close(); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		file, err := OpenBolt(path)
		if err != nil {
			b.Fatal(err)
		}
		if err := file.Close(); err != nil {
			b.Fatal(err)
		}
	}
	b.StopTimer()
	data, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	info, err := data.Stat()
	if err != nil {
		b.Fatal(err)
	}
	start := time.Now()
	if err := checkLeaseFile(data, info.Size()); err != nil {
		b.Fatal(err)
	}
	b.ReportMetric(float64(time.Since(start).Milliseconds()), "ms-of-check")
	if err := data.Close(); err != nil {
		b.Fatal(err)
	}
}
