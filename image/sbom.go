package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"maps"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/package-url/packageurl-go"
	"github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx"
	"github.com/spdx/tools-golang/spdx/v2/common"
)

// unknown is what SPDX wants where nothing is claimed (SPDX 2.3, "NOASSERTION").
const unknown = "NOASSERTION"

// billOfMaterials is an SPDX 2.3 document of what is in the image: the binaries, and of each the modules that the Go
// linker put in, by its build info, the standard library included. It says nothing about licenses but oooi's own.
func billOfMaterials(r release, binaries []binary) ([]byte, error) {
	name := "oooi-" + r.version
	image := newPackage("Image", "oooi", r.version, "CONTAINER")
	image.PackageLicenseDeclared = "Apache-2.0"
	packages := map[common.ElementID]*spdx.Package{image.PackageSPDXIdentifier: image}
	relations := []*spdx.Relationship{relation("DOCUMENT", common.TypeRelationshipDescribe, image.PackageSPDXIdentifier)}

	content := sha256.New()
	for _, b := range binaries {
		content.Write([]byte(b.sha256))
		p := newPackage("Binary-"+b.platform.OS+"-"+b.platform.Architecture, "oooi "+b.platform.String(), r.version, "APPLICATION")
		p.PackageFileName = "/" + binaryPath
		p.PackageChecksums = []common.Checksum{{Algorithm: common.SHA256, Value: b.sha256}}
		p.PackageLicenseDeclared = "Apache-2.0"
		p.PackageSourceInfo = "commit " + r.commit
		p.PackageExternalReferences = reference(b.info.Main.Path, r.version)
		packages[p.PackageSPDXIdentifier] = p
		relations = append(relations, relation(image.PackageSPDXIdentifier, common.TypeRelationshipContains, p.PackageSPDXIdentifier))

		for _, m := range modules(b.info) {
			id := common.ElementID("Module-" + elementName(m.Path+"-"+m.Version))
			if have := packages[id]; have != nil && (have.PackageName != m.Path || have.PackageVersion != m.Version) {
				return nil, fmt.Errorf("modules %s and %s have one name in SPDX: %s", have.PackageName, m.Path, id)
			}
			module := newPackage(string(id), m.Path, m.Version, "LIBRARY")
			module.PackageExternalReferences = reference(m.Path, m.Version)
			if m.Sum != "" {
				module.PackageSourceInfo = "go.sum " + m.Sum
			}
			packages[id] = module
			relations = append(relations, relation(p.PackageSPDXIdentifier, common.TypeRelationshipDependsOn, id))
		}
	}

	document := spdx.Document{
		SPDXVersion:       spdx.Version,
		DataLicense:       spdx.DataLicense,
		SPDXIdentifier:    "DOCUMENT",
		DocumentName:      name,
		DocumentNamespace: fmt.Sprintf("%s/spdx/%s-%x", r.source, elementName(name), content.Sum(nil)),
		CreationInfo: &spdx.CreationInfo{
			Created:  r.created.Format(time.RFC3339),
			Creators: []common.Creator{{CreatorType: "Tool", Creator: "oooi-image"}},
		},
		Relationships: relations,
	}
	for _, id := range slices.Sorted(maps.Keys(packages)) {
		document.Packages = append(document.Packages, packages[id])
	}
	var text bytes.Buffer
	if err := json.Write(document, &text, json.Indent("  "), json.EscapeHTML(false)); err != nil {
		return nil, fmt.Errorf("SPDX document: %w", err)
	}
	return text.Bytes(), nil
}

// modules are those that a binary was linked from, but for its own: replaced ones as what replaced them.
func modules(info *debug.BuildInfo) []*debug.Module {
	list := []*debug.Module{{Path: "stdlib", Version: strings.TrimPrefix(info.GoVersion, "go")}}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		list = append(list, m)
	}
	return list
}

func newPackage(id, name, version, purpose string) *spdx.Package {
	return &spdx.Package{
		PackageSPDXIdentifier: common.ElementID(id), PackageName: name, PackageVersion: version, PrimaryPackagePurpose: purpose,
		PackageDownloadLocation: unknown, PackageLicenseConcluded: unknown, PackageLicenseDeclared: unknown, PackageCopyrightText: unknown,
	}
}

// reference is what vulnerability scanners look a package up by.
func reference(path, version string) []*spdx.PackageExternalReference {
	slash := strings.LastIndexByte(path, '/')
	url := packageurl.NewPackageURL(packageurl.TypeGolang, path[:max(slash, 0)], path[slash+1:], version, nil, "")
	return []*spdx.PackageExternalReference{{Category: common.CategoryPackageManager, RefType: common.TypePackageManagerPURL, Locator: url.ToString()}}
}

func relation(a common.ElementID, kind string, b common.ElementID) *spdx.Relationship {
	return &spdx.Relationship{RefA: common.MakeDocElementID("", string(a)), RefB: common.MakeDocElementID("", string(b)), Relationship: kind}
}

// elementName makes a text one of letters, digits, "." and "-", as SPDX wants its identifiers (SPDX 2.3, 7.2).
func elementName(text string) string {
	return regexp.MustCompile(`[^A-Za-z0-9.-]`).ReplaceAllString(text, "-")
}
