// Package informer runs the informers of a cluster's objects and takes in what they show, for all parts of oooi that
// watch; it also knows what no reader needs of an object, and which state of one is the older. What is watched, and what follows
// from it, is theirs.
package informer
