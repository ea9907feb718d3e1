package dhcpserver

import "github.com/densityops/oooi/api/dhcpoption"

// Option codes that the server gives a meaning to (RFC 2132 unless said otherwise).
const (
	optPad         = 0
	optMask        = 1
	optRouter      = 3
	optDNS         = 6
	optHostname    = 12
	optBroadcast   = 28
	optRequested   = 50
	optLeaseTime   = 51
	optOverload    = 52
	optMessageType = 53
	optServerID    = 54
	optParameters  = 55
	optMessage     = 56
	optMaxSize     = 57
	optT1          = 58
	optT2          = 59
	optClientID    = 61
	optRelay       = 82 // RFC 3046
	optEnd         = 255
)

// appendOption appends one option, as several when it is longer than one can be (RFC 3396).
func appendOption(to []byte, code uint8, value []byte) []byte {
	for len(value) > dhcpoption.MaxBytes {
		to = append(to, code, dhcpoption.MaxBytes)
		to = append(to, value[:dhcpoption.MaxBytes]...)
		value = value[dhcpoption.MaxBytes:]
	}
	to = append(to, code, byte(len(value)))
	return append(to, value...)
}
