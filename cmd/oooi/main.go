// Command oooi lets several hosted clusters share one isolated VLAN. See oooi --help.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// The exit statuses that scripts rely on.
const (
	exitDone  = 0
	exitError = 1
	exitUsage = 2
)

// errUsage marks errors in how a command was called.
var errUsage = errors.New("wrong usage")

func main() { os.Exit(run()) }

// run is main with an exit status, for tests that run the command in process.
func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	return execute(ctx, os.Args[1:], os.Stdout, os.Stderr)
}

func execute(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	command, err := root.ExecuteContextC(ctx)
	switch {
	case err == nil:
		return exitDone
	case errors.Is(err, errUsage):
		fmt.Fprintf(stderr, "oooi: %s; see %s --help\n", oneLine(strings.TrimPrefix(err.Error(), errUsage.Error()+": ")), command.CommandPath())
		return exitUsage
	default:
		fmt.Fprintf(stderr, "oooi: %s\n", oneLine(err.Error()))
		return exitError
	}
}

// oneLine keeps an error on one line: scripts read it so.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' }), " | ")
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "oooi",
		Short: "Several HyperShift hosted clusters on one isolated VLAN: DHCP, split-horizon DNS and the control plane of Envoy in one process",
		Example: `  oooi render --config-dir examples/two-clusters        # what would these manifests do?
  oooi serve --config-dir examples/two-clusters         # do it, and follow changes of the folder
  oooi explain --source 192.0.2.117 --sni kubernetes    # where does this connection go, and why?`,
		SilenceUsage:      true,
		SilenceErrors:     true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		Args:              noArgs,
		// Wrong values of flags that every command has are wrong usage of every command.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			_, err := newLog(cmd)
			return err
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", errUsage, err) })
	root.PersistentFlags().String("log-format", "text", "format of the logs on stderr: text or json")
	root.PersistentFlags().String("log-level", "info", "least level of the logs: debug, info, warn or error")
	root.AddCommand(newServe(), newRender(), newExplain(), newBootstrap(), newLeases(), newVersion())
	return root
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasParent() {
		return fmt.Errorf("%w: unknown command %q", errUsage, args[0])
	}
	return fmt.Errorf("%w: unexpected argument %q", errUsage, args[0])
}

func usageError(format string, args ...any) error {
	return fmt.Errorf("%w: %w", errUsage, fmt.Errorf(format, args...))
}

// newLog makes the logger that --log-format and --log-level ask for.
func newLog(cmd *cobra.Command) (*slog.Logger, error) {
	format, _ := cmd.Flags().GetString("log-format")
	text, _ := cmd.Flags().GetString("log-level")
	var level slog.Level
	if err := level.UnmarshalText([]byte(text)); err != nil {
		return nil, usageError("--log-level %q is none of debug, info, warn, error", text)
	}
	options := &slog.HandlerOptions{Level: level}
	switch format {
	case "text":
		return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(cmd.ErrOrStderr(), options)), nil
	}
	return nil, usageError("--log-format %q is none of text, json", format)
}
