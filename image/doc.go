// Oooi-image builds the container image of oooi: a static binary for each platform, a passwd and a group file,
// nothing else. It needs no daemon and no base image, so that nothing is in the image that is not in this tree
// or in the go.mod beside it:
//
//	go build for each platform ─> a layer ─> an image ─┐
//	      │                                            ├─> one index ─> a tar file in the OCI image layout
//	      └─ build info ─> one SPDX document ──────────┘
//
// The SPDX document stands in the index once for each platform, as an artifact whose subject is that platform's
// image (OCI image spec 1.1, "subject"). Whoever copies the whole index to a registry takes it along, and a registry
// lists it among the referrers of the image. Were it beside the index instead, most tools would leave it behind, or
// refuse a layout that has two entries.
//
// The same source, toolchain and SOURCE_DATE_EPOCH give the same bytes, wherever the source lies and whoever builds:
// e2e/image_test.go builds twice and compares.
//
// This is a module of its own, so that its dependencies do not weigh on those of oooi.
package main
