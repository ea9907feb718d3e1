package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// Set by the linker; see the Makefile.
var (
	version = "dev"
	commit  = "unknown"
)

const envoyAPIModule = "github.com/envoyproxy/go-control-plane/envoy"

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Print version, commit, Go and the Envoy API version",
		Example: "  oooi version",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "oooi %s\ncommit %s\n%s\nEnvoy API %s\n", version, commit, runtime.Version(), envoyAPIVersion())
			return err
		},
	}
}

func envoyAPIVersion() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, m := range info.Deps {
			if m.Path == envoyAPIModule {
				return m.Version
			}
		}
	}
	return "unknown"
}
