package wire

// Pins authenticate a parent to its children: the SHA-256 of its current and its next public key. Certificates are
// self-signed and renewed; their names and dates are ignored.

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// most is the number of pins that a child keeps: that of the current key, that of the next one, and room for a
// rotation that it has not completely followed.
const most = 4

// Pin is a public key (SPKI of X.509, DER) by its SHA-256.
type Pin [sha256.Size]byte

// PinOf is the pin of a certificate's key.
func PinOf(c *x509.Certificate) Pin { return sha256.Sum256(c.RawSubjectPublicKeyInfo) }

// prefix names the hash.
const prefix = "sha256:"

// ParsePin reads a pin: 64 hexadecimal digits, with or without sha256: before them.
func ParsePin(text string) (Pin, error) {
	raw, err := hex.DecodeString(strings.TrimPrefix(strings.TrimSpace(text), prefix))
	if err != nil || len(raw) != sha256.Size {
		return Pin{}, fmt.Errorf("%.80q is not a pin: write sha256: and the 64 hexadecimal digits that the server prints", text)
	}
	return Pin(raw), nil
}

// ParsePins reads pins: at least one, and none twice.
func ParsePins(texts []string) ([]Pin, error) {
	if len(texts) == 0 {
		return nil, errors.New("there are no pins, and without one the server cannot be verified")
	}
	var out []Pin
	for _, text := range texts {
		p, err := ParsePin(text)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(out, p) {
			out = append(out, p)
		}
	}
	if len(out) > most {
		return nil, fmt.Errorf("there are %d pins, %d are the most", len(out), most)
	}
	return out, nil
}

// PinTexts writes pins.
func PinTexts(pins []Pin) []string {
	out := make([]string, len(pins))
	for i, p := range pins {
		out[i] = p.String()
	}
	return out
}

// String is the pin as it is printed and stored.
func (p Pin) String() string { return prefix + hex.EncodeToString(p[:]) }

// PinMismatchError reports a server with another key. Nothing was sent to it.
type PinMismatchError struct {
	Shown Pin
	Want  []Pin
}

func (e *PinMismatchError) Error() string {
	return fmt.Sprintf("the server has the key %s, and none of the pinned ones (%s)", e.Shown, strings.Join(PinTexts(e.Want), ", "))
}

// PinnedTLS is the TLS of a child: it goes on with a server that has one of the keys, and ends the
// handshake with any other one before a request is sent.
func PinnedTLS(pins []Pin) *tls.Config {
	pins = slices.Clone(pins)
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		// The key is verified below, in place of a chain to an authority.
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection is called for every connection
		VerifyConnection: func(s tls.ConnectionState) error {
			if len(s.PeerCertificates) == 0 {
				return errors.New("the server shows no certificate")
			}
			if p := PinOf(s.PeerCertificates[0]); !slices.Contains(pins, p) {
				return &PinMismatchError{p, pins}
			}
			return nil
		},
	}
}
