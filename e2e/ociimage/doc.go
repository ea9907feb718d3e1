// Package ociimage reads container images from tar files in the OCI image layout (OCI image spec 1.1, "Image Layout"),
// such as `make image` writes, and unpacks them into a folder as a container runtime does for a container's root.
//
// It knows what that image needs and refuses the rest: layers that take files of earlier ones away, device nodes.
package ociimage
