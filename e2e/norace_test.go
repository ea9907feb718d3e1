//go:build !race

package e2e

// raceDetector tells whether the tests run with the race detector; then oooi does, too.
const raceDetector = false
