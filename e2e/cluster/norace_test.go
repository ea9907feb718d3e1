//go:build !race

package cluster

// raceDetector tells whether the tests run with the race detector; then oooi does, too.
const raceDetector = false
