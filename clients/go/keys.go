package onetake

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"
)

// KeyHeader is the header that carries the key of an operation.
const KeyHeader = "Idempotency-Key"

// ErrInvalidKey says that a key cannot be sent. Nothing was sent.
var ErrInvalidKey = errors.New("onetake: invalid key")

// NewKey makes a key for one intent (UUIDv7). Call it when the user acts, and keep the key.
func NewKey() string {
	return newKey(time.Now())
}

func newKey(now time.Time) string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		// A key that is not random could be the key of another operation.
		panic("onetake: no randomness: " + err.Error())
	}
	var millis [8]byte
	binary.BigEndian.PutUint64(millis[:], uint64(now.UnixMilli()))
	copy(id[:6], millis[2:])
	return uuid(id[:], 0x70)
}

// KeyFrom makes a key from business ids. The same ids give the same key on every machine.
//
// Warning: include everything that makes the action another one, such as a number that counts the
// user's tries. A second action with the same ids is answered with the outcome of the first.
func KeyFrom(first string, others ...string) string {
	digest := sha256.Sum256(framed("onetake intent v1", append([]string{first}, others...)...))
	return uuid(digest[:], 0x80)
}

// CheckKey returns an error that wraps ErrInvalidKey if the server would refuse the key.
func CheckKey(key string) error {
	if len(key) < 16 || len(key) > 255 {
		return fmt.Errorf("%w: a key has 16 to 255 characters, this one has %d", ErrInvalidKey, len(key))
	}
	for _, char := range []byte(key) {
		if char < '!' || char > '~' {
			return fmt.Errorf("%w: a key consists of visible ASCII characters, without spaces", ErrInvalidKey)
		}
	}
	if strings.ContainsAny(key, `"\`) {
		return fmt.Errorf("%w: a key must not contain quotes or backslashes", ErrInvalidKey)
	}
	return nil
}

// StepKey returns the key for one of the calls that an operation makes under its derived key.
func StepKey(derivedKey, name string) (string, error) {
	return mac(derivedKey, framed("onetake step v1", name))
}

// CompensationKey returns the key for the call that undoes the call under key.
func CompensationKey(key string) (string, error) {
	return mac(key, framed("onetake compensation v1"))
}

func mac(key string, message []byte) (string, error) {
	id, err := hex.DecodeString(strings.ReplaceAll(key, "-", ""))
	if err != nil || len(id) != 16 || len(key) != 36 || strings.Count(key, "-") != 4 {
		return "", fmt.Errorf("%w: a derived key is a UUID of 36 characters", ErrInvalidKey)
	}
	sum := hmac.New(sha256.New, id)
	sum.Write(message)
	return uuid(sum.Sum(nil), 0x40), nil
}

// framed returns a label, and each part after its length in eight bytes.
func framed(label string, parts ...string) []byte {
	message := []byte(label)
	for _, part := range parts {
		message = binary.BigEndian.AppendUint64(message, uint64(len(part)))
		message = append(message, part...)
	}
	return message
}

func uuid(digest []byte, version byte) string {
	var id [16]byte
	copy(id[:], digest)
	id[6] = id[6]&0x0f | version
	id[8] = id[8]&0x3f | 0x80
	text := hex.EncodeToString(id[:])
	return strings.Join([]string{text[:8], text[8:12], text[12:16], text[16:20], text[20:]}, "-")
}
