package kubelet

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// volume is a folder of a Pod's, there for as long as the Pod is.
type volume struct {
	folder string
	// readOnly ones hold what the API server says.
	readOnly bool
	// memory ones are mounts of their own.
	memory bool
}

// volumes makes those of a Pod, in a folder.
func (k *Kubelet) volumes(ctx context.Context, folder string, p *corev1.Pod, s *sandbox) (map[string]volume, error) {
	volumes := map[string]volume{}
	for _, v := range p.Spec.Volumes {
		made, err := k.volume(ctx, filepath.Join(folder, v.Name), p, s, v)
		if err != nil {
			return volumes, fmt.Errorf("volume %s: %w", v.Name, err)
		}
		volumes[v.Name] = made
	}
	return volumes, nil
}

func (k *Kubelet) volume(ctx context.Context, folder string, p *corev1.Pod, s *sandbox, v corev1.Volume) (volume, error) {
	made := volume{folder: folder}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return made, err
	}
	group := -1
	if c := p.Spec.SecurityContext; c != nil && c.FSGroup != nil {
		group = int(*c.FSGroup)
	}
	if v.EmptyDir != nil {
		if v.EmptyDir.Medium == corev1.StorageMediumMemory {
			if err := unix.Mount("tmpfs", folder, "tmpfs", 0, ""); err != nil {
				return made, err
			}
			made.memory = true
		}
		mode := fs.FileMode(0o777)
		if group >= 0 {
			mode |= fs.ModeSetgid
		}
		return made, errors.Join(os.Chown(folder, 0, group), os.Chmod(folder, mode)) // past the umask
	}

	made.readOnly = true
	w := writer{folder: folder, group: group}
	switch {
	case v.ConfigMap != nil:
		w.mode = mode(v.ConfigMap.DefaultMode)
		return made, k.configMap(ctx, w, p.Namespace, v.ConfigMap.Name, v.ConfigMap.Items, v.ConfigMap.Optional)
	case v.Secret != nil:
		w.mode = mode(v.Secret.DefaultMode)
		return made, k.secret(ctx, w, p.Namespace, v.Secret.SecretName, v.Secret.Items, v.Secret.Optional)
	case v.DownwardAPI != nil:
		w.mode = mode(v.DownwardAPI.DefaultMode)
		return made, k.downward(w, p, s, v.DownwardAPI.Items)
	case v.Projected != nil:
		w.mode = mode(v.Projected.DefaultMode)
		for _, source := range v.Projected.Sources {
			if err := k.project(ctx, w, p, s, source); err != nil {
				return made, err
			}
		}
		return made, nil
	}
	return made, errors.New("the test kubelet knows emptyDir, configMap, secret, downwardAPI and projected")
}

func (k *Kubelet) project(ctx context.Context, w writer, p *corev1.Pod, s *sandbox, source corev1.VolumeProjection) error {
	switch {
	case source.ServiceAccountToken != nil:
		return k.token(ctx, w, p, source.ServiceAccountToken)
	case source.ConfigMap != nil:
		return k.configMap(ctx, w, p.Namespace, source.ConfigMap.Name, source.ConfigMap.Items, source.ConfigMap.Optional)
	case source.Secret != nil:
		return k.secret(ctx, w, p.Namespace, source.Secret.Name, source.Secret.Items, source.Secret.Optional)
	case source.DownwardAPI != nil:
		return k.downward(w, p, s, source.DownwardAPI.Items)
	}
	return errors.New("the test kubelet knows no such projection")
}

// token writes a token of the Pod's ServiceAccount that is bound to the Pod. It is never renewed: no test takes that long.
func (k *Kubelet) token(ctx context.Context, w writer, p *corev1.Pod, source *corev1.ServiceAccountTokenProjection) error {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: p.Name, UID: p.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	answer, err := k.client.CoreV1().ServiceAccounts(p.Namespace).CreateToken(ctx, p.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of ServiceAccount %s: %w", p.Spec.ServiceAccountName, err)
	}
	return w.write(source.Path, []byte(answer.Status.Token), nil)
}

func (k *Kubelet) configMap(ctx context.Context, w writer, namespace, name string, items []corev1.KeyToPath, optional *bool) error {
	object, err := k.client.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return missing(err, optional)
	}
	data := map[string][]byte{}
	for key, text := range object.Data {
		data[key] = []byte(text)
	}
	for key, bytes := range object.BinaryData {
		data[key] = bytes
	}
	return w.items("ConfigMap "+name, data, items, optional)
}

func (k *Kubelet) secret(ctx context.Context, w writer, namespace, name string, items []corev1.KeyToPath, optional *bool) error {
	object, err := k.client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return missing(err, optional)
	}
	return w.items("Secret "+name, object.Data, items, optional)
}

func (k *Kubelet) downward(w writer, p *corev1.Pod, s *sandbox, items []corev1.DownwardAPIVolumeFile) error {
	for _, item := range items {
		if item.FieldRef == nil {
			return errors.New("the test kubelet knows fieldRef only")
		}
		text, err := field(p, s, item.FieldRef.FieldPath)
		if err != nil {
			return err
		}
		if err := w.write(item.Path, []byte(text), item.Mode); err != nil {
			return err
		}
	}
	return nil
}

// writer writes the files of a volume.
type writer struct {
	folder string
	mode   fs.FileMode
	// group owns the files, unless it is -1; what the owner may read it may read.
	group int
}

func (w writer) items(what string, data map[string][]byte, items []corev1.KeyToPath, optional *bool) error {
	if len(items) == 0 {
		for key := range data {
			items = append(items, corev1.KeyToPath{Key: key, Path: key})
		}
	}
	for _, item := range items {
		bytes, there := data[item.Key]
		if !there {
			if optional != nil && *optional {
				continue
			}
			return fmt.Errorf("%s has no key %s", what, item.Key)
		}
		if err := w.write(item.Path, bytes, item.Mode); err != nil {
			return err
		}
	}
	return nil
}

func (w writer) write(name string, data []byte, own *int32) error {
	file := filepath.Join(w.folder, name)
	if !filepath.IsLocal(name) {
		return fmt.Errorf("path %q leads out of the volume", name)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	bits := w.mode
	if own != nil {
		bits = fs.FileMode(*own)
	}
	if w.group >= 0 {
		bits |= 0o440
	}
	if err := os.WriteFile(file, data, bits); err != nil {
		return err
	}
	return errors.Join(os.Chown(file, 0, w.group), os.Chmod(file, bits)) // past the umask
}

// mode is the mode of a volume's files. The API server fills in its default.
func mode(bits *int32) fs.FileMode {
	if bits == nil {
		return 0o644
	}
	return fs.FileMode(*bits)
}

// missing is no error where what is missing may be.
func missing(err error, optional *bool) error {
	if optional != nil && *optional {
		return nil
	}
	return err
}
