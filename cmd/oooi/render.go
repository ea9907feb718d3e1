package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/yaml"

	"github.com/densityops/oooi/api/v1alpha1"
	"github.com/densityops/oooi/dnsserver"
	"github.com/densityops/oooi/watch/plan"
	"github.com/densityops/oooi/xds"
)

func newRender() *cobra.Command {
	var configDir, output string
	var xdsOnly, dnsOnly bool
	cmd := &cobra.Command{
		Use:   "render --config-dir DIR",
		Short: "Show offline what a folder of manifests would produce",
		Long: `Show offline the children and the statuses that the manifests of a folder give, as YAML.
With --xds: the exact Envoy resources as JSON, per Infra. With --dns: the names and answers of
each view. Exit status 1 when a manifest is wrong or an Infra would not be Ready by its configuration.`,
		Example: `  oooi render --config-dir examples/two-clusters
  oooi render --config-dir examples/two-clusters --xds
  oooi render --config-dir examples/two-clusters --dns`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if configDir == "" {
				return usageError("--config-dir is missing: name the folder with the manifests")
			}
			if xdsOnly && dnsOnly {
				return usageError("--xds and --dns exclude each other")
			}
			if err := checkOutput(output, "yaml", "json"); err != nil {
				return err
			}
			result, problems := planFolder(cmd, configDir)
			if result == nil {
				return problems
			}
			var err error
			switch {
			case xdsOnly:
				err = renderXDS(cmd.OutOrStdout(), result)
			case dnsOnly:
				err = renderDNS(cmd.OutOrStdout(), result)
			default:
				err = renderManifests(cmd.OutOrStdout(), result, output)
			}
			return errors.Join(err, problems, notReady(result))
		},
	}
	cmd.Flags().StringVar(&configDir, "config-dir", "", "folder with *.yaml, *.yml and *.json manifests (required)")
	cmd.Flags().StringVarP(&output, "output", "o", "yaml", "yaml or json")
	cmd.Flags().BoolVar(&xdsOnly, "xds", false, "the exact Envoy resources as JSON, per Infra")
	cmd.Flags().BoolVar(&dnsOnly, "dns", false, "the names and answers of each view, per Infra")
	return cmd
}

// notReady names the Infras that would not be Ready by their configuration.
func notReady(result *plan.Result) error {
	var errs []error
	for _, infra := range result.Infras {
		if ready := meta.FindStatusCondition(infra.Status.Conditions, v1alpha1.ConditionReady); ready.Status != "True" {
			errs = append(errs, fmt.Errorf("Infra %s is not Ready: %s: %s", infra.Key(), ready.Reason, ready.Message))
		}
	}
	return errors.Join(errs...)
}

func renderManifests(w io.Writer, result *plan.Result, output string) error {
	documents, err := result.Manifests()
	if err != nil {
		return err
	}
	if output == "json" {
		return writeJSON(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": documents})
	}
	var b bytes.Buffer
	for i, document := range documents {
		text, err := yaml.Marshal(document)
		if err != nil {
			return err
		}
		if i > 0 {
			b.WriteString("---\n")
		}
		b.Write(text)
	}
	_, err = w.Write(b.Bytes())
	return err
}

func renderXDS(w io.Writer, result *plan.Result) error {
	resources := map[string]json.RawMessage{}
	for _, infra := range result.Infras {
		if infra.Proxy == nil {
			continue
		}
		snapshot, err := xds.Build(infra.Proxy, xds.Options{})
		if err != nil {
			return err
		}
		text, err := json.Marshal(snapshot)
		if err != nil {
			return err
		}
		resources[infra.Key().String()] = text
	}
	return writeJSON(w, resources)
}

func renderDNS(w io.Writer, result *plan.Result) error {
	var b strings.Builder
	for _, infra := range result.Infras {
		fmt.Fprintf(&b, "; Infra %s\n", infra.Key())
		if infra.DNS == nil {
			fmt.Fprintf(&b, "; no DNS server: %s\n", infra.Absence(v1alpha1.ComponentDNS))
			continue
		}
		model, err := dnsserver.Build(infra.DNS, dnsserver.Options{PodNetworks: dnsserver.PrivateNetworks()})
		if err != nil {
			return err
		}
		b.WriteString(model.String())
	}
	_, err := io.WriteString(w, b.String())
	return err
}
