package dnsserver

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/miekg/dns"
)

// Record is one name of one view and what it is answered.
type Record struct {
	View View `json:"view"`
	// Name with its trailing dot.
	Name string `json:"name"`
	// TTL in seconds; the negative TTL when the name does not exist.
	TTL int `json:"ttl"`
	// Address is the A record; empty when there is none.
	Address string `json:"address,omitempty"`
	// RCode of an answer without address, for example NXDOMAIN.
	RCode string `json:"rcode"`
	// Rule is the word for the rule that decides, as in Explanation.
	Rule string `json:"rule"`
}

// String is the record in the form of a zone file; what is no record is a comment.
func (r Record) String() string {
	switch {
	case r.Address != "":
		return fmt.Sprintf("%s\t%d\tIN\tA\t%s", r.Name, r.TTL, r.Address)
	case r.TTL > 0:
		return fmt.Sprintf("; %s\t%d\tIN\t%s\t(%s)", r.Name, r.TTL, r.RCode, r.Rule)
	}
	return fmt.Sprintf("; %s\t\tIN\t%s\t(%s)", r.Name, r.RCode, r.Rule)
}

// Records are the owned names of both views, each with what a question for A gets. The order is that
// of RFC 4034 6.1, view vlan first.
func (m *Model) Records() []Record {
	var out []Record
	for view, t := range m.tables {
		for _, wire := range slices.SortedFunc(maps.Keys(t.nodes), compareNames) {
			n := t.nodes[wire]
			o := n.outcome(dns.TypeA, matchExact)
			r := Record{
				View:  viewNames[view],
				Name:  text(wire),
				RCode: dns.RcodeToString[int(replies[o].rcode)],
				Rule:  o.String(),
			}
			if replies[o].a {
				r.Address = n.addr.String()
			}
			if replies[o].aa {
				r.TTL = n.ttl()
			}
			out = append(out, r)
		}
	}
	return out
}

// String is the whole model as zone-like text: each view with its clients, names and answers, and
// where every other name goes.
func (m *Model) String() string {
	var b strings.Builder
	records := m.Records()
	for view := range m.tables {
		fmt.Fprintf(&b, "; view %s: clients in %s\n", viewNames[view], m.clients(int8(view)))
		for _, r := range records {
			if r.View == viewNames[view] {
				fmt.Fprintln(&b, r)
			}
		}
	}
	fmt.Fprintf(&b, "; every other name: %s\n", m.elsewhere())
	return b.String()
}

func (m *Model) clients(view int8) string {
	if view == viewVLAN {
		return m.vlan.String()
	}
	if len(m.pods) == 0 {
		return "no network"
	}
	return join(m.pods)
}

func (m *Model) elsewhere() string {
	if len(m.upstreams) == 0 {
		return "REFUSED, there are no upstreams"
	}
	return "forwarded to " + join(m.upstreams)
}

func join[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, item := range items {
		texts[i] = item.String()
	}
	return strings.Join(texts, ", ")
}
