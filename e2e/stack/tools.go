package stack

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Root is the folder of the module, found from the working directory upwards.
func Root() (string, error) {
	folder, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/densityops/oooi\n")) {
			return folder, nil
		}
		parent := filepath.Dir(folder)
		if parent == folder {
			return "", fmt.Errorf("not inside a checkout of oooi: no go.mod of it above the working directory")
		}
		folder = parent
	}
}

// EnvoyBinary is the path of Envoy: $ENVOY, or the one that e2e/tools/envoy installs.
func EnvoyBinary() (string, error) { return tool("ENVOY", "envoy") }

// Grpcurl is the path of grpcurl: $GRPCURL, or the one that e2e/tools/build builds.
func Grpcurl() (string, error) { return tool("GRPCURL", "build", "grpcurl") }

// Kustomize is the path of kustomize: $KUSTOMIZE, or the one that e2e/tools/build builds.
func Kustomize() (string, error) { return tool("KUSTOMIZE", "build", "kustomize") }

// OooiImage is the path of oooi's container image, an OCI image layout in a tar file: $OOOI_IMAGE, or the one that
// `make image` builds of the tree as it is.
func OooiImage() (string, error) { return tool("OOOI_IMAGE", "image") }

// KubebuilderAssets is the folder of the parts of a control plane, kube-apiserver and etcd among them: $KUBEBUILDER_ASSETS, or the one
// that e2e/tools/kubebuilder-assets fills.
func KubebuilderAssets() (string, error) { return tool("KUBEBUILDER_ASSETS", "kubebuilder-assets") }

// MetalLB is the folder of MetalLB's controller and speaker, its definitions and its roles: $METALLB, or the one that
// e2e/tools/metallb-parts fills.
func MetalLB() (string, error) { return tool("METALLB", "metallb-parts") }

// ExternalDNS is the path of ExternalDNS: $EXTERNAL_DNS, or the one that e2e/tools/build builds.
func ExternalDNS() (string, error) { return tool("EXTERNAL_DNS", "build", "external-dns") }

// tool returns the value of an environment variable, or the path that a script under e2e/tools prints.
func tool(variable string, script ...string) (string, error) {
	if path := os.Getenv(variable); path != "" {
		return path, nil
	}
	root, err := Root()
	if err != nil {
		return "", err
	}
	cmd := exec.Command(filepath.Join(root, "e2e", "tools", script[0]), script[1:]...)
	cmd.Stderr = os.Stderr
	path, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("e2e/tools/%s: %w", strings.Join(script, " "), err)
	}
	return strings.TrimSpace(string(path)), nil
}
