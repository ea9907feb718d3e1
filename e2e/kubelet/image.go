package kubelet

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Image is what a container image holds.
type Image struct {
	// Root is the folder of its files. Containers only read it.
	Root string
	// Env are the variables that it sets, as NAME=value.
	Env []string
	// Entrypoint and Cmd are its command and its arguments, unless the Pod says others.
	Entrypoint, Cmd []string
	// WorkingDir is "/" unless said.
	WorkingDir string
	// UID and GID of its user.
	UID, GID int
}

// path is where programs are looked for when nothing says otherwise.
const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// accounts is the /etc/passwd of images that are made here.
const accounts = "root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n"

// NewImage makes an image in a folder from programs of this machine, given as the path that they get in the image and their path
// here, with the shared libraries that they need and nothing else. Its user is 65532, as it is in images without a distribution.
func NewImage(folder string, programs map[string]string) (Image, error) {
	for _, sub := range []string{"etc", "tmp", "proc", "sys", "dev", "run", "var"} {
		if err := os.MkdirAll(filepath.Join(folder, sub), 0o755); err != nil {
			return Image{}, err
		}
	}
	if err := os.Chmod(filepath.Join(folder, "tmp"), 0o777|os.ModeSticky); err != nil {
		return Image{}, err
	}
	if err := os.WriteFile(filepath.Join(folder, "etc/passwd"), []byte(accounts), 0o644); err != nil {
		return Image{}, err
	}
	for target, source := range programs {
		if err := copyFile(source, filepath.Join(folder, target)); err != nil {
			return Image{}, fmt.Errorf("image with %s: %w", source, err)
		}
		libraries, err := libraries(source)
		if err != nil {
			return Image{}, fmt.Errorf("image with %s: %w", source, err)
		}
		for _, library := range libraries {
			if err := copyFile(library, filepath.Join(folder, library)); err != nil {
				return Image{}, fmt.Errorf("image with %s: %w", source, err)
			}
		}
	}
	return Image{Root: folder, Env: []string{path}, UID: 65532, GID: 65532}, nil
}

// libraries are the paths of the shared libraries that a program needs, its loader included.
func libraries(program string) ([]string, error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if strings.Contains(string(out), "not a dynamic executable") || strings.Contains(string(out), "statically linked") {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd: %w: %s", err, out)
	}
	var found []string
	for line := range strings.Lines(string(out)) {
		// "libc.so.6 => /lib/… (0x…)", or "/lib64/ld-linux-x86-64.so.2 (0x…)".
		for _, field := range strings.Fields(line) {
			if strings.HasPrefix(field, "/") {
				found = append(found, field)
			}
		}
	}
	return found, nil
}

// copyFile copies a file, or links it where the file system lets it.
func copyFile(source, target string) error {
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return err
	}
	source, err := filepath.EvalSymlinks(source)
	if err != nil {
		return err
	}
	if _, err := os.Stat(target); err == nil {
		return nil // two programs need the same library
	}
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.Mode().Perm()&0o005 == 0o005 && os.Link(source, target) == nil {
		return nil
	}
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // only read
	out, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close() // the copy has failed
		return err
	}
	return out.Close()
}
