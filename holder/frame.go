package holder

import (
	"crypto/ed25519"
	"encoding/binary"
	"errors"
)

// A frame is what one pod says to the others on the VLAN, several times a second. All numbers are big endian:
//
//	 0  4  "oooi"
//	 4  1  version of the format
//	 5  1  flags
//	 6  8  epoch
//	14  8  nonce: a random number of this start of the process
//	22  8  counter: grows with each frame of that nonce
//	30  6  MAC of the interface
//	36  1  length of the name, and the name of the pod
//	    1  number of echoes, and 8 bytes for each: the nonces of those that it has heard
//	       what later versions add, which this one skips
//	   64  Ed25519 signature of all that precedes, behind signedAs
//
// A later version may only add, so that pods of two versions understand each other while they are rolled.
//
// A frame counts only for who finds its own nonce among the echoes: what was recorded before it started says nothing to it.
type frame struct {
	flags   uint8
	epoch   int64
	nonce   uint64
	counter uint64
	mac     [6]byte
	name    string
	echoes  []uint64
}

const (
	flagHolding uint8 = 1 << iota
	flagHealthy
	// flagLeaving: it held the addresses, and they are off its interface now.
	flagLeaving
	flagRecorded
)

const (
	frameVersion = 1
	signedAs     = "oooi holder frame\x00"
	// maxName is the longest name of a pod (RFC 1123).
	maxName   = 253
	maxEchoes = 16
	nameAt    = 36
	minFrame  = nameAt + 1 + 1 + 1 + ed25519.SignatureSize
	// maxFrame fits into any Ethernet.
	maxFrame = 1400
)

var frameMagic = [4]byte{'o', 'o', 'o', 'i'}

func (f *frame) holding() bool  { return f.flags&flagHolding != 0 }
func (f *frame) healthy() bool  { return f.flags&flagHealthy != 0 }
func (f *frame) leaving() bool  { return f.flags&flagLeaving != 0 }
func (f *frame) recorded() bool { return f.flags&flagRecorded != 0 }

// sign writes the frame.
func (f *frame) sign(key ed25519.PrivateKey) []byte {
	b := make([]byte, 0, maxFrame)
	b = append(b, frameMagic[:]...)
	b = append(b, frameVersion, f.flags)
	b = binary.BigEndian.AppendUint64(b, uint64(f.epoch))
	b = binary.BigEndian.AppendUint64(b, f.nonce)
	b = binary.BigEndian.AppendUint64(b, f.counter)
	b = append(b, f.mac[:]...)
	b = append(b, uint8(len(f.name)))
	b = append(b, f.name...)
	b = append(b, uint8(len(f.echoes)))
	for _, echo := range f.echoes {
		b = binary.BigEndian.AppendUint64(b, echo)
	}
	return append(b, ed25519.Sign(key, append([]byte(signedAs), b...))...)
}

var errMalformed = errors.New("malformed frame")

// parseFrame reads a frame. Its signature is not looked at.
func parseFrame(b []byte) (frame, error) {
	if len(b) < minFrame || len(b) > maxFrame || [4]byte(b) != frameMagic || b[4] < frameVersion {
		return frame{}, errMalformed
	}
	f := frame{
		flags: b[5],
		epoch: int64(binary.BigEndian.Uint64(b[6:])), nonce: binary.BigEndian.Uint64(b[14:]), counter: binary.BigEndian.Uint64(b[22:]),
		mac: [6]byte(b[30:]),
	}
	rest := b[nameAt : len(b)-ed25519.SignatureSize]
	length := int(rest[0])
	if rest = rest[1:]; length == 0 || length > maxName || len(rest) < length+1 {
		return frame{}, errMalformed
	}
	f.name, rest = string(rest[:length]), rest[length:]
	echoes := int(rest[0])
	if rest = rest[1:]; echoes > maxEchoes || len(rest) < 8*echoes {
		return frame{}, errMalformed
	}
	for i := range echoes {
		f.echoes = append(f.echoes, binary.BigEndian.Uint64(rest[8*i:]))
	}
	return f, nil
}

// verify tells whether the frame was signed with a key.
func verify(b []byte, key ed25519.PublicKey) bool {
	if len(b) < ed25519.SignatureSize || len(key) != ed25519.PublicKeySize {
		return false
	}
	signed, signature := b[:len(b)-ed25519.SignatureSize], b[len(b)-ed25519.SignatureSize:]
	return ed25519.Verify(key, append([]byte(signedAs), signed...), signature)
}
