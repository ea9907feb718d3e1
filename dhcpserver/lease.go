package dhcpserver

import (
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// MAC is an Ethernet hardware address: the identity of a client.
type MAC [6]byte

// ParseMAC reads six bytes in any notation of net.ParseMAC.
func ParseMAC(text string) (MAC, error) {
	hw, err := net.ParseMAC(text)
	if err != nil || len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("%q is not a hardware address: write six pairs of hexadecimal digits, for example 52:54:00:12:34:56", text)
	}
	return MAC(hw), nil
}

// String writes the address in lower case with colons.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText implements encoding.TextMarshaler.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (m *MAC) UnmarshalText(text []byte) error {
	parsed, err := ParseMAC(string(text))
	if err != nil {
		return err
	}
	*m = parsed
	return nil
}

// ClientID is the client identifier (option 61) as the client sent it. It is shown and echoed, and
// never decides anything.
type ClientID string

// MarshalText writes the bytes in hexadecimal.
func (c ClientID) MarshalText() ([]byte, error) { return []byte(hex.EncodeToString([]byte(c))), nil }

// UnmarshalText reads what MarshalText wrote.
func (c *ClientID) UnmarshalText(text []byte) error {
	raw, err := hex.DecodeString(string(text))
	if err != nil {
		return fmt.Errorf("client identifier %q is not hexadecimal: %w", text, err)
	}
	*c = ClientID(raw)
	return nil
}

// State says what became of a lease.
type State string

// The states of a lease. A lease whose time ran out is stored as active and shown as expired.
const (
	StateActive   State = "active"
	StateExpired  State = "expired"
	StateReleased State = "released"
	StateDeclined State = "declined"
	// StateDamaged is a lease of which the store knows only the address. Nobody but the client that uses the address
	// gets it: that one gets it back when it renews.
	StateDamaged State = "damaged"
)

// Lease is the last thing that happened to one address: who got it, and until when.
type Lease struct {
	// Address is the key: one lease an address.
	Address netip.Addr `json:"address"`
	// MAC of the client. Of a declined address: the client that declined it. Of a damaged lease: zero.
	MAC MAC `json:"mac"`
	// ClientID as the client sent it, in hexadecimal.
	ClientID ClientID `json:"clientID,omitzero"`
	// Hostname that the client called itself, or that its reservation gives it.
	Hostname string `json:"hostname,omitzero"`
	// Start is when the client first got the address in this unbroken run of leases.
	Start time.Time `json:"start"`
	// Expires is when the address is free again: the end of an active lease, the time of a release,
	// the end of the quarantine of a declined address, of a damaged lease the latest time that it can have.
	Expires time.Time `json:"expires"`
	// State as of the last message of the client, or StateExpired.
	State State `json:"state"`
}

// Live tells whether the client holds the address at that time.
func (l *Lease) Live(now time.Time) bool { return l.State == StateActive && now.Before(l.Expires) }
