package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"

	mdns "github.com/miekg/dns"
	"github.com/spf13/cobra"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dnsserver"
	"github.com/densityops/oooi/watch/plan"
)

// question is what oooi explain is asked: a connection, or a DNS name.
type question struct {
	source   netip.Addr
	name     string // server name, or Host on port 80
	port     int
	listener string // instead of the port
	dns      string
	dnsType  uint16
	infra    string
}

// answers are one verdict for each Infra concerned: about a connection, or about a name.
type answers struct {
	Connections []plan.Verdict `json:"connections,omitempty"`
	Names       []nameVerdict  `json:"names,omitempty"`
}

func (a answers) empty() bool { return len(a.Connections)+len(a.Names) == 0 }

// nameVerdict is what one Infra's DNS server answers.
type nameVerdict struct {
	// Infra as namespace/name.
	Infra string `json:"infra"`
	dnsserver.Explanation
}

func newExplain() *cobra.Command {
	var source, sni, port, dns, dnsType, infra, configDir, server, output string
	cmd := &cobra.Command{
		Use:   "explain --source IP [--sni NAME | --dns NAME]",
		Short: "Say where a connection goes, or what a name resolves to, and why",
		Long: `Say which attachment and target a TLS connection from a source gets, and the rule that
decided, or why it is closed. On port 80 the name is the Host of plain HTTP. The listener behind an
attachment's public Service is its port on the pods, or its name. With --dns: which answer a name
gets, in which view, and why.
The answer comes from a running server, or from manifests with --config-dir.`,
		Example: `  oooi explain --source 192.0.2.117 --sni kubernetes.default.svc
  oooi explain --source 192.0.2.117 --port 6443                      # TLS without a server name
  oooi explain --source 10.128.0.7 --port 80 --sni console.apps.example-hcp-a.clusters.example.com
  oooi explain --source 203.0.113.7 --port external-example-hcp-a --sni oauth.example-hcp-a.clusters.example.com
  oooi explain --source 10.128.0.7 --dns api.example-hcp-a.clusters.example.com
  oooi explain --config-dir examples/two-clusters --source 192.0.2.117 --sni api.example-hcp-b.clusters.example.com`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case sni != "" && dns != "":
				return usageError("--sni and --dns exclude each other: ask about a connection or about a name")
			case configDir != "" && cmd.Flags().Changed("server"):
				return usageError("--config-dir and --server exclude each other: the answer comes from manifests or from a server")
			}
			if err := checkOutput(output, "text", "json"); err != nil {
				return err
			}
			query := url.Values{}
			for name, value := range map[string]string{"source": source, "sni": sni, "dns": dns, "type": dnsType, "infra": infra, "port": port} {
				if value != "" {
					query.Set(name, value)
				}
			}
			q, err := parseQuestion(query)
			if err != nil {
				return usageError("%w", err)
			}
			a, err := ask(cmd, q, query, configDir, server)
			if a.empty() {
				return err
			}
			// Problems elsewhere in a folder are an error beside the answer.
			if output == "json" {
				return errors.Join(writeJSON(cmd.OutOrStdout(), a), err)
			}
			return errors.Join(printAnswers(cmd.OutOrStdout(), q, a), err)
		},
	}
	cmd.Flags().StringVar(&source, "source", "", "address of the client (required)")
	cmd.Flags().StringVar(&sni, "sni", "", "server name in the ClientHello, on port 80 the Host; empty: none")
	cmd.Flags().StringVar(&port, "port", "443", "port of the proxy, or external-ATTACHMENT")
	cmd.Flags().StringVar(&dns, "dns", "", "ask for this name instead")
	cmd.Flags().StringVar(&dnsType, "type", "A", "record type for --dns")
	cmd.Flags().StringVar(&infra, "infra", "", "only this Infra, as NAMESPACE/NAME (default: those whose VLAN has the source, else all)")
	cmd.Flags().StringVar(&configDir, "config-dir", "", "answer from the manifests of this folder, without a server")
	serverFlag(cmd, &server)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

// maxNameLength is the length of a DNS name as people write it, with a trailing dot.
const maxNameLength = 254

// parseQuestion reads the parameters that the command and the HTTP endpoint share.
func parseQuestion(query url.Values) (question, error) {
	q := question{name: query.Get("sni"), dns: query.Get("dns"), dnsType: mdns.TypeA, infra: query.Get("infra"), port: 443}
	var err error
	if query.Get("source") == "" {
		return q, fmt.Errorf("--source is missing: give the address of the client")
	}
	if q.source, err = netip.ParseAddr(query.Get("source")); err != nil {
		return q, fmt.Errorf("--source %q is not an address", query.Get("source"))
	}
	q.source = q.source.Unmap()
	for flag, name := range map[string]string{"sni": q.name, "dns": q.dns} {
		if len(name) > maxNameLength {
			return q, fmt.Errorf("--%s has %d characters: a DNS name has at most %d (RFC 1035 2.3.4)", flag, len(name), maxNameLength)
		}
	}
	if text := query.Get("port"); strings.HasPrefix(text, "external-") {
		q.listener, q.port = text, 0
	} else if text != "" {
		if q.port, err = strconv.Atoi(text); err != nil || q.port < 1 || q.port > 65535 {
			return q, fmt.Errorf("--port %q is neither between 1 and 65535 nor external-ATTACHMENT", text)
		}
	}
	if q.infra != "" && !isInfraKey(q.infra) {
		return q, fmt.Errorf("--infra %q is not NAMESPACE/NAME", q.infra)
	}
	if text := strings.ToUpper(query.Get("type")); text != "" {
		var known bool
		if q.dnsType, known = mdns.StringToType[text]; !known {
			return q, fmt.Errorf("--type %q is no DNS record type", text)
		}
	}
	return q, nil
}

func ask(cmd *cobra.Command, q question, query url.Values, configDir, server string) (answers, error) {
	if configDir != "" {
		result, problems := planFolder(cmd, configDir)
		if result == nil {
			return answers{}, problems
		}
		a, err := explain(result, q, dnsserver.PrivateNetworks())
		return a, errors.Join(err, problems)
	}
	var a answers
	body, err := get(cmd.Context(), server, "/explain", query)
	if err != nil {
		return a, err
	}
	if err := json.Unmarshal(body, &a); err != nil {
		return a, fmt.Errorf("answer of %s: %w", server, err)
	}
	return a, nil
}

// explain answers from a plan.
func explain(result *plan.Result, q question, podNetworks []netip.Prefix) (answers, error) {
	if q.infra != "" && !hasInfra(result, q.infra) {
		return answers{}, fmt.Errorf("there is no Infra %s", q.infra)
	}
	if len(result.Infras) == 0 {
		return answers{}, fmt.Errorf("there is no Infra")
	}
	if q.dns == "" {
		connection := plan.Connection{Source: q.source, Name: q.name, Port: q.port, Listener: q.listener}
		return answers{Connections: result.Explain(connection, q.infra)}, nil
	}
	var a answers
	for _, infra := range result.Concerned(q.source, q.infra) {
		v := nameVerdict{Infra: infra.Key().String()}
		if infra.DNS == nil {
			v.Why = "this Infra has no DNS server: " + infra.Absence(v1alpha1.ComponentDNS)
			a.Names = append(a.Names, v)
			continue
		}
		model, err := dnsserver.Build(infra.DNS, dnsserver.Options{PodNetworks: podNetworks})
		if err != nil {
			return a, err
		}
		if v.Explanation, err = model.Explain(q.source, q.dns, q.dnsType); err != nil {
			return a, usageError("%w", err)
		}
		a.Names = append(a.Names, v)
	}
	return a, nil
}

func hasInfra(result *plan.Result, key string) bool {
	for _, infra := range result.Infras {
		if infra.Key().String() == key {
			return true
		}
	}
	return false
}

func printAnswers(w io.Writer, q question, a answers) error {
	var b strings.Builder
	for _, v := range a.Connections {
		what := fmt.Sprintf("%s -> proxy of %s:%s, %s", q.source, v.Infra, cmp.Or(q.listener, strconv.Itoa(q.port)), nameOf(v, q))
		fmt.Fprintln(&b, what)
		if v.Routed {
			fmt.Fprintf(&b, "  routed to %s of attachment %s (%s)\n", v.Target, v.Attachment, strings.Join(v.Addresses, ", "))
			what := "filter chain"
			if v.Rule == plan.RuleHTTPHost {
				what = "cluster"
			}
			fmt.Fprintf(&b, "  backend   %s, %s %s\n", v.Backend, what, v.FilterChain)
		} else {
			fmt.Fprintf(&b, "  closed\n")
		}
		fmt.Fprintf(&b, "  rule      %s\n  why       %s\n", v.Rule, v.Why)
	}
	for _, v := range a.Names {
		fmt.Fprintf(&b, "%s asks %s %s of %s\n", q.source, q.dns, mdns.Type(q.dnsType), v.Infra)
		if v.View != "" {
			fmt.Fprintf(&b, "  view      %s\n  answer    %s\n", v.View, answerOf(v.Explanation))
		}
		fmt.Fprintf(&b, "  why       %s\n", v.Why)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// nameOf says which name a connection had.
func nameOf(v plan.Verdict, q question) string {
	what := "server name"
	if v.Rule == plan.RuleHTTPHost || (v.Rule == plan.RulePort && q.port == 80) {
		what = "Host"
	}
	if q.name == "" {
		return "no " + what
	}
	return what + " " + q.name
}

func answerOf(e dnsserver.Explanation) string {
	switch {
	case len(e.Upstreams) > 0:
		return "forwarded to " + strings.Join(e.Upstreams, ", ")
	case len(e.Answers) > 0:
		return e.RCode + ", " + strings.Join(e.Answers, ", ")
	}
	return e.RCode
}

func writeJSON(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
