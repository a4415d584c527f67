package site_test

import (
	"bytes"
	"encoding/base64"
	"encoding/pem"
	"io/fs"
	"log/slog"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/homestak/homestak-gitops/engine/site"
	"github.com/homestak/homestak-gitops/engine/source"
	"github.com/homestak/homestak-gitops/engine/source/sourcetest"
	"github.com/homestak/homestak-gitops/hcl/sops/sopstest"
)

func TestInClear(t *testing.T) {
	const plain = "passwords:\n  root: x\n"
	_, recipient, err := sopstest.NewKey()
	require.NoError(t, err)
	encrypted, err := sopstest.Encrypt(plain, sopstest.Options{Recipients: []string{recipient}})
	require.NoError(t, err)
	for want, tree := range map[string]fstest.MapFS{
		"":                       {"site.hcl": {}, "secrets.sops.yaml": {Data: encrypted}, "secrets.yaml/x": {}, "a/secrets.yaml": {Mode: fs.ModeSymlink, Data: []byte("x")}},
		"secrets.yaml":           {"secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.yaml":      {"home/site.hcl": {}, "work/secrets.yaml": {Data: []byte(plain)}},
		"work/secrets.sops.yaml": {"work/secrets.sops.yaml": {Data: []byte(plain)}},
		"mix/secrets.sops.yaml":  {"mix/secrets.sops.yaml": {Data: []byte(plain + "sops: {}\n")}},
		"add/secrets.sops.yaml":  {"add/secrets.sops.yaml": {Data: bytes.Replace(encrypted, []byte("passwords:\n"), []byte("passwords:\n    admin: hunter2\n"), 1)}},
	} {
		found, err := site.InClear(tree)
		require.NoError(t, err)
		require.Equal(t, want, found.File)
	}
}

// keyOf is a private key in the form that ssh-keygen writes, with a cipher; none protects nothing.
func keyOf(cipher string) string {
	key := append([]byte("openssh-key-v1\x00\x00\x00\x00"), byte(len(cipher)))
	key = append(append(key, cipher...), make([]byte, 200)...)
	return string(pem.EncodeToMemory(&pem.Block{Type: "OPENSSH PRIVATE KEY", Bytes: key}))
}

// A private key is found in any file, whatever is around it. One that a password protects is none, nor is a text about keys.
func TestS7APrivateKeyIsASecretInTheClear(t *testing.T) {
	key := keyOf("none")
	identity, _, err := sopstest.NewKey()
	require.NoError(t, err)
	body := base64.StdEncoding.EncodeToString(make([]byte, 99))
	block := func(kind, more string) string {
		return "-----BEGIN " + kind + "-----\n" + more + body + "\n-----END " + kind + "-----\n"
	}
	for text, want := range map[string]string{
		key:                                   "a private key in plain text: keys/id_ed25519",
		strings.ReplaceAll(key, "\n", "\r\n"): "a private key in plain text: keys/id_ed25519",
		"key = <<-EOT\n    " + strings.ReplaceAll(key, "\n", "\n    ") + "EOT\n":                      "a private key in plain text: keys/id_ed25519",
		`{"key": "` + strings.ReplaceAll(key, "\n", `\n`) + `"}`:                                      "a private key in plain text: keys/id_ed25519",
		block("RSA PRIVATE KEY", ""):                                                                  "a private key in plain text: keys/id_ed25519",
		block("CERTIFICATE", "") + block("EC PRIVATE KEY", ""):                                        "a private key in plain text: keys/id_ed25519",
		block("PRIVATE KEY", ""):                                                                      "a private key in plain text: keys/id_ed25519",
		"# created: 2026\n" + identity + "\n":                                                         "an age identity in plain text: keys/id_ed25519",
		"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: none\n":                                      "a private key of PuTTY in plain text: keys/id_ed25519",
		"-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nxxxx\n=aaaa\n-----END PGP PRIVATE KEY BLOCK-----\n": "a private key of OpenPGP in plain text: keys/id_ed25519",

		keyOf("aes256-ctr"):                "",
		block("ENCRYPTED PRIVATE KEY", ""): "",
		block("RSA PRIVATE KEY", "Proc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\n"):                            "",
		block("CERTIFICATE", "") + block("PUBLIC KEY", ""):                                                          "",
		"ssh-ed25519 AAAA ops@laptop\n":                                                                             "",
		"Write the line -----BEGIN OPENSSH PRIVATE KEY----- and the key, then -----END OPENSSH PRIVATE KEY-----.\n": "",
		"-----BEGIN OPENSSH PRIVATE KEY-----\n…\n-----END OPENSSH PRIVATE KEY-----\n":                               "",
		"AGE-SECRET-KEY-1…\n": "",
		"PuTTY-User-Key-File-3: ssh-ed25519\nEncryption: aes256-cbc\n": "",
	} {
		found, err := site.InClear(fstest.MapFS{"site.hcl": {}, "keys/id_ed25519": {Data: []byte(text)}})
		require.NoError(t, err)
		require.Equal(t, want, found.String(), text)
	}
}

// A commit is withheld for a private key, with what and why in the log, and no file or folder is read twice.
func TestS7ACommitWithAPrivateKeyIsWithheld(t *testing.T) {
	r := sourcetest.New(t)
	before := r.Commit(map[string]string{"site.hcl": "1", "a/b/c": "2"}, "before")
	with := r.Commit(map[string]string{"keys/id_ed25519": keyOf("none")}, "with")
	after := r.Commit(map[string]string{"keys/id_ed25519": sourcetest.Gone, "site.hcl": "3"}, "after")
	repo, err := source.OpenRepository(source.Options{URL: r.URL(), Dir: t.TempDir()})
	require.NoError(t, err)
	_, err = repo.Head(t.Context())
	require.NoError(t, err)
	var log strings.Builder
	var read []string
	c := site.Clear{Log: slog.New(slog.NewTextHandler(&log, nil)), Files: func(id string) (fs.FS, error) {
		tree, err := repo.Tree(id)
		return noted{tree, &read}, err
	}}
	require.False(t, c.Withheld(before))
	require.Equal(t, []string{"a/b/c", "site.hcl"}, read)
	require.Empty(t, log.String())
	read = nil
	require.True(t, c.Withheld(with))
	require.Equal(t, []string{"keys/id_ed25519"}, read)
	require.Contains(t, log.String(), "a private key in plain text: keys/id_ed25519")
	require.Contains(t, log.String(), with)
	read = nil
	require.False(t, c.Withheld(after))
	require.True(t, c.Withheld(with))
	require.Equal(t, []string{"site.hcl"}, read)
}

// noted notes which files are read.
type noted struct {
	fs.FS
	read *[]string
}

func (n noted) ReadFile(name string) ([]byte, error) {
	*n.read = append(*n.read, name)
	return fs.ReadFile(n.FS, name)
}
