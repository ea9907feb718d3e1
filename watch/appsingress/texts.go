package appsingress

import (
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// changing are the parts of errors that differ from one attempt to the next.
var changing = regexp.MustCompile(`stream ID \d+|current time \S+ is|trace[iI][dD]\S+`)

// stable is the text of an error, without what changes from one attempt to the next: who writes it into a status must not write
// it each time.
func stable(err error) string {
	var (
		wrapped  *url.Error
		op       *net.OpError
		expired  x509.CertificateInvalidError
		dnsError *net.DNSError
		timeout  net.Error
	)
	if errors.As(err, &wrapped) {
		err = wrapped.Err
	}
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		return fmt.Sprintf("x509: its certificate is valid from %s to %s only", expired.Cert.NotBefore.UTC().Format(time.RFC3339), expired.Cert.NotAfter.UTC().Format(time.RFC3339))
	case errors.As(err, &dnsError):
		return "lookup " + dnsError.Name + ": " + dnsError.Err
	case errors.As(err, &timeout) && timeout.Timeout():
		// Of connecting, the handshake and the request, which all have the same time, one runs out first by chance.
		return errNoAnswer.Error()
	case errors.As(err, &op):
		plain := *op
		plain.Source = nil
		return plain.Error()
	}
	return changing.ReplaceAllString(err.Error(), "…")
}

// What is at most written into the management cluster, in characters.
const (
	// messageLength is of one text that comes from elsewhere.
	messageLength = 500
	// causeLength is of all that a look says, which may have several.
	causeLength = 1500
	// hostnameLength is of a name (RFC 1035, section 2.3.4).
	hostnameLength = 253
	// namesListed is how many objects are named.
	namesListed = 5
)

// cut makes a text that comes from elsewhere fit for a message: one line, not too long.
func cut(text string) string { return cutTo(text, messageLength) }

func cutTo(text string, length int) string {
	text = strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r < ' ' || r == 0x7f }), " ")
	if runes := []rune(text); len(runes) > length {
		return string(runes[:length-1]) + "…"
	}
	return text
}

// some names the first of many objects, and how many there are more.
func some(names []string) string {
	if len(names) <= namesListed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:namesListed], ", "), len(names)-namesListed)
}
