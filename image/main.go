package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// release says what goes into an image besides the binaries.
type release struct {
	name    string // without a tag; where it is to be pushed to, or a short name
	version string
	commit  string
	source  string    // URL of the source
	created time.Time // in UTC, with seconds
}

// tag is the version as an image can be tagged with it: OCI distribution spec 1.1, "Pulling manifests".
func (r release) tag() string {
	tag := regexp.MustCompile(`[^A-Za-z0-9_.-]`).ReplaceAllString(r.version, "-")
	return strings.TrimLeft(tag[:min(len(tag), 128)], ".-")
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	var r release
	flag.StringVar(&r.name, "name", "oooi", "name of the image, without a tag")
	flag.StringVar(&r.version, "version", "unknown", "version of oooi, and the tag")
	flag.StringVar(&r.commit, "commit", "unknown", "commit that the source is of")
	flag.StringVar(&r.source, "source", "https://github.com/densityops/oooi", "where the source is published")
	root := flag.String("root", ".", "folder of the module of oooi")
	ldflags := flag.String("ldflags", "", "-ldflags of go build")
	platforms := flag.String("platforms", "linux/amd64,linux/arm64", "platforms, separated by commas")
	out := flag.String("out", "oooi-image.tar", "tar file to write; the SPDX document is written beside it, as .spdx.json")
	flag.Parse()
	if flag.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flag.Arg(0))
	}
	var err error
	if r.created, err = sourceDate(); err != nil {
		return err
	}
	if r.tag() == "" {
		return fmt.Errorf("version %q cannot be made a tag: give another -version", r.version)
	}

	scratch, err := os.MkdirTemp("", "oooi-image-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(scratch) }() // a folder of the temporary one

	var binaries []binary
	for _, name := range strings.Split(*platforms, ",") {
		platform, err := v1.ParsePlatform(name)
		if err != nil {
			return fmt.Errorf("platform %q: %w", name, err)
		}
		b, err := compile(ctx, *root, *ldflags, *platform, filepath.Join(scratch, "oooi-"+strings.ReplaceAll(name, "/", "-")))
		if err != nil {
			return fmt.Errorf("oooi for %s: %w", name, err)
		}
		binaries = append(binaries, b)
	}
	sbom, err := billOfMaterials(r, binaries)
	if err != nil {
		return err
	}
	index, err := newIndex(r, binaries, sbom)
	if err != nil {
		return err
	}
	layout := filepath.Join(scratch, "layout")
	if err := writeLayout(layout, r, index); err != nil {
		return err
	}
	if err := os.WriteFile(strings.TrimSuffix(*out, ".tar")+".spdx.json", sbom, 0o644); err != nil {
		return err
	}
	// Renamed: whoever reads the one before goes on reading it.
	if err := pack(layout, *out+".new", r.created); err != nil {
		return err
	}
	if err := os.Rename(*out+".new", *out); err != nil {
		return err
	}
	return summarize(*out, r, index, binaries)
}

// sourceDate is $SOURCE_DATE_EPOCH, in seconds since 1970: the date of the source, not of the build
// (https://reproducible-builds.org/specs/source-date-epoch/).
func sourceDate() (time.Time, error) {
	text := os.Getenv("SOURCE_DATE_EPOCH")
	if text == "" {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH is not set: set it to the time of the commit, in seconds since 1970")
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH %q is no number of seconds since 1970", text)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// summarize prints what was built: the digest that a registry will show, and how much a node has to fetch.
func summarize(path string, r release, index v1.ImageIndex, binaries []binary) error {
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	fmt.Printf("%s: %s:%s, %.1f MB\n%s\n", path, r.name, r.tag(), megabytes(info.Size()), digest)
	manifest, err := index.IndexManifest()
	if err != nil {
		return err
	}
	for i, b := range binaries {
		image, err := index.Image(manifest.Manifests[i].Digest)
		if err != nil {
			return err
		}
		layers, err := image.Layers()
		if err != nil {
			return err
		}
		var fetched int64
		for _, layer := range layers {
			size, err := layer.Size()
			if err != nil {
				return err
			}
			fetched += size
		}
		fmt.Printf("%s: binary %.1f MB, to fetch %.1f MB, %d modules\n", b.platform, megabytes(b.size), megabytes(fetched), len(b.info.Deps))
	}
	return nil
}

func megabytes(bytes int64) float64 { return float64(bytes) / 1e6 }
