package main

import (
	"encoding/json"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/densityops/oooi/serve"
)

func newLeases() *cobra.Command {
	var server, output string
	cmd := &cobra.Command{
		Use:   "leases",
		Short: "List the DHCP leases of a running server",
		Example: `  oooi leases
  oooi leases --server http://127.0.0.1:8080 -o json`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := checkOutput(output, "table", "json"); err != nil {
				return err
			}
			body, err := get(cmd.Context(), server, "/leases", nil)
			if err != nil {
				return err
			}
			if output == "json" {
				_, err = cmd.OutOrStdout().Write(body)
				return err
			}
			var leases []serve.Lease
			if err := json.Unmarshal(body, &leases); err != nil {
				return fmt.Errorf("answer of %s: %w", server, err)
			}
			return printLeases(cmd.OutOrStdout(), leases)
		},
	}
	serverFlag(cmd, &server)
	cmd.Flags().StringVarP(&output, "output", "o", "table", "table or json")
	return cmd
}

func printLeases(w io.Writer, leases []serve.Lease) error {
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "INFRA\tADDRESS\tMAC\tHOSTNAME\tSTATE\tEXPIRES")
	for _, l := range leases {
		hostname := l.Hostname
		if hostname == "" {
			hostname = "-"
		}
		fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", l.Infra, l.Address, l.MAC, hostname, l.State, l.Expires.UTC().Format(time.RFC3339))
	}
	return table.Flush()
}
