package stack

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/densityops/oooi/examples"
)

// Manifests is a folder of manifests as a user would keep it.
type Manifests string

// TwoClusters writes the example of two clusters into a folder, with the replacements (old, new, …) made in it.
func TwoClusters(folder string, replacements ...string) (Manifests, error) {
	m := Manifests(folder)
	replacer := strings.NewReplacer(replacements...)
	for _, file := range exampleFiles {
		text, err := example(file)
		if err != nil {
			return "", err
		}
		if err := m.Write(file, replacer.Replace(text)); err != nil {
			return "", err
		}
	}
	return m, nil
}

// AnotherCluster is the manifests of one more hosted cluster, made from those of the example's second one: its
// attachment, and what stands around it. Its Services get the addresses 172.30.<number>.1 to .4.
func AnotherCluster(name string, number int, worker string) (string, error) {
	replacer := strings.NewReplacer("example-hcp-b", name, "172.30.2.", fmt.Sprintf("172.30.%d.", number),
		"192.0.2.118", worker, "-000000000020", fmt.Sprintf("-%012d", number))
	var documents []string
	for _, file := range exampleFiles {
		text, err := example(file)
		if err != nil {
			return "", err
		}
		for document := range strings.SplitSeq(text, "\n---\n") {
			if strings.Contains(document, "example-hcp-b") {
				documents = append(documents, replacer.Replace(document))
			}
		}
	}
	return strings.Join(documents, "\n---\n"), nil
}

// exampleFiles are the files of the example of two clusters.
var exampleFiles = []string{"infra.yaml", "neighbours.yaml"}

func example(file string) (string, error) {
	text, err := fs.ReadFile(examples.TwoClusters, "two-clusters/"+file)
	return string(text), err
}

// Write replaces a file in one step, as editors and configuration tools do.
func (m Manifests) Write(file, text string) error {
	temporary := filepath.Join(string(m), "."+file+".new")
	if err := os.WriteFile(temporary, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(string(m), file))
}

// Read gives the text of a file.
func (m Manifests) Read(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(string(m), file))
	return string(text), err
}

// Replace changes one text of a file into another; it is an error when the file does not hold it.
func (m Manifests) Replace(file, before, after string) error {
	text, err := m.Read(file)
	if err != nil {
		return err
	}
	if !strings.Contains(text, before) {
		return fmt.Errorf("%s does not hold %q", file, before)
	}
	return m.Write(file, strings.ReplaceAll(text, before, after))
}

// Remove deletes a file.
func (m Manifests) Remove(file string) error {
	return os.Remove(filepath.Join(string(m), file))
}
