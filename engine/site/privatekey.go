package site

import (
	"bytes"
	"encoding/binary"
	"encoding/pem"
	"regexp"
	"strings"
)

// longestKeyFile bounds the files that are searched for private keys, in bytes.
const longestKeyFile = 1 << 20

// ageIdentity is an identity of age (C2SP age.md): Bech32 in capitals.
var ageIdentity = regexp.MustCompile(`\bAGE-SECRET-KEY-(1|PQ-1)[02-9AC-HJ-NP-Z]{50,}`)

// ownLines puts the first and the last line of a key on lines of their own.
var ownLines = strings.NewReplacer(`\r`, "", `\n`, "\n", "-----BEGIN ", "\n-----BEGIN ", "PRIVATE KEY-----", "PRIVATE KEY-----\n", "KEY BLOCK-----", "KEY BLOCK-----\n")

// privateKey says which private key a text has that no password protects; "" for none. It may be inside of another file, such as an
// indented text of HCL or YAML, or a string with \n for the ends of lines.
func privateKey(data []byte) string {
	if ageIdentity.Match(data) {
		return "an age identity"
	}
	if bytes.HasPrefix(data, []byte("PuTTY-User-Key-File-")) && bytes.Contains(data, []byte("\nEncryption: none")) {
		return "a private key of PuTTY"
	}
	if !bytes.Contains(data, []byte("PRIVATE KEY")) {
		return ""
	}
	var text strings.Builder
	for line := range strings.Lines(ownLines.Replace(string(data))) {
		text.WriteString(strings.Trim(line, " \t\r\n\"'`,") + "\n")
	}
	if s := text.String(); strings.Contains(s, "\n-----END PGP PRIVATE KEY BLOCK-----\n") {
		return "a private key of OpenPGP" // whether a password protects it is not read
	}
	for block, rest := pem.Decode([]byte(text.String())); block != nil; block, rest = pem.Decode(rest) {
		if strings.HasSuffix(block.Type, "PRIVATE KEY") && !protected(block) {
			return "a private key"
		}
	}
	return ""
}

// protected reports whether a password protects a key: PKCS #8 and the older form say so, and OpenSSH names a cipher
// (PROTOCOL.key of OpenSSH).
func protected(block *pem.Block) bool {
	if block.Type == "ENCRYPTED PRIVATE KEY" || strings.Contains(block.Headers["Proc-Type"], "ENCRYPTED") {
		return true
	}
	rest, ok := bytes.CutPrefix(block.Bytes, []byte("openssh-key-v1\x00"))
	if !ok || len(rest) < 4 {
		return false
	}
	n := binary.BigEndian.Uint32(rest)
	return uint64(n) <= uint64(len(rest)-4) && string(rest[4:4+n]) != "none"
}
