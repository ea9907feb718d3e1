package hosted_test

import (
	"context"
	"net"
	"testing"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/hosted"
)

// TestKubeconfigs uses kubeconfigs as HyperShift writes them, by way of an address that they do not name.
func TestKubeconfigs(t *testing.T) {
	a := clusters[0]
	for name, tc := range map[string]struct {
		credentials controlplane.Credentials
		refused     bool
	}{
		"certificate":         {controlplane.ClientCertificate, false},
		"token":               {controlplane.BearerToken, false},
		"expired certificate": {controlplane.ExpiredCertificate, true},
		"unknown token":       {controlplane.UnknownToken, true},
	} {
		t.Run(name, func(t *testing.T) {
			raw, err := a.Kubeconfig(t.Context(), 443, tc.credentials)
			if err != nil {
				t.Fatal(err)
			}
			config, err := clientcmd.RESTConfigFromKubeConfig(raw)
			if err != nil {
				t.Fatal(err)
			}
			if want := "https://api.example-hcp-a." + baseDomain + ":443"; config.Host != want {
				t.Errorf("server %s, want %s", config.Host, want)
			}
			config.Dial = func(ctx context.Context, _, address string) (net.Conn, error) {
				if want := "api.example-hcp-a." + baseDomain + ":443"; address != want {
					t.Errorf("dialled %s, want %s", address, want)
				}
				return (&net.Dialer{}).DialContext(ctx, "tcp", a.ControlPlane.AdminConfig().Host[len("https://"):])
			}
			client, err := discovery.NewDiscoveryClientForConfig(config)
			if err != nil {
				t.Fatal(err)
			}
			// /version is for everybody, /api for those who are known.
			_, err = client.ServerGroups()
			if (err != nil) != tc.refused {
				t.Errorf("refused %v, want %v: %v", err != nil, tc.refused, err)
			}
		})
	}
	if want := "10.200.1.1:6443"; a.URL() != "https://"+want {
		t.Errorf("%s, want %s at port %d", a.URL(), want, hosted.APIPort)
	}
}
