package sops

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"filippo.io/age"
	"filippo.io/age/agessh"

	"github.com/homestak/homestak-gitops/engine/diag"
)

// Sources say where age identities are found.
type Sources struct {
	Env  func(string) string // the environment, and with it the home folder; nil: neither
	File string              // one more file; "" for none
}

// Keys are age identities, and the sources without usable ones. A nil *Keys has none.
type Keys struct {
	all    []identity
	failed []string // sources with identities that cannot be used, each with the reason
	absent []string // sources that have none
}

// identity is a private key.
type identity struct {
	age.Identity

	public string // its recipient
	from   string
}

// maxKeys limits the size of an identity file, in bytes.
const maxKeys = 1 << 20

// FindKeys reads all identities that the sources have, as sops does: SOPS_AGE_KEY,
// SOPS_AGE_KEY_FILE, sops/age/keys.txt below XDG_CONFIG_HOME or ~/.config,
// SOPS_AGE_SSH_PRIVATE_KEY_FILE, ~/.ssh/id_ed25519 and ~/.ssh/id_rsa. Unreadable sources are only
// reported if decryption fails; the findings are about files that others can read.
//
// It runs no programs: neither SOPS_AGE_KEY_CMD nor age plugins, which might prompt; see
// docs/decisions/0017-secrets-and-tokens.md.
func (s Sources) FindKeys() (*Keys, diag.List) {
	r := &keyReader{Keys: &Keys{}}
	if s.Env != nil {
		if text := s.Env("SOPS_AGE_KEY"); text != "" {
			r.words("SOPS_AGE_KEY", text)
		} else {
			r.absent = append(r.absent, "SOPS_AGE_KEY is not set")
		}
		if s.Env("SOPS_AGE_KEY_FILE") == "" {
			r.absent = append(r.absent, "SOPS_AGE_KEY_FILE is not set")
		}
	}
	for _, f := range s.files() {
		r.file(f.prefix, f.name, f.named)
	}
	if s.Env == nil {
		return r.Keys, r.found
	}
	for _, command := range []string{"SOPS_AGE_KEY_CMD", "SOPS_AGE_SSH_PRIVATE_KEY_CMD"} {
		if s.Env(command) != "" {
			r.fail(command, `it is not run: set SOPS_AGE_KEY="$(…)" instead`)
		}
	}
	return r.Keys, r.found
}

// source is a file that may have identities.
type source struct {
	prefix string // before its name, in messages
	name   string
	named  bool // given explicitly, so it should exist
}

// files are the files that may have identities.
func (s Sources) files() (out []source) {
	if s.File != "" {
		out = append(out, source{"", s.File, true})
	}
	if s.Env == nil {
		return out
	}
	if name := s.Env("SOPS_AGE_KEY_FILE"); name != "" {
		out = append(out, source{"SOPS_AGE_KEY_FILE=", name, true})
	}
	home, config := s.Env("HOME"), s.Env("XDG_CONFIG_HOME")
	if !filepath.IsAbs(config) && filepath.IsAbs(home) {
		config = filepath.Join(home, ".config")
	}
	if filepath.IsAbs(config) {
		out = append(out, source{"", filepath.Join(config, "sops", "age", "keys.txt"), false})
	}
	if name := s.Env("SOPS_AGE_SSH_PRIVATE_KEY_FILE"); name != "" {
		out = append(out, source{"SOPS_AGE_SSH_PRIVATE_KEY_FILE=", name, true})
	}
	if filepath.IsAbs(home) {
		for _, name := range []string{"id_ed25519", "id_rsa"} {
			out = append(out, source{"", filepath.Join(home, ".ssh", name), false})
		}
	}
	return out
}

// Files are the names of the files that FindKeys reads, whether they exist or not.
func (s Sources) Files() (names []string) {
	for _, f := range s.files() {
		names = append(names, f.name)
	}
	return names
}

// keyReader is one FindKeys.
type keyReader struct {
	*Keys
	found diag.List
}

func (r *keyReader) fail(from, why string) { r.failed = append(r.failed, from+": "+why) }

// file reads the identities of a file. One that was not named may be absent.
func (r *keyReader) file(prefix, name string, named bool) {
	from := prefix + name
	data, info, err := readFile(name)
	switch {
	case errors.Is(err, fs.ErrNotExist) && !named:
		r.absent = append(r.absent, name+" does not exist")
		return
	case err != nil:
		if path, ok := errors.AsType[*fs.PathError](err); ok {
			err = path.Err
		}
		r.fail(from, err.Error())
		return
	}
	before := len(r.all)
	switch {
	case bytes.HasPrefix(data, []byte("-----BEGIN AGE ENCRYPTED FILE")), bytes.HasPrefix(data, []byte("age-encryption.org/")):
		r.fail(from, "it has a passphrase, and this program does not ask for one")
	case bytes.HasPrefix(data, []byte("-----BEGIN ")):
		r.ssh(from, data)
	default:
		r.lines(from, string(data))
	}
	if len(r.all) > before && info.Mode().Perm()&0o077 != 0 {
		r.found = append(r.found, diag.Warnf(diag.Range{}, name+" can be read by others on this machine", "chmod 600 %s", name))
	}
}

func readFile(name string) ([]byte, fs.FileInfo, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxKeys+1))
	if err == nil && len(data) > maxKeys {
		err = errors.New("it is too large for an identity file")
	}
	return data, info, err
}

// words reads identities separated by spaces or lines, as in SOPS_AGE_KEY.
func (r *keyReader) words(from, text string) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "#") {
			b.WriteString(strings.Join(strings.Fields(line), "\n") + "\n")
		}
	}
	r.lines(from, b.String())
}

// lines reads identities, one a line. No error repeats a line.
func (r *keyReader) lines(from, text string) {
	before, failed := len(r.all), len(r.failed)
	n := 0
	for line := range strings.Lines(text) {
		n++
		line = strings.TrimSpace(line)
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
		case strings.HasPrefix(line, "AGE-PLUGIN-"):
			r.fail(from, fmt.Sprintf("line %d is a plugin identity, and plugins are not run", n))
		default:
			id, err := parseIdentity(line)
			if err != nil {
				r.fail(from, fmt.Sprintf("line %d is not an age identity", n))
				continue
			}
			id.from = from
			r.all = append(r.all, id)
		}
	}
	if len(r.all) == before && len(r.failed) == failed {
		r.absent = append(r.absent, from+" has no identity")
	}
}

func parseIdentity(line string) (identity, error) {
	if strings.HasPrefix(line, "AGE-SECRET-KEY-PQ-1") {
		id, err := age.ParseHybridIdentity(line)
		if err != nil {
			return identity{}, err
		}
		return identity{Identity: id, public: id.Recipient().String()}, nil
	}
	id, err := age.ParseX25519Identity(line)
	if err != nil {
		return identity{}, err
	}
	return identity{Identity: id, public: id.Recipient().String()}, nil
}

// ssh reads a private key of SSH.
func (r *keyReader) ssh(from string, data []byte) {
	id, err := agessh.ParseIdentity(data)
	if err != nil {
		r.fail(from, "it cannot be used: it has a passphrase, or its type is neither ed25519 nor RSA")
		return
	}
	r.all = append(r.all, identity{Identity: id, public: "an SSH key", from: from})
}

func (k *Keys) identities() []age.Identity {
	if k == nil {
		return nil
	}
	out := make([]age.Identity, len(k.all))
	for i := range k.all {
		out[i] = k.all[i]
	}
	return out
}

// describe says which identities there are, by their recipients, and where there are none.
func (k *Keys) describe() string {
	if k == nil {
		return "No identity was searched for."
	}
	var tried []string
	for _, id := range k.all {
		tried = append(tried, short(id.public)+" ("+id.from+")")
	}
	text := "No identity was found"
	if len(tried) > 0 {
		text = "Tried " + strings.Join(tried, ", ")
	}
	for _, rest := range [][]string{k.failed, k.absent} {
		if len(rest) > 0 {
			text += "; " + strings.Join(rest, "; ")
		}
	}
	return text + "."
}
