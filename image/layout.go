package main

import (
	"archive/tar"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// writeLayout writes the OCI image layout (OCI image spec 1.1, "Image Layout") that has the index as its only entry.
func writeLayout(folder string, r release, index v1.ImageIndex) error {
	path, err := layout.Write(folder, empty.Index)
	if err != nil {
		return err
	}
	return path.AppendIndex(index, layout.WithAnnotations(map[string]string{
		"org.opencontainers.image.ref.name": r.tag(),                // what skopeo and crane ask for
		"io.containerd.image.name":          r.name + ":" + r.tag(), // what ctr and podman call the image then
	}))
}

// pack writes the files of a folder into a tar file: in the order of their names, all of one time and of root.
func pack(folder, path string, modified time.Time) (err error) {
	out, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() {
		if err2 := out.Close(); err == nil {
			err = err2
		}
	}()
	archive := tar.NewWriter(out)
	err = filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
		if err != nil || name == folder {
			return err
		}
		inside, err := filepath.Rel(folder, name)
		if err != nil {
			return err
		}
		header := tar.Header{Format: tar.FormatPAX, ModTime: modified, Name: filepath.ToSlash(inside)}
		if entry.IsDir() {
			header.Typeflag, header.Mode, header.Name = tar.TypeDir, 0o755, header.Name+"/"
			return archive.WriteHeader(&header)
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		header.Typeflag, header.Mode, header.Size = tar.TypeReg, 0o644, info.Size()
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		defer func() { _ = f.Close() }() // only read
		_, err = io.Copy(archive, f)
		return err
	})
	if err != nil {
		return err
	}
	return archive.Close()
}
