package hosted

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/miekg/dns"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

// updateKey is the name of the TSIG key (HMAC-SHA-256) that may change the zone.
const updateKey = "external-dns"

// knot is the configuration of the name server. It writes nothing outside of its folder.
const knot = `server:
    rundir: %[1]q
    listen: %[2]s@%[3]d
    udp-workers: 1
    tcp-workers: 1
    background-workers: 1
log:
  - target: stderr
    any: info
database:
    storage: %[1]q
key:
  - id: %[4]s
    algorithm: hmac-sha256
    secret: %[5]q
acl:
  - id: update
    key: %[4]s
    action: [update, transfer]
zone:
  - domain: %[6]s
    storage: %[1]q
    file: zone
    acl: update
    zonefile-sync: -1
`

// zone is what is in the zone at first.
const zone = `%[1]s. 60 SOA ns.%[1]s. hostmaster.%[1]s. 1 60 60 600 60
%[1]s. 60 NS ns.%[1]s.
ns.%[1]s. 60 A %[2]s
`

// NameServer is an authoritative name server (knot) of one zone, which takes updates (RFC 2136) signed by a key of its own.
type NameServer struct {
	// Zone without a dot at the end.
	Zone string
	// Address where it answers over UDP and TCP.
	Address netip.AddrPort

	secret  string
	host    stack.Host
	process *stack.Process
}

// StartNameServer starts a name server of a zone on a host, at a free port when the address has none, and waits until it answers. Its data is in a
// folder of its own in the folder, which must be there.
func StartNameServer(ctx context.Context, host stack.Host, folder, zoneName string, address netip.AddrPort) (*NameServer, error) {
	if address.Port() == 0 {
		ports, err := controlplane.FreePorts(1)
		if err != nil {
			return nil, err
		}
		port, err := strconv.ParseUint(ports[0], 10, 16)
		if err != nil {
			return nil, err
		}
		address = netip.AddrPortFrom(address.Addr(), uint16(port))
	}
	secret := make([]byte, 32)
	_, _ = rand.Read(secret) // never fails
	s := &NameServer{Zone: zoneName, Address: address, secret: base64.StdEncoding.EncodeToString(secret), host: host}
	folder = filepath.Join(folder, "knot-"+zoneName)
	if err := os.Mkdir(folder, 0o700); err != nil {
		return nil, err
	}
	config := filepath.Join(folder, "knot.conf")
	if err := errors.Join(
		os.WriteFile(config, fmt.Appendf(nil, knot, folder, address.Addr(), address.Port(), updateKey, s.secret, zoneName), 0o600),
		os.WriteFile(filepath.Join(folder, "zone"), fmt.Appendf(nil, zone, zoneName, address.Addr()), 0o600),
	); err != nil {
		return nil, err
	}
	var err error
	if s.process, err = host.Start(folder, "knotd", "/usr/sbin/knotd", "-c", config); err != nil {
		return nil, fmt.Errorf("%w (e2e/tools/debian-packages installs it)", err)
	}
	if err := stack.Until(ctx, "the name server", func(ctx context.Context) error {
		select {
		case <-s.process.Done():
			return stack.Final(errors.New("it ended"))
		default:
		}
		answer, err := s.Lookup(ctx, "ns."+zoneName, dns.TypeA)
		if err == nil && len(answer) == 0 {
			err = errors.New("it does not know itself")
		}
		return err
	}); err != nil {
		return nil, errors.Join(fmt.Errorf("%w\n%s", err, s.Tail(20)), s.Stop())
	}
	return s, nil
}

// Secret of the key "external-dns", in base64.
func (s *NameServer) Secret() string { return s.secret }

// Lookup asks the server, from its own host, for the records of a name and a type: addresses of A, texts of TXT, others as in a zone file;
// sorted. None is no error.
func (s *NameServer) Lookup(ctx context.Context, name string, kind uint16) ([]string, error) {
	conn, err := s.host.Dial(ctx, netip.Addr{}, s.Address.String())
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }() // only read
	client := &dns.Client{Net: "tcp"}
	answer, _, err := client.ExchangeWithConnContext(ctx, new(dns.Msg).SetQuestion(dns.Fqdn(name), kind), &dns.Conn{Conn: conn})
	if err != nil {
		return nil, err
	}
	if answer.Rcode != dns.RcodeSuccess && answer.Rcode != dns.RcodeNameError {
		return nil, fmt.Errorf("%s %s: %s", name, dns.TypeToString[kind], dns.RcodeToString[answer.Rcode])
	}
	var records []string
	for _, r := range answer.Answer {
		switch r := r.(type) {
		case *dns.A:
			records = append(records, r.A.String())
		case *dns.TXT:
			records = append(records, r.Txt...)
		default:
			records = append(records, r.String())
		}
	}
	slices.Sort(records)
	return records, nil
}

// Stop ends the server.
func (s *NameServer) Stop() error { return s.process.Kill() }

// Tail is the last lines of its log.
func (s *NameServer) Tail(lines int) string { return s.process.Tail(lines) }
