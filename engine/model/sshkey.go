package model

import (
	"encoding/base64"
	"maps"
	"slices"
	"strings"
)

// SSHKey is one of the keys by which a user logs in.
type SSHKey struct {
	Secret string // its name in the section ssh_keys of the secrets; "" for a key that the spec has itself
	Text   string // lines of authorized_keys; "" if the value of the secret is not known here
}

// KeysOf returns the keys of a user from User.SSHKeys: for nil all of the site by name, without the private ones; else
// those that the user names. A name that the secrets do not have is a key itself; without the secrets, a single word is
// a name whose value is not known. KeysOf checks no text.
func (s *Secrets) KeysOf(named *[]string) []SSHKey {
	var all map[string]string
	if s != nil {
		all = s.Values["ssh_keys"]
	}
	var out []SSHKey
	if named == nil {
		for _, name := range slices.Sorted(maps.Keys(all)) {
			if !s.IsPrivateKey(name) {
				out = append(out, SSHKey{Secret: name, Text: all[name]})
			}
		}
		return out
	}
	for _, name := range *named {
		if text, ok := all[name]; ok {
			out = append(out, SSHKey{Secret: name, Text: text})
		} else if s == nil && len(strings.Fields(name)) == 1 {
			out = append(out, SSHKey{Secret: name})
		} else {
			out = append(out, SSHKey{Text: name})
		}
	}
	return out
}

// Lines returns the lines of Text without empty lines and comments.
func (k SSHKey) Lines() []string {
	var out []string
	for line := range strings.Lines(k.Text) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			out = append(out, line)
		}
	}
	return out
}

// IsPrivateKey reports whether one of the ssh_keys is a private key, which is there for logging in to a host.
func (s *Secrets) IsPrivateKey(name string) bool {
	return s != nil && (HasPrivateKey(s.Values["ssh_keys"][name]) || slices.Contains(s.Private, name))
}

// HasPrivateKey reports whether a text has a private key in PEM.
func HasPrivateKey(text string) bool { return strings.Contains(text, "PRIVATE KEY-----") }

// SSHKeyID returns what identifies the key in a line of authorized_keys: the base64 of the key. Options stand before it, and
// a comment after it (sshd(8)). It is "" if the line has no key.
func SSHKeyID(line string) string {
	if strings.HasPrefix(strings.TrimSpace(line), "#") {
		return ""
	}
	fields := strings.Fields(line)
	for i := range max(len(fields)-1, 0) {
		// RFC 4253, section 6.6: the blob begins with the name of its type.
		blob, err := base64.StdEncoding.DecodeString(fields[i+1])
		if err == nil && len(blob) > 4+len(fields[i]) && string(blob[4:4+len(fields[i])]) == fields[i] {
			return fields[i+1]
		}
	}
	return ""
}
