package stack

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Envoy is a running Envoy of one Infra, or one to be started.
type Envoy struct {
	Binary string
	Host   Host
	Oooi   *Oooi
	Infra  string // namespace/name
	Name   string // node id, and name of the log file
	Admin  string // host:port
	// Args are further arguments, such as the drain time.
	Args []string

	logs    string // folder of its log and bootstrap
	process *Process
}

// Start starts Envoy from the bootstrap that oooi prints, and waits until it has its first configuration.
func (e *Envoy) Start(ctx context.Context) error {
	bootstrap, err := e.Oooi.Run(ctx, "bootstrap", "--infra", e.Infra, "--xds-address", e.Oooi.XDS,
		"--node-id", e.Name, "--admin-address", e.Admin)
	if err != nil {
		return err
	}
	file := filepath.Join(e.logs, e.Name+".bootstrap.yaml")
	if err := os.WriteFile(file, []byte(bootstrap), 0o600); err != nil {
		return err
	}
	e.process, err = e.Host.Start(e.logs, e.Name, append([]string{
		e.Binary, "-c", file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "warning",
	}, e.Args...)...)
	if err != nil {
		return err
	}
	return Until(ctx, "Envoy "+e.Name+" to be ready", func(ctx context.Context) error {
		select {
		case <-e.process.Done():
			return e.process.ended()
		default:
		}
		_, err := e.get(ctx, "/ready")
		return err
	})
}

// Process that runs Envoy; nil before Start.
func (e *Envoy) Process() *Process { return e.process }

// Listeners that Envoy has now, by name, with their addresses.
func (e *Envoy) Listeners(ctx context.Context) (map[string]string, error) {
	text, err := e.get(ctx, "/listeners?format=json")
	if err != nil {
		return nil, err
	}
	var answer struct {
		Statuses []struct {
			Name    string `json:"name"`
			Address struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return nil, fmt.Errorf("listeners of Envoy %s: %w", e.Name, err)
	}
	listeners := map[string]string{}
	for _, s := range answer.Statuses {
		listeners[s.Name] = fmt.Sprintf("%s:%d", s.Address.Socket.Address, s.Address.Socket.Port)
	}
	return listeners, nil
}

// Counters of Envoy by name.
func (e *Envoy) Counters(ctx context.Context) (map[string]int64, error) {
	text, err := e.get(ctx, "/stats")
	if err != nil {
		return nil, err
	}
	counters := map[string]int64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.ParseInt(value, 10, 64); err == nil { // histograms and texts are no counters
			counters[name] = n
		}
	}
	return counters, nil
}

func (e *Envoy) get(ctx context.Context, path string) (string, error) {
	return get(ctx, e.Host, e.Admin, path)
}
