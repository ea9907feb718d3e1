package kubelet_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/densityops/oooi/e2e/controlplane"
	"github.com/densityops/oooi/e2e/kubelet"
	"github.com/densityops/oooi/e2e/stack"
)

// The world of all tests here.
var (
	nodes   *kubelet.Kubelet
	network *kubelet.Network
	api     *controlplane.ControlPlane
)

// assets is where outside leaves the path of the image's folder.
const imageFolder = "OOOI_TEST_KUBELET_IMAGE"

func TestMain(m *testing.M) {
	kubelet.InNamespaces(outside, func() { inside(m) })
}

// outside builds what needs the machine's network.
func outside() (func(), error) {
	assets, err := stack.KubebuilderAssets()
	if err != nil {
		return nil, err
	}
	folder, err := os.MkdirTemp("", "oooi-kubelet-image-")
	if err != nil {
		return nil, err
	}
	cleanup := func() { _ = os.RemoveAll(folder) } // a folder of the temporary one
	if _, err := exec.LookPath("busybox"); err != nil {
		return cleanup, errors.New("busybox is missing: e2e/tools/debian-packages installs it")
	}
	return cleanup, errors.Join(os.Setenv("KUBEBUILDER_ASSETS", assets), os.Setenv(imageFolder, folder))
}

func inside(m *testing.M) {
	folder, err := os.MkdirTemp("", "oooi-kubelet-")
	if err == nil {
		err = start(folder)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e/kubelet:", err)
	}
	code := 1
	if err == nil {
		code = m.Run()
	}
	if code != 0 && api != nil {
		fmt.Fprintln(os.Stderr, api.Tails(20))
	}
	if code != 0 && nodes != nil {
		fmt.Fprintln(os.Stderr, nodes.Tails(10))
	}
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e/kubelet:", err)
		code = 1
	}
	if err := goleak.Find(); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, "e2e/kubelet:", err)
		code = 1
	}
	_ = os.RemoveAll(folder) // a folder of the temporary one
	os.Exit(code)
}

func start(folder string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	var err error
	if network, err = kubelet.NewNetwork(); err != nil {
		return err
	}
	if api, err = controlplane.StartWith(ctx, folder, controlplane.Options{
		Nodes: true, Address: kubelet.NodeAddress.String(), PodCIDR: kubelet.PodCIDR.String(), ServiceCIDR: kubelet.ServiceCIDR.String(), Node: "node-1",
	}); err != nil {
		return err
	}
	if err := api.InstallNeighbours(ctx, controlplane.AttachmentDefinitions); err != nil {
		return err
	}
	for _, part := range []*controlplane.Part{api.ControllerManager, api.Scheduler} {
		if err := part.Start(ctx); err != nil {
			return err
		}
	}
	image, err := shell(os.Getenv(imageFolder))
	if err != nil {
		return err
	}
	nodes, err = kubelet.Start(ctx, kubelet.Config{
		Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		API: api.AdminConfig(), Network: network, Nodes: []string{"node-1", "node-2"}, Folder: folder,
		Images: map[string]kubelet.Image{"shell": image},
	})
	if err != nil {
		return err
	}
	return api.Proxy.Start(ctx)
}

func stop() error {
	var errs []error
	if nodes != nil {
		errs = append(errs, nodes.Stop())
	}
	if api != nil {
		errs = append(errs, api.Stop())
	}
	return errors.Join(errs...)
}

// shell is an image with a shell and what goes with it.
func shell(folder string) (kubelet.Image, error) {
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return kubelet.Image{}, err
	}
	image, err := kubelet.NewImage(folder, map[string]string{"/bin/busybox": busybox})
	if err != nil {
		return image, err
	}
	for _, applet := range strings.Fields("sh cat echo sleep id ls mkdir touch nc httpd ip wget trap kill hostname grep") {
		err := os.Symlink("busybox", filepath.Join(folder, "bin", applet))
		if err != nil && !errors.Is(err, os.ErrExist) {
			return image, err
		}
	}
	return image, nil
}

// apply applies manifests as the user would.
func apply(t *testing.T, manifests string) {
	t.Helper()
	if _, err := api.Apply(t.Context(), "user", []byte(manifests)); err != nil {
		t.Fatal(err)
	}
}

// namespace makes one for a test, and deletes it at the end with all that is in it.
func namespace(t *testing.T) string {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
	apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}\n")
	resource := api.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	// Pods need the account that a controller makes.
	accounts := api.Dynamic.Resource(schema.GroupVersionResource{Version: "v1", Resource: "serviceaccounts"}).Namespace(name)
	eventually(t, "the default ServiceAccount", func(ctx context.Context) error {
		_, err := accounts.Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	t.Cleanup(func() {
		if err := resource.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	return name
}

func eventually(t *testing.T, what string, condition func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := stack.Until(ctx, what, condition); err != nil {
		t.Fatal(err)
	}
}

// deployment waits until all replicas of a Deployment are available.
func deployment(t *testing.T, namespace, name string) {
	t.Helper()
	client := api.Dynamic.Resource(appsv1.SchemeGroupVersion.WithResource("deployments")).Namespace(namespace)
	eventually(t, "Deployment "+name, func(ctx context.Context) error {
		object, err := client.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &d); err != nil {
			return err
		}
		if d.Status.ObservedGeneration != d.Generation || d.Status.AvailableReplicas != *d.Spec.Replicas {
			return fmt.Errorf("%d of %d replicas are available", d.Status.AvailableReplicas, *d.Spec.Replicas)
		}
		return nil
	})
}

// printed waits until a container has printed a text, and returns all that it has printed.
func printed(t *testing.T, namespace, pod, container, text string) string {
	t.Helper()
	var log string
	eventually(t, fmt.Sprintf("%q from %s", text, pod), func(context.Context) error {
		if log = nodes.Log(namespace, pod, container); !strings.Contains(log, text) {
			return fmt.Errorf("printed so far: %s", log)
		}
		return nil
	})
	return log
}
