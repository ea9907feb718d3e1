package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// The user of the image: nobody in particular, and not root, so that a Pod with runAsNonRoot is admitted as it is.
const user = 65532

const (
	spdxType  = "application/spdx+json"
	emptyType = "application/vnd.oci.empty.v1+json" // OCI image spec 1.1, "Guidance for an empty descriptor"
)

// newIndex gives one image for each binary, in their order, and after them the SPDX document of each.
func newIndex(r release, binaries []binary, sbom []byte) (v1.ImageIndex, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	var images, documents []mutate.IndexAddendum
	for _, b := range binaries {
		image, err := newImage(r, b)
		if err != nil {
			return nil, fmt.Errorf("image for %s: %w", b.platform, err)
		}
		subject, err := partial.Descriptor(image)
		if err != nil {
			return nil, err
		}
		document, err := newArtifact(r, sbom, *subject)
		if err != nil {
			return nil, fmt.Errorf("SPDX document for %s: %w", b.platform, err)
		}
		images = append(images, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &b.platform}})
		documents = append(documents, mutate.IndexAddendum{Add: document, Descriptor: v1.Descriptor{
			ArtifactType: spdxType,
			// Whoever picks an image by platform must never take this one for it.
			Platform: &v1.Platform{OS: "unknown", Architecture: "unknown"},
		}})
	}
	index = mutate.AppendManifests(index, append(images, documents...)...)
	return mutate.Annotations(index, r.annotations()).(v1.ImageIndex), nil
}

// annotations are what registries and scanners show of an image (OCI image spec 1.1, "Pre-defined annotation keys").
func (r release) annotations() map[string]string {
	return map[string]string{
		"org.opencontainers.image.title":       "oooi",
		"org.opencontainers.image.description": "DHCP, split-horizon DNS and Envoy's control plane for HyperShift hosted clusters on one VLAN",
		"org.opencontainers.image.version":     r.version,
		"org.opencontainers.image.revision":    r.commit,
		"org.opencontainers.image.created":     r.created.Format(time.RFC3339),
		"org.opencontainers.image.licenses":    "Apache-2.0",
		"org.opencontainers.image.source":      r.source,
	}
}

func newImage(r release, b binary) (v1.Image, error) {
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		reader, writer := io.Pipe()
		go func() { writer.CloseWithError(writeRoot(writer, b, r.created)) }() // ends with the reader
		return reader, nil
	}, tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.ConfigFile(image, &v1.ConfigFile{
		OS: b.platform.OS, Architecture: b.platform.Architecture, Variant: b.platform.Variant,
		Created: v1.Time{Time: r.created},
		RootFS:  v1.RootFS{Type: "layers"},
		Config: v1.Config{
			// As numbers: the kubelet checks runAsNonRoot without looking into the passwd file.
			User: fmt.Sprintf("%d:%d", user, user),
			// The manifests say "command: [oooi]". State goes to /var/lib/oooi for whatever user, as it does for root.
			Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin", "XDG_STATE_HOME=/var/lib"},
			Entrypoint: []string{"/" + binaryPath},
			WorkingDir: "/",
			Labels:     r.annotations(),
		},
	})
	if err != nil {
		return nil, err
	}
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{
		Created: v1.Time{Time: r.created}, CreatedBy: "image", Comment: "oooi " + r.version,
	}})
	if err != nil {
		return nil, err
	}
	return mutate.Annotations(image, r.annotations()).(v1.Image), nil
}

const binaryPath = "usr/local/bin/oooi"

// writeRoot writes the files of the image as a tar file. No certificates: oooi speaks TLS with API servers only, and
// knows these by the CA of its account or of a kubeconfig.
func writeRoot(w io.Writer, b binary, modified time.Time) error {
	passwd := fmt.Sprintf("root:x:0:0:root:/:/sbin/nologin\nnonroot:x:%d:%d:nonroot:/:/sbin/nologin\n", user, user)
	group := fmt.Sprintf("root:x:0:\nnonroot:x:%d:\n", user)
	archive := tar.NewWriter(w)
	add := func(header tar.Header, content io.Reader) error {
		header.Format, header.ModTime = tar.FormatPAX, modified
		if err := archive.WriteHeader(&header); err != nil {
			return err
		}
		if content == nil {
			return nil
		}
		_, err := io.Copy(archive, content)
		return err
	}
	text := func(name, content string) error {
		return add(tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content))}, bytes.NewReader([]byte(content)))
	}
	for _, folder := range []tar.Header{
		{Name: "etc/", Mode: 0o755},
		{Name: "tmp/", Mode: 0o1777},
		{Name: "usr/", Mode: 0o755},
		{Name: "usr/local/", Mode: 0o755},
		{Name: "usr/local/bin/", Mode: 0o755},
		{Name: "var/", Mode: 0o755},
		{Name: "var/lib/", Mode: 0o755},
		// The state folder, should nothing be mounted there.
		{Name: "var/lib/oooi/", Mode: 0o700, Uid: user, Gid: user},
	} {
		folder.Typeflag = tar.TypeDir
		if err := add(folder, nil); err != nil {
			return err
		}
	}
	if err := text("etc/group", group); err != nil {
		return err
	}
	if err := text("etc/passwd", passwd); err != nil {
		return err
	}
	f, err := os.Open(b.path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	if err := add(tar.Header{Typeflag: tar.TypeReg, Name: binaryPath, Mode: 0o755, Size: b.size}, f); err != nil {
		return err
	}
	return archive.Close()
}

// artifact is a manifest that refers to an image and is none (OCI image spec 1.1, "Guidelines for artifact usage").
type artifact struct {
	manifest []byte
	content  v1.Layer
}

var _ partial.CompressedImageCore = artifact{}

func newArtifact(r release, content []byte, subject v1.Descriptor) (v1.Image, error) {
	layer := static.NewLayer(content, spdxType)
	descriptor, err := partial.Descriptor(layer)
	if err != nil {
		return nil, err
	}
	descriptor.Annotations = map[string]string{"org.opencontainers.image.title": "oooi.spdx.json"}
	config, _, err := v1.SHA256(bytes.NewReader(emptyConfig))
	if err != nil {
		return nil, err
	}
	manifest, err := json.Marshal(v1.Manifest{
		SchemaVersion: 2, MediaType: types.OCIManifestSchema1, ArtifactType: spdxType,
		Config:      v1.Descriptor{MediaType: emptyType, Digest: config, Size: int64(len(emptyConfig)), Data: emptyConfig},
		Layers:      []v1.Descriptor{*descriptor},
		Subject:     &v1.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size},
		Annotations: map[string]string{"org.opencontainers.image.created": r.created.Format(time.RFC3339)},
	})
	if err != nil {
		return nil, err
	}
	return partial.CompressedToImage(artifact{manifest: manifest, content: layer})
}

var emptyConfig = []byte("{}")

func (a artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }
func (a artifact) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a artifact) RawConfigFile() ([]byte, error)      { return emptyConfig, nil }

func (a artifact) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if have, err := a.content.Digest(); err != nil || have != digest {
		return nil, fmt.Errorf("no layer %s in the artifact", digest)
	}
	return a.content, nil
}
