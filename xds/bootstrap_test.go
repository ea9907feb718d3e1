package xds

import (
	"strings"
	"testing"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"sigs.k8s.io/yaml"
)

func TestBootstrap(t *testing.T) {
	config := BootstrapConfig{Infra: testInfra, NodeID: "pod-1", XDSHost: "oooi.example.com", XDSPort: 18000, AdminAddress: "127.0.0.1:9901", MaxConnections: 5}
	text, err := Bootstrap(config)
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		t.Fatal(err)
	}
	if b.GetNode().GetCluster() != testInfra || b.GetNode().GetId() != "pod-1" {
		t.Errorf("node %v", b.GetNode())
	}
	for _, want := range []string{"api_type: DELTA_GRPC", "address: oooi.example.com", "type: STRICT_DNS", "port_value: 18000", "port_value: 9901", `max_active_downstream_connections: "5"`, "buffer_size_kb: 32"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	again, err := Bootstrap(config)
	if err != nil || string(again) != string(text) {
		t.Errorf("the second time it differs: %v", err)
	}
}

// TestBootstrapForManyEnvoys is one text that Envoys share, each of which is told who it is by --service-node.
func TestBootstrapForManyEnvoys(t *testing.T) {
	text, err := Bootstrap(BootstrapConfig{Infra: testInfra, XDSHost: "127.0.0.1", XDSPort: 18000, AdminAddress: "127.0.0.1:9901"})
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSONStrict(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &bootstrapv3.Bootstrap{}
	if err := protojson.Unmarshal(asJSON, b); err != nil {
		t.Fatal(err)
	}
	if b.GetNode().GetCluster() != testInfra || b.GetNode().GetId() != "" {
		t.Errorf("node %v", b.GetNode())
	}
}

func TestBootstrapRefuses(t *testing.T) {
	for want, change := range map[string]func(*BootstrapConfig){
		`bootstrap: Infra "" is not NAMESPACE/NAME`:                                     func(c *BootstrapConfig) { c.Infra = "" },
		`bootstrap: Infra "a/b/c" is not NAMESPACE/NAME`:                                func(c *BootstrapConfig) { c.Infra = "a/b/c" },
		"bootstrap: the host of the control plane is missing":                           func(c *BootstrapConfig) { c.XDSHost = "" },
		"bootstrap: port 0 of the control plane is out of range":                        func(c *BootstrapConfig) { c.XDSPort = 0 },
		"bootstrap: admin address: address 127.0.0.1: missing port in address":          func(c *BootstrapConfig) { c.AdminAddress = "127.0.0.1" },
		`bootstrap: admin address: "localhost:1": "localhost" is not an IP address`:     func(c *BootstrapConfig) { c.AdminAddress = "localhost:1" },
		`bootstrap: admin address: "127.0.0.1:x": port "x" is not a number up to 65535`: func(c *BootstrapConfig) { c.AdminAddress = "127.0.0.1:x" },
	} {
		config := BootstrapConfig{Infra: testInfra, NodeID: "pod-1", XDSHost: "127.0.0.1", XDSPort: 18000, AdminAddress: "127.0.0.1:9901"}
		change(&config)
		if _, err := Bootstrap(config); err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
