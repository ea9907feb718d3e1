package dnsserver

import (
	"errors"
	"strings"
)

// maxName is the longest name in wire format (RFC 1035 2.3.4).
const maxName = 255

// root is the wire name of the root.
const root = "\x00"

// wireName packs a normalised host name ("api.example.com", "*.apps.example.com") into wire format.
// Only the letters of host names are allowed, as RFC 1123 2.1 has them, underscores besides, and an
// asterisk as the whole of the leftmost label.
func wireName(name string) (string, error) {
	if name == "" {
		return "", errors.New("is empty")
	}
	if name != strings.ToLower(name) {
		return "", errors.New("is not in lower case")
	}
	var b strings.Builder
	for i, label := range strings.Split(name, ".") {
		switch {
		case label == "":
			return "", errors.New("has an empty label or a trailing dot")
		case len(label) > 63:
			return "", errors.New("has a label longer than 63 characters")
		case label == "*" && i == 0 && strings.Contains(name, "."):
		case strings.Contains(label, "*"):
			return "", errors.New("may have an asterisk as its first label only, and with a parent below it")
		case strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-_") != "":
			return "", errors.New("has a character that host names do not have")
		}
		b.WriteByte(byte(len(label)))
		b.WriteString(label)
	}
	b.WriteByte(0)
	if b.Len() > maxName {
		return "", errors.New("is longer than 255 bytes")
	}
	return b.String(), nil
}

// parent is the wire name without its first label; the root has none.
func parent(wire string) string { return wire[1+int(wire[0]):] }

// labels splits a wire name, leftmost label first.
func labels(wire string) []string {
	var out []string
	for wire[0] != 0 {
		out = append(out, wire[1:1+int(wire[0])])
		wire = parent(wire)
	}
	return out
}

// text is the presentation of an owned name, with the trailing dot. Owned names need no escapes.
func text(wire string) string { return strings.Join(labels(wire), ".") + "." }

// compareNames orders wire names as RFC 4034 6.1 does, so that the names of a domain stand together.
func compareNames(a, b string) int {
	la, lb := labels(a), labels(b)
	for i := 1; i <= len(la) && i <= len(lb); i++ {
		if c := strings.Compare(la[len(la)-i], lb[len(lb)-i]); c != 0 {
			return c
		}
	}
	return len(la) - len(lb)
}

// lower copies a wire name in lower case (RFC 4343). Length bytes are below 'A', so they need no care.
func lower(dst, src []byte) {
	_ = dst[len(src)-1]
	for i, c := range src {
		if c-'A' < 26 {
			c |= 0x20
		}
		dst[i] = c
	}
}
