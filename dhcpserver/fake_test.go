package dhcpserver

import (
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/densityops/oooi/api/v1alpha1"
)

// child is the VLAN of the tests: a pool of four addresses.
func child() *v1alpha1.DHCPServer {
	d := &v1alpha1.DHCPServer{}
	d.Namespace, d.Name = "clusters", "tenant-dhcp"
	d.Spec.NetworkConfig = v1alpha1.DHCPNetworkConfig{
		CIDR: "192.0.2.0/24", Gateway: "192.0.2.1", ServerIP: "192.0.2.2", DNSServers: []string{"192.0.2.3"},
	}
	d.Spec.LeaseConfig = v1alpha1.LeaseConfig{RangeStart: "192.0.2.100", RangeEnd: "192.0.2.103", LeaseTime: "1h"}
	d.Spec.Reservations = []v1alpha1.DHCPReservation{
		{MAC: "52:54:00:00:00:0a", IP: "192.0.2.50", Hostname: "reserved"},
		{MAC: "52:54:00:00:00:0b", IP: "192.0.2.103"},
		{MAC: "52:54:00:00:00:0c", Hostname: "named"},
	}
	return d
}

func model(t *testing.T, d *v1alpha1.DHCPServer) *Model {
	t.Helper()
	m, err := Build(d)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// memory is a Store that can be told to fail.
type memory struct {
	leases map[netip.Addr]Lease
	fail   error
	puts   int // leases that were to be written
}

func (m *memory) Load(context.Context) ([]Lease, error) {
	var leases []Lease
	for _, l := range m.leases {
		leases = append(leases, l)
	}
	return leases, nil
}

func (m *memory) Put(_ context.Context, leases []Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases {
		m.puts++
		if errs[i] = m.fail; m.fail == nil {
			m.leases[l.Address] = l
		}
	}
	if m.fail == nil {
		return nil
	}
	return errs
}

func (m *memory) Delete(_ context.Context, leases []Lease) []error {
	errs := make([]error, len(leases))
	for i, l := range leases {
		if errs[i] = m.fail; m.fail == nil {
			delete(m.leases, l.Address)
		}
	}
	if m.fail == nil {
		return nil
	}
	return errs
}

// wire is a Conn that keeps what is sent.
type wire struct {
	sent []sent
}

type sent struct {
	message *dhcpv4.DHCPv4
	raw     []byte
	to      Target
}

func (w *wire) Receive([]byte) (Packet, error) { return Packet{}, net.ErrClosed }
func (w *wire) Close() error                   { return nil }

func (w *wire) Send(payload []byte, to Target) error {
	m, err := dhcpv4.FromBytes(payload)
	if err != nil {
		return err
	}
	w.sent = append(w.sent, sent{message: m, raw: payload, to: to})
	return nil
}

// vlan is a VLAN with a server whose clock and store are the test's, and which does one thing after
// the other.
type vlan struct {
	t      *testing.T
	child  *v1alpha1.DHCPServer
	server *Server
	store  *memory
	wire   wire
	now    time.Time
	set    time.Duration // by how much the clock was set
	xid    uint32
}

// boottime is the time that has passed.
func (v *vlan) boottime() time.Duration { return v.now.Sub(began) - v.set }

// step sets the clock: no time passes.
func (v *vlan) step(by time.Duration) {
	v.now = v.now.Add(by)
	v.set += by
}

// began is when the tests begin.
var began = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func newVLAN(t *testing.T, d *v1alpha1.DHCPServer) *vlan {
	v := &vlan{t: t, child: d, store: &memory{leases: map[netip.Addr]Lease{}}, now: began}
	v.restart()
	return v
}

func (v *vlan) restart() {
	v.t.Helper()
	server, err := NewServer(Config{
		Log: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), Store: v.store,
		Clock: func() time.Time { return v.now }, Boottime: v.boottime,
	})
	if err != nil {
		v.t.Fatal(err)
	}
	v.server = server
	server.Apply(model(v.t, v.child))
}

// deliver hands one message to the server and returns what it sent.
func (v *vlan) deliver(raw []byte, from, to netip.AddrPort) []sent {
	v.wire.sent = nil
	v.server.handle(&v.wire, &Packet{Payload: raw, Source: from, Destination: to})
	for v.server.commit(context.Background()) {
	}
	return v.wire.sent
}

func mac(last string) net.HardwareAddr {
	n, err := strconv.ParseUint(last, 16, 8)
	if err != nil {
		panic(err)
	}
	return net.HardwareAddr{0x52, 0x54, 0, 0, 0, byte(n)}
}

var messageTypes = map[string]dhcpv4.MessageType{
	"DISCOVER": dhcpv4.MessageTypeDiscover, "REQUEST": dhcpv4.MessageTypeRequest, "DECLINE": dhcpv4.MessageTypeDecline,
	"RELEASE": dhcpv4.MessageTypeRelease, "INFORM": dhcpv4.MessageTypeInform, "OFFER": dhcpv4.MessageTypeOffer,
}

// say sends the message of a line: "CLIENT TYPE [field=value]… [to-server] [broadcast-flag]".
// CLIENT is the last byte of its hardware address.
func (v *vlan) say(line string) []sent {
	v.t.Helper()
	words := strings.Fields(line)
	v.xid++
	m, err := dhcpv4.New(dhcpv4.WithHwAddr(mac(words[0])), dhcpv4.WithMessageType(messageTypes[words[1]]))
	if err != nil {
		v.t.Fatal(err)
	}
	binary.BigEndian.PutUint32(m.TransactionID[:], v.xid)
	from, to := netip.MustParseAddrPort("0.0.0.0:68"), netip.AddrPortFrom(broadcast, ServerPort)
	for _, word := range words[2:] {
		field, value, _ := strings.Cut(word, "=")
		ip := net.ParseIP(value).To4()
		switch field {
		case "ciaddr":
			m.ClientIPAddr = ip
		case "giaddr":
			m.GatewayIPAddr = ip
			from, to = netip.MustParseAddrPort(value+":67"), netip.MustParseAddrPort("192.0.2.2:67")
		case "requested":
			m.UpdateOption(dhcpv4.OptRequestedIPAddress(ip))
		case "server":
			m.UpdateOption(dhcpv4.OptServerIdentifier(ip))
		case "from":
			from = netip.MustParseAddrPort(value)
		case "to":
			to = netip.MustParseAddrPort(value)
		case "name":
			m.UpdateOption(dhcpv4.OptHostName(value))
		case "id":
			m.UpdateOption(dhcpv4.OptClientIdentifier([]byte(value)))
		case "broadcast-flag":
			m.SetBroadcast()
		default:
			v.t.Fatalf("unknown word %q", word)
		}
	}
	return v.deliver(m.ToBytes(), from, to)
}

// describe says what was answered: "TYPE ADDRESS -> TARGET", or "silence".
func describe(answers []sent) string {
	if len(answers) == 0 {
		return "silence"
	}
	var lines []string
	for _, a := range answers {
		words := []string{a.message.MessageType().String()}
		if yiaddr := a.message.YourIPAddr; !yiaddr.IsUnspecified() {
			words = append(words, yiaddr.String())
		}
		words = append(words, "->")
		switch {
		case a.to.MAC != MAC{}:
			words = append(words, fmt.Sprintf("%02x", a.to.MAC[5]))
			if a.to.Addr != netip.AddrPortFrom(netip.AddrFrom4([4]byte(a.message.YourIPAddr.To4())), ClientPort) {
				words = append(words, a.to.Addr.String())
			}
		case a.to.Addr == netip.AddrPortFrom(broadcast, ClientPort):
			words = append(words, "everybody")
		default:
			words = append(words, a.to.Addr.String())
		}
		lines = append(lines, strings.Join(words, " "))
	}
	return strings.Join(lines, "; ")
}
