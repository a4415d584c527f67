package sops

import (
	"bytes"
	"errors"
)

// combine reconstructs a secret from Shamir shares in the format of SOPS: the bytes of the secret
// are the values at 0 of polynomials over GF(2⁸). A share has one value of each, and ends with the
// point of these values. Too few shares, or shares of different secrets, give a wrong result, which
// the MAC of the file detects.
func combine(shares [][]byte) ([]byte, error) {
	last := len(shares[0]) - 1
	var points []byte
	for _, s := range shares {
		if len(s) != last+1 {
			return nil, errors.New("the shares of its key groups differ in length")
		}
		if s[last] == 0 || bytes.IndexByte(points, s[last]) >= 0 {
			return nil, errors.New("two of its key groups have the same share")
		}
		points = append(points, s[last])
	}
	secret := make([]byte, last)
	for i, s := range shares {
		weight := byte(1) // of this share, by Lagrange's formula
		for j, other := range points {
			if j != i {
				weight = times(weight, times(other, inverse(other^points[i])))
			}
		}
		for at := range secret {
			secret[at] ^= times(weight, s[at])
		}
	}
	return secret, nil
}

// times multiplies in GF(2⁸) modulo x⁸+x⁴+x³+x+1, the field of AES, without branches on its factors.
func times(a, b byte) byte {
	var out byte
	for range 8 {
		out ^= a & -(b & 1)
		a = a<<1 ^ 0x1b&-(a>>7)
		b >>= 1
	}
	return out
}

// inverse is a²⁵⁴, since a²⁵⁵ is 1.
func inverse(a byte) byte {
	out := byte(1)
	for range 254 {
		out = times(out, a)
	}
	return out
}
