package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// binary is oooi, built for one platform.
type binary struct {
	platform v1.Platform
	path     string // on this machine
	size     int64  // in bytes
	sha256   string // hexadecimal
	info     *buildinfo.BuildInfo
}

// compile builds the command oooi of the module in root. Of the machine and of its user's settings nothing gets into the
// binary: neither paths nor the state of the checkout (the linker's flags say which commit it is).
func compile(ctx context.Context, root, ldflags string, platform v1.Platform, path string) (binary, error) {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", ldflags, "-o", path, "./cmd/oooi")
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly", "GOEXPERIMENT=",
		"GOOS="+platform.OS, "GOARCH="+platform.Architecture, "GOAMD64=v1", "GOARM64=v8.0")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Run(); err != nil {
		return binary{}, fmt.Errorf("go build: %w\n%s", err, strings.TrimSpace(stderr.String()))
	}
	if err := mustBeStatic(path); err != nil {
		return binary{}, err
	}
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return binary{}, err
	}
	f, err := os.Open(path)
	if err != nil {
		return binary{}, err
	}
	defer func() { _ = f.Close() }() // only read
	sum := sha256.New()
	size, err := io.Copy(sum, f)
	if err != nil {
		return binary{}, err
	}
	return binary{platform: platform, path: path, size: size, sha256: hex.EncodeToString(sum.Sum(nil)), info: info}, nil
}

// mustBeStatic fails for a binary that asks for a dynamic linker: the image has none.
func mustBeStatic(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // only read
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return fmt.Errorf("the binary is linked dynamically: something in it needs cgo")
		}
	}
	return nil
}
