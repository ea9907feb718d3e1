package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// The http-listen address of a server, and how a client of it calls it.
const (
	defaultHTTPListen = "127.0.0.1:8080"
	defaultServer     = "http://" + defaultHTTPListen
)

func serverFlag(cmd *cobra.Command, server *string) {
	cmd.Flags().StringVar(server, "server", defaultServer, "the running server: the URL of its --http-listen address")
}

// get asks a running server.
func get(ctx context.Context, server, path string, query url.Values) ([]byte, error) {
	base, err := url.Parse(server)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, usageError("--server %q is not a URL such as %s", server, defaultServer)
	}
	base.Path, base.RawQuery = path, query.Encode()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, base.String(), nil)
	if err != nil {
		return nil, err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, fmt.Errorf("no server answers at %s: %w: start oooi serve, or name another one with --server", server, err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("answer of %s: %w", server, err)
	}
	switch text := strings.TrimSpace(string(body)); response.StatusCode {
	case http.StatusOK:
		return body, nil
	case http.StatusBadRequest:
		return nil, usageError("%s", text)
	default:
		return nil, fmt.Errorf("%s: %s", server, text)
	}
}

func checkOutput(output string, allowed ...string) error {
	if slices.Contains(allowed, output) {
		return nil
	}
	return usageError("-o %q is none of %s", output, strings.Join(allowed, ", "))
}
