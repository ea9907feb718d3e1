package dnsserver

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/miekg/dns"
)

// Explanation says what a question is answered and why.
type Explanation struct {
	// View of the client: vlan, pods, or none for somebody who may not ask.
	View View `json:"view"`
	// Name and Type of the question, the name with its trailing dot.
	Name string `json:"name"`
	Type string `json:"type"`
	// RCode of the answer, for example NXDOMAIN. Empty when the question is forwarded.
	RCode string `json:"rcode,omitempty"`
	// Authoritative tells whether the name is one that this server owns.
	Authoritative bool `json:"authoritative"`
	// Answers are the records of the answer section as dig shows them, without TTL and class: "A 192.0.2.4".
	Answers []string `json:"answers,omitempty"`
	// Upstreams are the resolvers that are asked, in order, when the question is forwarded.
	Upstreams []string `json:"upstreams,omitempty"`
	// Rule is the word for the rule that decided, the same as in the metric oooi_dns_queries_total.
	Rule string `json:"rule"`
	// Why is the rule in a sentence.
	Why string `json:"why"`
}

// Explain says what a client is answered for a name, through the code that answers its packets. The
// name may lack its trailing dot. A name that cannot be asked for is an error.
func (m *Model) Explain(client netip.Addr, name string, qtype uint16) (Explanation, error) {
	name = dns.Fqdn(name)
	ask := new(dns.Msg).SetQuestion(name, qtype)
	packet, err := ask.Pack()
	if err != nil {
		return Explanation{}, fmt.Errorf("%q is not a name that can be asked for: %w", name, err)
	}
	buf := make([]byte, replyRoom+len(packet))
	r := m.respond(buf, copy(buf, packet), client)
	e := Explanation{
		View: viewNames[r.view],
		Name: name,
		Type: dns.Type(qtype).String(),
		Rule: r.outcome.String(),
		Why:  m.why(r, client, name, dns.Type(qtype).String()),
	}
	if r.outcome == outForwarded {
		for _, u := range m.upstreams {
			e.Upstreams = append(e.Upstreams, u.String())
		}
		return e, nil
	}
	answer := new(dns.Msg)
	if err := answer.Unpack(buf[:r.n]); err != nil {
		return Explanation{}, fmt.Errorf("answer for %q: %w", name, err)
	}
	e.RCode = dns.RcodeToString[answer.Rcode]
	e.Authoritative = answer.Authoritative
	for _, rr := range answer.Answer {
		e.Answers = append(e.Answers, data(rr))
	}
	return e, nil
}

// data is the type and the data of a record.
func data(rr dns.RR) string {
	header := rr.Header()
	return dns.Type(header.Rrtype).String() + " " + strings.TrimPrefix(rr.String(), header.String())
}

func (m *Model) why(r result, client netip.Addr, name, qtype string) string {
	view := viewNames[r.view]
	switch r.outcome {
	case outAnswered:
		return fmt.Sprintf("%s is owned: its address in view %s", name, view)
	case outWildcard:
		return fmt.Sprintf("%s is covered by %s, which is owned: its address in view %s", name, text(r.node.wire), view)
	case outSOA:
		return fmt.Sprintf("%s is owned and so the apex of a zone", name)
	case outNoData:
		return fmt.Sprintf("%s is owned and has no %s record; no type of an owned name is forwarded", name, qtype)
	case outEmpty:
		return fmt.Sprintf("%s has no records but exists, since a name below it is owned", name)
	case outBlocked:
		return fmt.Sprintf("%s does not exist: %s is closer to it than the wildcard and blocks that (RFC 4592)", name, text(r.node.wire))
	case outPending:
		return fmt.Sprintf("%s is owned but not published yet: nobody could be routed by it; ask again in %d s", name, pendingTTL)
	case outHidden:
		return fmt.Sprintf("%s is hidden from view %s: the Infra has no internalProxyService", name, view)
	case outUnresolved:
		return fmt.Sprintf("%s is owned, but its internalProxyService has no ClusterIP yet", name)
	case outForwarded:
		return fmt.Sprintf("%s is not owned in view %s: it is forwarded", name, view)
	case outNoUpstreams:
		return fmt.Sprintf("%s is not owned in view %s, and the Infra has no dnsServers to ask", name, view)
	case outStranger:
		return fmt.Sprintf("%s is neither in the VLAN %s nor in a pod network", client, m.vlan)
	case outMetaType:
		return fmt.Sprintf("%s asks for no type of data", qtype)
	}
	return "the question is malformed: " + r.outcome.String()
}
