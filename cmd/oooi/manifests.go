package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/densityops/oooi/watch/files"
	"github.com/densityops/oooi/watch/plan"
)

// planFolder plans the manifests of a folder offline. Warnings and problems go to stderr, a line each; problems are
// also an error, beside the plan of what is right.
func planFolder(cmd *cobra.Command, dir string) (*plan.Result, error) {
	loaded, err := files.Load(dir)
	if err != nil {
		return nil, err
	}
	for _, w := range loaded.Warnings {
		cmd.PrintErrln("warning: " + w.Error())
	}
	for _, p := range loaded.Problems {
		cmd.PrintErrln("error: " + p.Error())
	}
	result := plan.Plan(plan.Input{Objects: loaded.Objects, NobodyLooks: true})
	if n := len(loaded.Problems); n > 0 {
		return result, fmt.Errorf("%d problems in the manifests of %s, the first one: %w", n, dir, loaded.Problems[0])
	}
	return result, nil
}
