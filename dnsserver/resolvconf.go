package dnsserver

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/miekg/dns"
)

// resolvFile reads the resolvers of a resolv.conf(5), again whenever the file has changed.
type resolvFile struct {
	path string

	mu       sync.Mutex
	modified time.Time
	size     int64
	addrs    []netip.AddrPort
}

// read returns the resolvers. While the file cannot be read, it returns those of before and why.
func (r *resolvFile) read() ([]netip.AddrPort, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	info, err := os.Stat(r.path)
	if err != nil {
		return r.addrs, err
	}
	if r.addrs != nil && info.ModTime().Equal(r.modified) && info.Size() == r.size {
		return r.addrs, nil
	}
	config, err := dns.ClientConfigFromFile(r.path)
	if err != nil {
		return r.addrs, fmt.Errorf("%s: %w", r.path, err)
	}
	port, err := strconv.ParseUint(config.Port, 10, 16)
	if err != nil {
		return r.addrs, fmt.Errorf("%s: port: %w", r.path, err)
	}
	var addrs []netip.AddrPort
	for _, server := range config.Servers {
		// A line that is no address is none of ours to judge: resolvers skip it as well.
		if addr, err := netip.ParseAddr(server); err == nil {
			addrs = append(addrs, netip.AddrPortFrom(addr.Unmap(), uint16(port)))
		}
	}
	r.addrs, r.modified, r.size = addrs, info.ModTime(), info.Size()
	return addrs, nil
}
