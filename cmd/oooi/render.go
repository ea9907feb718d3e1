package main

import (
	"bytes"
	"cmp"
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
			show, formats := renderManifests, []string{"yaml", "json"}
			switch {
			case xdsOnly:
				show, formats = renderXDS, []string{"json"}
			case dnsOnly:
				show, formats = renderDNS, []string{"text", "json"}
			}
			output := cmp.Or(output, formats[0])
			if err := checkOutput(output, formats...); err != nil {
				return err
			}
			result, problems := planFolder(cmd, configDir)
			if result == nil {
				return problems
			}
			return errors.Join(show(cmd.OutOrStdout(), result, output), problems, notReady(result))
		},
	}
	cmd.Flags().StringVar(&configDir, "config-dir", "", "folder with *.yaml, *.yml and *.json manifests (required)")
	cmd.Flags().StringVarP(&output, "output", "o", "", "yaml or json; with --xds json; with --dns text or json")
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

func renderXDS(w io.Writer, result *plan.Result, _ string) error {
	resources := map[string]*xds.Snapshot{}
	var errs []error
	for _, infra := range result.Infras {
		if infra.Proxy == nil {
			continue
		}
		snapshot, err := xds.Build(infra.Proxy, xds.Options{})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		resources[infra.Key().String()] = snapshot
	}
	return errors.Join(writeJSON(w, resources), errors.Join(errs...))
}

func renderDNS(w io.Writer, result *plan.Result, output string) error {
	var text strings.Builder
	records := map[string][]dnsserver.Record{}
	var errs []error
	for _, infra := range result.Infras {
		fmt.Fprintf(&text, "; Infra %s\n", infra.Key())
		if infra.DNS == nil {
			fmt.Fprintf(&text, "; no DNS server: %s\n", infra.Absence(v1alpha1.ComponentDNS))
			continue
		}
		model, err := dnsserver.Build(infra.DNS, dnsserver.Options{PodNetworks: dnsserver.PrivateNetworks()})
		if err != nil {
			errs = append(errs, err)
			continue
		}
		text.WriteString(model.String())
		records[infra.Key().String()] = model.Records()
	}
	var err error
	if output == "json" {
		err = writeJSON(w, records)
	} else {
		_, err = io.WriteString(w, text.String())
	}
	return errors.Join(err, errors.Join(errs...))
}
