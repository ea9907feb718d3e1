package hosted_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/densityops/oooi/e2e/hosted"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/stack"
)

const (
	bridge     = "br0.100"
	baseDomain = "clusters.example.com"
)

// The world of all tests here: two hosted clusters on one VLAN, and a client on it.
var (
	site     *stack.Site
	network  *kubelet.Network
	client   stack.Host
	clusters [2]*hosted.Cluster
)

// macs are the hardware addresses of the workers.
var macs = [2]string{"52:54:00:00:04:01", "52:54:00:00:04:02"}

func TestMain(m *testing.M) {
	kubelet.InNamespaces(outside, func() { inside(m) })
}

// outside builds what needs the machine's network.
func outside() (func(), error) {
	var err error
	for variable, find := range map[string]func() (string, error){
		"KUBEBUILDER_ASSETS": stack.KubebuilderAssets, "METALLB": stack.MetalLB, "EXTERNAL_DNS": stack.ExternalDNS,
	} {
		path, e := find()
		err = errors.Join(err, e, os.Setenv(variable, path))
	}
	return func() {}, err
}

func inside(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	err := start(ctx)
	cancel()
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "e2e/hosted:", err)
	}
	for _, c := range clusters {
		if c != nil && code != 0 {
			fmt.Fprintln(os.Stderr, c.Tails(20))
		}
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/hosted:", err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "e2e/hosted:", err)
		code = 1
	}
	os.Exit(code)
}

func start(ctx context.Context) error {
	var err error
	if site, err = stack.NewSite(); err != nil {
		return err
	}
	if network, err = kubelet.NewNetwork(); err != nil {
		return err
	}
	if client, err = network.Worker("client", bridge, "52:54:00:00:04:0a"); err != nil {
		return err
	}
	if err := network.Address(client, "vlan0", netip.MustParsePrefix("192.0.2.119/24")); err != nil {
		return err
	}
	var group errgroup.Group
	for i := range clusters {
		group.Go(func() error {
			c, err := hosted.Start(ctx, hosted.Options{
				Name: "example-hcp-" + string(rune('a'+i)), BaseDomain: baseDomain, Folder: site.Folder, CA: site.CA,
				VLAN: &hosted.VLAN{
					Network: network, Bridge: bridge, APIServer: netip.AddrFrom4([4]byte{10, 200, byte(i + 1), 1}),
					Worker: netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(117 + i)}), 24), MAC: macs[i],
				},
			})
			if err != nil {
				return err
			}
			clusters[i] = c
			if err := c.SetNode(ctx, true); err != nil {
				return err
			}
			return c.StartMetalLB(ctx, "")
		})
	}
	return group.Wait()
}

func stop() error {
	var errs []error
	for _, c := range clusters {
		if c != nil {
			errs = append(errs, c.Stop())
		}
	}
	if client != "" {
		errs = append(errs, network.Remove(client))
	}
	if site != nil {
		errs = append(errs, site.Stop())
	}
	return errors.Join(errs...)
}
