// Package crds holds the generated CustomResourceDefinitions of this API and checks objects against them as a
// Kubernetes API server would, for manifests that never meet one.
//
// Load parses the embedded definitions; Schema.Apply takes one decoded manifest, reports every unknown field,
// missing field and wrong value with its path, and fills in the defaults. What it accepts is what the API
// server accepts with strict field validation (a test compares the two), save that status is ignored, as a
// server ignores it on apply. CEL rules are not evaluated: the Validate methods of api/v1alpha1
// cover them. The package must never import the CEL machinery, which costs more to start
// than all of oooi.
package crds
