package ociimage

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
)

// Descriptor refers to a blob of the layout.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	ArtifactType string            `json:"artifactType"`
	Digest       string            `json:"digest"`
	Size         int64             `json:"size"`
	Annotations  map[string]string `json:"annotations"`
	Platform     *Platform         `json:"platform"`
}

// Platform is that of an image in an index.
type Platform struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
}

// Index lists manifests.
type Index struct {
	Manifests   []Descriptor      `json:"manifests"`
	Annotations map[string]string `json:"annotations"`
}

// Manifest is that of an image, or of an artifact that refers to one.
type Manifest struct {
	ArtifactType string            `json:"artifactType"`
	Config       Descriptor        `json:"config"`
	Layers       []Descriptor      `json:"layers"`
	Subject      *Descriptor       `json:"subject"`
	Annotations  map[string]string `json:"annotations"`
}

// Config is what an image asks of a runtime.
type Config struct {
	Platform
	Config struct {
		User       string            `json:"User"`
		Env        []string          `json:"Env"`
		Entrypoint []string          `json:"Entrypoint"`
		Cmd        []string          `json:"Cmd"`
		WorkingDir string            `json:"WorkingDir"`
		Labels     map[string]string `json:"Labels"`
	} `json:"config"`
}

// Archive is a layout, read into memory.
type Archive struct {
	path  string
	files map[string][]byte
}

// Open reads the tar file at path.
func Open(path string) (*Archive, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	a := &Archive{path: path, files: map[string][]byte{}}
	for reader := tar.NewReader(f); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			return a, nil
		}
		if err == nil && header.Typeflag == tar.TypeReg {
			a.files[header.Name], err = io.ReadAll(reader)
		}
		if err != nil {
			return nil, fmt.Errorf("image %s: %w", path, err)
		}
	}
}

// Entries lists what the layout itself refers to: for `make image` the one index.
func (a *Archive) Entries() ([]Descriptor, error) {
	var index Index
	text, ok := a.files["index.json"]
	if !ok {
		return nil, fmt.Errorf("image %s: no index.json: not an OCI image layout", a.path)
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return nil, fmt.Errorf("image %s: index.json: %w", a.path, err)
	}
	return index.Manifests, nil
}

// Index is the one that the layout has as its only entry.
func (a *Archive) Index() (Index, error) {
	entries, err := a.Entries()
	if err != nil {
		return Index{}, err
	}
	if len(entries) != 1 {
		return Index{}, fmt.Errorf("image %s: %d entries in index.json, want one", a.path, len(entries))
	}
	var index Index
	return index, a.Parse(entries[0], &index)
}

// Image is that of a platform.
func (a *Archive) Image(platform Platform) (Manifest, Config, error) {
	var manifest Manifest
	var config Config
	index, err := a.Index()
	if err != nil {
		return manifest, config, err
	}
	for _, d := range index.Manifests {
		if d.Platform == nil || *d.Platform != platform {
			continue
		}
		if err := a.Parse(d, &manifest); err != nil {
			return manifest, config, err
		}
		return manifest, config, a.Parse(manifest.Config, &config)
	}
	return manifest, config, fmt.Errorf("image %s: none for %s/%s in it", a.path, platform.OS, platform.Architecture)
}

// Parse decodes a blob that is JSON.
func (a *Archive) Parse(d Descriptor, into any) error {
	blob, err := a.Blob(d)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(blob, into); err != nil {
		return fmt.Errorf("image %s: %s: %w", a.path, d.Digest, err)
	}
	return nil
}

// Blob is what a descriptor refers to. It fails for content of another size or digest.
func (a *Archive) Blob(d Descriptor) ([]byte, error) {
	var name string
	if len(d.Digest) > 7 && d.Digest[:7] == "sha256:" {
		name = path.Join("blobs/sha256", d.Digest[7:])
	}
	blob, ok := a.files[name]
	if !ok {
		return nil, fmt.Errorf("image %s: no blob %q", a.path, d.Digest)
	}
	if sum := sha256.Sum256(blob); int64(len(blob)) != d.Size || hex.EncodeToString(sum[:]) != d.Digest[7:] {
		return nil, fmt.Errorf("image %s: blob %s is damaged: %d bytes of digest sha256:%x, want %d", a.path, d.Digest, len(blob), sum, d.Size)
	}
	return blob, nil
}
