package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/stack"
)

const (
	rounds     = 5
	perRound   = 24
	pause      = 300 * time.Millisecond // between two changes: statuses are written after the children
	restPeriod = 15 * time.Second
)

// change is one change of one Machine, from the write of its status on.
type change struct {
	written time.Duration // the API server has answered
	applied time.Duration // the hub's write of the ProxyServer has arrived at the API server
	sent    time.Duration // Envoy is sent the update
	acked   time.Duration
}

// bench is the world that is measured.
type bench struct {
	*controlplane.ControlPlane
	site         *stack.Site
	out          io.Writer
	binary       string
	hub, serving *stack.Process
	tap          *tap
	floor        *replay
	next         int // number of the next spare address
	began        controlplane.Mark
}

func watch(ctx context.Context, out io.Writer) (err error) {
	site, err := stack.NewSite()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, site.Stop()) }()
	b := &bench{site: site, out: out, next: spare}
	if err := b.open(ctx); err != nil {
		return err
	}
	if b.began, err = b.Mark(); err != nil {
		return err
	}
	var changes [rounds][]change
	var floors [rounds][]time.Duration
	for round := range rounds {
		for i := range perRound {
			c, err := b.change(ctx, round*perRound+i)
			if err != nil {
				return err
			}
			changes[round] = append(changes[round], c)
			time.Sleep(pause)
		}
		if floors[round], err = b.measureFloor(ctx); err != nil {
			return err
		}
		b.tap.forget()
	}
	return b.report(ctx, changes, floors)
}

// open starts everything and waits until Envoy has the whole world.
func (b *bench) open(ctx context.Context) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	b.binary = filepath.Join(root, "bin", "oooi")
	data := filepath.Join(b.site.Folder, "controlplane")
	if err := os.Mkdir(data, 0o700); err != nil {
		return err
	}
	if b.ControlPlane, err = controlplane.Start(ctx, data); err != nil {
		return err
	}
	b.site.Defer(b.Stop)
	if err := errors.Join(b.InstallOwn(ctx), b.InstallNeighbours(ctx)); err != nil {
		return err
	}
	started := time.Now()
	if err := fill(ctx, b.ControlPlane); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(b.out, "%d attachments, %d Machines written in %.0f s\n", attachments, attachments*perCluster, time.Since(started).Seconds())

	kubeconfig, err := b.AdminKubeconfig()
	if err != nil {
		return err
	}
	run := func(name, http string, arguments ...string) (*stack.Process, error) {
		p, err := stack.Host("").Start(b.site.Logs(), name, append([]string{
			b.binary, "serve", "--kubeconfig", kubeconfig, "--http-listen", http, "--state-dir", filepath.Join(b.site.Folder, "state", name),
		}, arguments...)...)
		if err == nil {
			b.site.Defer(p.Stop)
		}
		return p, err
	}
	started = time.Now()
	if b.hub, err = run("hub", "127.40.0.10:28101", "--roles", "reconcile"); err != nil {
		return err
	}
	if b.serving, err = run("serving", "127.40.0.11:28101", "--roles", "xds,dns,dhcp", "--infra", infraKey,
		"--xds-listen", "127.40.0.11:28100", "--port-offset", "24000", "--proxy-bind", "server-ip"); err != nil {
		return err
	}
	if b.tap, err = newTap("127.40.0.12:28100", "127.40.0.11:28100"); err != nil {
		return err
	}
	b.site.Defer(b.tap.stop)
	if err := b.until(ctx, "the Infra to be planned", b.accepted); err != nil {
		return errors.Join(err, errors.New(b.hub.Tail(20)))
	}
	if err := b.startEnvoy(ctx, "envoy", b.tap.address, "127.40.0.12:9901"); err != nil {
		return err
	}
	if _, err := b.tap.wait(ctx, 0, address(spare-1)); err != nil {
		return err
	}
	_, _ = fmt.Fprintf(b.out, "from the start of the processes to Envoy's first acknowledgement of everything: %.1f s\n", time.Since(started).Seconds())
	b.tap.mu.Lock()
	first := b.tap.first
	b.tap.mu.Unlock()
	if b.floor, err = newReplay("127.40.0.13:28100", first); err != nil {
		return err
	}
	b.site.Defer(b.floor.stop)
	if err := b.startEnvoy(ctx, "floor", b.floor.address, "127.40.0.13:9901"); err != nil {
		return err
	}
	select {
	case <-b.floor.ready:
	case err := <-b.floor.failed:
		return fmt.Errorf("the Envoy of the floor: %w", err)
	}
	return b.until(ctx, "the end of writing", b.quiet)
}

func (b *bench) startEnvoy(ctx context.Context, name, xds, admin string) error {
	binary, err := stack.EnvoyBinary()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return b.site.StartEnvoy(ctx, &stack.Envoy{
		Binary: binary, Infra: infraKey, Name: name, Admin: admin, Oooi: &stack.Oooi{Binary: b.binary, XDS: xds},
	})
}

func (b *bench) until(ctx context.Context, what string, condition func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return stack.Until(ctx, what, condition)
}

// accepted is a condition: the ProxyServer holds the last worker.
func (b *bench) accepted(ctx context.Context) error {
	proxy, err := b.get(ctx, "ProxyServer", "tenant-vlan100-proxy")
	if err != nil {
		return err
	}
	text, err := json.Marshal(proxy.Object)
	if err == nil && !strings.Contains(string(text), address(spare-1)) {
		err = errors.New("not every worker is in the ProxyServer")
	}
	return err
}

func (b *bench) get(ctx context.Context, kind, name string) (*unstructured.Unstructured, error) {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("hostedcluster.densityops.com/v1alpha1")
	object.SetKind(kind)
	object.SetNamespace("clusters")
	client, err := b.Resource(object)
	if err != nil {
		return nil, err
	}
	return client.Get(ctx, name, metav1.GetOptions{})
}

// quiet is a condition: two seconds without a write but renewals of Leases.
func (b *bench) quiet(ctx context.Context) error {
	writes, err := b.writes(ctx, 2*time.Second)
	if err == nil && len(writes) > 0 {
		err = fmt.Errorf("%d writes in 2 s, the last one: %s", len(writes), writes[len(writes)-1])
	}
	return err
}

// writes lists the writes in a period, without those of Leases.
func (b *bench) writes(ctx context.Context, period time.Duration) ([]controlplane.Request, error) {
	mark, err := b.Mark()
	if err != nil {
		return nil, err
	}
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(period):
	}
	requests, err := b.Requests(mark)
	var writes []controlplane.Request
	for _, r := range requests {
		if r.Write() && r.Resource != "leases" {
			writes = append(writes, r)
		}
	}
	return writes, err
}

// change gives a Machine an address that none had, and waits until Envoy has acknowledged it.
func (b *bench) change(ctx context.Context, n int) (change, error) {
	cluster, worker := n%attachments, n/attachments
	client := b.Dynamic.Resource(machines).Namespace("clusters-" + clusterName(cluster))
	machine, err := client.Get(ctx, machineName(worker), metav1.GetOptions{})
	if err != nil {
		return change{}, err
	}
	mark, err := b.Mark()
	if err != nil {
		return change{}, err
	}
	to := address(b.next)
	b.next++
	since := b.tap.passed()
	started := time.Now()
	if err := writeAddress(ctx, b.Dynamic, machine, to); err != nil {
		return change{}, err
	}
	c := change{written: time.Since(started)}
	p, err := b.tap.wait(ctx, since, to)
	if err != nil {
		return c, err
	}
	c.sent, c.acked = p.passed.Sub(started), p.acked.Sub(started)
	requests, err := b.Requests(mark)
	if err != nil {
		return c, err
	}
	for _, r := range requests {
		if r.Resource == "proxyservers" && r.Subresource == "" && r.Write() {
			c.applied = r.Time.Sub(started)
			break
		}
	}
	return c, nil
}

// measureFloor sends the updates of this round to the other Envoy, which does nothing else.
func (b *bench) measureFloor(ctx context.Context) ([]time.Duration, error) {
	b.tap.mu.Lock()
	passages := b.tap.passages
	b.tap.mu.Unlock()
	var times []time.Duration
	for _, p := range passages {
		took, err := b.floor.measure(ctx, p.response)
		if err != nil {
			return nil, err
		}
		times = append(times, took)
		time.Sleep(pause)
	}
	return times, nil
}
