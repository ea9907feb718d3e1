package e2e

import (
	"bytes"
	"debug/elf"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/densityops/oooi/e2e/ociimage"
	"github.com/densityops/oooi/e2e/stack"
)

// TestImage looks at what `make image` builds, as container runtimes, registries and scanners do.
func TestImage(t *testing.T) {
	t.Parallel()
	path, err := stack.OooiImage()
	if err != nil {
		t.Fatal(err)
	}
	archive, err := ociimage.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(t.TempDir(), "root")
	if err := ociimage.Unpack(path, folder); err != nil {
		t.Fatal(err)
	}
	here := ociimage.Platform{OS: "linux", Architecture: runtime.GOARCH}
	_, config, err := archive.Image(here)
	if err != nil {
		t.Fatal(err)
	}

	t.Run("config", func(t *testing.T) {
		// The hub's manifest has runAsNonRoot and neither a user nor a command.
		if config.Config.User != "65532:65532" {
			t.Errorf("the user is %q: the kubelet admits runAsNonRoot for a number other than 0", config.Config.User)
		}
		if !slices.Equal(config.Config.Entrypoint, []string{"/usr/local/bin/oooi"}) || len(config.Config.Cmd) != 0 {
			t.Errorf("entrypoint %q, command %q", config.Config.Entrypoint, config.Config.Cmd)
		}
		for _, key := range []string{"title", "version", "revision", "created", "licenses", "source"} {
			if config.Config.Labels["org.opencontainers.image."+key] == "" {
				t.Errorf("no label org.opencontainers.image.%s: %v", key, config.Config.Labels)
			}
		}
		entries, err := archive.Entries()
		if err != nil {
			t.Fatal(err)
		}
		// Tools ask for an entry by name, and refuse a layout with several when they are given none.
		if len(entries) != 1 || entries[0].Annotations["org.opencontainers.image.ref.name"] == "" || entries[0].Annotations["io.containerd.image.name"] == "" {
			t.Errorf("entries of the layout: %+v", entries)
		}
	})
	t.Run("files", func(t *testing.T) {
		var have []string
		err := filepath.WalkDir(folder, func(name string, entry fs.DirEntry, err error) error {
			if err == nil && !entry.IsDir() {
				have = append(have, strings.TrimPrefix(name, folder))
			}
			return err
		})
		if want := []string{"/etc/group", "/etc/passwd", "/usr/local/bin/oooi"}; err != nil || !slices.Equal(have, want) {
			t.Errorf("files %v, want %v: %v", have, want, err)
		}
	})
	t.Run("runs", func(t *testing.T) {
		if os.Geteuid() != 0 {
			t.Fatal("needs root for a mount namespace: run the tests as root")
		}
		env := append([]string{"-i"}, config.Config.Env...)
		out, err := exec.CommandContext(t.Context(), "unshare", append([]string{"--mount", "sh", "-euc", `
			root=$1; shift
			mount --bind "$root" "$root"
			mount -o remount,bind,ro "$root"
			exec env "$@"`, "sh", folder}, append(env, "/usr/sbin/chroot", "--userspec="+config.Config.User, "--groups=", folder, "oooi", "version")...)...).CombinedOutput()
		want := "oooi " + config.Config.Labels["org.opencontainers.image.version"] + "\ncommit " + config.Config.Labels["org.opencontainers.image.revision"] + "\n"
		if err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("oooi version by user %s on a read-only root: %v\n%s\nwant %s", config.Config.User, err, out, want)
		}
	})
	for platform, machine := range map[ociimage.Platform]elf.Machine{
		{OS: "linux", Architecture: "amd64"}: elf.EM_X86_64,
		{OS: "linux", Architecture: "arm64"}: elf.EM_AARCH64,
	} {
		t.Run("platform "+platform.Architecture, func(t *testing.T) {
			folder := t.TempDir()
			if err := ociimage.UnpackPlatform(path, folder, platform); err != nil {
				t.Fatal(err)
			}
			f, err := elf.Open(filepath.Join(folder, "usr/local/bin/oooi"))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = f.Close() }()
			if f.Machine != machine {
				t.Errorf("the binary is for %v, want %v", f.Machine, machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP {
					t.Error("the binary asks for a dynamic linker, and the image has none")
				}
			}
			lacking, err := undeclared(filepath.Join(folder, "usr/local/bin/oooi"), billOfMaterials(t, archive, platform))
			if err != nil || len(lacking) != 0 {
				t.Errorf("the SPDX document lacks modules that are in the binary: %v %v", lacking, err)
			}
		})
	}
	t.Run("document beside the image", func(t *testing.T) {
		beside, err := os.ReadFile(strings.TrimSuffix(path, ".tar") + ".spdx.json")
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(beside, billOfMaterials(t, archive, here)) {
			t.Error("the SPDX document beside the image is another than the one in it")
		}
	})
}

// TestImageTwice builds the image from two copies of the source, in folders of different names.
func TestImageTwice(t *testing.T) {
	t.Parallel()
	first, second := filepath.Join(t.TempDir(), "a"), filepath.Join(t.TempDir(), "another", "folder")
	copyOfSource(t, root, first)
	copyOfSource(t, first, second)
	builder := filepath.Join(t.TempDir(), "image")
	runIn(t, filepath.Join(first, "image"), "go", "build", "-o", builder, ".")
	archives := make([][]byte, 0, 2)
	for _, source := range []string{first, second} {
		out := filepath.Join(source, "oooi-image.tar")
		runIn(t, source, builder, "-platforms", "linux/"+runtime.GOARCH, "-version", "v1.2.3+site", "-out", out)
		text, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		archives = append(archives, text)
		archive, err := ociimage.Open(out)
		if err != nil {
			t.Fatal(err)
		}
		entries, err := archive.Entries()
		if err != nil {
			t.Fatal(err)
		}
		if got := entries[0].Annotations["org.opencontainers.image.ref.name"]; got != "v1.2.3-site" {
			t.Errorf("tagged %q: a tag may not have a plus sign", got)
		}
	}
	if !bytes.Equal(archives[0], archives[1]) {
		t.Errorf("two builds of one source differ: %d and %d bytes", len(archives[0]), len(archives[1]))
	}
}

// billOfMaterials is the SPDX document that refers to the image of a platform.
func billOfMaterials(t *testing.T, archive *ociimage.Archive, platform ociimage.Platform) []byte {
	t.Helper()
	index, err := archive.Index()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(index.Manifests, func(d ociimage.Descriptor) bool { return d.Platform != nil && *d.Platform == platform })
	if at < 0 {
		t.Fatalf("no image for %v", platform)
	}
	for _, d := range index.Manifests {
		var manifest ociimage.Manifest
		if err := archive.Parse(d, &manifest); err != nil {
			t.Fatal(err)
		}
		if manifest.Subject == nil || manifest.Subject.Digest != index.Manifests[at].Digest || manifest.ArtifactType != "application/spdx+json" {
			continue
		}
		text, err := archive.Blob(manifest.Layers[0])
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	t.Fatalf("no SPDX document refers to the image for %v", platform)
	return nil
}

// undeclared lists the modules in a binary, by `go version -m`, that an SPDX document does not have: "path version".
func undeclared(binary string, document []byte) ([]string, error) {
	var spdx struct {
		SPDXVersion string `json:"spdxVersion"`
		Packages    []struct {
			Name        string `json:"name"`
			VersionInfo string `json:"versionInfo"`
		} `json:"packages"`
	}
	if err := json.Unmarshal(document, &spdx); err != nil {
		return nil, err
	}
	if spdx.SPDXVersion != "SPDX-2.3" {
		return nil, fmt.Errorf("the document is of version %q", spdx.SPDXVersion)
	}
	declared := map[string]bool{}
	for _, p := range spdx.Packages {
		declared[p.Name+" "+p.VersionInfo] = true
	}
	out, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		return nil, err
	}
	var lacking []string
	modules := 0
	lines := strings.Split(string(out), "\n")
	for i, line := range lines {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "dep" && fields[0] != "=>" {
			continue
		}
		if i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "=>") {
			continue // replaced by the next line
		}
		modules++
		if module := fields[1] + " " + fields[2]; !declared[module] {
			lacking = append(lacking, module)
		}
	}
	if modules == 0 {
		return nil, fmt.Errorf("no modules in %s", out)
	}
	_, toolchain, _ := strings.Cut(lines[0], ": go") // "PATH: go1.26.8"
	if standard := "stdlib " + toolchain; !declared[standard] {
		lacking = append(lacking, standard)
	}
	return lacking, nil
}

// copyOfSource copies what is built from, with times and modes of its own.
func copyOfSource(t *testing.T, from, to string) {
	t.Helper()
	err := filepath.WalkDir(from, func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(from, name)
		if err != nil {
			return err
		}
		if entry.IsDir() {
			if inside != "." && strings.HasPrefix(entry.Name(), ".") || inside == "bin" || inside == "e2e" {
				return filepath.SkipDir
			}
			return os.MkdirAll(filepath.Join(to, inside), 0o700)
		}
		if !entry.Type().IsRegular() {
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, inside), text, 0o600)
	})
	if err != nil {
		t.Fatal(err)
	}
}

func runIn(t *testing.T, folder, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir = folder
	cmd.Env = append(os.Environ(), "GOWORK=off", "SOURCE_DATE_EPOCH=1700000000")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}
