// Package informer runs the informers of a cluster's objects and takes in what they show, for all parts of oooi that
// watch. What is watched, and what follows from it, is theirs.
package informer
