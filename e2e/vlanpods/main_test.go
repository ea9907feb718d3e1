package vlanpods

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/ociimage"
	"github.com/densityops/oooi/e2e/stack"
)

// imagesFolder is the variable in which the process outside of the namespaces leaves the folder of the images.
const imagesFolder = "OOOI_TEST_IMAGES"

// w is the world of all tests here.
var w *world

func TestMain(m *testing.M) {
	kubelet.InNamespaces(outside, func() { inside(m) })
}

// outside builds what needs the machine's network: the tools, and the image's files.
func outside() (func(), error) {
	folder, err := os.MkdirTemp("", "oooi-images-")
	if err != nil {
		return nil, err
	}
	cleanup := func() { _ = os.RemoveAll(folder) } // a folder of the temporary one
	err = os.Setenv(imagesFolder, folder)
	for variable, find := range map[string]func() (string, error){
		"KUBEBUILDER_ASSETS": stack.KubebuilderAssets, "ENVOY": stack.EnvoyBinary, "KUSTOMIZE": stack.Kustomize, "METALLB": stack.MetalLB,
		"EXTERNAL_DNS": stack.ExternalDNS,
	} {
		path, e := find()
		err = errors.Join(err, e, os.Setenv(variable, path))
	}
	if err == nil && os.Getenv("OOOI_IMAGE") == "" {
		err = build(filepath.Join(folder, "oooi-binary"))
	}
	if err != nil {
		cleanup()
		return nil, err
	}
	return cleanup, nil
}

// build builds oooi as the image holds it.
func build(binary string) error {
	root, err := stack.Root()
	if err != nil {
		return err
	}
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/oooi")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building oooi: %w\n%s", err, out)
	}
	return nil
}

// oooiImage is the image of `make image` where OOOI_IMAGE names it, or one that is made as that one is.
func oooiImage() (kubelet.Image, error) {
	folder := filepath.Join(os.Getenv(imagesFolder), "oooi")
	archive := os.Getenv("OOOI_IMAGE")
	if archive == "" {
		image, err := kubelet.NewImage(folder, map[string]string{"/usr/local/bin/oooi": filepath.Join(os.Getenv(imagesFolder), "oooi-binary")})
		image.Env = []string{"PATH=/usr/local/bin:/usr/bin:/bin"}
		image.Entrypoint = []string{"/usr/local/bin/oooi"}
		return image, err
	}
	if err := ociimage.Unpack(archive, folder); err != nil {
		return kubelet.Image{}, err
	}
	layout, err := ociimage.Open(archive)
	if err != nil {
		return kubelet.Image{}, err
	}
	_, config, err := layout.Image(ociimage.Platform{OS: "linux", Architecture: "amd64"})
	if err != nil {
		return kubelet.Image{}, err
	}
	image := kubelet.Image{
		Root: folder, Env: config.Config.Env, Entrypoint: config.Config.Entrypoint, Cmd: config.Config.Cmd, WorkingDir: config.Config.WorkingDir,
	}
	if _, err := fmt.Sscanf(config.Config.User, "%d:%d", &image.UID, &image.GID); err != nil {
		return image, fmt.Errorf("user %q of the image: %w", config.Config.User, err)
	}
	return image, nil
}

// envoyImage stands in for Envoy's distroless image: the binary at a place of the PATH, and the libraries that it needs.
func envoyImage() (kubelet.Image, error) {
	binary, err := stack.EnvoyBinary()
	if err != nil {
		return kubelet.Image{}, err
	}
	return kubelet.NewImage(filepath.Join(os.Getenv(imagesFolder), "envoy"), map[string]string{"/usr/local/bin/envoy": binary})
}

// inside runs the tests in the world that they share.
func inside(m *testing.M) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	var err error
	w, err = newWorld(ctx)
	cancel()
	code := 1
	if err == nil {
		code = m.Run()
	} else {
		fmt.Fprintln(os.Stderr, "e2e/vlanpods:", err)
	}
	if code != 0 {
		fmt.Fprintln(os.Stderr, w.tails())
	}
	if err := w.stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/vlanpods:", err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "e2e/vlanpods:", err)
		code = 1
	}
	os.Exit(code)
}

// kustomize builds a folder of the checkout.
func kustomize(ctx context.Context, folder string) ([]byte, error) {
	root, err := stack.Root()
	if err != nil {
		return nil, err
	}
	binary, err := stack.Kustomize()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, binary, "build", filepath.Join(root, folder))
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("kustomize build %s: %w: %s", folder, err, strings.TrimSpace(string(exit.Stderr)))
	}
	return out, err
}
