package ociimage

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"runtime"
	"strings"
)

// Unpack writes the root of the image for this machine, in the layout at archive, into dir, which it makes. Owners are set
// when it runs as root, as a container runtime sets them; else all belongs to the user.
func Unpack(archive, dir string) error {
	return UnpackPlatform(archive, dir, Platform{OS: "linux", Architecture: runtime.GOARCH})
}

// UnpackPlatform is Unpack for another machine than this.
func UnpackPlatform(archive, dir string, platform Platform) error {
	a, err := Open(archive)
	if err != nil {
		return err
	}
	manifest, _, err := a.Image(platform)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }() // a folder's handle
	for _, layer := range manifest.Layers {
		blob, err := a.Blob(layer)
		if err != nil {
			return err
		}
		if err := unpackLayer(root, blob); err != nil {
			return fmt.Errorf("image %s: layer %s: %w", archive, layer.Digest, err)
		}
	}
	return nil
}

func unpackLayer(root *os.Root, blob []byte) error {
	content, err := gzip.NewReader(bytes.NewReader(blob))
	if err != nil {
		return err
	}
	for reader := tar.NewReader(content); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := unpackFile(root, header, reader); err != nil {
			return fmt.Errorf("%s: %w", header.Name, err)
		}
	}
}

func unpackFile(root *os.Root, header *tar.Header, content io.Reader) error {
	name := path.Clean(strings.TrimPrefix(header.Name, "/"))
	if strings.HasPrefix(path.Base(name), ".wh.") {
		return errors.New("takes a file of an earlier layer away, which is not known here")
	}
	switch header.Typeflag {
	case tar.TypeDir:
		if err := root.MkdirAll(name, 0o755); err != nil {
			return err
		}
	case tar.TypeReg:
		if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
			return err
		}
		f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, content)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	default:
		return fmt.Errorf("is of type %q, which is not known here", header.Typeflag)
	}
	if os.Geteuid() == 0 {
		if err := root.Lchown(name, header.Uid, header.Gid); err != nil {
			return err
		}
	}
	// Last: a change of owner takes the set-user-id bits away, and the umask does not concern it.
	return root.Chmod(name, header.FileInfo().Mode())
}
