package e2e

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/miekg/dns"

	"github.com/densityops/oooi/e2e/netlab"
)

// testBrokenBytes sends what is no message to the DNS and DHCP servers. A good message after it, from the same
// socket, must get the first answer.
func testBrokenBytes(t *testing.T, l *lab) {
	good := new(dns.Msg).SetQuestion("api."+domainA+".", dns.TypeA)
	query, err := good.Pack()
	if err != nil {
		t.Fatal(err)
	}
	response := append([]byte(nil), query...)
	response[2] |= 0x80 // QR
	answer := firstAnswer(t, l, netlab.WorkerA+":0", netlab.DNSServer+":53", [][]byte{
		{0},
		query[:11], []byte(strings.Repeat("\x00", 11)), response,
		[]byte(strings.Repeat("\xff", 512)), // a response, too
	}, query)
	var got dns.Msg
	if err := got.Unpack(answer); err != nil || got.Id != good.Id || len(got.Answer) != 1 {
		t.Errorf("the first answer of the DNS server was not that to the good query: %v %v", err, &got)
	}

	discover, err := dhcpv4.NewDiscovery(net.HardwareAddr{0x52, 0x54, 0, 0, 3, 1}, dhcpv4.WithGatewayIP(net.ParseIP(netlab.WorkerA)))
	if err != nil {
		t.Fatal(err)
	}
	message := discover.ToBytes()
	reply := append([]byte(nil), message...)
	reply[0] = 2 // a BOOTREPLY
	noCookie := append([]byte(nil), message...)
	noCookie[236] = 0
	longAddress := append([]byte(nil), message...)
	longAddress[2] = 200 // hlen
	answer = firstAnswer(t, l, netlab.WorkerA+":67", "192.0.2.2:67", [][]byte{
		{1},
		message[:100], message[:239], reply, noCookie, longAddress, []byte(strings.Repeat("\xff", 600)),
		append(message[:240:240], 53, 200, 1), // an option longer than the message
	}, message)
	offer, err := dhcpv4.FromBytes(answer)
	if err != nil || offer.MessageType() != dhcpv4.MessageTypeOffer || offer.TransactionID != discover.TransactionID {
		t.Errorf("the first answer of the DHCP server was not that to the good message: %v %v", err, offer)
	}
}

// firstAnswer sends broken messages and a good one from worker A, and returns the first answer.
func firstAnswer(t *testing.T, l *lab, from, to string, broken [][]byte, good []byte) []byte {
	t.Helper()
	conn, err := l.WorkerA.ListenPacket(from)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	server := net.UDPAddrFromAddrPort(netip.MustParseAddrPort(to))
	for _, message := range append(broken, good) {
		if _, err := conn.WriteTo(message, server); err != nil {
			t.Fatal(err)
		}
	}
	answer := make([]byte, 4096)
	n := 0
	within(t, "an answer of "+to, func(context.Context) error {
		if err := conn.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		n, _, err = conn.ReadFrom(answer)
		if err != nil { // lost, perhaps: once more
			_, _ = conn.WriteTo(good, server)
		}
		return err
	})
	return answer[:n]
}
