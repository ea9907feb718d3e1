// Package files reads the objects that the plan needs from a folder of manifests, once (Load) or for as long as
// the process runs (Source), with no Kubernetes at all.
//
// How data flows: bytes of a file -> documents with their lines (parse.go) -> typed objects, checked against
// their schema and by Validate (decode.go) -> what each file claims, its last good state where it is
// broken, and who holds an object that two files claim (store.go) -> plan.Objects. Source adds the clock: it
// notices changes (source.go), reads a file when it has been still for a moment (folder.go) and
// keeps the last good objects over a restart (state.go).
//
// A person edits these files while tenants are served. So nothing that looks half-written, deleted or broken may
// take an object out of service: it stays as it was last good, and one clear problem says file, line, object
// and field. Objects leave only when a whole file no longer has them.
//
// The package must never write into the folder, never hand out a part of the first load, and never follow
// anything but regular files directly in the folder.
package files
